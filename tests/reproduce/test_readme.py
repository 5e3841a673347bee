"""The README's tables are those of the records: whoever adds a record, or types a figure, is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shortcaps.errors import RunError
from shortcaps.reproduce.cells import Cell
from shortcaps.reproduce.compact import compare
from shortcaps.reproduce.readme import compact_lines, replace_block, table1_lines, update_page
from shortcaps.reproduce.records import read_records
from tests.reproduce.test_table1 import made_up

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


def test_the_table_of_the_paper_is_made_from_the_records() -> None:
    text = (ROOT / "README.md").read_text()
    lines = table1_lines(read_records(RESULTS / "table1"), RESULTS / "table1")
    assert replace_block(text, "table1", lines) == text, (
        "stale: run `shortcaps reproduce table1 --report-only --readme README.md`"
    )
    assert any(re.search(r"\d\d\.\d\d ± \d\.\d\d \(99\.33\)", line) for line in lines), (
        "three seeds, and the paper's figure"
    )
    assert any(line.startswith("| baseline without shortcut, MNIST |") for line in lines)


def test_a_cell_that_was_cut_short_says_so(tmp_path: Path) -> None:
    short, whole = Cell("expanded", "sequential", "em", "mnist"), Cell("expanded", "sequential", "fuzzy", "mnist")
    records = [made_up(short, 0.99, epochs=3), made_up(whole, 0.995)]
    (row,) = (line for line in table1_lines(records, tmp_path) if line.startswith("| expanded without shortcut"))
    assert "| 99.00 after 3 epochs (99.20) | 99.50 (99.53) |" in row


def test_the_table_of_compact_networks_is_made_from_the_records() -> None:
    text = (ROOT / "README.md").read_text()
    lines = compact_lines(compare(read_records(RESULTS / "compact"), RESULTS / "compact"))
    assert replace_block(text, "compact", lines) == text, (
        "stale: run `shortcaps reproduce compact --report-only --readme README.md`"
    )


def test_only_the_block_of_that_name_is_exchanged(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- one: by hand -->\nold\n<!-- end of one -->\nb\n<!-- two -->\nkept\n<!-- end of two -->\n")
    update_page(page, "one", ["| x |", "| \\1 |"])
    assert page.read_text() == (
        "a\n<!-- one: by hand -->\n| x |\n| \\1 |\n<!-- end of one -->\nb\n<!-- two -->\nkept\n<!-- end of two -->\n"
    )
    with pytest.raises(RunError, match="there is no place for three: put <!-- three -->"):
        update_page(page, "three", [])
