"""A trained network as a web page and an API: `create_app(Predictor("runs/…"))` is an ASGI application."""

from typing import TYPE_CHECKING

from shortcaps.serve.limits import Limits

if TYPE_CHECKING:
    from shortcaps.serve.access import Access
    from shortcaps.serve.app import create_app
else:
    # The command line needs the limits for its help, with or without a web framework installed.
    _LAZY = {"Access": "shortcaps.serve.access", "create_app": "shortcaps.serve.app"}

    def __getattr__(name: str) -> object:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)


__all__ = ["Access", "Limits", "create_app"]
