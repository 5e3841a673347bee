"""From a feature map to the first capsules."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shortcaps.layers.maps import split_into_capsules, squash_map
from shortcaps.routing.paths import check_path


class PrimaryCapsules(nn.Module):
    """Primary capsules of the shortcut network: 1x1 convolution, ReLU and batch norm, read as poses.

    Args:
        in_channels: Channels of the feature map.
        channels: Capsule channels.
        pose: Rows and columns of a pose.
        rectified: Whether there is a ReLU.
        normalised: Whether there is a batch norm.
    """

    def __init__(
        self, in_channels: int, channels: int, pose: int = 4, *, rectified: bool = True, normalised: bool = True
    ) -> None:
        super().__init__()
        self.channels, self.pose, self.rectified = channels, pose, rectified
        self.convolution = nn.Conv2d(in_channels, channels * pose * pose, 1)
        # None, and no Identity: a module that does nothing takes microseconds, which a single image notices.
        self.norm = nn.BatchNorm2d(channels * pose * pose) if normalised else None

    @property
    def ends_with_relu(self) -> bool:
        """Whether the ReLU is the last step, so that it can be left to the caller."""
        return self.rectified and self.norm is None

    def forward(self, features: Tensor, *, skip_relu: bool = False) -> Tensor:
        """Capsule maps of features.

        Args:
            features: (batch, in_channels, height, width).
            skip_relu: Skip the ReLU; the caller applies it. Only where `ends_with_relu`.

        Returns:
            (batch, cols, channels, rows, height, width).
        """
        features = self.convolution(features)
        if self.rectified and not skip_relu:
            features = torch.relu(features)
        if self.norm is not None:
            features = self.norm(features)
        return split_into_capsules(features, self.channels, self.pose)

    def extra_repr(self) -> str:
        """Settings, for printing."""
        return f"rectified={self.rectified}"


class ActivatedPrimaryCapsules(nn.Module):
    """Primary capsules of the sequential network: poses and, if the routing uses them, activations.

    Args:
        in_channels: Channels of the feature map.
        channels: Capsule channels.
        pose: Rows and columns of a pose.
        activates: Whether activations are computed along with the poses.
        squashes: Whether poses are squashed, for routings whose activation is the length of a pose.
        path: Whether native code is used, one of `shortcaps.routing.paths.PATHS`.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        pose: int = 4,
        *,
        activates: bool,
        squashes: bool,
        path: str = "auto",
    ) -> None:
        super().__init__()
        self.channels, self.pose_size, self.squashes, self.path = channels, pose, squashes, check_path(path)
        self.pose = nn.Conv2d(in_channels, channels * pose * pose, 1, bias=False)
        self.activation = nn.Conv2d(in_channels, channels, 1, bias=False) if activates else None

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        """Capsules from features (batch, in_channels, height, width).

        Returns:
            Capsule maps (batch, cols, channels, rows, height, width), and activations (batch, channels, height, width) or None.
        """
        maps = split_into_capsules(self.pose(features), self.channels, self.pose_size)
        if self.squashes:
            maps = squash_map(maps, self.path)
        return maps, None if self.activation is None else torch.sigmoid(self.activation(features))
