"""The command line: parses, delegates, prints. One file for each command; their order here is that of the help."""

# Each adds its command.
from shortcaps.cli import data, train, recipe, evaluate, compare, predict  # noqa: F401, I001
from shortcaps.cli import explain, export, serve, reproduce, study, bench  # noqa: F401
from shortcaps.cli.app import app, main

__all__ = ["app", "main"]
