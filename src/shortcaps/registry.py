"""One registry for each kind of part: routings, backbones, models, data sets, recipes, losses, schedules.

A name on the command line, in a TOML file or in `create_model` is looked up here and nowhere else, so whatever registers itself (a
module of this package, an installed package with an entry point in `shortcaps.plugins`, a file named by `--plugin`) can be used everywhere.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Generic, TypeVar, cast

from shortcaps.plugins import current_plugin, load_installed_plugins

Part = TypeVar("Part")
Definition = TypeVar("Definition")


class Registry(Mapping[str, Part], Generic[Part]):
    """Parts of one kind by name, in alphabetical order.

    An unknown name is looked up among installed plug-ins before it is rejected.

    Args:
        kind: What a part is called in messages, e.g. `routing`.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._parts: dict[str, Part] = {}
        self._places: dict[str, tuple[str, str | None]] = {}
        self._plugins: dict[str, str | None] = {}

    def register(self, name: str, part: Part, *, defined_by: object = None) -> Part:
        """Register a part under a name.

        Args:
            name: Its name; no two parts share one.
            part: The part itself.
            defined_by: The class or function that the user wrote, if the part was derived from it.

        Returns:
            The part, so that decorators can pass it on.

        Raises:
            ValueError: The name is taken by another part.
        """
        definition = part if defined_by is None else defined_by
        place = str(getattr(definition, "__module__", "shortcaps")), getattr(definition, "__qualname__", None)
        # Running a notebook cell again defines the same part again; anything else would hide what others rely on.
        if name in self._parts and (place[1] is None or self._places[name] != place):
            owner = self.origin(name) or "shortcaps itself"
            raise ValueError(f"there is already a {self.kind} called {name!r}, from {owner}: choose another name")
        self._parts[name], self._places[name] = part, place
        self._plugins[name] = current_plugin()
        return part

    def decorator(self, name: str) -> Callable[[Definition], Definition]:
        """A decorator that registers what it is put on under a name, and leaves it as it is."""

        def decorate(definition: Definition) -> Definition:
            self.register(name, cast("Part", definition))
            return definition

        return decorate

    def __getitem__(self, name: str) -> Part:
        """The part of that name; otherwise a KeyError whose message lists the known names and the closest one."""
        if not isinstance(name, str) or not self._has(name):
            raise UnknownPart(self.unknown(name))
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        load_installed_plugins()
        return iter(sorted(self._parts))

    def __len__(self) -> int:
        load_installed_plugins()
        return len(self._parts)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._has(name)

    def _has(self, name: str) -> bool:
        if name not in self._parts:
            load_installed_plugins()
        return name in self._parts

    def known(self) -> list[str]:
        """Names known without loading installed plug-ins, for help texts that are built before anything runs."""
        return sorted(self._parts)

    def unknown(self, name: object) -> str:
        """One line about a name that nobody has registered: the known names, and the closest one."""
        near = difflib.get_close_matches(str(name), self, 1, 0.6)
        hint = f" (did you mean {near[0]}?)" if near else ""
        return f"unknown {self.kind} {name!r}: choose one of {', '.join(self)}{hint}"

    def origin(self, name: str) -> str | None:
        """Where a part comes from: a plug-in as the user named it, a script or a module; None for the parts of this package."""
        module = self._places[name][0] if name in self._places else "shortcaps"
        if module == "__main__":
            module = getattr(sys.modules["__main__"], "__file__", None) or module
        is_own = module.partition(".")[0] in ("shortcaps", "functools")
        return self._plugins.get(name) or (None if is_own else module)

    def names(
        self,
        pattern: str | Sequence[str] = "*",
        *,
        exclude: str | Sequence[str] = (),
        where: Callable[[Part], bool] = lambda part: True,
    ) -> list[str]:
        """Names that match, in alphabetical order.

        Args:
            pattern: A shell pattern such as `compact-*`, or several of them.
            exclude: Patterns whose matches are left out.
            where: A further condition on the part itself.
        """
        wanted = [pattern] if isinstance(pattern, str) else pattern
        unwanted = [exclude] if isinstance(exclude, str) else exclude
        return [
            name
            for name, part in self.items()
            if any(fnmatchcase(name, p) for p in wanted)
            and not any(fnmatchcase(name, p) for p in unwanted)
            and where(part)
        ]


class UnknownPart(KeyError, ValueError):
    """Nobody has registered a part of that name. The message is a sentence, not the bare name that a KeyError would show."""

    def __str__(self) -> str:
        return str(self.args[0])
