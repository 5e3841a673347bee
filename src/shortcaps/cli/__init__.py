"""The command line: parses, delegates, prints. One file for each command; their order here is that of the help."""

from shortcaps.cli import data, train, recipe, evaluate, predict, explain, export, serve, reproduce, study, bench  # noqa: F401, I001  (each adds its command)
from shortcaps.cli.app import app, main

__all__ = ["app", "main"]
