"""The paper's network, Fig. 2: local blocks once, then the class capsules updated through every shortcut."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from shortcaps.backbones import feature_maps
from shortcaps.layers import CapsuleDropout, ClassCapsules, LocalBlock, PrimaryCapsules, ShortcutRouting
from shortcaps.layers.maps import capsules_at_one_position
from shortcaps.models.network import PlannedNetwork
from shortcaps.models.plan import Plan, PlannedLayer
from shortcaps.models.summary import (
    Summary,
    routing_multiply_adds,
    summary_row,
)
from shortcaps.routing import Routing
from shortcaps.routing.paths import describe_path


class ShortcutNetwork(PlannedNetwork):
    """The paper's network with shortcuts: local blocks once, then the class capsules updated through every shortcut.

    Args:
        plan: What every layer will see.
        backbone: The backbone that the plan was made with.
        routing: The routing algorithm.
        path: How votes are computed, one of `shortcaps.routing.paths.PATHS`.
    """

    shortcut = True

    def __init__(self, plan: Plan, backbone: nn.Module, routing: Routing, *, path: str = "auto") -> None:
        super().__init__(plan, backbone, routing, path)
        architecture, layers = plan.architecture, plan.capsule_layers
        pose = architecture.pose
        self.primary = PrimaryCapsules(plan.features[0], layers[0].in_channels, pose)
        self.dropout = CapsuleDropout(architecture.dropout)
        self.local_blocks = nn.ModuleList(
            LocalBlock(
                layer.in_channels,
                layer.out_channels,
                layer.kernel,
                layer.stride,
                pose,
                squashes=routing.squashes,
                path=path,
            )
            for layer in layers
        )
        self.shortcuts = nn.ModuleList(
            ShortcutRouting(
                layer.in_channels,
                plan.classes,
                routing,
                pose,
                activates=layer is layers[-1],
                gain=self._gain(layer),
                path=path,
            )
            for layer in layers
        )

    def _gain(self, layer: PlannedLayer) -> float:
        """The initial scale of votes: where they are summed, equal shares should add up to the scale of one pose; a mean keeps it."""
        inputs = layer.in_channels * layer.out_size[0] * layer.out_size[1]
        return self.plan.classes / math.sqrt(inputs) if self.routing.squashes else 1.0

    def _capsules(self, images: Tensor, keep_coefficients: bool) -> ClassCapsules:
        maps = self.primary(feature_maps(self.backbone, images)[-1])
        scale = self.dropout.scale(maps)
        shortcuts = cast("Iterable[ShortcutRouting]", self.shortcuts)
        votes = []
        for block, shortcut in zip(self.local_blocks, shortcuts, strict=True):
            maps, pre_voted = block(maps, scale)
            scale = None  # only primary capsules are dropped
            votes.append(shortcut.votes(pre_voted))

        pose = capsules_at_one_position(maps)
        passes, depth = self.plan.architecture.passes, len(votes)
        kept: list[list[Tensor]] = [[] for _ in votes]
        for turn in range(passes):
            for number, shortcut in enumerate(shortcuts):
                last = turn == passes - 1 and number == depth - 1
                capsules = shortcut(votes[number], pose, activate=last, keep_coefficients=keep_coefficients)
                pose = capsules.pose
                if keep_coefficients:
                    kept[number].append(capsules.coefficients)
        return ClassCapsules(
            pose,
            capsules.activation,
            tuple(self._as_maps(number, turns) for number, turns in enumerate(kept)) if keep_coefficients else None,
        )

    def _as_maps(self, number: int, turns: list[Tensor]) -> Tensor:
        """(batch, inputs, classes) for each pass → (batch, passes, classes, channels, height, width)."""
        layer = self.plan.capsule_layers[number]
        return torch.stack(turns, 1).movedim(-1, 2).unflatten(-1, (layer.in_channels, *layer.out_size))

    def summary(self) -> Summary:
        """Layer by layer: shape, parameters, votes, multiply–adds."""
        architecture, size = self.plan.architecture, self.plan.architecture.pose
        rows = self._rows_below()
        for number, (layer, block) in enumerate(zip(self.plan.capsule_layers, self.local_blocks, strict=True), 1):
            positions = layer.out_size[0] * layer.out_size[1]
            depthwise = positions * layer.in_channels * layer.kernel[0] * layer.kernel[1] * size**3
            mix = positions * layer.in_channels * layer.out_channels * size**2
            shape = (layer.out_channels, size, size, *layer.out_size)
            rows.append(summary_row(f"local block {number}", shape, block, multiply_adds=depthwise + mix))
        for number, (layer, shortcut) in enumerate(zip(self.plan.capsule_layers, self.shortcuts, strict=True), 1):
            inputs = layer.in_channels * layer.out_size[0] * layer.out_size[1]
            votes = inputs * self.plan.classes * size**2
            sweeps = architecture.passes * self.routing.sweeps(from_start=True, activates=False)
            if layer is self.plan.capsule_layers[-1]:  # the activation is worked out once, at the very end
                sweeps += self.routing.sweeps(from_start=True, activates=True)
                sweeps -= self.routing.sweeps(from_start=True, activates=False)
            rows.append(
                summary_row(
                    f"shortcut {number}",
                    (self.plan.classes, size, size),
                    shortcut,
                    votes=votes,
                    multiply_adds=routing_multiply_adds(votes, size, sweeps),
                )
            )
        return Summary.of(self, rows, describe_path(self.path, self.routing))
