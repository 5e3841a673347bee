"""The trainable numbers of a routing, held by the layer that uses it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Thresholds(nn.Module):
    """Adds one parameter (outputs,) for each threshold that the routing names."""

    _thresholds: tuple[str, ...] = ()

    def add_thresholds(self, values: dict[str, float], outputs: int) -> None:
        self._thresholds = tuple(values)
        for name, value in values.items():
            self.register_parameter(name, nn.Parameter(torch.full((outputs,), value)))

    def thresholds(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self._thresholds}
