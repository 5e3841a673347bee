"""corrupted: noise, blur, occlusion, low contrast, and attacks that know the network or its twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shortcaps.models import Network
from shortcaps.studies.attacks import STEPS, fgsm, gradients, pgd
from shortcaps.studies.corruptions import CORRUPTIONS, corrupted
from shortcaps.studies.digits import Digits, draw_images, placed, side_of
from shortcaps.studies.drawing import curves, networks_of, panels, with_legend
from shortcaps.studies.measured import Measured, Measurement, Scores, identify
from shortcaps.studies.probe import answers, as_floats
from shortcaps.studies.study import Claim, Lookup, Study, register_study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shortcaps.studies.trained import Trained

RADII = (0.02, 0.05, 0.1, 0.2)
FULL_RADIUS = 0.5
"""So far every image can be made the same grey, so an attack that does not get through was kept from finding its way."""
SOURCE, SOURCE_OF_ITSELF = "compact-23k-plain", "compact-23k"
"""Whose gradients make the images that are tried on the others, and on itself."""
_TOLERANCE = 0.02


@register_study
class Corrupted(Study):
    """Accuracy under corruptions and attacks, compared on images that both networks recognise unharmed."""

    name = "corrupted"
    title = "Corrupted and attacked images"
    question = (
        "Claimed (Hinton et al. 2018; disputed by Michels et al. 2019): capsules stand noise and adversarial attacks better than plain "
        "networks."
    )
    also_on = ("mnist",)

    @property
    def count(self) -> int:
        """How many test digits are corrupted."""
        return 200 if self.quick else 2000

    @property
    def attacked(self) -> int:
        """How many of them are attacked."""
        return 48 if self.quick else 400

    @cached_property
    def digits(self) -> Digits:
        """The test digits."""
        return draw_images("mnist", "test", self.count)

    def measure(self, model: Network, trained: Trained, others: Lookup) -> Measured:
        """Accuracy unharmed, at every strength of every corruption, and under every attack."""
        images = as_floats(placed(self.digits.images, side_of(model), seed=40_020))
        labels = self.digits.labels
        shown = self.identity(images, labels)
        model = model.requires_grad_(False)
        right = {"clean": answers(model, images) == labels}
        for kind, corruption in CORRUPTIONS.items():
            for strength in corruption.strengths:
                right[f"{kind} {strength:g}"] = answers(model, corrupted(images, kind, strength)) == labels
        right["clean, attacked ones"] = right["clean"][: self.attacked]
        images, labels = images[: self.attacked], labels[: self.attacked]
        for radius in RADII:
            right[f"fgsm {radius:g}"] = answers(model, fgsm(model, images, labels, radius)) == labels
            right[f"pgd {radius:g}"] = answers(model, pgd(model, images, labels, radius)) == labels
        right[f"pgd {FULL_RADIUS:g}"] = answers(model, pgd(model, images, labels, FULL_RADIUS)) == labels
        _, gradient = gradients(model, images, labels)
        values = {"images without gradient": float((gradient.flatten(1).abs().amax(1) == 0).double().mean())}
        source = others.find(SOURCE if trained.network != SOURCE else SOURCE_OF_ITSELF, trained.seed, trained.part)
        if source is not None:
            attacker = source.load().requires_grad_(False)
            for radius in RADII:
                right[f"transfer {radius:g}"] = answers(model, pgd(attacker, images, labels, radius)) == labels
        scores = {name: Scores(found.double()) for name, found in right.items()}
        for kind, corruption in CORRUPTIONS.items():
            parts = [right[f"{kind} {strength:g}"].double() for strength in corruption.strengths]
            scores[f"all {kind}"] = Scores(torch.stack(parts).mean(0))
        for attack in ("fgsm", "pgd"):
            scores[f"all {attack}"] = Scores(
                torch.stack([right[f"{attack} {radius:g}"].double() for radius in RADII]).mean(0)
            )
        scores["all corruptions"] = Scores(torch.stack([scores[f"all {kind}"].values for kind in CORRUPTIONS]).mean(0))
        return Measured(scores, values, shown)

    @staticmethod
    def identity(images: Tensor, labels: Tensor) -> str:
        """Of the digits, and of what is done to them."""
        strengths = {kind: corruption.strengths for kind, corruption in CORRUPTIONS.items()}
        return identify(images, labels, repr((strengths, RADII, FULL_RADIUS, STEPS)))

    def claims(self) -> Sequence[Claim]:
        """Corruptions by kind and all together, attacks over all radii and by radius, all at matched clean accuracy."""
        matched = ", among digits that both recognise unharmed"
        claims = [Claim(f"accuracy under corruption{matched}", "all corruptions", among="clean")]
        for kind in CORRUPTIONS:
            claims.append(Claim(f"accuracy under {kind}{matched}", f"all {kind}", among="clean", is_main=False))
        for attack in ("pgd", "fgsm"):
            # Where everything stands or nothing does, no network can lead: no single radius decides.
            what = f"accuracy under {attack.upper()} averaged over radii up to {RADII[-1]:g}{matched}"
            among = "clean, attacked ones"
            claims.append(Claim(what, f"all {attack}", among=among, is_main=attack == "pgd"))
            for radius in RADII:
                what = f"accuracy under {attack.upper()} within {radius:g}{matched}"
                claims.append(Claim(what, f"{attack} {radius:g}", among=among, is_main=False))
        return claims

    def sentences(self, measurements: Sequence[Measurement]) -> Sequence[str]:
        """Whether each network's gradients show an attack the way, so that standing it means something."""
        return [
            _masking(network, [m for m in measurements if m.network == network])
            for network in networks_of(measurements)
        ]

    def notes(self) -> Sequence[str]:
        """What is shown."""
        return [
            f"{self.count:,} of MNIST's test digits, of which {self.attacked} are attacked; what is random is the same for all networks. The "
            "attacks lower the difference between the logarithms of the true class's activation and of the largest other, PGD in 20 steps "
            "from a random start. Stronger attacks exist, so an accuracy under attack is an upper bound.",
            f"Transfer: the images were made with the gradients of {SOURCE} of the same seed ({SOURCE_OF_ITSELF} for {SOURCE} itself).",
        ]

    def draw(self, measurements: Sequence[Measurement]) -> Figure:
        """A panel for each corruption, and one for each attack."""
        figure, axes = panels(len(CORRUPTIONS) + 2)
        for panel, (kind, corruption) in zip(axes, CORRUPTIONS.items(), strict=False):
            names = ["clean", *(f"{kind} {strength:g}" for strength in corruption.strengths)]
            curves(panel, measurements, (0, *corruption.strengths), names)
            panel.set_xlabel(corruption.unit)
        for panel, attack in zip(axes[len(CORRUPTIONS) :], ("fgsm", "pgd"), strict=True):
            names = ["clean, attacked ones", *(f"{attack} {radius:g}" for radius in RADII)]
            curves(panel, measurements, (0, *RADII), names)
            panel.set_xlabel(f"{attack.upper()}, radius")
        for panel in axes:
            panel.set_ylabel("accuracy")
            panel.set_ylim(0, 1.02)
        return with_legend(figure, axes)


def _masking(network: str, runs: Sequence[Measurement]) -> str:
    """What the usual checks for masked gradients (Athalye et al. 2018) say of a network: of each run, since a mean would hide one that stands out."""
    doubts = []
    for run in runs:
        found = _doubts(run.values)
        if found:
            doubts.append((f"with seed {run.seed} " if len(runs) > 1 else "") + "; ".join(found))
    is_compared = any(name.startswith("transfer ") for run in runs for name in run.values)
    transferred = "" if is_compared else " (transfer from another network was not checked)"
    if doubts:
        return f"The gradients of {network} may be masked: {'; '.join(doubts)}{transferred}. Its accuracy under attack may be too high."
    return f"Nothing suggests that the gradients of {network} are masked{transferred}."


def _doubts(accuracies: Mapping[str, float]) -> list[str]:
    """What in the accuracies of one run would not be so if its gradients led an attack the right way."""
    doubts = []
    full, without = accuracies.get(f"pgd {FULL_RADIUS:g}", 0.0), accuracies.get("images without gradient", 0.0)
    if full > _TOLERANCE:
        doubts.append(f"PGD within {FULL_RADIUS:g} leaves {full:.1%}, where nothing should be left")
    if without > _TOLERANCE:
        doubts.append(f"{without:.1%} of the images have no gradient")
    for radius in RADII:
        one_step, steps, transfer = (accuracies.get(f"{attack} {radius:g}") for attack in ("fgsm", "pgd", "transfer"))
        if steps is None:
            continue
        if one_step is not None and one_step < steps - _TOLERANCE:
            doubts.append(f"within {radius:g} one step ({one_step:.1%}) does better than many ({steps:.1%})")
        if transfer is not None and transfer < steps - _TOLERANCE:
            doubts.append(
                f"within {radius:g} another network's gradients ({transfer:.1%}) do better than its own ({steps:.1%})"
            )
    return doubts
