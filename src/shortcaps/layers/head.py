"""Class capsules on the feature maps of any backbone: capsules from a 1x1 convolution, then Eq. (4)–(5) at one depth or several."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from shortcaps.errors import check_at_least_one
from shortcaps.layers.capsules import ClassCapsules
from shortcaps.layers.dropout import CapsuleDropout
from shortcaps.layers.primary import PrimaryCapsules
from shortcaps.layers.shortcut import ShortcutRouting
from shortcaps.routing import Readout, Routing, Votes, make_routing
from shortcaps.routing.paths import check_path

READOUTS = ("routing", "joint")
USUAL_POSITIONS = 49
"""Positions of a feature map for which votes that are summed are scaled before training; any other number works too."""


class CapsuleHead(nn.Module):
    """Turns feature maps into class capsules; takes the place of mean and linear layer at the end of a network.

    Every position of a feature map holds a few lower capsules, which a 1x1 convolution makes of its features. They vote for the
    class capsules directly; the transformations are shared by all positions, so no weight depends on the size of the image.
    Several feature maps are shortcuts from several depths: the class capsules are updated from each in turn, `passes` times.

    Args:
        in_channels: Channels of the feature map, or of each, from the shallowest to the deepest.
        classes: Number of classes.
        routing: A name (`shortcaps.list_routings()`) or a `Routing`.
        capsules: Lower capsules at each position, one number for all feature maps or one for each.
        pose: P: a pose is a P x P matrix.
        passes: How often the feature maps are gone through.
        routing_settings: Settings of a routing that is given by name, e.g. `{"sharpness": 4.0}`.
        dropout: Probability of dropping a lower capsule in training.
        rectified: Whether the 1x1 convolution is followed by a ReLU.
        normalised: Whether it is followed by a batch norm; a backbone that ends with one can do without.
        readout: What a class's activation is read from. `routing`: what the routing says of it (for fuzzy and EM routing how tightly
            its votes agree). `joint`: that and the pose they agree on, `sigmoid(logit(a) + ⟨w, pose⟩ + b)` with `w` and `b` trained
            for each class and 0 before training.
        path: How votes are computed: `auto`, `fused`, `factored` or `dense`; the numbers are the same.

    Examples:
        >>> import torch, shortcaps
        >>> head = shortcaps.CapsuleHead(in_channels=32, classes=10)
        >>> head(torch.rand(2, 32, 7, 7)).shape, head(torch.rand(2, 32, 5, 9)).shape
        (torch.Size([2, 10]), torch.Size([2, 10]))
    """

    def __init__(
        self,
        in_channels: int | Sequence[int],
        classes: int,
        *,
        routing: str | Routing = "fuzzy",
        capsules: int | Sequence[int] = 8,
        pose: int = 4,
        passes: int = 1,
        routing_settings: Mapping[str, Any] | None = None,
        dropout: float = 0.0,
        rectified: bool = True,
        normalised: bool = True,
        readout: str = "routing",
        path: str = "auto",
    ) -> None:
        super().__init__()
        self.in_channels = (in_channels,) if isinstance(in_channels, int) else tuple(in_channels)
        self.channels = (capsules,) * len(self.in_channels) if isinstance(capsules, int) else tuple(capsules)
        if not self.in_channels or len(self.channels) != len(self.in_channels):
            raise ValueError(
                f"in_channels {in_channels} and capsules {capsules}: give one of each for every feature map"
            )
        check_at_least_one(
            in_channels=self.in_channels, capsules=self.channels, classes=classes, pose=pose, passes=passes
        )
        if readout not in READOUTS:
            raise ValueError(f"unknown readout {readout!r}: choose one of {', '.join(READOUTS)}")
        self.classes, self.pose, self.passes, self.path = classes, pose, passes, check_path(path)
        self.routing = make_routing(routing, **(routing_settings or {}))
        self.primary = nn.ModuleList(
            PrimaryCapsules(features, channels, pose, rectified=rectified, normalised=normalised)
            for features, channels in zip(self.in_channels, self.channels, strict=True)
        )
        self.dropout = CapsuleDropout(dropout)
        self.shortcuts = nn.ModuleList(
            ShortcutRouting(
                channels,
                classes,
                self.routing,
                pose,
                activates=number == len(self.channels) - 1,
                gain=self._gain(channels),
                path=path,
            )
            for number, channels in enumerate(self.channels)
        )

        self.pose_weight: nn.Parameter | None = None
        self.pose_bias: nn.Parameter | None = None
        if readout == "joint":
            self.pose_weight = nn.Parameter(torch.zeros(classes, pose, pose))
            self.pose_bias = nn.Parameter(torch.zeros(classes))

    def _gain(self, channels: int) -> float:
        """Where votes are summed, equal shares of them should add up to the scale of one pose; a mean needs no help."""
        return self.classes / math.sqrt(channels * USUAL_POSITIONS) if self.routing.squashes else 1.0

    def forward(self, features: Tensor | Sequence[Tensor]) -> Tensor:
        """Activations of the classes.

        Args:
            features: A feature map (batch, in_channels, height, width) of any size, or as many as `in_channels` names.

        Returns:
            (batch, classes), each in 0–1 by itself.
        """
        return self.capsules(features, keep_coefficients=False).activation

    def capsules(self, features: Tensor | Sequence[Tensor], *, keep_coefficients: bool = True) -> ClassCapsules:
        """The class capsules themselves.

        Args:
            features: As for `forward`.
            keep_coefficients: Whether routing coefficients are wanted too; without them the fast path can be taken.

        Returns:
            Poses (batch, classes, rows, cols), activations (batch, classes) and for each feature map coefficients (batch, passes,
            classes, capsules, height, width).
        """
        maps = self._check_features(features)
        primaries = cast("Iterable[PrimaryCapsules]", self.primary)
        shortcuts = cast("Iterable[ShortcutRouting]", self.shortcuts)
        votes: list[Votes] = []
        for feature_map, primary, shortcut in zip(maps, primaries, shortcuts, strict=True):
            # In training the ReLU is left to the votes: native code applies it, and masks the gradient, as it reads and writes them. Otherwise
            # it stays with its convolution, so that exported programs have the two as one. Dropping capsules before or after it is the same, short of infinities.
            later = self.training and getattr(primary, "ends_with_relu", False)
            maps_of_capsules = primary(feature_map, skip_relu=True) if later else primary(feature_map)
            if self.training:
                maps_of_capsules = self.dropout(maps_of_capsules)
            votes.append(shortcut.votes(maps_of_capsules, apply_relu=later))

        weight, bias = self.pose_weight, self.pose_bias
        readout = None if weight is None or bias is None else Readout(weight, bias)
        pose: Tensor | None = None
        kept: list[list[Tensor]] = [[] for _ in votes]
        for turn in range(self.passes):
            for number, shortcut in enumerate(shortcuts):
                last = turn == self.passes - 1 and number == len(votes) - 1
                capsules = shortcut(
                    votes[number], pose, activate=last, keep_coefficients=keep_coefficients, readout=readout
                )
                pose = capsules.pose
                if keep_coefficients:
                    kept[number].append(capsules.coefficients)
        assert pose is not None, "there is at least one feature map and one pass"
        coefficients = tuple(
            torch.stack(turns, 1).movedim(-1, 2).unflatten(-1, (channels, *feature_map.shape[2:]))
            for turns, channels, feature_map in zip(kept, self.channels, maps, strict=True)
            if keep_coefficients
        )
        return ClassCapsules(pose, capsules.activation, coefficients if keep_coefficients else None)

    def _check_features(self, features: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
        maps = (features,) if isinstance(features, Tensor) else tuple(features)
        shapes = [tuple(feature_map.shape) for feature_map in maps]
        if len(maps) != len(self.in_channels) or any(
            len(shape) != 4 or shape[1] != channels for shape, channels in zip(shapes, self.in_channels, strict=True)
        ):
            wanted = ", ".join(f"(batch, {channels}, height, width)" for channels in self.in_channels)
            raise ValueError(f"feature maps have shapes {', '.join(map(str, shapes))}: this head takes {wanted}")
        return maps

    def extra_repr(self) -> str:
        """What `print` says of it: capsules, classes, passes and routing."""
        return f"{self.channels} capsules of {self.pose}x{self.pose} → {self.classes}, passes={self.passes}, routing={self.routing}"
