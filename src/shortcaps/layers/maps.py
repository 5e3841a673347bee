"""Views and operations on capsule maps (batch, cols, channels, rows, height, width)."""

from __future__ import annotations

from torch import Tensor

from shortcaps.routing import pose_length


def check_maps(maps: Tensor, channels: int, pose: int, kernel: tuple[int, int]) -> None:
    """Maps that a layer made for these channels, this pose size and this kernel can take."""
    if maps.ndim != 6 or maps.shape[2] != channels or maps.shape[3] != pose:
        raise ValueError(
            f"capsule maps have shape {tuple(maps.shape)}: this layer takes (batch, cols, {channels} channels, "
            f"{pose} rows, height, width)"
        )
    if maps.shape[4] < kernel[0] or maps.shape[5] < kernel[1]:
        raise ValueError(
            f"capsule maps of {maps.shape[4]}x{maps.shape[5]} are too small for a kernel of {kernel[0]}x{kernel[1]}"
        )


def split_into_capsules(features: Tensor, channels: int, pose: int) -> Tensor:
    """Feature maps (batch, cols·channels·rows, height, width) as capsule maps."""
    return features.unflatten(1, (pose, channels, pose))


def squash_map(maps: Tensor) -> Tensor:
    """`squash` of every pose in the map."""
    length = pose_length(maps.movedim((1, 3), (-2, -1)))[:, None, :, None]
    return maps * (length / (1 + length.square()))


def poses_by_channel(maps: Tensor) -> Tensor:
    """(batch, channels, height·width, rows, cols): the members of a channel are its positions."""
    return maps.permute(0, 2, 4, 5, 3, 1).flatten(2, 3)


def mix_with_batch_innermost(mix: Tensor, maps: Tensor) -> Tensor:
    """Channels mixed by (out_channels, in_channels), for maps that lie with the batch innermost, and so does the result."""
    inner = maps.movedim(0, -1)
    return (mix @ inner.flatten(2)).unflatten(2, inner.shape[2:]).movedim(-1, 0)


def capsules_at_one_position(maps: Tensor) -> Tensor:
    """(batch, channels, rows, cols), of a map whose height and width are 1."""
    return maps.squeeze(-1).squeeze(-1).permute(0, 2, 3, 1)


def patches(maps: Tensor, kernel: tuple[int, int], stride: int) -> Tensor:
    """What each output position sees: (batch, height', width', kernel, kernel, channels, rows, cols), as a view."""
    windows = maps.unfold(4, kernel[0], stride).unfold(5, kernel[1], stride)
    return windows.permute(0, 4, 5, 6, 7, 2, 3, 1)
