"""Tables of text, and reports of them, as Markdown and as HTML."""

from __future__ import annotations

import html
from pathlib import Path

from shortcaps.files import atomic_write
from shortcaps.reporting.html import page, section

Grid = list[list[str]]
"""Rows of cells; the first row is the header."""


def markdown_table(grid: Grid) -> list[str]:
    """The lines of a Markdown table."""
    header, *rows = grid
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]


def _html_table(grid: Grid) -> str:
    """The table as HTML; a cell in backticks becomes code."""

    def shown(cell: str) -> str:
        text = html.escape(cell.strip("`"))
        return f"<code>{text}</code>" if cell.startswith("`") else text

    def line(row: list[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{shown(cell)}</{tag}>' for cell in row)}</tr>"

    header, *rows = grid
    return f"<div class='wide'><table>{line(header, 'th')}{''.join(line(row, 'td') for row in rows)}</table></div>"


def write_report(
    folder: Path,
    name: str,
    *,
    title: str,
    command: str,
    notes: list[str],
    sentences: list[str],
    parts: list[tuple[str, Grid | str]],
    pictures: dict[str, str] | None = None,
) -> tuple[Path, Path]:
    """Write NAME.md and NAME.html: notes first, then the findings, then the tables (or paragraphs).

    Args:
        folder: Where to write them.
        name: Their name, without a suffix.
        title: Title of the report.
        command: The command that produced it.
        notes: What a reader must know before quoting anything from it.
        sentences: The findings, computed from the data.
        parts: Tables or paragraphs, each with a title.
        pictures: SVG for the page, by title; the Markdown refers to NAME.png instead.

    Returns:
        Both files.
    """
    lines = [f"# {title}", "", f"`{command}`", "", *(f"- {note}" for note in notes), ""]
    lines += [*(f"- {sentence}" for sentence in sentences), ""]
    body = section("What was found", "".join(f"<p>{html.escape(sentence)}</p>" for sentence in sentences))
    for heading, part in parts:
        lines += [f"## {heading}", "", *(markdown_table(part) if isinstance(part, list) else [part]), ""]
        body += section(heading, _html_table(part) if isinstance(part, list) else f"<p>{html.escape(part)}</p>")
    for heading, svg in (pictures or {}).items():
        lines += [f"![{heading}]({name}.png)", ""]
        body += section(heading, f'<div class="plot">{svg}</div>')
    written = folder / f"{name}.md", folder / f"{name}.html"
    for target, text in zip(written, ("\n".join(lines), page(title, command, notes, body)), strict=True):
        with atomic_write(target) as file:
            file.write(text.encode())
    return written
