"""The paper's networks by name, and `create_model`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from shortcaps.models.network import CapsuleNetwork
from shortcaps.models.plan import Architecture, Size, make_plan
from shortcaps.models.sequential import SequentialNetwork
from shortcaps.models.shortcut import ShortcutNetwork
from shortcaps.routing import Routing, make_routing

PRESETS: dict[str, Architecture] = {
    "baseline": Architecture(capsule_channels=(8, 16, 16)),
    "expanded": Architecture(capsule_channels=(32, 32, 32)),
}


def create_model(
    preset: str | Architecture = "baseline",
    *,
    routing: str | Routing = "fuzzy",
    shortcut: bool = True,
    image_size: int | Size = 28,
    channels: int = 1,
    classes: int = 10,
    path: str = "auto",
    routing_settings: Mapping[str, Any] | None = None,
    **changes: Any,
) -> CapsuleNetwork:
    """A network of the paper, for images of any size.

    preset: `baseline` (23k parameters), `expanded` (68k), or an `Architecture` of your own
    routing: `attention`, `dynamic`, `fuzzy`, `em`, or a `Routing` with settings of your own
    shortcut: local capsules vote for the classes directly; otherwise capsule layers route one after another
    routing_settings: settings of a routing that is given by name, e.g. `{"sharpness": 4.0}`
    path: how votes are computed, `auto`, `fused`, `factored` or `dense`; the numbers are the same
    changes: any setting of `Architecture`, e.g. `pose=3`, `passes=1`, `iterations=3`, `dropout=0`

    >>> import shortcaps
    >>> model = shortcaps.create_model("baseline", routing="fuzzy", image_size=40)
    >>> sum(p.numel() for p in model.parameters())
    29994
    """
    if not isinstance(preset, Architecture):
        if preset not in PRESETS:
            raise ValueError(f"unknown preset {preset!r}: choose one of {', '.join(PRESETS)}")
        preset = PRESETS[preset]
    known = [setting.name for setting in fields(Architecture)]
    for name in changes:
        if name not in known:
            raise TypeError(f"a network has no setting {name!r}: it has {', '.join(known)}")
    settings = dict(routing_settings or {})
    if isinstance(routing, Routing):
        if "iterations" in changes:
            raise TypeError(f"iterations is given twice: {changes['iterations']} and in {routing}")
        if settings:
            raise TypeError(f"{', '.join(settings)} is given twice: in routing_settings and in {routing}")
    if "iterations" in settings:
        raise TypeError("iterations are a setting of the network: give them beside routing_settings, not in it")
    architecture = replace(preset, **changes)
    if not isinstance(routing, Routing):
        routing = make_routing(routing, iterations=architecture.iterations, **settings)
    plan = make_plan(architecture, image_size, channels, classes)
    return (ShortcutNetwork if shortcut else SequentialNetwork)(plan, routing, path=path)
