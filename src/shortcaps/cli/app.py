"""What all commands share: the application, where they print, what they say while they work."""

from __future__ import annotations

import logging
import sys
from typing import Annotated, cast

import torch
import typer
from rich.console import Console

import shortcaps
from shortcaps.environment import best_device, is_first_process
from shortcaps.errors import DataError, RunError, RunFault

app = typer.Typer(
    name="shortcaps",
    help="Capsule networks with shortcut routing.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
console = Console()
errors = Console(stderr=True)
# Typer exports only this one of click's mistakes in usage; its base is that of the others, in each version of typer.
UsageError = cast(type[typer.BadParameter], typer.BadParameter.__bases__[0])


def main() -> None:
    """The `shortcaps` command. A mistake of the user's gets one line and exit code 2, a fault while running exit code 1."""
    _print_log()
    try:
        sys.exit(app(standalone_mode=False))
    except UsageError as mistake:
        _refuse_usage(mistake)
    except (DataError, RunError) as mistake:
        _say_and_exit(str(mistake), 2)
    except RunFault as fault:
        _say_and_exit(str(fault), 1)
    except ModuleNotFoundError as missing:
        _say_and_exit(f"this needs {missing.name}, which is not installed: pip install 'shortcaps[all]'", 1)
    except OSError as fault:
        _say_and_exit(f"{fault.filename or 'a file'}: {fault.strerror or fault}", 1)


def say_what_is_wrong(message: str) -> None:
    errors.print(f"shortcaps: {message}", markup=False, highlight=False, soft_wrap=True)


def _say_and_exit(message: str, code: int) -> None:
    say_what_is_wrong(message)
    sys.exit(code)


def _refuse_usage(mistake: typer.BadParameter) -> None:
    """One line instead of typer's box of five. Without any argument typer has printed the help already."""
    if type(mistake).__name__ == "NoArgsIsHelpError":
        sys.exit(mistake.exit_code)
    command = mistake.ctx.command_path if mistake.ctx else "shortcaps"
    message = " ".join(mistake.format_message().split())
    _say_and_exit(f"{message[:1].lower()}{message[1:].rstrip('.')} (see `{command} --help`)", mistake.exit_code)


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"shortcaps {shortcaps.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


def tell(message: str) -> None:
    """A line about what is going on, beside the results on standard output."""
    errors.print(message, markup=False, highlight=False, style="dim", soft_wrap=True)


class _Lines(logging.Handler):
    """Prints what the package logs as the commands print what they have to say themselves."""

    def emit(self, record: logging.LogRecord) -> None:
        tell(record.getMessage())


def _print_log() -> None:
    """Show the package's log from INFO on. Of several processes that train together only the first speaks."""
    log = logging.getLogger("shortcaps")
    log.setLevel(logging.INFO)
    log.addHandler(_Lines() if is_first_process() else logging.NullHandler())
    log.propagate = False


def find_device(name: str | None) -> str:
    """What `--device` says, if there is such a device here; without it, the best there is."""
    if name is None:
        return best_device()
    try:
        if torch.device(name).type not in ("cpu", "cuda", "mps"):
            raise RuntimeError
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise RunError(
            f"--device {name} is not available on this platform: leave it out to take the best there is ({best_device()})"
        ) from error
    return name
