"""Write a routing of your own, check it with `shortcaps.testing`, and put it into a network.

This one weighs votes by a softmax over negative distances: fuzzy routing's idea with attention's normalisation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

import shortcaps
from shortcaps import Capsules, Routing, Votes
from shortcaps.testing import check_routing


@dataclass(frozen=True)
class Nearest(Routing):
    name = "nearest"

    temperature: float = field(default=1.0, metadata={"help": "the smaller, the harder the choice"})

    def sweeps(self, *, from_start: bool, activates: bool) -> int:
        return 2 * self.iterations - (0 if from_start else 1) + (1 if activates else 0)

    def route(
        self,
        votes: Votes,
        start: Tensor | None,
        activations: Tensor | None,
        thresholds: Mapping[str, Tensor],
        activate: bool,
        keep_coefficients: bool,
    ) -> Capsules:
        pose = start
        for _ in range(self.iterations):
            if pose is None:
                shape = (votes.batch, votes.inputs, votes.outputs)
                memberships = torch.full(shape, 1 / votes.outputs, dtype=votes.dtype, device=votes.device)
            else:
                memberships = (-votes.distance(pose) / self.temperature).softmax(-1)
            weights = memberships if activations is None else memberships * activations.unsqueeze(-1)
            coefficients = weights / (weights.sum(1, keepdim=True) + 1e-12)
            pose = votes.weighted_sum(coefficients)
        assert pose is not None
        variance = (coefficients * votes.distance(pose)).sum(1)
        return Capsules(pose, torch.exp(-variance), coefficients, memberships)


for law, holds in check_routing(Nearest()).items():
    print(f"{'holds' if holds else 'does not hold':14} {law}")

model = shortcaps.create_model("baseline", routing=Nearest(iterations=2))
print(model.summary())
probabilities = model(torch.rand(2, 1, 28, 28))
print("probabilities of two random images:", probabilities.shape)
