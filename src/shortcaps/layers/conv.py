"""Capsule convolution with patch-wise voting (Hinton et al., 2018): one routing problem for each output position."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shortcaps.layers.initial import draw_normal
from shortcaps.layers.maps import check_maps, patches
from shortcaps.layers.thresholds import Thresholds
from shortcaps.routing import Capsules, Routing
from shortcaps.routing.paths import check_path, make_votes


class CapsuleConvolution(Thresholds, nn.Module):
    """Every capsule inside the kernel votes for every output capsule at that position.

    Its parameter `transform` is (kernel, kernel, in_channels, out_channels, rows, rows).

    Args:
        in_channels: Capsule channels of the input.
        out_channels: Capsule channels of the output.
        kernel: Height and width of the kernel.
        stride: Its stride.
        routing: The routing algorithm.
        pose: Rows and columns of a pose.
        gain: Initial scale of the votes, relative to the poses.
        path: How votes are computed, one of `shortcaps.routing.paths.PATHS`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: tuple[int, int],
        stride: int,
        routing: Routing,
        pose: int = 4,
        *,
        gain: float = 1.0,
        path: str = "auto",
    ) -> None:
        super().__init__()
        self.stride, self.routing, self.gain, self.path = stride, routing, gain, check_path(path)
        self.transform = nn.Parameter(torch.empty(*kernel, in_channels, out_channels, pose, pose))
        self.add_thresholds(routing.thresholds(activates=True), out_channels)
        self.reset_parameters()

    @property
    def relative_rates(self) -> dict[str, float]:
        """Factors on the learning rate: a step of Adam is as long as the rate, however large a weight is, so large ones would hardly learn."""
        return {"transform": self.gain}

    def reset_parameters(self) -> None:
        """Draw the transformations so that votes are `gain` times as large as their poses."""
        draw_normal(self.transform, self.gain * self.transform.shape[-1] ** -0.5)

    def forward(
        self, maps: Tensor, activations: Tensor | None = None, *, keep_coefficients: bool = False
    ) -> tuple[Tensor, Tensor, Capsules]:
        """The next layer's capsules.

        Args:
            maps: Capsule maps (batch, cols, in_channels, rows, height, width).
            activations: (batch, in_channels, height, width), each in 0–1; None if all are 1.
            keep_coefficients: Whether routing coefficients are requested.

        Returns:
            Maps (batch, cols, out_channels, rows, height', width') and activations (batch, out_channels, height', width') of the
            next layer, and the routing's result: one routing problem for each sample and position, in that order; its inputs are
            ordered by (kernel row, kernel column, channel).
        """
        height, width, channels, _, rows, _ = self.transform.shape
        check_maps(maps, channels, rows, (height, width))
        windows = patches(maps, (height, width), self.stride)
        batch, out_height, out_width = windows.shape[:3]
        problems, groups = batch * out_height * out_width, height * width * channels
        poses = windows.reshape(problems, groups, 1, rows, maps.shape[1])
        votes = make_votes(poses, self.transform.flatten(0, 2), self.path, routing=self.routing)
        if activations is not None:
            seen = patches(activations[:, None, :, None], (height, width), self.stride)
            activations = seen.reshape(problems, groups)
        capsules = self.routing(
            votes, activations=activations, thresholds=self.thresholds(), keep_coefficients=keep_coefficients
        )
        assert capsules.activation is not None, "activations were asked for"
        next_maps = capsules.pose.unflatten(0, (batch, out_height, out_width)).permute(0, 5, 3, 4, 1, 2)
        next_activations = capsules.activation.unflatten(0, (batch, out_height, out_width)).permute(0, 3, 1, 2)
        return next_maps, next_activations, capsules

    def extra_repr(self) -> str:
        """Settings, for printing."""
        height, width, channels, outputs, rows, _ = self.transform.shape
        return (
            f"{channels} → {outputs}, kernel={height}x{width}, stride={self.stride}, pose={rows}, "
            f"routing={self.routing}, path={self.path!r}"
        )
