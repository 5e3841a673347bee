"""A trained network as a web page and an API: `create_app(Predictor("runs/…"))` is an ASGI application."""

from shortcaps.serve.app import Limits, create_app

__all__ = ["Limits", "create_app"]
