"""Third-party code that registers parts of its own.

A plug-in is code, so it runs only if the user names it (`--plugin my_file.py`, `load_plugin`) or has installed it as a package with
an entry point in the group `shortcaps.plugins`; never because a run directory mentions it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path

from shortcaps.errors import RunError

ENTRY_POINTS = "shortcaps.plugins"

_loaded: dict[str, object] = {}
_being_loaded: list[str] = []
_installed_are_loaded = False


def load_plugin(plugin: str | Path) -> None:
    """Run a plug-in, so that the parts it registers can be used by name.

    Args:
        plugin: Path of a Python file, or dotted name of an importable module. Loading it a second time does nothing.

    Raises:
        RunError: There is no such file or module, or it raised an error.
    """
    name = str(plugin)
    path = Path(name).expanduser()
    is_file = path.suffix == ".py" or path.is_file()
    key = str(path.resolve()) if is_file else name
    if key in _loaded:
        return
    with _loading(name):
        _loaded[key] = _run_file(path) if is_file else _import_module(name)


def current_plugin() -> str | None:
    """The plug-in that is currently being loaded, as the user named it; None outside of one."""
    return _being_loaded[-1] if _being_loaded else None


def load_installed_plugins() -> None:
    """Run the plug-ins of installed packages, once."""
    global _installed_are_loaded
    if _installed_are_loaded:
        return
    _installed_are_loaded = True
    for entry in entry_points(group=ENTRY_POINTS):
        with _loading(entry.module):
            try:
                entry.load()
            except Exception as error:
                raise RunError(
                    f"the plug-in {entry.name} ({entry.value}) of an installed package failed: {error!r}; uninstall or fix it"
                ) from error


@contextmanager
def _loading(name: str) -> Iterator[None]:
    _being_loaded.append(name)
    try:
        yield
    finally:
        _being_loaded.pop()


def _run_file(path: Path) -> object:
    if not path.is_file():
        raise RunError(f"--plugin {path} is not a file: give the path of a Python file, or the name of a module")
    # A unique name, so that two files called plugin.py do not collide; in sys.modules, so that worker processes can unpickle from it.
    module_name = f"shortcaps_plugin_{path.stem}_{sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise RunError(f"--plugin {path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise RunError(f"--plugin {path} failed: {type(error).__name__}: {error}") from error
    return module


def _import_module(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise RunError(f"--plugin {name} is neither a file nor an importable module: {error}") from error
    except Exception as error:
        raise RunError(f"--plugin {name} failed: {type(error).__name__}: {error}") from error
