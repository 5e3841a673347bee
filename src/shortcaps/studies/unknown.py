"""unknown: does a network notice that an image shows none of its classes, and are its probabilities right?"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shortcaps.errors import DataError
from shortcaps.inference.evaluate import expected_calibration_error
from shortcaps.models import Network, as_probabilities
from shortcaps.studies.digits import Digits, draw_images, placed, side_of
from shortcaps.studies.drawing import bars, panels, with_legend
from shortcaps.studies.measured import Measured, Measurement, Scores, identify
from shortcaps.studies.probe import Observed, observe
from shortcaps.studies.statistics import auroc_scores, brier_scores, false_alarms
from shortcaps.studies.study import SIGMOID_TWIN, STANDARD_NETWORKS, Claim, Lookup, Study, register_study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shortcaps.studies.trained import Trained

log = logging.getLogger(__name__)

KEPT = 0.95
OF_CAPSULES = {"activation": "its largest activation", "tightness": "how tightly votes agree"}
OF_PLAIN = {"probability": "its largest probability", "energy": "its energy"}
RULES = {
    **{
        (ours, theirs): f"{how} against {other_how}"
        for ours, how in OF_CAPSULES.items()
        for theirs, other_how in OF_PLAIN.items()
    },
    # One rule for both: shares of activations beside a softmax, and outputs that need not sum to one beside others of that kind.
    ("probability", "probability"): "the largest probability of both",
    ("activation", "activation"): "the largest activation of both",
}
"""How two networks are compared: the detectors of the first and of the second, and both in words."""
SCRAMBLED = "scrambled digits"
SETS = ("fashion-mnist", SCRAMBLED, "noise")
_BLOCK = 7
_TEMPERATURES = torch.logspace(-1, 1, 201, dtype=torch.float64)


def detectors(observed: Observed, sums_to_one: bool) -> dict[str, Tensor]:
    """How sure a network is that an image shows one of its classes, by every rule that it allows, (images,) each.

    Args:
        observed: What it computed for the images.
        sums_to_one: Whether its outputs are probabilities, so that there are no activations besides.
    """
    found = {"probability": as_probabilities(observed.activations).amax(1)}
    if not sums_to_one:
        found["activation"] = observed.activations.amax(1)
    if observed.tightness is not None:
        found["tightness"] = observed.tightness.amax(1)
    if observed.logits is not None:
        found["energy"] = observed.logits.logsumexp(1)
    return found


def scrambled(images: Tensor, seed: int) -> Tensor:
    """Images whose blocks of 7x7 pixels have changed places, each image's in an order of its own: ink as before, but no digit."""
    count, channels, height, width = images.shape
    blocks = images.unfold(2, _BLOCK, _BLOCK).unfold(3, _BLOCK, _BLOCK).flatten(2, 3)
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand((count, blocks.shape[2]), generator=generator).argsort(1)
    mixed = blocks.gather(2, order[:, None, :, None, None].expand_as(blocks))
    rows = mixed.unflatten(2, (height // _BLOCK, width // _BLOCK))
    return rows.permute(0, 1, 2, 4, 3, 5).reshape(images.shape)


def shared_digits(count: int, names: Sequence[str]) -> dict[str, Tensor]:
    """Which digit known images and then unknown ones are made of, for the sets where some share one: a digit and itself scrambled.

    Args:
        count: Images of each set, and known ones.
        names: The sets, in the order in which `all` has them.
    """
    if SCRAMBLED not in names:
        return {}
    known = torch.arange(count)
    unknown = [known if name == SCRAMBLED else known + count * (place + 1) for place, name in enumerate(names)]
    return {"all": torch.cat([known, *unknown]), SCRAMBLED: torch.cat([known, known])}


def tempered(probabilities: Tensor, temperature: float | Tensor) -> Tensor:
    """Probabilities (images, classes) made softer (above 1) or sharper (below 1)."""
    return (probabilities.clamp_min(1e-300).log() / temperature).softmax(1)


def best_temperature(probabilities: Tensor, labels: Tensor) -> float:
    """The temperature at which probabilities (images, classes) have the highest likelihood of the labels."""
    losses = [
        -tempered(probabilities, temperature).gather(1, labels[:, None]).clamp_min(1e-300).log().mean()
        for temperature in _TEMPERATURES
    ]
    return float(_TEMPERATURES[int(torch.stack(losses).argmin())])


@register_study
class Unknown(Study):
    """Area under the ROC curve and false alarms for images of other sets and noise; calibration before and after scaling."""

    name = "unknown"
    title = "Images of no known class, and calibration"
    question = (
        "Claimed: activations that do not have to sum to one, and the tightness of votes, show better than a softmax that an image is of no "
        "known class."
    )
    networks = (*STANDARD_NETWORKS, SIGMOID_TWIN)
    also_on = ("mnist",)

    @property
    def count(self) -> int:
        """How many known images, and how many unknown ones of each set."""
        return 200 if self.quick else 2000

    @cached_property
    def known(self) -> Digits:
        """The test digits."""
        return draw_images("mnist", "test", self.count)

    @cached_property
    def validation(self) -> Digits:
        """Digits that the temperature is chosen on."""
        return draw_images("mnist", "validation", self.count)

    @cached_property
    def unknown(self) -> dict[str, Tensor]:
        """Images of 28x28 that show no digit, by set; a set that cannot be fetched is left out."""
        count, found = len(self.known), {}
        try:
            found["fashion-mnist"] = draw_images("fashion-mnist", "test", count).images
        except DataError as reason:
            log.warning("fashion-mnist is left out: %s", reason)
        found[SCRAMBLED] = scrambled(self.known.images, seed=40_021)
        generator = torch.Generator().manual_seed(40_022)
        found["noise"] = torch.randint(256, self.known.images.shape, generator=generator, dtype=torch.uint8)
        return found

    def measure(self, model: Network, trained: Trained, others: Lookup) -> Measured:
        """Every detector on every set, and calibration."""
        side = side_of(model)
        # In single precision many activations are exactly 1, and ties would decide.
        model = model.double()
        digits = placed(self.known.images, side, seed=40_023)
        others_shown = {name: placed(images, side, seed=40_024) for name, images in self.unknown.items()}
        known = observe(model, digits)
        sure = detectors(known, model.sums_to_one)
        unknown = {name: detectors(observe(model, images), model.sums_to_one) for name, images in others_shown.items()}
        scores: dict[str, Scores] = {}
        originals = shared_digits(len(known.activations), list(unknown))
        for detector, of_known in sure.items():
            sets = {name: found[detector] for name, found in unknown.items()}
            for name, of_unknown in {**sets, "all": torch.cat(list(sets.values()))}.items():
                scores[f"auroc {name} by {detector}"] = Scores(auroc_scores(of_known, of_unknown), originals.get(name))
                scores[f"false alarms {name} by {detector}"] = Scores(false_alarms(of_known, of_unknown, KEPT))
        values = self._calibrate(model, known, side, scores)
        return Measured(scores, values, identify(digits, *others_shown.values()))

    def _calibrate(self, model: Network, known: Observed, side: int, scores: dict[str, Scores]) -> dict[str, float]:
        labels, probabilities = self.known.labels, as_probabilities(known.activations)
        validation = observe(model, placed(self.validation.images, side, seed=40_025))
        temperature = best_temperature(as_probabilities(validation.activations), self.validation.labels)
        right = known.predicted == labels
        scores["accuracy"] = Scores(right.double())
        values = {"temperature": temperature}
        for when, shown in (("before", probabilities), ("after", tempered(probabilities, temperature))):
            scores[f"brier {when}"] = Scores(brier_scores(shown, labels))
            values[f"calibration error {when}"] = expected_calibration_error(shown.amax(1), right)
        return values

    def claims(self) -> Sequence[Claim]:
        """Each detector of capsules against each of plain networks, on each set; and calibration."""
        claims = []
        for name in ("all", *SETS):
            words = "unknown images of all kinds" if name == "all" else name
            for (ours, theirs), rules in RULES.items():
                scored, other = f"auroc {name} by {ours}", f"auroc {name} by {theirs}"
                what = f"area under the ROC curve for {words}, by {rules}"
                is_main = name == "all" and ours != "tightness"
                # Against outputs that need not sum to one either, theirs are what our activations are compared with.
                unless = "" if ours == theirs else f"auroc {name} by activation"
                claims.append(Claim(what, scored, other, percent=False, is_main=is_main, unless=unless))
                what = f"false alarms for {words} with {KEPT:.0%} of the known kept, by {rules}"
                scored, other = scored.replace("auroc", "false alarms"), other.replace("auroc", "false alarms")
                claims.append(Claim(what, scored, other, lower_is_better=True, is_main=False, unless=unless))
        for when in ("before", "after"):
            what = f"Brier score {when} scaling by temperature"
            claims.append(Claim(what, f"brier {when}", percent=False, lower_is_better=True, is_main=False))
        return claims

    def notes(self) -> Sequence[str]:
        """What is shown."""
        return [
            f"{self.count:,} of MNIST's test digits against as many images of each unknown set: Fashion-MNIST, digits whose blocks of 7x7 pixels "
            "have changed places, and uniform noise. The area is how often a digit looks more familiar than an unknown image; chance is 0.5.",
            "Tightness is what the routing says of a class before any readout: how closely votes agree (fuzzy, EM), or how long the pose is "
            "(attention, dynamic); in the baseline networks it is the activation itself.",
            f"{SIGMOID_TWIN} is the plain twin with outputs that need not sum to one, trained by the same loss: what it shares with the capsules is not the capsules' doing.",
            "The temperature was chosen on validation digits. A calibration error is the mean gap between confidence and accuracy over 15 bins.",
        ]

    def draw(self, measurements: Sequence[Measurement]) -> Figure:
        """A panel for each detector with a bar for each network and set, and one for calibration."""
        rules = [*OF_CAPSULES, *OF_PLAIN]
        figure, axes = panels(len(rules) + 1)
        for panel, rule in zip(axes, rules, strict=False):
            bars(panel, measurements, [f"auroc {name} by {rule}" for name in SETS], ["fashion", "scrambled", "noise"])
            panel.set_ylim(0, 1.02)
            panel.set_ylabel(f"AUROC by {rule}")
        names = [f"calibration error {when}" for when in ("before", "after")]
        bars(axes[-1], measurements, names, ["before", "after scaling"])
        axes[-1].set_ylabel("calibration error")
        return with_legend(figure, axes)
