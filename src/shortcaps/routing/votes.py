"""Votes: what each lower capsule predicts for each higher capsule.

A routing never sees how votes are stored. It asks them five questions, and there are several ways to answer:
`DenseVotes` keeps every vote in one tensor (obvious, large, the oracle of the tests), `FactoredVotes` keeps only the
lower poses and the transformations and builds at most a small piece of the votes at a time.

Shapes, in one vocabulary: a vote is a `rows x cols` matrix; each of `inputs` lower capsules casts one for each of
`outputs` higher capsules, in each of `batch` independent routing problems.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from shortcaps.routing.base import Capsules, Readout, Routing


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor, converted to float32 if it is narrower: routing compares nearly equal vectors, which half precision cannot."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


class Votes(ABC):
    """The five questions a routing may ask.

    `centres` and `precision` are (batch, outputs, rows, cols); `weights` and every answer "per vote" are (batch, inputs, outputs).

    Attributes:
        batch: Number of independent routing problems.
        inputs: Number of lower capsules.
        outputs: Number of higher capsules.
        rows: Rows of a vote.
        cols: Columns of a vote.
    """

    batch: int
    inputs: int
    outputs: int
    rows: int
    cols: int

    @abstractmethod
    def agreement(self, centres: Tensor) -> Tensor:
        """The inner product of every vote with its output's centre, `<v, g>`.

        Args:
            centres: (batch, outputs, rows, cols).

        Returns:
            (batch, inputs, outputs).
        """

    @abstractmethod
    def distance(self, centres: Tensor) -> Tensor:
        """The squared distance of every vote from its output's centre, `||v - g||^2`.

        Args:
            centres: (batch, outputs, rows, cols).

        Returns:
            (batch, inputs, outputs).
        """

    @abstractmethod
    def scaled_distance(self, centres: Tensor, precision: Tensor) -> Tensor:
        """The squared distance with a weight for each number of the pose, `sum_h precision_h (v_h - g_h)^2`.

        Args:
            centres: (batch, outputs, rows, cols).
            precision: (batch, outputs, rows, cols), the weights.

        Returns:
            (batch, inputs, outputs).
        """

    @abstractmethod
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The weighted sum of an output's votes over the inputs, `sum_i r_i v_i`.

        Args:
            weights: (batch, inputs, outputs).

        Returns:
            (batch, outputs, rows, cols).
        """

    @abstractmethod
    def weighted_squares(self, weights: Tensor, centres: Tensor) -> Tensor:
        """The scatter of an output's votes about its centre, `sum_i r_i (v_i - g)^2`, for each number of the pose.

        Args:
            weights: (batch, inputs, outputs).
            centres: (batch, outputs, rows, cols).

        Returns:
            (batch, outputs, rows, cols).
        """

    def run(
        self,
        routing: Routing,
        start: Tensor | None,
        activations: Tensor | None,
        thresholds: Mapping[str, Tensor],
        activate: bool,
        readout: Readout | None = None,
    ) -> Capsules | None:
        """The whole routing at once, for votes that can; None if the routing has to ask the questions above.

        Args:
            routing: The algorithm, with its settings.
            start: As for `Routing.route`.
            activations: As for `Routing.route`.
            thresholds: As for `Routing.route`.
            activate: As for `Routing.route`.
            readout: As for `Routing.__call__`, which gives it only if there is one; the capsules returned are read by it.
        """
        return None

    @abstractmethod
    def dense(self) -> Tensor:
        """All votes in one tensor (batch, inputs, outputs, rows, cols)."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Dtype of the votes and of every answer."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Device of the votes and of every answer."""


class DenseVotes(Votes):
    """Votes that are already built.

    Args:
        tensor: (batch, inputs, outputs, rows, cols).

    Raises:
        ValueError: The shape is another, or a dimension other than the batch is empty.
        TypeError: The tensor is not floating-point.
    """

    def __init__(self, tensor: Tensor) -> None:
        if tensor.ndim != 5:
            raise ValueError(
                f"votes have shape {tuple(tensor.shape)}: give (batch, inputs, outputs, rows, cols), "
                "or (batch, inputs, outputs, size) for vector capsules through shortcaps.route"
            )
        if not tensor.is_floating_point():
            raise TypeError(f"votes are {tensor.dtype}: give a floating-point tensor, e.g. votes.float()")
        if 0 in tensor.shape[1:]:
            raise ValueError(f"votes have shape {tuple(tensor.shape)}: only the batch may be empty")
        self.tensor = at_least_float32(tensor)
        self.batch, self.inputs, self.outputs, self.rows, self.cols = self.tensor.shape

    def agreement(self, centres: Tensor) -> Tensor:
        """`<v, g>`: (batch, inputs, outputs)."""
        return (self.tensor * centres.unsqueeze(1)).sum((-2, -1))

    def distance(self, centres: Tensor) -> Tensor:
        """`||v - g||²`: (batch, inputs, outputs)."""
        return (self.tensor - centres.unsqueeze(1)).square().sum((-2, -1))

    def scaled_distance(self, centres: Tensor, precision: Tensor) -> Tensor:
        """`Σ_h precision_h (v - g)_h²`: (batch, inputs, outputs)."""
        return ((self.tensor - centres.unsqueeze(1)).square() * precision.unsqueeze(1)).sum((-2, -1))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """`Σ_i w_i v_i`: (batch, outputs, rows, cols)."""
        return (weights[..., None, None] * self.tensor).sum(1)

    def weighted_squares(self, weights: Tensor, centres: Tensor) -> Tensor:
        """`Σ_i w_i (v_i - g)²` for each number of a pose: (batch, outputs, rows, cols)."""
        return (weights[..., None, None] * (self.tensor - centres.unsqueeze(1)).square()).sum(1)

    def dense(self) -> Tensor:
        """The votes themselves: (batch, inputs, outputs, rows, cols)."""
        return self.tensor

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the votes."""
        return self.tensor.dtype

    @property
    def device(self) -> torch.device:
        """Device of the votes."""
        return self.tensor.device
