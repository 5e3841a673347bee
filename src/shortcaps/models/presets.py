"""The paper's networks: each a literal, registered by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

from torch import nn

from shortcaps.backbones import create_backbone
from shortcaps.models.network import PlannedNetwork
from shortcaps.models.plan import Architecture, Size, make_plan
from shortcaps.models.registry import MODELS, ModelSpec, settings_of
from shortcaps.models.sequential import SequentialNetwork
from shortcaps.models.shortcut import ShortcutNetwork
from shortcaps.routing import Routing, make_routing

PRESETS: dict[str, Architecture] = {
    "baseline": Architecture(capsule_channels=(8, 16, 16)),
    "expanded": Architecture(capsule_channels=(32, 32, 32)),
}
_DESCRIPTIONS = {
    "baseline": "the paper's network, 23k parameters at 28x28 with shortcuts, 89k without",
    "expanded": "the paper's larger network, 68k parameters at 28x28 with shortcuts, 378k without",
}


def build_from_architecture(
    architecture: Architecture,
    *,
    image_size: int | Size = 28,
    channels: int = 1,
    classes: int = 10,
    routing: str | Routing = "fuzzy",
    routing_settings: Mapping[str, Any] | None = None,
    shortcut: bool = True,
    path: str = "auto",
    backbone: str | nn.Module | None = None,
    **changes: Any,
) -> PlannedNetwork:
    """Build a network of the paper's kind from an architecture of your own.

    Args:
        architecture: The architecture to start from, e.g. `PRESETS["baseline"]`.
        image_size: Height and width of the images, or one number for both.
        channels: Channels of the images.
        classes: Number of classes.
        routing: A name, or a `Routing`.
        routing_settings: Settings of a routing that is given by name.
        shortcut: Whether local capsules vote for the classes directly; otherwise capsule layers route one after another.
        path: How votes are computed, one of `shortcaps.routing.paths.PATHS`.
        backbone: A name, or any module that is a backbone, instead of the architecture's.
        **changes: Any setting of `Architecture`.

    Raises:
        ValueError: The images are too small, or a setting is out of range.
        TypeError: A setting is unknown, or given twice.
    """
    if isinstance(backbone, str):
        changes["backbone"] = backbone
    architecture = replace(architecture, **changes)
    algorithm = resolve_routing(routing, architecture.iterations, routing_settings, "iterations" in changes)
    if backbone is None or isinstance(backbone, str):
        backbone = create_backbone(architecture.backbone, channels, **architecture.backbone_settings)
    plan = make_plan(architecture, image_size, channels, classes, backbone=backbone)
    return (ShortcutNetwork if shortcut else SequentialNetwork)(plan, backbone, algorithm, path=path)


def resolve_routing(
    routing: str | Routing, iterations: int, settings: Mapping[str, Any] | None, iterations_are_given: bool
) -> Routing:
    """The routing that a network's settings ask for.

    Args:
        routing: A name, or a `Routing`.
        iterations: Routing iterations, for a routing given by name.
        settings: Other settings of a routing given by name.
        iterations_are_given: Whether the caller set the iterations, which a `Routing` has already.

    Raises:
        TypeError: A setting is given twice.
    """
    chosen = dict(settings or {})
    if isinstance(routing, Routing):
        if iterations_are_given:
            raise TypeError(f"iterations is given twice: {iterations} and in {routing}")
        if chosen:
            raise TypeError(f"{', '.join(chosen)} is given twice: in routing_settings and in {routing}")
        return routing
    if "iterations" in chosen:
        raise TypeError("iterations are a setting of the network: give them next to routing_settings, not in it")
    return make_routing(routing, iterations=iterations, **chosen)


def architecture_spec(architecture: Architecture, description: str = "") -> ModelSpec:
    """The `ModelSpec` of a network of the paper's kind."""
    builder = partial(build_from_architecture, architecture)
    return ModelSpec(builder, description, "capsules", settings_of(builder, [f.name for f in fields(Architecture)]))


for _name, _architecture in PRESETS.items():
    MODELS.register(_name, architecture_spec(_architecture, _DESCRIPTIONS[_name]))
