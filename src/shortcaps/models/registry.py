"""Every network by name: `create_model`, `list_models`, `register_model`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar, overload

from shortcaps.models.network import CapsuleNetwork, Network
from shortcaps.models.plan import Architecture, Size, as_size
from shortcaps.registry import Registry

Builder = TypeVar("Builder", bound=Callable[..., Network])
_KINDS = {"capsules": "ends in class capsules with poses", "plain": "has none, for comparison"}
_GIVEN = ("image_size", "channels", "classes")


@dataclass(frozen=True)
class ModelSpec:
    """A network that can be created by name.

    Attributes:
        build: Called with image_size (height, width), channels, classes and the settings below, all by keyword.
        description: One line for lists and help texts.
        kind: `capsules` or `plain`.
        settings: Names of the settings it takes besides image_size, channels and classes.
        recipe: The recipe it is trained with by default.
    """

    build: Callable[..., Network]
    description: str
    kind: str
    settings: tuple[str, ...]
    recipe: str = "fast"

    @property
    def has_routing(self) -> bool:
        """Whether a routing can be chosen."""
        return "routing" in self.settings

    def check_settings(self, name: str, settings: Sequence[str]) -> None:
        """Raise TypeError for a setting that the network does not have.

        Args:
            name: What the network is called in the message.
            settings: Names of the requested settings.
        """
        known = (*_GIVEN, *self.settings)
        for setting in settings:
            if setting not in known:
                near = difflib.get_close_matches(setting, known, 1, 0.6)
                hint = f"did you mean {near[0]}? " if near else ""
                raise TypeError(f"the network {name} has no setting {setting!r}: {hint}it has {', '.join(known)}")


MODELS: Registry[ModelSpec] = Registry("network")


def settings_of(builder: Callable[..., object], more: Sequence[str]) -> tuple[str, ...]:
    """Settings that a builder names in its signature, plus those it takes by `**`."""
    by_name = [p.name for p in inspect.signature(builder).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return tuple(dict.fromkeys(name for name in (*by_name, *more) if name not in _GIVEN))


def register_model(
    name: str,
    *,
    description: str = "",
    kind: str = "plain",
    settings: Sequence[str] | None = None,
    recipe: str = "fast",
) -> Callable[[Builder], Builder]:
    """Register a network under a name: a decorator for a function (or a `Network` class) that builds it.

    Args:
        name: The name for `create_model` and `shortcaps train --model`.
        description: One line for lists and help texts; by default the first line of the docstring.
        kind: `capsules` for a `CapsuleNetwork`, `plain` for any other.
        settings: Names of settings that the builder takes by `**`; those in its signature are found by themselves.
        recipe: The recipe it is trained with by default.

    Returns:
        The decorator. The builder is called with `image_size=(height, width)`, `channels`, `classes` and settings, by keyword.

    Raises:
        ValueError: The name is taken, or the kind is unknown.
    """
    if kind not in _KINDS:
        raise ValueError(f"unknown kind {kind!r} of network: choose one of {', '.join(_KINDS)}")

    def decorate(builder: Builder) -> Builder:
        known = settings_of(builder, settings or ())
        summary = description or (inspect.getdoc(builder) or "").partition("\n")[0]
        MODELS.register(name, ModelSpec(builder, summary, kind, known, recipe), defined_by=builder)
        return builder

    return decorate


def list_models(
    pattern: str | Sequence[str] = "*", *, exclude: str | Sequence[str] = (), kind: str | None = None
) -> list[str]:
    """Names of the networks that `create_model` makes.

    Args:
        pattern: A shell pattern such as `cnn-*`, or several.
        exclude: Patterns whose matches are left out.
        kind: `capsules` or `plain`; None for both.

    Examples:
        >>> import shortcaps
        >>> shortcaps.list_models("cnn-*")
        ['cnn-23k', 'cnn-68k']
    """
    return MODELS.names(pattern, exclude=exclude, where=lambda spec: kind in (None, spec.kind))


@overload
def create_model(
    name: Literal["baseline", "expanded"] | Architecture = "baseline",
    *,
    image_size: int | Size = 28,
    channels: int = 1,
    classes: int = 10,
    **settings: Any,
) -> CapsuleNetwork: ...


@overload
def create_model(
    name: str, *, image_size: int | Size = 28, channels: int = 1, classes: int = 10, **settings: Any
) -> Network: ...


def create_model(
    name: str | Architecture = "baseline",
    *,
    image_size: int | Size = 28,
    channels: int = 1,
    classes: int = 10,
    **settings: Any,
) -> Network:
    """Create any network by name, for images of any size.

    Args:
        name: One of `list_models()`, e.g. `baseline` (23k parameters) or `expanded` (68k), the paper's; or an `Architecture` of
            your own.
        image_size: Height and width of the images, or one number for both.
        channels: Channels of the images: 1 for grey, 3 for colour.
        classes: Number of classes.
        **settings: Further settings of the network. The paper's take `routing` (`attention`, `dynamic`, `fuzzy`, `em`, one of your own,
            or a `Routing`), `routing_settings` of a routing given by name (`{"sharpness": 4.0}`), `shortcut` (or layer by layer),
            `path` (how votes are computed: `auto`, `fused`, `factored`, `dense`; the numbers are the same), `backbone` (a name, or any
            module that is one) and every setting of `Architecture`, e.g. `pose=3`, `passes=1`, `iterations=3`, `dropout=0`.

    Returns:
        A `Network`; for names of kind `capsules` a `CapsuleNetwork`.

    Raises:
        ValueError: The name is unknown, or a setting is out of range.
        TypeError: The network has no such setting.

    Examples:
        >>> import shortcaps
        >>> model = shortcaps.create_model("baseline", routing="fuzzy", image_size=40)
        >>> sum(p.numel() for p in model.parameters())
        29994
    """
    named: dict[str, Any] = {"name": name}
    if isinstance(name, Architecture):
        # The presets' own builder, for an architecture without a name. (Imported late: the presets register themselves here.)
        from shortcaps.models.presets import architecture_spec

        # Any preset with all of these settings is this architecture.
        named = {"name": "baseline", **asdict(name)}
        spec, name = architecture_spec(name), "of this architecture"
    else:
        spec = MODELS[name]
    spec.check_settings(name, list(settings))
    model = spec.build(image_size=as_size(image_size), channels=channels, classes=classes, **settings)
    model.blueprint = {**named, "image_size": image_size, "channels": channels, "classes": classes, **settings}
    return model
