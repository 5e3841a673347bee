"""Variants of the compact networks, each of which differs in one thing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shortcaps.models.compact import COMPACT, Compact

# Which depths vote and with how many capsules, for about as many parameters as the preset has with its deepest one alone.
_TWO_TAPS = {"compact-23k": ((1, 3), (3, 6)), "compact-68k": ((1, 3), (5, 8)), "compact-160k": ((1, 2), (4, 10))}


@dataclass(frozen=True)
class Variant:
    """One thing about a preset changed.

    Attributes:
        base: The preset.
        name: Of the change.
        words: What differs.
        changes: Fields of the preset and their values.
    """

    base: str
    name: str
    words: str
    changes: Mapping[str, Any]

    @property
    def network(self) -> str:
        """What its network is called."""
        return f"{self.base}-{self.name}"

    @property
    def preset(self) -> Compact:
        """The preset with what differs."""
        return replace(COMPACT[self.base], **self.changes)


def variants_of(base: str) -> tuple[Variant, ...]:
    """All variants of a compact network.

    Args:
        base: Its name.
    """
    preset = COMPACT[base]
    # As many numbers in all poses as the preset has, so that widths and parameters stay as they are.
    (capsules,) = preset.capsules
    two, three = (round(capsules * preset.pose**2 / pose**2) for pose in (2, 3))
    depths, shares = _TWO_TAPS[base]
    taps = {"capsules": shares, "backbone_settings": {**preset.backbone_settings, "out_indices": depths}}
    table: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("equal-shares", "one iteration from scratch, equal shares: no routing", {"iterations": 1}),
        ("iterations-3", "three iterations", {"iterations": 3}),
        ("iterations-4", "four iterations", {"iterations": 4}),
        ("pose-2", f"{two} capsules of 2x2", {"pose": 2, "capsules": (two,)}),
        ("pose-3", f"{three} capsules of 3x3", {"pose": 3, "capsules": (three,)}),
        ("taps-2", f"shortcuts from two depths, {shares[0]} and {shares[1]} capsules", taps),
        ("tightness", "activations from the tightness of votes alone", {"readout": "routing"}),
        ("normalised", "batch norm before the votes", {"normalised": True}),
    )
    return tuple(Variant(base, *line) for line in table)
