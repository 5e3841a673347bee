"""The README's tables, made from the records, so that none of their figures is typed by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import stdev

from shortcaps.errors import RunError
from shortcaps.files import atomic_write
from shortcaps.reporting.tables import Grid, markdown_table
from shortcaps.reproduce import published
from shortcaps.reproduce.cells import OPPONENTS, Cell, columns
from shortcaps.reproduce.compact import Comparison
from shortcaps.reproduce.pairs import pair_runs
from shortcaps.reproduce.records import Record
from shortcaps.reproduce.table1 import Ours, ours


def table1_lines(records: Sequence[Record], folder: Path) -> list[str]:
    """A row for each network and data set, a column for each routing, and the plain CNN of the nearest size, if there is one, last.

    Args:
        records: Of Table 1.
        folder: Where their stored answers lie.
    """
    rows: Grid = [["", *published.ROUTINGS, "plain CNN"]]
    for network, family in product(published.NETWORKS, published.FAMILIES):
        plain_name = OPPONENTS.get((network, family))
        label = network if family == "shortcut" else f"{network} without shortcut"
        for dataset in columns():
            plain = Ours(()) if plain_name is None else ours(records, Cell(plain_name, None, None, dataset))
            cells = [Cell(network, family, routing, dataset) for routing in published.ROUTINGS]
            found = [ours(records, cell) for cell in cells]
            if not any(entry.records for entry in found):
                continue
            tested = next(entry.records[0].dataset for entry in found if entry.records)
            figures = [_figure(entry, cell, plain, folder) for entry, cell in zip(found, cells, strict=True)]
            rows.append([f"{label}, {tested.label}", *figures, _mean(plain)])
    return markdown_table(rows)


def _mean(found: Ours) -> str:
    """Mean in percent, with the standard deviation where there are several seeds, and the epochs where they are fewer than the recipe's."""
    if not found.records:
        return ""
    accuracies = [100 * record.accuracy for record in found.records]
    spread = f" ± {stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
    first = found.records[0]
    return f"{found.mean:.2f}{spread}" + (f" after {first.epochs} epochs" if first.trial else "")


def _figure(found: Ours, cell: Cell, plain: Ours, folder: Path) -> str:
    """Ours, the paper's in brackets, and the paired difference to the plain CNN where both have stored their answers."""
    if not found.records:
        return ""
    text = _mean(found) + ("" if cell.published is None else f" ({cell.published:.2f})")
    pair = pair_runs(found.records, plain.records, folder)
    if pair is not None:
        low, high = (100 * bound for bound in pair.result.interval)
        seeds = "" if pair.seeds == len(found.records) else f" ({pair.seeds} of {len(found.records)} seeds)"
        text += f"<br>{100 * pair.result.difference:+.2f} [{low:+.2f}, {high:+.2f}]{seeds}"
    return text


def compact_lines(comparisons: Sequence[Comparison]) -> list[str]:
    """A row for each network and data set: accuracies, and paired differences to the twin and to the CNN.

    Args:
        comparisons: What `compact.compare` found.
    """
    rows: Grid = [["", "capsules", "opponent", "", "difference in points, 95 % interval", "seeds", "verdict"]]
    for c in comparisons:
        low, high = (100 * bound for bound in c.difference_interval)
        difference = f"{100 * c.difference:+.2f} [{low:+.2f}, {high:+.2f}]"
        row = [c.label, f"{c.network} {c.accuracy:.2%}", c.twin, f"{c.twin_accuracy:.2%}"]
        rows.append([*row, difference, str(c.seeds), c.verdict])
    return markdown_table(rows)


def replace_block(text: str, name: str, lines: Sequence[str]) -> str:
    """A page with the lines between `<!-- NAME … -->` and `<!-- end of NAME -->` exchanged.

    Raises:
        RunError: The page has no such place.
    """
    block = re.compile(rf"(<!-- {name}\b[^>]*-->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    if not block.search(text):
        raise RunError(f"there is no place for {name}: put <!-- {name} --> and <!-- end of {name} --> around it")
    content = "\n".join(lines) + "\n"
    return block.sub(lambda found: found[1] + content + found[2], text)


def update_page(page: Path, name: str, lines: Sequence[str]) -> None:
    """Exchange a block of a page, whole or not at all."""
    text = replace_block(page.read_text("utf-8"), name, lines)
    with atomic_write(page) as file:
        file.write(text.encode())
