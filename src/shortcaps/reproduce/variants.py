"""Variants of a compact network, each of which differs in one thing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shortcaps.models.compact import COMPACT, Compact

BASE = "compact-23k"

# A variant's pose numbers add up to those of the base, 8 capsules of 4x4, so that widths and parameters stay as they are.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "equal-shares": ("one iteration from scratch, equal shares: no routing", {"iterations": 1}),
    "iterations-3": ("three iterations", {"iterations": 3}),
    "iterations-4": ("four iterations", {"iterations": 4}),
    "pose-2": ("32 capsules of 2x2", {"pose": 2, "capsules": (32,)}),
    "pose-3": ("14 capsules of 3x3", {"pose": 3, "capsules": (14,)}),
    "taps-2": ("shortcuts from two depths, 3 and 6 capsules", {"capsules": (3, 6)}),
    "tightness": ("activations from the tightness of votes alone", {"readout": "routing"}),
    "normalised": ("batch norm before the votes", {"normalised": True}),
}
_TWO_TAPS = (1, 3)


def variant_name(variant: str) -> str:
    """What the network of a variant is called."""
    return f"{BASE}-{variant}"


def variant_preset(variant: str) -> Compact:
    """The base with what differs."""
    _, changes = VARIANTS[variant]
    preset = replace(COMPACT[BASE], **changes)
    if len(preset.capsules) == 1:
        return preset
    return replace(preset, backbone_settings={**preset.backbone_settings, "out_indices": _TWO_TAPS})
