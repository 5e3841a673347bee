"""A network's blueprint as plain values, from which anybody can make it again: what a run says of its network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import nn

from shortcaps.backbones import BACKBONES
from shortcaps.models.network import Network
from shortcaps.models.registry import MODELS
from shortcaps.registry import Registry
from shortcaps.routing import ROUTINGS, Routing


def plain_blueprint(model: Network, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The arguments of `create_model` for a network, as values that JSON has.

    Args:
        model: The network.
        given: The arguments, for a network that `create_model` has not made.

    Raises:
        ValueError: Nobody could make the network again: a part has no name. The message says what to register.
    """
    blueprint = model.blueprint if given is None else given
    if blueprint is None:
        raise ValueError(
            f"nothing says how to make this {type(model).__name__} again: make it by create_model (register_model gives a class of your "
            "own a name), or give the arguments of create_model as network={'name': …}"
        )
    settings = {
        "image_size": list(model.image_size),
        "channels": model.channels,
        "classes": model.classes,
        **{name: value for name, value in blueprint.items() if value is not None},
    }
    if "name" not in settings:
        raise ValueError(f"network has no name: give one of {', '.join(MODELS)}")
    if isinstance(settings.get("backbone"), nn.Module):
        kind = type(settings["backbone"]).__name__
        raise ValueError(
            f"the backbone is a {kind} that has no name, so nobody could make it again: register its class with "
            "@shortcaps.register_backbone('mine'), and create the network with backbone='mine'"
        )
    if isinstance(settings.get("routing"), Routing):
        settings |= _named_routing(settings["routing"])
    return {name: _plain(value, name) for name, value in settings.items()}


def blueprint_origins(blueprint: Mapping[str, Any]) -> tuple[str, ...]:
    """The plug-ins that the parts of a network come from, each once."""
    parts: tuple[tuple[Registry[Any], str], ...] = (
        (MODELS, "name"),
        (ROUTINGS, "routing"),
        (BACKBONES, "backbone"),
    )
    origins = (registry.origin(str(blueprint.get(key, ""))) for registry, key in parts)
    return tuple(dict.fromkeys(origin for origin in origins if origin is not None))


def _named_routing(routing: Routing) -> dict[str, Any]:
    name = getattr(routing, "name", type(routing).__name__)
    if ROUTINGS.get(name) is not type(routing):
        raise ValueError(
            f"the routing {type(routing).__name__} has no name, so nobody could make it again: register it with "
            "@shortcaps.register_routing"
        )
    changed = {f.name: getattr(routing, f.name) for f in fields(routing) if getattr(routing, f.name) != f.default}
    return {
        "routing": name,
        "iterations": changed.pop("iterations", routing.iterations),
        "routing_settings": changed,
    }


def _plain(value: Any, name: str) -> Any:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, name) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{name}.{key}") for key, item in value.items()}
    raise ValueError(
        f"the network's setting {name} is a {type(value).__name__}, which config.json cannot hold: use a name, number or list"
    )
