"""The output of networks and heads with class capsules."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass
class ClassCapsules:
    """The class capsules of a batch of images.

    Attributes:
        pose: (batch, classes, rows, cols).
        activation: (batch, classes), each in 0–1 by itself.
        coefficients: How the lower capsules were weighted, for each block, if requested. Shortcuts: (batch, passes, classes,
            channels, height, width) each. Sequential network: (batch, outputs, height, width, kernel, kernel, channels) for each
            capsule layer.
    """

    pose: Tensor
    activation: Tensor
    coefficients: tuple[Tensor, ...] | None = None
