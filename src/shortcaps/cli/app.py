"""What all commands share: the application, the consoles, errors and notes."""

from __future__ import annotations

import io
import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, cast

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

import shortcaps
from shortcaps.environment import best_device, is_first_process
from shortcaps.errors import DataError, RunError, RunFault
from shortcaps.files import to_json
from shortcaps.progress import SECONDS_BETWEEN_LINES
from shortcaps.startup import choices_made

app = typer.Typer(
    name="shortcaps",
    help="Capsule networks with shortcut routing. Begin with `shortcaps serve mnist-baseline-fuzzy` or `shortcaps train`.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
_OBEYED = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What a terminal obeys instead of showing it, but for tabs and line ends: control characters, and changes of direction."""


class _PlainConsole(Console):
    """Shows names of files and classes as they are, and obeys nothing in them: they may be those of a stranger's run."""

    def render_str(self, text: str, **options: Any) -> Text:
        """As rich's, with an escape for each character that a terminal would obey."""
        return super().render_str(_OBEYED.sub(lambda found: ascii(found[0])[1:-1], text), **options)


# `[a]` is no style, and `:car:` no picture.
console = _PlainConsole(markup=False, emoji=False)
errors = _PlainConsole(stderr=True, markup=False, emoji=False)
# Typer exports only this one of click's usage errors; its base class is that of the others, in every version of typer.
_UsageError = cast(type[typer.BadParameter], typer.BadParameter.__bases__[0])


def main() -> None:
    """Run the `shortcaps` command. A mistake of the user's prints one line and exits with code 2, a failure while running with code 1."""
    for stream in (sys.stdout, sys.stderr):
        # A file's name need not be UTF-8, nor can every terminal show every letter: better an escape than no result.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    _print_log()
    try:
        sys.exit(app(standalone_mode=False))
    except _UsageError as mistake:
        _exit_for_usage(mistake)
    except (DataError, RunError) as mistake:
        _exit(str(mistake), 2)
    except RunFault as fault:
        _exit(str(fault), 1)
    except ModuleNotFoundError as missing:
        _exit(f"this needs {missing.name}, which is not installed: pip install 'shortcaps[all]'", 1)
    except OSError as fault:
        _exit(f"{fault.filename or 'a file'}: {fault.strerror or fault}", 1)


def print_error(message: str) -> None:
    """Print a line about what is wrong to standard error."""
    errors.print(f"shortcaps: {message}", markup=False, highlight=False, soft_wrap=True)


def print_json(content: object) -> None:
    """Print results as JSON to standard output."""
    print(to_json(content))


def _exit(message: str, code: int) -> None:
    print_error(message)
    sys.exit(code)


def _exit_for_usage(mistake: typer.BadParameter) -> None:
    """Print one line instead of typer's box of five. Without any argument typer has already printed the help."""
    if type(mistake).__name__ == "NoArgsIsHelpError":
        sys.exit(mistake.exit_code)
    command = mistake.ctx.command_path if mistake.ctx else "shortcaps"
    message = " ".join(mistake.format_message().split())
    _exit(f"{message[:1].lower()}{message[1:].rstrip('.')} (see `{command} --help`)", mistake.exit_code)


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"shortcaps {shortcaps.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say how the processor is used, and why.")] = False,
) -> None:
    if verbose:
        for choice in choices_made():
            note(str(choice))
        note(f"PyTorch uses {torch.get_num_threads()} threads")


def note(message: str) -> None:
    """Print a remark to standard error, apart from the results on standard output."""
    errors.print(message, markup=False, highlight=False, style="dim", soft_wrap=True)


@contextmanager
def status() -> Iterator[Callable[[str], None]]:
    """A line on a terminal that says what is being done; gives the function that changes it. Elsewhere, a note every half minute."""
    if not errors.is_terminal:
        spoken = time.monotonic()

        def say(message: str) -> None:
            nonlocal spoken
            if time.monotonic() - spoken >= SECONDS_BETWEEN_LINES:
                spoken = time.monotonic()
                note(message)

        yield say
        return
    with errors.status("starting") as shown:
        yield lambda message: shown.update(escape(message))


class _Lines(logging.Handler):
    """Prints the package's log like the notes of the commands."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


def _print_log() -> None:
    """Print the package's log from INFO on. Of several processes that train together only the first does."""
    log = logging.getLogger("shortcaps")
    log.setLevel(logging.INFO)
    log.addHandler(_Lines() if is_first_process() else logging.NullHandler())
    log.propagate = False


def find_device(name: str | None) -> str:
    """The device that `--device` names, or the best one available.

    Raises:
        RunError: There is no such device.
    """
    if name is None:
        return best_device()
    try:
        if torch.device(name).type not in ("cpu", "cuda", "mps"):
            raise RuntimeError
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise RunError(
            f"--device {name} is not available on this platform: leave it out to use the best available ({best_device()})"
        ) from error
    return name
