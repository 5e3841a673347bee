"""Compact networks: a small backbone with a capsule head, each beside its plain twin of the same size.

A twin has the same backbone with mean and linear layer instead of capsules, widened to the same number of parameters. What capsules add
is the difference between the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from shortcaps.backbones import create_backbone, feature_channels
from shortcaps.layers import CapsuleHead
from shortcaps.models.headed import HeadNetwork, PlainNetwork
from shortcaps.models.plan import Size
from shortcaps.models.presets import resolve_routing
from shortcaps.models.registry import register_model
from shortcaps.routing import Routing


@dataclass(frozen=True)
class Compact:
    """A preset: a backbone, what stands on it, and the backbone of the twin.

    Attributes:
        backbone: Its name.
        backbone_settings: Its settings.
        twin_settings: The settings of the twin's backbone, of the same name.
        capsules: Lower capsules at each position, for each feature map.
        pose: P: a pose is a P x P matrix.
        passes: How often the feature maps are gone through.
        iterations: Routing iterations in each.
        dropout: Probability of dropping a lower capsule in training.
        readout: What a class's activation is read from, as for `CapsuleHead`.
        normalised: Whether there is a batch norm between the 1x1 convolution and the votes.
    """

    backbone: str
    backbone_settings: Mapping[str, Any]
    twin_settings: Mapping[str, Any]
    capsules: tuple[int, ...] = (8,)
    pose: int = 4
    passes: int = 1
    iterations: int = 2
    dropout: float = 0.0
    readout: str = "routing"
    normalised: bool = False


# A wide first kernel that halves the map at once, since a map of full size costs most, and a second halving two convolutions later: each
# position of the deepest map, a quarter of the image's side, sees 21 pixels, about a whole digit.
_SHAPE: dict[str, Any] = {"strides": (2, 1, 2, 1), "first_kernel": 5}

# Parameters for 28x28 grey images (160k: 32x32 in colour) and 10 classes: capsules and twin.
COMPACT: dict[str, Compact] = {
    # 22,734 and 22,914
    "compact-23k": Compact(
        "convolutional",
        {"widths": (24, 24, 24, 29), **_SHAPE},
        {"widths": (32, 24, 28, 34), **_SHAPE},
        readout="joint",
    ),
    # 67,780 and 67,754
    "compact-68k": Compact(
        "convolutional",
        {"widths": (40, 40, 48, 52), **_SHAPE},
        {"widths": (56, 44, 48, 56), **_SHAPE},
        capsules=(12,),
        readout="joint",
    ),
    # For small natural images, 161,620 and 163,102: residual, since these need depth. One block at full size, which costs most and brings least.
    "compact-160k": Compact(
        "residual",
        {"widths": (16, 32, 58), "blocks": (1, 2, 2)},
        {"widths": (16, 32, 62), "blocks": (1, 2, 2)},
        capsules=(12,),
        readout="joint",
    ),
}


def build_compact(
    preset: Compact,
    *,
    image_size: Size,
    channels: int,
    classes: int,
    routing: str | Routing = "fuzzy",
    routing_settings: Mapping[str, Any] | None = None,
    backbone: str | nn.Module | None = None,
    backbone_settings: Mapping[str, Any] | None = None,
    capsules: int | Sequence[int] | None = None,
    pose: int | None = None,
    passes: int | None = None,
    iterations: int | None = None,
    dropout: float | None = None,
    readout: str | None = None,
    rectified: bool = True,
    normalised: bool | None = None,
    path: str = "auto",
) -> HeadNetwork:
    """A compact network; whatever is None is the preset's."""
    chosen: dict[str, Any] = {
        "pose": pose,
        "passes": passes,
        "iterations": iterations,
        "dropout": dropout,
        "readout": readout,
        "normalised": normalised,
    }
    preset = replace(preset, **{name: value for name, value in chosen.items() if value is not None})
    body = _backbone(preset.backbone, preset.backbone_settings, backbone, backbone_settings, channels)
    head = CapsuleHead(
        feature_channels(body),
        classes,
        routing=resolve_routing(routing, preset.iterations, routing_settings, iterations is not None),
        capsules=preset.capsules if capsules is None else capsules,
        pose=preset.pose,
        passes=preset.passes,
        dropout=preset.dropout,
        readout=preset.readout,
        rectified=rectified,
        normalised=preset.normalised,
        path=path,
    )
    return HeadNetwork(body, head, image_size=image_size, channels=channels)


def build_twin(
    preset: Compact,
    *,
    image_size: Size,
    channels: int,
    classes: int,
    backbone: str | nn.Module | None = None,
    backbone_settings: Mapping[str, Any] | None = None,
    outputs: str = "softmax",
) -> PlainNetwork:
    """The plain twin of a compact network."""
    body = _backbone(preset.backbone, preset.twin_settings, backbone, backbone_settings, channels)
    return PlainNetwork(body, image_size=image_size, channels=channels, classes=classes, outputs=outputs)


def _backbone(
    name: str,
    settings: Mapping[str, Any],
    chosen: str | nn.Module | None,
    changes: Mapping[str, Any] | None,
    channels: int,
) -> nn.Module:
    if isinstance(chosen, nn.Module):
        return chosen
    if chosen is not None and chosen != name:
        return create_backbone(chosen, channels, **(changes or {}))
    return create_backbone(name, channels, **{**settings, **(changes or {})})


for _name, _preset in COMPACT.items():
    register_model(
        _name,
        description="a capsule head on a small backbone, for images of any size",
        kind="capsules",
        recipe="compact",
    )(partial(build_compact, _preset))
    register_model(
        f"{_name}-plain",
        description=f"the plain twin of {_name}: mean and linear layer, as many parameters",
        recipe="compact",
    )(partial(build_twin, _preset))
    # A control: what of a difference to the twin is due to outputs that do not compete for a softmax, and not to capsules.
    register_model(
        f"{_name}-sigmoid",
        description=f"the plain twin of {_name} with outputs that need not sum to one",
        recipe="compact",
    )(partial(build_twin, _preset, outputs="sigmoid"))
