"""Two networks of a study compared: who is ahead, by how much, and how certain that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shortcaps.errors import RunError
from shortcaps.reporting.paired import Answers, PairedDifference, paired_difference, relation, seeds_in_words
from shortcaps.reproduce.records import SETTINGS_BY_NETWORK, completed
from shortcaps.studies.measured import Measurement
from shortcaps.studies.networks import opponents
from shortcaps.studies.study import Claim, Study


@dataclass(frozen=True)
class Finding:
    """What the measurements say of one claim about two networks.

    Attributes:
        what: The statistic in words.
        part: The part of the study.
        network: The network with capsules.
        opponent: The one without.
        value: The statistic of the network, mean over seeds.
        opponent_value: That of the opponent.
        difference: The first minus the second.
        interval: 95 % interval of the difference: paired by image, with digits or objects as clusters, and seeds.
        verdict: `ahead`, `behind` or `not told apart`.
        seeds: How many runs of each.
        images: How many images counted.
        percent: Whether the statistic is a share.
        same_recipe: Whether both were trained by one recipe, on the same data under the same protocol.
        is_main: Whether it belongs into summaries.
    """

    what: str
    part: str
    network: str
    opponent: str
    value: float
    opponent_value: float
    difference: float
    interval: tuple[float, float]
    verdict: str
    seeds: int
    images: int
    percent: bool
    same_recipe: bool
    is_main: bool

    @property
    def shown(self) -> str:
        """The difference with its interval, in points for shares."""
        low, high = self.interval
        if self.percent:
            return f"{100 * self.difference:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]"
        return f"{self.difference:+.3f} [{low:+.3f}, {high:+.3f}]"

    def shown_value(self, value: float) -> str:
        """A value of the statistic, in percent for shares."""
        return f"{value:.2%}" if self.percent else f"{value:.3f}"

    def __str__(self) -> str:
        low, high = self.interval
        joint = relation(self.verdict)
        unit, scale, digits = (" points", 100, 2) if self.percent else ("", 1, 3)
        seeds = seeds_in_words(self.seeds)
        return (
            f"{self.network} is {joint} {self.opponent} in {self.what}: {self.shown_value(self.value)} against "
            f"{self.shown_value(self.opponent_value)}, {scale * self.difference:+.{digits}f}{unit}, 95 % interval "
            f"{scale * low:+.{digits}f} to {scale * high:+.{digits}f}, {seeds}"
            f"{'' if self.same_recipe else ', not trained alike'}."
        )


def compare(study: Study, measurements: Sequence[Measurement]) -> list[Finding]:
    """All comparisons that the measurements allow.

    Raises:
        RunError: Two networks of a comparison were not shown the same images.
    """
    found = []
    every = [*measurements, *study.derived(measurements)]
    for claim in study.claims():
        by_network: dict[str, dict[int, Measurement]] = {}
        for measurement in every:
            if measurement.part == claim.part:
                by_network.setdefault(measurement.network, {})[measurement.seed] = measurement
        order = [name for name in study.networks if name in by_network]
        order += [name for name in by_network if name not in order]
        for network in order:
            for opponent in opponents(network, order):
                finding = _compare(study, claim, by_network[network], by_network[opponent])
                if finding is not None:
                    found.append(finding)
    return found


def _compare(
    study: Study, claim: Claim, ours: dict[int, Measurement], theirs: dict[int, Measurement]
) -> Finding | None:
    """Compare two networks by the seeds that both have; None where there are none, or one has no such scores."""
    other = claim.other or claim.score
    both = [study.matched(ours[seed], theirs[seed]) for seed in sorted(ours) if seed in theirs]
    pairs = [
        (first, second)
        for first, second in both
        if claim.score in first.scores and other in second.scores and claim.unless not in second.scores
    ]
    if not pairs:
        return None
    runs = [first for first, _ in pairs], [second for _, second in pairs]
    first = runs[0][0]
    for measurement in (*runs[0], *runs[1]):
        if measurement.record["images"] != first.record["images"]:
            raise RunError(
                f"{measurement.network}, seed {measurement.seed}, was not measured on the images of {first.network}, seed {first.seed}: "
                "move its record away to measure again"
            )
    kept = _kept([*runs[0], *runs[1]], claim)
    if not bool(kept.any()):
        return None
    answers = []
    for measurements, name in zip(runs, (claim.score, other), strict=True):
        originals = measurements[0].scores[name].originals
        values = [measurement.scores[name].values[kept] for measurement in measurements]
        answers.append(Answers.of(values, None if originals is None else originals[kept]))
    result = paired_difference(*answers, by_seed=study.draws)
    low, high = result.interval
    sided = PairedDifference(-result.difference, (-high, -low)) if claim.lower_is_better else result
    conditions = [_conditions(measurement) for side in runs for measurement in side]
    # Seeds of one network must be alike in what a recipe sets by network too; older records do not hold that.
    own = [[m.record["run"]["by_network"] for m in side if "by_network" in m.record["run"]] for side in runs]
    alike = [entry == entries[0] for entries in (conditions, *own) for entry in entries]
    return Finding(
        claim.what,
        claim.part,
        runs[0][0].network,
        runs[1][0].network,
        float(answers[0].accuracies.mean()),
        float(answers[1].accuracies.mean()),
        result.difference,
        result.interval,
        sided.verdict,
        len(pairs),
        int(kept.sum()),
        claim.percent,
        all(alike),
        claim.is_main,
    )


def _conditions(measurement: Measurement) -> dict[str, Any]:
    """What must be equal for two networks to have been trained alike; older records also hold what a recipe may set by network."""
    run = measurement.record["run"]
    shared = {name: value for name, value in completed(run["conditions"]).items() if name not in SETTINGS_BY_NETWORK}
    data = {name: run.get(name) for name in ("dataset", "protocol", "max_images")}
    return {**shared, **data, "precision": run.get("precision", "32-true"), "by_hand": run.get("by_hand", {})}


def _kept(measurements: Sequence[Measurement], claim: Claim) -> Tensor:
    """Which images count, (images,): those that every run has right, if the claim asks for that."""
    kept = torch.ones(len(measurements[0].scores[claim.score].values), dtype=torch.bool)
    if claim.among:
        for measurement in measurements:
            kept &= measurement.scores[claim.among].values == 1
    return kept
