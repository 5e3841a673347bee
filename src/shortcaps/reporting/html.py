"""Self-contained HTML pages, which open offline: what all reports share."""

from __future__ import annotations

import base64
import html
import io
from typing import Any

import numpy as np

from shortcaps.files import to_json

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #66717d; --paper: #fbfbf9; --card: #ffffff; --line: #e3e5e2;
        --accent: #0b7a75; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8ebee; --soft: #9aa5b1; --paper: #14181d; --card: #1c2229; --line: #2d353e; --accent: #4fc3bd; }
  .plot { background: #f4f4f1; border-radius: 8px; padding: 8px; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 980px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 1.5rem; margin: 0 0 4px; } h2 { font-size: 1.05rem; margin: 0 0 12px; }
.soft { color: var(--soft); } .small { font-size: .85rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 20px; margin-top: 20px; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-top: 20px; }
.figure { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 14px 16px; }
.figure b { display: block; font-size: 1.5rem; line-height: 1.25; } .figure:first-child b { color: var(--accent); }
.plot svg { max-width: 100%; height: auto; display: block; margin: 0 auto; }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(96px, 1fr)); gap: 12px; }
.gallery figure, .maps figure { margin: 0; text-align: center; }
.gallery img { width: 84px; height: 84px; image-rendering: pixelated; border-radius: 6px; }
.maps { display: grid; grid-template-columns: repeat(auto-fit, minmax(260px, 1fr)); gap: 16px; }
.maps .row { display: flex; gap: 6px; justify-content: center; } .maps img { width: 30%; max-width: 112px; border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; } td, th { padding: 4px 8px; text-align: left;
  border-bottom: 1px solid var(--line); vertical-align: top; } td.number, th.number { text-align: right;
  font-variant-numeric: tabular-nums; } .wide { overflow-x: auto; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 20px; }
pre { overflow-x: auto; font-size: .8rem; margin: 0; } code { font-size: .9em; } td code { white-space: nowrap; } .warn { color: #b4540a; }
"""


def page(title: str, subtitle: str, notes: list[str], body: str) -> str:
    """A whole page.

    Args:
        title: Its title, as text.
        subtitle: A line below it, as text.
        notes: What a reader must know before quoting anything from it, as text.
        body: The rest, as HTML.
    """
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>{html.escape(title)}</h1><div class='soft'>{html.escape(subtitle)}</div>"
        + "".join(f"<p class='warn small'>{html.escape(note)}</p>" for note in notes)
        + body
        + "</main></body></html>"
    )


def figures(values: list[tuple[str, str]]) -> str:
    """Large numbers, each with a caption, as HTML."""
    cells = (
        f"<div class='figure'><b>{value}</b><span class='soft small'>{what}</span></div>" for value, what in values
    )
    return f"<div class='figures'>{''.join(cells)}</div>"


def section(title: str, body: str) -> str:
    """A section with a title (text) and a body (HTML)."""
    return f"<section><h2>{html.escape(title)}</h2>{body}</section>"


def table(values: dict[str, Any]) -> str:
    """A table with a row for each value, as HTML."""

    def shown(value: Any) -> str:
        return value if isinstance(value, str) else to_json(value, indent=None)

    lines = (
        f"<tr><td class='soft'>{html.escape(k)}</td><td>{html.escape(shown(v))}</td></tr>" for k, v in values.items()
    )
    return f"<div class='wide'><table>{''.join(lines)}</table></div>"


def as_png(pixels: np.ndarray) -> str:
    """A data URL of an array of grey (height, width) or colour (height, width, 3) bytes."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
