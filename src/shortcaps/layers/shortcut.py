"""Global capsule block, Eq. (4)–(5): local capsules vote for the class capsules directly."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shortcaps.layers.initial import draw_normal
from shortcaps.layers.maps import poses_by_channel
from shortcaps.layers.thresholds import Thresholds
from shortcaps.routing import Capsules, Readout, Routing, Votes
from shortcaps.routing.paths import check_path, make_votes


class ShortcutRouting(Thresholds, nn.Module):
    """Updates the class capsules from the pre-voted capsules of one layer.

    Its parameter `transform` is (channels, classes, rows, rows): one matrix for each channel and class, shared by all positions.

    Args:
        channels: Capsule channels that vote.
        classes: Number of class capsules.
        routing: The routing algorithm.
        pose: Rows and columns of a pose.
        activates: Whether the activation of this block's capsules is ever used.
        gain: Initial scale of the votes, relative to the poses.
        path: How votes are computed, one of `shortcaps.routing.paths.PATHS`.
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        routing: Routing,
        pose: int = 4,
        *,
        activates: bool = True,
        gain: float = 1.0,
        path: str = "auto",
    ) -> None:
        super().__init__()
        self.routing, self.activates, self.gain, self.path = routing, activates, gain, check_path(path)
        self.transform = nn.Parameter(torch.empty(channels, classes, pose, pose))
        self.add_thresholds(routing.thresholds(activates=activates), classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the transformations so that votes are `gain` times as large as their poses."""
        draw_normal(self.transform, self.gain * self.transform.shape[-1] ** -0.5)

    def votes(self, pre_voted: Tensor, *, apply_relu: bool = False) -> Votes:
        """Eq. (4): the votes of pre-voted maps (batch, cols, channels, rows, height, width).

        The votes of a layer are the same in every pass, so a network makes them once.

        Args:
            pre_voted: The maps.
            apply_relu: Whether the maps still have to pass a ReLU before they vote.
        """
        poses = poses_by_channel(pre_voted)
        return make_votes(poses, self.transform, self.path, routing=self.routing, apply_relu=apply_relu)

    def forward(
        self,
        votes: Votes,
        start: Tensor | None,
        *,
        activate: bool | None = None,
        keep_coefficients: bool = False,
        readout: Readout | None = None,
    ) -> Capsules:
        """Update the class capsules.

        Args:
            votes: The votes of this layer's capsules, as returned by `votes`.
            start: The latest class capsules (batch, classes, rows, cols); None to begin from equal shares.
            activate: Whether activations are requested; None for the block's own setting.
            keep_coefficients: Whether routing coefficients are requested.
            readout: What activations are read from besides, if they are requested.

        Returns:
            Class capsules: pose (batch, classes, rows, cols), activation (batch, classes) or None.
        """
        return self.routing(
            votes,
            start=start,
            thresholds=self.thresholds(),
            activate=self.activates if activate is None else activate,
            keep_coefficients=keep_coefficients,
            readout=readout,
        )

    def extra_repr(self) -> str:
        """Settings, for printing."""
        channels, classes, rows, _ = self.transform.shape
        return f"{channels} → {classes}, pose={rows}, routing={self.routing}, path={self.path!r}"
