"""Which layer a loss or gradient that is not finite came from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from shortcaps.routing import Capsules


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Capsules):
        return _tensors([value.pose, value.activation])
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


@torch.no_grad()
def first_nonfinite_layer(model: nn.Module, images: Tensor) -> str | None:
    """The first layer whose parameters or results are not all finite, for these images; None if all are.

    Args:
        model: The network.
        images: (batch, channels, height, width).
    """
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"the weights {name}"
    found: list[str] = []
    handles = []

    def watch(name: str) -> Any:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            if not found and not all(bool(torch.isfinite(t).all()) for t in _tensors(output)):
                found.append(name)

        return look

    for name, module in model.named_modules():
        if name and not any(True for _ in module.children()):
            handles.append(module.register_forward_hook(watch(name)))
    try:
        model(images.to(next(model.parameters()).dtype))
    finally:
        for handle in handles:
            handle.remove()
    return f"layer {found[0]}" if found else None
