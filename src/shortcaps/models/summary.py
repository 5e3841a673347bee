"""A network's summary: a table for people, fields for code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from torch import Tensor, nn

from shortcaps.backbones.shapes import run_on_meta

if TYPE_CHECKING:
    from shortcaps.models.network import Network


@dataclass(frozen=True)
class SummaryRow:
    """One layer, for one image.

    Attributes:
        layer: Its name.
        shape: Of its output, without the batch.
        parameters: Number of trainable numbers.
        votes: Numbers in the voting tensor, which is never built.
        multiply_adds: Of one forward pass.
    """

    layer: str
    shape: tuple[int, ...]
    parameters: int
    votes: int
    multiply_adds: int


@dataclass(frozen=True)
class Summary:
    """A network, layer by layer.

    Attributes:
        title: Kind of network, images and classes, in one line.
        rows: The layers.
        path: How votes are computed, in words.
    """

    title: str
    rows: tuple[SummaryRow, ...]
    path: str

    @classmethod
    def of(cls, network: Network, rows: list[SummaryRow], path: str) -> Summary:
        """The summary of a network from its rows."""
        height, width = network.image_size
        title = f"{network.title}, {network.channels}x{height}x{width} images, {network.classes} classes"
        return cls(title, tuple(rows), path)

    @property
    def parameters(self) -> int:
        """Trainable numbers of all layers."""
        return sum(row.parameters for row in self.rows)

    @property
    def votes(self) -> int:
        """Numbers in the voting tensors of all layers, for one image."""
        return sum(row.votes for row in self.rows)

    @property
    def multiply_adds(self) -> int:
        """Multiply–adds of all layers, for one image."""
        return sum(row.multiply_adds for row in self.rows)

    def __str__(self) -> str:
        header = ("layer", "output of one image", "parameters", "votes", "multiply–adds")
        body = [
            (row.layer, " x ".join(map(str, row.shape)), *map(_number, (row.parameters, row.votes, row.multiply_adds)))
            for row in self.rows
        ]
        total = ("total", "", *map(_number, (self.parameters, self.votes, self.multiply_adds)))
        widths = [max(len(line[column]) for line in (header, *body, total)) for column in range(len(header))]
        rule = "─" * (sum(widths) + 2 * (len(widths) - 1))

        def line(cells: tuple[str, ...]) -> str:
            aligned = [
                cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
            ]
            return "  ".join(aligned).rstrip()

        return "\n".join(
            [
                self.title,
                rule,
                line(header),
                rule,
                *map(line, body),
                rule,
                line(total),
                "",
                *(["votes: numbers a voting tensor of one image would hold."] if self.votes else []),
                f"multiply–adds: one image, forward{', with every vote computed once' if self.votes else ''}.",
                f"path: {self.path}",
            ]
        )


def summary_row(
    name: str, shape: tuple[int, ...], module: nn.Module, *, multiply_adds: int, votes: int = 0
) -> SummaryRow:
    """A row with the parameters of a module.

    Args:
        name: What the row is called.
        shape: Of the output, without the batch.
        module: Whose parameters are counted.
        multiply_adds: Of one forward pass for one image.
        votes: Numbers in the voting tensor of one image.
    """
    return SummaryRow(name, shape, sum(p.numel() for p in module.parameters()), votes, multiply_adds)


def module_row(
    name: str, module: nn.Module, in_shape: tuple[int, ...], shape: tuple[int, ...] | None = None
) -> SummaryRow:
    """A row for any module of convolutions and linear layers, measured on a meta tensor.

    Args:
        name: What the row is called.
        module: Takes one tensor (1, *in_shape).
        in_shape: Of the input, without the batch.
        shape: Shown as its output; by default the shape of its (last) output.
    """
    multiply_adds, out_shape = _count_multiply_adds(module, in_shape)
    return summary_row(name, shape or out_shape, module, multiply_adds=multiply_adds)


def _count_multiply_adds(module: nn.Module, in_shape: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Multiply–adds of the convolutions and linear layers in a module for one input, and the shape of its last output.

    Nothing is computed: the module runs on a meta tensor. Other layers (batch norm, activation functions) are not counted.
    """
    count = 0

    def add(layer: nn.Module, inputs: object, output: Tensor) -> None:
        nonlocal count
        weight = cast("Tensor", layer.weight)
        positions = output.numel() // output.shape[1 if isinstance(layer, nn.Conv2d) else -1]
        count += positions * weight.numel()

    handles = [
        layer.register_forward_hook(add) for layer in module.modules() if isinstance(layer, nn.Conv2d | nn.Linear)
    ]
    try:
        found = run_on_meta(module, *in_shape)
    finally:
        for handle in handles:
            handle.remove()
    last = found if isinstance(found, Tensor) else next(t for t in reversed(tuple(found)) if isinstance(t, Tensor))
    return count, tuple(last.shape[1:])


def routing_multiply_adds(votes: int, pose: int, sweeps: int) -> int:
    """Multiply–adds of a routing: `pose` for each number of a vote to make it, and one more for each sweep."""
    return votes * (pose + sweeps)


def _number(value: int) -> str:
    return f"{value:,}" if value else "–"
