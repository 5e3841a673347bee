"""Runs the code cells of a notebook in this process, and keeps what each one prints, returns and draws.

The notebooks are kept without outputs: the tests run them, and the documentation shows what a run of its own gave. Cells are plain Python,
so that no kernel is needed: `python notebooks/execute.py notebooks/first-steps.ipynb`.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Cell:
    """A cell of a notebook.

    Attributes:
        kind: `markdown` or `code`.
        source: Its text.
        output: What it printed, and the last expression where it has a value.
        pictures: What it drew with matplotlib, as PNG.
    """

    kind: str
    source: str
    output: str = ""
    pictures: list[bytes] = field(default_factory=list)


def read(file: Path) -> list[Cell]:
    """The cells of a notebook."""
    cells = json.loads(file.read_text("utf-8"))["cells"]
    return [Cell(cell["cell_type"], "".join(cell["source"])) for cell in cells]


def execute(file: Path) -> list[Cell]:
    """The cells of a notebook with the outputs of a run; an error in one is raised as it is."""
    import matplotlib

    matplotlib.use("Agg")
    cells = read(file)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        if cell.kind == "code":
            _run(cell, names, f"{file.name}, cell {number}")
    return cells


def _run(cell: Cell, names: dict[str, Any], title: str) -> None:
    from matplotlib import pyplot

    tree = ast.parse(cell.source, title)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, title, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), title, "eval"), names)
            # As in a notebook, a semicolon keeps the value to itself.
            if value is not None and not cell.source.rstrip().endswith(";"):
                print(repr(value))
    cell.output = printed.getvalue()
    for number in pyplot.get_fignums():
        picture = io.BytesIO()
        pyplot.figure(number).savefig(picture, format="png", dpi=110, bbox_inches="tight")
        cell.pictures.append(picture.getvalue())
    pyplot.close("all")


def as_markdown(cells: list[Cell]) -> str:
    """The cells with their outputs as a page; pictures stand in it themselves."""
    parts = []
    for cell in cells:
        if cell.kind == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        if cell.output.strip():
            parts.append(f"```text\n{cell.output.rstrip()}\n```")
        for picture in cell.pictures:
            parts.append(f"![What the cell above draws](data:image/png;base64,{base64.b64encode(picture).decode()})")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(as_markdown(execute(Path(sys.argv[1]))))
