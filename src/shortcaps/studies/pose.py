"""pose: how well rotation, scale, shear and position are read linearly off the pose of the class, which nobody has taught it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from shortcaps.data.affnist import SIDE, affine_matrices, centres, transform
from shortcaps.errors import RunError
from shortcaps.inference.explain.equivariance import IMAGES_PER_NUMBER, equivariance_score
from shortcaps.layers import ClassCapsules
from shortcaps.models import CapsuleNetwork, Network
from shortcaps.studies.digits import draw_images, placed, side_of
from shortcaps.studies.drawing import bars, networks_of, panels, with_legend
from shortcaps.studies.measured import Measured, Measurement, Scores, identify
from shortcaps.studies.networks import is_plain
from shortcaps.studies.probe import as_floats, observe
from shortcaps.studies.statistics import r2_scores, ridge
from shortcaps.studies.study import Claim, Lookup, Study, register_study
from shortcaps.training.setup import make_network

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shortcaps.studies.trained import Trained

TARGETS = ("rotation", "scale", "shear", "position across", "position down")
WIDTH = 16
"""Numbers of a pose; features of plain networks are reduced to as many."""
READ_WELL = 0.5
_FOLDS = 5
_STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
_ROTATION, _SHEAR, _SCALE = math.radians(45), 0.4, (0.7, 1.3)


@dataclass(frozen=True)
class Posed:
    """Digits of which is known how each was transformed.

    Attributes:
        images: (count, 1, 40, 40), uint8.
        labels: (count,).
        targets: (count, targets), in the order of `TARGETS`; the scale as its logarithm.
    """

    images: Tensor
    labels: Tensor
    targets: Tensor


def posed_digits(split: str, count: int, seed: int) -> Posed:
    """Digits of a split under random transformations, each once."""
    digits = draw_images("mnist", split, count)
    draws = torch.rand((5, len(digits)), generator=torch.Generator().manual_seed(seed))
    angle, shear = (2 * draws[0] - 1) * _ROTATION, (2 * draws[1] - 1) * _SHEAR
    low, high = (math.log(bound) for bound in _SCALE)
    scale = low + draws[2] * (high - low)
    matrices = affine_matrices(angle, shear, scale.exp(), scale.exp())
    position = draws[3:].T
    middle = centres(digits.images, matrices, position)
    targets = torch.stack([angle, scale, shear, middle[:, 0], middle[:, 1]], 1)
    return Posed(transform(digits.images, matrices, position), digits.labels, targets)


def representation(model: Network, images: Tensor, labels: Tensor) -> Tensor:
    """What a network says of each image besides its class: the pose of the true class, or the features of a plain network.

    Args:
        model: The network.
        images: (count, channels, height, width).
        labels: (count,).

    Returns:
        (count, numbers).

    Raises:
        RunError: The network has neither.
    """
    observed = observe(model, images)
    if observed.pose is not None:
        return observed.pose[torch.arange(len(labels)), labels]
    if observed.features is None:
        raise RunError(f"a {model.title} has neither poses nor a last linear layer: leave it out of the study pose")
    return observed.features


def directions(representations: Tensor) -> Tensor:
    """Representations (count, numbers) of length 1: what is left of a pose when its length, which may tell how sure the network is, is not told."""
    return torch.nn.functional.normalize(representations.double(), dim=1)


def reduced(fitted: Tensor, tested: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Both with at most so many numbers: their principal components, by the first (count, numbers) alone."""
    if fitted.shape[1] <= width:
        return fitted, tested
    middle, deviation = fitted.double().mean(0), fitted.double().std(0).clamp_min(1e-12)
    scaled = (fitted.double() - middle) / deviation
    _, _, directions = torch.linalg.svd(scaled, full_matrices=False)
    basis = directions[:width].mT
    return scaled @ basis, ((tested.double() - middle) / deviation) @ basis


def read_off(fitted: Tensor, fit: Posed, tested: Tensor, test: Posed) -> Tensor:
    """Targets (count, targets) of the tested images, read linearly off their representations by a map for each class.

    Args:
        fitted: (count, numbers), of the images that the maps are fitted to.
        fit: Those images.
        tested: (count, numbers), of the others.
        test: The others.

    Returns:
        (count, targets), none outside the range of what was fitted: a single wild feature should not decide.
    """
    strength = best_strength(fitted, fit)
    predicted = torch.zeros_like(test.targets, dtype=torch.float64)
    for number in test.labels.unique():
        own, of_class = fit.labels == number, test.labels == number
        predicted[of_class] = _readings(fitted[own], fit.targets[own], tested[of_class], strength)
    return predicted.clamp(fit.targets.double().amin(0), fit.targets.double().amax(0))


def best_strength(fitted: Tensor, fit: Posed) -> float:
    """The strength of the ridge with which readings fitted to four fifths of the images are best on the others."""
    fold = torch.randperm(len(fitted), generator=torch.Generator().manual_seed(0)) % _FOLDS
    errors = []
    for strength in _STRENGTHS:
        left = torch.zeros_like(fit.targets, dtype=torch.float64)
        for number in fit.labels.unique():
            for out in range(_FOLDS):
                own, held = (fit.labels == number) & (fold != out), (fit.labels == number) & (fold == out)
                left[held] = _readings(fitted[own], fit.targets[own], fitted[held], strength)
        left = left.clamp(fit.targets.double().amin(0), fit.targets.double().amax(0)) - fit.targets
        # Each target counts alike, whatever its unit.
        errors.append(float((left.square().mean(0) / fit.targets.double().var(0).clamp_min(1e-12)).mean()))
    return _STRENGTHS[errors.index(min(errors))]


def _readings(fitted: Tensor, targets: Tensor, tested: Tensor, strength: float) -> Tensor:
    """Targets of the tested, (count, targets), read by a map that was fitted to others of the class; zeros where there are too few."""
    if len(fitted) < 2:
        return targets.new_zeros(len(tested), targets.shape[1]).double()
    weights, intercept = ridge(fitted, targets, strength)
    return tested.double() @ weights + intercept


class _FeaturesAsPose:
    """A plain network whose features stand where the equivariance score looks for the pose of the winning class."""

    def __init__(self, model: Network) -> None:
        self.model = model

    def capsules(self, images: Tensor, *, keep_coefficients: bool = False) -> ClassCapsules:
        observed = observe(self.model, images)
        assert observed.features is not None, "asked for networks with features only"
        features = observed.features[:, None, :, None].expand(-1, observed.activations.shape[1], -1, -1)
        return ClassCapsules(features, observed.activations)


@register_study
class Pose(Study):
    """R² of a linear reading on held-out digits, beside an untrained network and the features of plain ones; equivariance."""

    name = "pose"
    title = "What is in a pose"
    question = "Claimed (Sabour et al. 2017; Hinton et al. 2018): the pose of a class capsule holds how the thing lies, though only the class was taught."

    @property
    def counts(self) -> tuple[int, int]:
        """How many digits readings are fitted to, and how many they are tested on."""
        return (1500, 300) if self.quick else (5000, 2000)

    @cached_property
    def fit(self) -> Posed:
        """Validation digits, which readings are fitted to."""
        return posed_digits("validation", self.counts[0], seed=40_026)

    @cached_property
    def test(self) -> Posed:
        """Test digits, which they are tested on."""
        return posed_digits("test", self.counts[1], seed=40_027)

    def measure(self, model: Network, trained: Trained, others: Lookup) -> Measured:
        """R² of every target, of the network and of one like it that was never trained; equivariance."""
        side_of(model, SIDE)
        found = self._represented(model)
        scores = self._read(found, "", WIDTH) | self._read([directions(part) for part in found], "direction ", WIDTH)
        values = {}
        features = observe(model, self.test.images[:1]).features
        if features is not None and features.shape[1] > WIDTH:
            values["all features"] = self._read(found, "", features.shape[1])["mean"].mean
        untrained = make_network(trained.manifest.network, trained.seed).eval()
        scores |= self._read(self._represented(untrained), "untrained ", WIDTH)
        upright = draw_images("mnist", "test", 300 if self.quick else 500).images
        measured = model if isinstance(model, CapsuleNetwork) else cast(CapsuleNetwork, _FeaturesAsPose(model))
        # Scores of more images are higher, so a network with more features than these can tell has none.
        if len(upright) >= IMAGES_PER_NUMBER * found[1].shape[1]:
            followed = equivariance_score(measured, as_floats(placed(upright, SIDE, seed=40_028)))
            values["equivariance"] = followed.score
            values |= {f"equivariance {name}": score for name, score in followed.by_transformation.items()}
        return Measured(scores, values, identify(self.test.images, self.fit.images))

    def _represented(self, model: Network) -> list[Tensor]:
        """What a network says of the images that readings are fitted to, and of those that they are tested on."""
        return [representation(model, posed.images, posed.labels) for posed in (self.fit, self.test)]

    def _read(self, found: Sequence[Tensor], prefix: str, width: int) -> dict[str, Scores]:
        fitted, tested = reduced(found[0], found[1], width)
        predicted = read_off(fitted, self.fit, tested, self.test)
        scores = [r2_scores(predicted[:, n], self.test.targets[:, n]) for n in range(len(TARGETS))]
        by_name = {f"{prefix}{target}": Scores(score) for target, score in zip(TARGETS, scores, strict=True)}
        return by_name | {f"{prefix}mean": Scores(torch.stack(scores).mean(0))}

    def claims(self) -> Sequence[Claim]:
        """R² of all targets together and of each, off the numbers as they are and off their direction."""
        claims = [Claim("R² of pose read linearly, mean of five", "mean", percent=False)]
        for prefix, off in (("", ""), ("direction ", " off the direction alone")):
            targets = {target: f"the {target}" for target in TARGETS} | (
                {"mean": "all five, their mean"} if prefix else {}
            )
            claims += [
                Claim(f"R² of {words} read linearly{off}", f"{prefix}{target}", percent=False, is_main=False)
                for target, words in targets.items()
            ]
        return claims

    def sentences(self, measurements: Sequence[Measurement]) -> Sequence[str]:
        """Whether the poses deserve their name."""
        said = []
        for network in networks_of(measurements):
            runs = [m.values for m in measurements if m.network == network]
            trained = {target: mean(values[target] for values in runs) for target in TARGETS}
            before = {target: mean(values[f"untrained {target}"] for values in runs) for target in TARGETS}
            well = [t for t in TARGETS if trained[t] >= READ_WELL]
            gained = [t for t in well if trained[t] > before[t]]
            figures = ", ".join(f"{t} {trained[t]:.2f} ({before[t]:.2f})" for t in TARGETS)
            directed = [values for values in runs if f"direction {TARGETS[0]}" in values]  # older records lack it
            by_direction = ", ".join(
                f"{t} {mean(values[f'direction {t}'] for values in directed):.2f}" for t in TARGETS if directed
            )
            what = "the features" if is_plain(network) else "the pose"
            said.append(
                f"Off {what} of {network} are read, with R² before training in brackets: {figures}. At least {READ_WELL:g}: "
                f"{', '.join(well) or 'none'}; of these better than before training: {', '.join(gained) or 'none'}. "
                f"Off the direction alone: {by_direction or 'not measured'}."
            )
        return said

    def notes(self) -> Sequence[str]:
        """How it is read."""
        fitted, tested = self.counts
        return [
            f"A linear map for each class was fitted to {fitted:,} validation digits and tested on {tested:,} test digits, under random rotation within "
            f"45°, scale 0.7 to 1.3, shear within 0.4 and any place; how much the maps are kept small was chosen by cross-validation on the former, and "
            f"no reading leaves the range of what was fitted. Of plain networks the {WIDTH} principal components of the features are taken, as many numbers "
            "as a pose has; `all features` is the R² with all of them. The class is given to both.",
            "Direction: the same with every pose, or every image's features, divided by its length. This reading was added after the first had been seen for "
            "one seed: the length of a pose tells how sure the network is, and spans three powers of ten.",
            "Equivariance: the share of the change under small transformations that one linear map for each explains, on images it was not fitted to; "
            "1 is all of it, 0 none.",
        ]

    def draw(self, measurements: Sequence[Measurement]) -> Figure:
        """R² after and before training."""
        figure, axes = panels(2, height=3.4)
        labels = ["rotation", "scale", "shear", "across", "down"]
        for panel, prefix, title in zip(axes, ("", "untrained "), ("trained", "untrained"), strict=True):
            bars(panel, measurements, [f"{prefix}{target}" for target in TARGETS], labels)
            panel.axhline(0, color="#8a94a0", linewidth=0.8)
            panel.set_ylim(-0.2, 1.02)
            panel.set_ylabel(f"R², {title}")
        return with_legend(figure, axes)
