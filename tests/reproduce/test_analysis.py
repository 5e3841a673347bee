"""Complexity, Table 2 and the figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from shortcaps.environment import best_device
from shortcaps.models import create_model
from shortcaps.reproduce import published
from shortcaps.reproduce.complexity import count_iteration, voting_tensors, write_complexity
from shortcaps.reproduce.counting import CountOperations
from shortcaps.reproduce.table2 import Measured, Table2, ratio_grid, sentences, write_table2
from tests.training.support import finish, shortcaps


@pytest.mark.parametrize("network", published.NETWORKS)
@pytest.mark.parametrize("classes", [5, 10])
def test_equation_16_holds_for_every_layer(network: str, classes: int) -> None:
    for tensor in voting_tensors(network, classes=classes):
        assert tensor.ratio == pytest.approx(tensor.predicted, rel=1e-12)


def test_voting_tensors_have_the_sizes_of_the_text() -> None:
    """C_out · C_in · H · W · D with shortcut, K · K · C'_out · C'_in · W' · H' · D without."""
    first = voting_tensors("baseline")[0]
    assert first.shortcut == 10 * 8 * 5 * 5 * 16
    assert first.sequential == 3 * 3 * 16 * 8 * 5 * 5 * 16


@pytest.mark.parametrize(("routing", "leading"), [("attention", 4), ("dynamic", 4), ("fuzzy", 5), ("em", 10)])
def test_an_iteration_takes_what_its_derivation_says_and_little_more(routing: str, leading: int) -> None:
    counted = count_iteration(routing, "dense")
    assert counted.leading == leading
    # Whatever works on one number for each vote costs Q / 16; there are hardly more than 16 such operations.
    assert 0 < counted.rest < 1.2
    if counted.published is not None:
        assert (counted.published == leading) == (routing != "fuzzy")


def test_counting_counts_additions_products_and_matrix_products() -> None:
    a, b = torch.ones(3, 5), torch.ones(5, 7)
    with CountOperations() as counted:
        (a @ b).exp().sum()
    assert counted.total == 2 * 3 * 5 * 7 + 21 + 21


def test_an_operator_that_nobody_has_priced_is_not_overlooked() -> None:
    with pytest.raises(NotImplementedError, match=r"the cost of .* is unknown"), CountOperations():
        torch.ones(3, 3).cumsum(0)


def test_complexity_is_written_as_text_page_and_picture(tmp_path: Path) -> None:
    markdown, page, picture, data = write_complexity(tmp_path)
    assert "Eq. (16) holds exactly" in markdown.read_text()
    points = json.loads(data.read_text())["growth"]
    many, few = (next(p for p in points if p["quantity"] == "classes" and p["value"] == value) for value in (200, 10))
    assert many["shortcut"] == 20 * few["shortcut"]  # every vote of a shortcut is for a class
    assert f"{few['shortcut']:,} / {few['sequential']:,}" in markdown.read_text()
    assert "<svg" in page.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")


def table(shortcut_ms: float, sequential_ms: float, fuzzy_memory: int) -> Table2:
    networks = [
        Measured(
            network,
            family,
            routing,
            1000,
            shortcut_ms if family == "shortcut" else sequential_ms,
            1.0,
            fuzzy_memory if routing == "fuzzy" else 100,
            None,
        )
        for network in published.NETWORKS
        for family in published.FAMILIES
        for routing in published.ROUTINGS
    ]
    return Table2(
        "cpu", 8, "auto", 1, {"processor": "x", "threads": "1", "torch": "2", "commit": "-", "device": "CPU"}, networks
    )


def test_sentences_on_table_2_follow_the_data() -> None:
    said = " ".join(sentences(table(10, 30, 90)))
    assert (
        "“Shortcut is faster than no shortcut”, baseline network: holds; a training step is 3.00 to 3.00 times" in said
    )
    assert "“Fuzzy is lighter than EM” holds in all 4 networks that were measured: 0.90 to 0.90" in said
    assert "“Attention is lighter than EM” holds in none" in said
    said = " ".join(sentences(table(30, 10, 110)))
    assert "“Shortcut is faster than no shortcut”, baseline network: does not hold" in said
    assert "“Fuzzy is lighter than EM” holds in none: 1.10" in said
    said = " ".join(sentences(table(10, 30, 100)))
    assert "“Fuzzy is lighter than EM” holds in none (baseline shortcut, " in said
    assert "expanded sequential: alike within 1%): 1.00" in said


def test_a_device_that_is_not_here_is_refused_at_once() -> None:
    said = finish(shortcaps("reproduce", "table2", "--device", "toaster"), expect=2)
    assert said == (
        f"shortcaps: --device toaster is not available on this platform: leave it out to use the best available ({best_device()})\n"
    )


def test_table_2_shows_ratios_to_em_beside_the_papers(tmp_path: Path) -> None:
    grid = ratio_grid(table(10, 30, 90), "baseline", "shortcut")
    step = next(row for row in grid if row[0].startswith("training step"))
    assert step[1:5] == ["1.00", "1.00 (10 ms)", "0.81", "1.00 (10 ms)"]
    memory = next(row for row in grid if row[0].startswith("memory of inference"))
    assert memory[2] == "", "what could not be measured stays empty"
    markdown, page = write_table2(table(10, 30, 90), tmp_path)
    assert "The memory of inference could not be measured here for any network." in markdown.read_text()
    assert "The memory of a training step could not" not in page.read_text()


def test_sample_images_are_drawn_as_trained_on_and_as_tested() -> None:
    from shortcaps.data import Dataset
    from shortcaps.reproduce.pictures import draw_samples

    images, labels = torch.randint(256, (12, 1, 8, 8)).to(torch.uint8), torch.arange(12) % 3
    train, test = (
        Dataset("toy", "Toys", split, "default", images, labels, tuple("abc")) for split in ("train", "test")
    )
    figure = draw_samples([(train, test)])
    assert [axis.get_ylabel() for axis in figure.axes if axis.get_ylabel()] == ["Toys\ntraining", "Toys\ntest"]
    shown = {bytes((axis.images[0].get_array() * 255).round().astype("uint8").data) for axis in figure.axes}
    assert shown <= {bytes(image.numpy().data) for image in images[:, 0]}


def test_the_network_is_drawn_with_its_own_numbers() -> None:
    from shortcaps.reproduce.pictures import draw_network

    figure = draw_network(create_model("baseline", routing="em", image_size=40), "baseline")
    assert figure.axes[0].get_title() == "baseline: shortcut network, em routing"
    words = " ".join(text.get_text() for text in figure.axes[0].texts)
    assert "8 x 4x4 x 18 x 18" in words
    assert "512 votes for" in words  # 8 channels on 8x8 positions
    assert "em, 2 iterations" in words
