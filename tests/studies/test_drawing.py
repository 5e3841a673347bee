"""Plots of studies: a network looks the same wherever it is drawn."""

from __future__ import annotations

from shortcaps.studies.drawing import colours, networks_of
from shortcaps.studies.measured import Measurement


def measured(*networks: str) -> list[Measurement]:
    return [Measurement({"network": network}, {}) for network in networks]


def test_a_network_has_its_place_and_its_colour_whatever_else_is_drawn() -> None:
    few, many = ["cnn-23k", "compact-23k"], ["sabour", "cnn-23k", "compact-23k-plain", "compact-23k", "baseline/fuzzy"]
    assert networks_of(measured(*few, *few)) == ["compact-23k", "cnn-23k"]
    assert networks_of(measured(*many)) == ["baseline/fuzzy", "compact-23k", "compact-23k-plain", "cnn-23k", "sabour"]
    assert colours(few).items() <= colours(many).items()
    assert len(set(colours(many).values())) == len(many)
