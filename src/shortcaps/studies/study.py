"""The interface of a study: what it trains, what it measures, what is claimed, and how it is drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from shortcaps.registry import Registry

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shortcaps.models import Network
    from shortcaps.studies.measured import Measured, Measurement
    from shortcaps.studies.trained import Trained

STANDARD_NETWORKS = ("baseline/fuzzy", "baseline/attention", "compact-23k", "compact-23k-plain", "cnn-23k")
SIGMOID_TWIN = "compact-23k-sigmoid"
"""Where a claim is about outputs that do not compete for a softmax: a plain network that has such outputs too."""
RECIPE = "compact-adam"
"""The same recipe for all networks, also for those that have another of their own; the one that the stored measurements were made by."""


@dataclass(frozen=True)
class Part:
    """A training that a study needs of every network and seed.

    Attributes:
        name: What tells it from the study's other parts; empty if there are none.
        settings: Of the training, by their names on the command line, without network and seed.
        folder: Folder below that of all studies' runs; runs of the standard training have none, as studies share them.
        prefix: What the name of the network that is trained begins with, before the name of the network in the study.
        accepts: Other data sets; a run that was trained on one can be measured if it is named.
        draws: Whether each seed also has a draw of training images of its own.
    """

    name: str
    settings: Mapping[str, Any]
    folder: str = ""
    prefix: str = ""
    accepts: tuple[str, ...] = ()
    draws: bool = False


@dataclass(frozen=True)
class Claim:
    """A statistic by which networks are compared.

    Attributes:
        what: The statistic in words, which complete "… is ahead of … in".
        score: The name of the network's scores.
        other: The name of the opponent's scores; those of the same name if empty.
        part: The part of the study.
        among: The name of scores that must be 1 for both networks with every seed for an image to count, so that the networks are
            compared where they are equally good; empty to count all images.
        unless: The name of scores by which an opponent that has them is compared instead, in another claim.
        percent: Whether the statistic is a share, given in percent and points, or else a plain number.
        lower_is_better: Whether a smaller number is ahead.
        is_main: Whether it belongs into summaries.
    """

    what: str
    score: str
    other: str = ""
    part: str = ""
    among: str = ""
    unless: str = ""
    percent: bool = True
    lower_is_better: bool = False
    is_main: bool = True


def standard_training(quick: bool) -> dict[str, Any]:
    """Digits placed anywhere on 40x40 pixels, and nothing else: what affNIST trains on. Several studies share these runs."""
    return {"data": "affnist", "recipe": RECIPE, **shortened(quick)}


def shortened(quick: bool, *, epochs: int = 2, max_images: int = 4000) -> dict[str, int]:
    """The settings by which a quick version trains less; none for the whole version."""
    return {"epochs": epochs, "max_images": max_images} if quick else {}


@dataclass(frozen=True)
class Lookup:
    """The other trained networks of a study, for measures that need more than one.

    Attributes:
        find: Returns the run of a network, seed and part, or None where there is none.
    """

    find: Callable[[str, int, str], Trained | None] = lambda network, seed, part: None


class Study(ABC):
    """A claim of the field, made measurable.

    A study is created for one invocation, so that it may keep the images that it shows to one network after another.

    Args:
        quick: Whether to do a shorter version, with less training and fewer images; records say so.

    Attributes:
        name: Its name on the command line.
        title: Its title in reports.
        question: What is claimed, and by whom.
        networks: Those that are compared by default.
        seeds: How many by default.
        also_on: Data sets besides that of the standard training whose networks it can measure, if they are named.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    question: ClassVar[str]
    networks: ClassVar[tuple[str, ...]] = STANDARD_NETWORKS
    seeds: ClassVar[int] = 3
    also_on: ClassVar[tuple[str, ...]] = ()

    def __init__(self, quick: bool = False) -> None:
        self.quick = quick

    def parts(self) -> tuple[Part, ...]:
        """The trainings it needs; by default the standard one."""
        return (Part("", standard_training(self.quick), accepts=("affnist-regenerated", *self.also_on)),)

    @property
    def draws(self) -> bool:
        """Whether each seed has a draw of training images of its own, which all networks share."""
        return any(part.draws for part in self.parts())

    @abstractmethod
    def measure(self, model: Network, trained: Trained, others: Lookup) -> Measured:
        """Measure one trained network.

        Args:
            model: The network, in evaluation mode.
            trained: The run it is from.
            others: The other networks of the study.
        """

    @abstractmethod
    def claims(self) -> Sequence[Claim]:
        """The statistics by which networks are compared."""

    @abstractmethod
    def draw(self, measurements: Sequence[Measurement]) -> Figure:
        """A plot of what was measured, at least one measurement."""

    def derived(self, measurements: Sequence[Measurement]) -> Sequence[Measurement]:
        """Measurements that are computed from several others, under a part of their own."""
        return ()

    def matched(self, ours: Measurement, theirs: Measurement) -> tuple[Measurement, Measurement]:
        """The measurements of two networks with the same seed, with further scores that depend on both."""
        return ours, theirs

    def sentences(self, measurements: Sequence[Measurement]) -> Sequence[str]:
        """What else the measurements say, besides the comparisons."""
        return ()

    def notes(self) -> Sequence[str]:
        """What a reader must know before quoting anything."""
        return ()


STUDIES: Registry[type[Study]] = Registry("study")
AnyStudy = TypeVar("AnyStudy", bound=type[Study])


def register_study(study: AnyStudy) -> AnyStudy:
    """Register a study under its name: a decorator for its class."""
    STUDIES.register(study.name, study)
    return study


def list_studies() -> list[str]:
    """Names of the registered studies."""
    return STUDIES.names()
