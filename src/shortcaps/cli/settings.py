"""Options of commands, derived from the config's dataclasses, which define their names, types, defaults and help texts."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from shortcaps.runs.config import FLAGS, SECTIONS, Flag

_SPELLINGS = {"shortcut": "--shortcut/--no-shortcut", "colour": "--colour/--grey", "start": "--from"}
"""Of flags whose opposite is not `--no-…`, or which are on by default, and of a setting whose name would be a word of Python."""


def spelling(name: str) -> str:
    """How a setting is spelled on the command line, e.g. `--image-size`."""
    return _SPELLINGS.get(name, f"--{name.replace('_', '-')}").partition("/")[0]


def takes_settings(
    names: Iterable[str], *, default: str | Mapping[str, str] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command options for these settings.

    Args:
        names: Names of the settings on the command line, with underscores.
        default: The default that the help shows for all of them, or by name for some; otherwise their own.

    Returns:
        A decorator. The command is called with `settings`, a dictionary of those that were given, and its other parameters.
    """
    chosen = [name for name in names if _type_of(FLAGS[name]) is not dict]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_settings(**values: Any) -> Any:
            given = {name: values.pop(name) for name in chosen}
            return command(**values, settings={name: value for name, value in given.items() if value is not None})

        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "settings"]
        options = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(name, _default_of(name, default))
            )
            for name in chosen
        ]
        own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        # Typer reads these instead of the signature of `with_settings`.
        with_settings.__signature__ = inspect.Signature([*own[:1], *options, *own[1:]])  # type: ignore[attr-defined]
        with_settings.__annotations__ = {p.name: p.annotation for p in (*own, *options)}
        del with_settings.__wrapped__
        return with_settings

    return decorate


def _default_of(name: str, default: str | Mapping[str, str] | None) -> str | None:
    """The default that the help shows; none for what is off or not set."""
    given = default.get(name) if isinstance(default, Mapping) else default
    field = FLAGS[name].field
    own = field.default
    if given is not None:
        return given
    if field.metadata["shown"] is not None:
        return str(field.metadata["shown"])
    if own is True:
        return "on"
    return None if own is None or own is False else str(own)


def _option(name: str, shown: str | None) -> Any:
    flag = FLAGS[name]
    kind = _type_of(flag)
    spelled = name.replace("_", "-")
    words = [_SPELLINGS.get(name, f"--{spelled}/--no-{spelled}" if kind is bool else f"--{spelled}")]
    text = flag.field.metadata["help"]
    text = f"{text[0].upper()}{text[1:]}." + (f" [default: {shown}]" if shown else "")
    panel = (SECTIONS[flag.section].__doc__ or "").partition("\n")[0].removesuffix(".")
    return Annotated[kind | None, typer.Option(*words, help=text, show_default=False, rich_help_panel=panel)]


def _type_of(flag: Flag) -> Any:
    """The plain type of a setting, without None and bounds."""
    kind = get_type_hints(SECTIONS[flag.section])[flag.field.name]
    alternatives = [part for part in get_args(kind) if part is not type(None)]
    if get_origin(kind) is not dict and alternatives:
        kind = alternatives[0]
    kind = getattr(kind, "__origin__", kind) if hasattr(kind, "__metadata__") else kind
    return get_origin(kind) or kind
