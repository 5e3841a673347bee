"""Capsule dropout: a capsule is dropped whole or not at all."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class CapsuleDropout(nn.Module):
    """In training, zeroes each capsule (one sample, channel and position; all its numbers) with probability `p`.

    The others are scaled by 1 / (1 - p), so that sums keep their expectation. Activations, if there are any, are dropped with their
    pose, but not rescaled: they stay in 0–1.

    Args:
        p: The probability.
    """

    def __init__(self, p: float = 0.2) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout {p} is out of range: it must be at least 0 and below 1, e.g. 0.2")
        self.p = p

    def forward(self, maps: Tensor) -> Tensor:
        """Capsule maps (batch, cols, channels, rows, height, width) with some capsules zeroed, in training."""
        scale = self.scale(maps)
        return maps if scale is None else maps * scale[:, None, :, None]

    def scale(self, maps: Tensor) -> Tensor | None:
        """The factor of each capsule, (batch, channels, height, width): 0 or 1 / (1 - p); None if dropout is off."""
        if not self.training or self.p == 0:
            return None
        batch, _, channels, _, height, width = maps.shape
        draws = torch.rand((batch, channels, height, width), device=maps.device)
        return (draws >= self.p).to(maps.dtype) / (1 - self.p)

    def drop_with_activations(self, maps: Tensor, activations: Tensor) -> tuple[Tensor, Tensor]:
        """Drop the same capsules from maps and from their activations.

        Args:
            maps: Capsule maps (batch, cols, channels, rows, height, width).
            activations: (batch, channels, height, width).

        Returns:
            Maps and activations, in their shapes.
        """
        scale = self.scale(maps)
        return (maps, activations) if scale is None else (maps * scale[:, None, :, None], activations * (scale > 0))

    def extra_repr(self) -> str:
        """Settings, for printing."""
        return f"p={self.p}"
