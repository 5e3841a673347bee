"""Routing maps: the positions and capsules from which a class takes its votes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shortcaps.models import CapsuleNetwork, Network, as_probabilities


@dataclass(frozen=True)
class RoutingMaps:
    """Coefficients of one class for each image, divided by their mean: 1 is as much as any other capsule.

    Attributes:
        classes: (batch,), the class of each image's maps.
        activations: (batch, classes), each in 0–1 by itself.
        poses: (batch, classes, rows, cols); None for a network without pose capsules.
        maps: For each shortcut (batch, passes, channels, height, width). A sequential network has one, for its last layer, with one
            pass; a network without pose capsules has none.
    """

    classes: Tensor
    activations: Tensor
    poses: Tensor | None
    maps: tuple[Tensor, ...]

    @property
    def probabilities(self) -> Tensor:
        """The activations, scaled to sum to 1."""
        return as_probabilities(self.activations)

    def over_channels(self) -> tuple[Tensor, ...]:
        """The mean over channels: for each shortcut (batch, passes, height, width)."""
        return tuple(block.mean(2) for block in self.maps)


def has_positions(block: Tensor) -> bool:
    """Whether a map (…, height, width) has more than one position."""
    return block.shape[-1] * block.shape[-2] > 1


@torch.no_grad()
def routing_maps(model: Network, images: Tensor, classes: Tensor | None = None) -> RoutingMaps:
    """Where a class takes its votes from.

    Args:
        model: Any network; one without pose capsules has activations only.
        images: (batch, channels, height, width) in 0–1.
        classes: (batch,), the class of interest for each image; None for the winner.
    """
    if not isinstance(model, CapsuleNetwork):
        activations = model(images)
        return RoutingMaps(activations.argmax(1) if classes is None else classes, activations, None, ())
    capsules = model.capsules(images)
    assert capsules.coefficients is not None, "they were requested"
    winners = capsules.activation.argmax(1) if classes is None else classes
    one_each = torch.arange(len(images), device=images.device)
    blocks = []
    if model.shortcut:
        for block in capsules.coefficients:
            blocks.append(block[one_each, :, winners])
    else:
        # The last kernel covers the whole map: (batch, classes, 1, 1, kernel, kernel, channels).
        last = capsules.coefficients[-1][one_each, winners, 0, 0]
        blocks.append(last.permute(0, 3, 1, 2).unsqueeze(1))
    shares = tuple(block / block.mean((2, 3, 4), keepdim=True).clamp_min(1e-12) for block in blocks)
    return RoutingMaps(winners, capsules.activation, capsules.pose, shares)
