"""What a network computes on the way to its answer: poses and tightness of capsules, features and logits of plain networks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from shortcaps.layers import ShortcutRouting
from shortcaps.models import CapsuleNetwork, Network

BATCH = 256


@dataclass(frozen=True)
class Observed:
    """What a network computed for images.

    Attributes:
        activations: (images, classes), what it gave.
        pose: (images, classes, numbers), of the class capsules; None for a plain network.
        tightness: (images, classes), activations as the routing gave them, before any readout; None without shortcut routing.
        features: (images, width), what the last linear layer sees; None for a network without one.
        logits: (images, classes), what it gives; likewise.
    """

    activations: Tensor
    pose: Tensor | None
    tightness: Tensor | None
    features: Tensor | None
    logits: Tensor | None

    @property
    def predicted(self) -> Tensor:
        """(images,), the class it names."""
        return self.activations.argmax(1)


@dataclass
class _Caught:
    tightness: list[Tensor] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)


@contextmanager
def _catching(model: Network) -> Iterator[_Caught]:
    """Within, what passes the last shortcut or the last linear layer is kept."""
    caught, hooks = _Caught(), []

    def from_routing(module: nn.Module, inputs: Any, output: Any) -> None:
        if output.activation is not None:
            caught.tightness.append(output.activation)

    def from_linear(module: nn.Module, inputs: Any, output: Any) -> None:
        caught.features.append(inputs[0])
        caught.logits.append(output)

    routings = [module for module in model.modules() if isinstance(module, ShortcutRouting)]
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if routings:
        hooks.append(routings[-1].register_forward_hook(from_routing))
    elif linears:
        hooks.append(linears[-1].register_forward_hook(from_linear))
    try:
        yield caught
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def observe(model: Network, images: Tensor, *, batch_size: int = BATCH) -> Observed:
    """Show images to a network and keep what it computes.

    Args:
        model: The network, in evaluation mode.
        images: (count, channels, height, width), uint8 or floats in 0–1.
        batch_size: How many it is shown at a time.
    """
    activations, poses = [], []
    dtype = next((parameter.dtype for parameter in model.parameters()), torch.float32)
    with _catching(model) as caught:
        for part in images.split(batch_size):
            shown = as_floats(part).to(dtype)
            if isinstance(model, CapsuleNetwork):
                capsules = model.capsules(shown, keep_coefficients=False)
                activations.append(capsules.activation)
                poses.append(capsules.pose.flatten(2))
            else:
                activations.append(model(shown))

    def joined(parts: list[Tensor]) -> Tensor | None:
        return torch.cat(parts) if len(parts) == len(activations) else None

    return Observed(
        torch.cat(activations), joined(poses), joined(caught.tightness), joined(caught.features), joined(caught.logits)
    )


def as_floats(images: Tensor) -> Tensor:
    """Images as networks take them: floats in 0–1."""
    return images if images.is_floating_point() else images.float() / 255


def answers(model: Network, images: Tensor) -> Tensor:
    """The classes (count,) that a network names for images (count, channels, height, width)."""
    return observe(model, images).predicted
