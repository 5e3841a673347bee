"""Local capsule block, Eq. (2)–(3): capsules of the next layer without routing, and pre-voted capsules for a shortcut."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shortcaps.kernels.local_op import run_mix, run_pre_vote
from shortcaps.layers.initial import draw_normal
from shortcaps.layers.maps import check_maps, squash_map
from shortcaps.routing.paths import check_path, require_library, runs_natively


class LocalBlock(nn.Module):
    """Depth-wise capsule convolution, then a point-wise mix of channels.

    Its parameters are `transform` (in_channels, kernel, kernel, rows, rows), one matrix for each channel and kernel offset, and `mix`
    (out_channels, in_channels), the trained coefficients `r` of Eq. (2), shared by all positions.

    Args:
        in_channels: Capsule channels of the input.
        out_channels: Capsule channels of the output.
        kernel: Height and width of the kernel.
        stride: Its stride.
        pose: Rows and columns of a pose.
        squashes: Whether the poses of the next layer are squashed, for routings whose activation is the length of a pose.
        path: Whether native code is used, one of `shortcaps.routing.paths.PATHS`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: tuple[int, int],
        stride: int = 1,
        pose: int = 4,
        *,
        squashes: bool = False,
        path: str = "auto",
    ) -> None:
        super().__init__()
        self.stride, self.squashes, self.path = stride, squashes, check_path(path)
        self.transform = nn.Parameter(torch.empty(in_channels, *kernel, pose, pose))
        self.mix = nn.Parameter(torch.empty(out_channels, in_channels))
        self.reset_parameters()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LocalBlock:
        """What `to` and its kind do to parameters, without their shape: `channels_last` is not for five dimensions, as `transform` has."""
        return super()._apply(lambda tensor: fn(tensor.flatten()).reshape(tensor.shape), recurse)

    def reset_parameters(self) -> None:
        """Draw the parameters so that sums of independent poses keep their scale."""
        _, height, width, _, rows = self.transform.shape
        draw_normal(self.transform, (height * width * rows) ** -0.5)
        draw_normal(self.mix, self.mix.shape[1] ** -0.5)

    def forward(self, maps: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute the next layer and the pre-voted capsules for a shortcut.

        Args:
            maps: Capsule maps (batch, cols, in_channels, rows, height, width).
            scale: (batch, in_channels, height, width), a factor for each capsule, e.g. from dropout; None for 1.

        Returns:
            Maps of the next layer (batch, cols, out_channels, rows, height', width'), and the pre-voted maps (batch, cols, in_channels,
            rows, height', width') that they are mixed from.

        Raises:
            ValueError: The shape of the maps or of the scale does not fit.
        """
        channels, height, width, pose, _ = self.transform.shape
        check_maps(maps, channels, pose, (height, width))
        if scale is not None:
            expected = (len(maps), channels, *maps.shape[4:])
            if tuple(scale.shape) != expected:
                raise ValueError(f"scale has shape {tuple(scale.shape)}: these maps need {expected}")
            scale = scale.to(maps)
        learns_scale = scale is not None and scale.requires_grad  # native code has no gradient for it
        require_library(self.path)
        if runs_natively(self.path, maps, self.transform, self.mix) and not learns_scale:
            pre_voted = run_pre_vote(maps, self.transform, scale, self.stride)  # Eq. (3)
            next_maps = run_mix(self.mix, pre_voted)  # Eq. (2)
        else:
            pre_voted = self.pre_vote(maps if scale is None else maps * scale[:, None, :, None])
            next_maps = (self.mix @ pre_voted.flatten(3)).unflatten(3, pre_voted.shape[3:])
        return (squash_map(next_maps, self.path) if self.squashes else next_maps), pre_voted

    def pre_vote(self, maps: Tensor) -> Tensor:
        """Eq. (3): left multiplication is a 2-D convolution of each column, so it is one grouped `conv2d`.

        Args:
            maps: Capsule maps (batch, cols, in_channels, rows, height, width).

        Returns:
            (batch, cols, in_channels, rows, height', width').
        """
        batch, cols, channels, rows, height, width = maps.shape
        weight = self.transform.permute(0, 3, 4, 1, 2).flatten(0, 1)
        folded = maps.reshape(batch * cols, channels * rows, height, width)
        pre_voted = F.conv2d(folded, weight, stride=self.stride, groups=channels)
        return pre_voted.unflatten(1, (channels, rows)).unflatten(0, (batch, cols))

    def extra_repr(self) -> str:
        """Settings, for printing."""
        channels, height, width, rows, _ = self.transform.shape
        return f"{channels} → {self.mix.shape[0]}, kernel={height}x{width}, stride={self.stride}, pose={rows}"
