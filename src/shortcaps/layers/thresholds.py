"""The trainable numbers of a routing, held by the layer that uses it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Thresholds(nn.Module):
    """Adds one parameter (outputs,) for each threshold of a routing."""

    _thresholds: tuple[str, ...] = ()

    def add_thresholds(self, values: dict[str, float], outputs: int) -> None:
        """Create the parameters.

        Args:
            values: Their names and initial values.
            outputs: The length of each.
        """
        self._thresholds = tuple(values)
        for name, value in values.items():
            self.register_parameter(name, nn.Parameter(torch.full((outputs,), value)))

    def thresholds(self) -> dict[str, Tensor]:
        """The parameters by name, (outputs,) each."""
        return {name: getattr(self, name) for name in self._thresholds}
