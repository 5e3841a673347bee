"""Networks to compare with, by name, and `build_network`, which knows these and the paper's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from shortcaps.models.cnn import PlainCNN
from shortcaps.models.network import Network
from shortcaps.models.plan import Size, as_size
from shortcaps.models.presets import PRESETS, create_model
from shortcaps.models.sabour import SabourNetwork

# Parameters at 28x28 with 10 classes: 23,026 (baseline fuzzy: 23,082), 67,510 (expanded fuzzy: 67,658), 8,215,568.
BASELINES: dict[str, Callable[..., Network]] = {
    "cnn-23k": partial(PlainCNN, (24, 32)),
    "cnn-68k": partial(PlainCNN, (60, 56)),
    "sabour": SabourNetwork,
}


def build_network(
    preset: str = "baseline",
    *,
    image_size: int | Size = 28,
    channels: int = 1,
    classes: int = 10,
    **settings: Any,
) -> Network:
    """Any network by name: the paper's (with the settings of `create_model`) or one to compare with."""
    if preset not in (*PRESETS, *BASELINES):
        raise ValueError(f"unknown network {preset!r}: choose one of {', '.join((*PRESETS, *BASELINES))}")
    if preset in PRESETS:
        return create_model(preset, image_size=image_size, channels=channels, classes=classes, **settings)
    return BASELINES[preset](image_size=as_size(image_size), channels=channels, classes=classes, **settings)
