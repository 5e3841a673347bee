"""Tables of text, as Markdown and as HTML."""

from __future__ import annotations

import html
from pathlib import Path

from shortcaps.files import atomic_write
from shortcaps.reporting.html import page, section

Grid = list[list[str]]
"""Rows of cells; the first row is the header."""


def markdown_table(grid: Grid) -> list[str]:
    header, *rows = grid
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]


def html_table(grid: Grid) -> str:
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
    """NAME.md and NAME.html: notes first, then what was found in sentences, then the tables (or paragraphs) themselves.

    pictures: for the page, SVG by title; the Markdown names the file of the same name with .png
    """
    lines = [f"# {title}", "", f"`{command}`", "", *(f"- {note}" for note in notes), ""]
    lines += [*(f"- {sentence}" for sentence in sentences), ""]
    body = section("What was found", "".join(f"<p>{html.escape(sentence)}</p>" for sentence in sentences))
    for heading, part in parts:
        lines += [f"## {heading}", "", *(markdown_table(part) if isinstance(part, list) else [part]), ""]
        body += section(heading, html_table(part) if isinstance(part, list) else f"<p>{html.escape(part)}</p>")
    for heading, svg in (pictures or {}).items():
        lines += [f"![{heading}]({name}.png)", ""]
        body += section(heading, f'<div class="plot">{svg}</div>')
    written = folder / f"{name}.md", folder / f"{name}.html"
    for target, text in zip(written, ("\n".join(lines), page(title, command, notes, body)), strict=True):
        with atomic_write(target) as file:
            file.write(text.encode())
    return written
