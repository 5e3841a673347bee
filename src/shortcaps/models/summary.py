"""A network's summary: a table for people, fields for code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from shortcaps.models.plan import Plan

if TYPE_CHECKING:
    from shortcaps.models.network import Network


@dataclass(frozen=True)
class SummaryRow:
    """One layer, for one image. `votes` counts the numbers of a voting tensor that is never built."""

    layer: str
    shape: tuple[int, ...]
    parameters: int
    votes: int
    multiply_adds: int


@dataclass(frozen=True)
class Summary:
    title: str
    rows: tuple[SummaryRow, ...]
    path: str

    @classmethod
    def of(cls, network: Network, rows: list[SummaryRow], path: str) -> Summary:
        height, width = network.image_size
        title = f"{network.title}, {network.channels}x{height}x{width} images, {network.classes} classes"
        return cls(title, tuple(rows), path)

    @property
    def parameters(self) -> int:
        return sum(row.parameters for row in self.rows)

    @property
    def votes(self) -> int:
        return sum(row.votes for row in self.rows)

    @property
    def multiply_adds(self) -> int:
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
    return SummaryRow(name, shape, sum(p.numel() for p in module.parameters()), votes, multiply_adds)


def stem_row(plan: Plan, module: nn.Module) -> SummaryRow:
    stem = plan.stem
    positions = stem.out_size[0] * stem.out_size[1]
    multiply_adds = positions * stem.out_channels * stem.in_channels * stem.kernel[0] * stem.kernel[1]
    return summary_row("stem", (stem.out_channels, *stem.out_size), module, multiply_adds=multiply_adds)


def primary_row(plan: Plan, module: nn.Module) -> SummaryRow:
    size, channels = plan.architecture.pose, plan.capsule_layers[0].in_channels
    positions = plan.stem.out_size[0] * plan.stem.out_size[1]
    multiply_adds = positions * sum(p.numel() for p in module.parameters() if p.ndim == 4)
    return summary_row(
        "primary capsules", (channels, size, size, *plan.stem.out_size), module, multiply_adds=multiply_adds
    )


def routing_multiply_adds(votes: int, pose: int, sweeps: int) -> int:
    """Every number of a vote takes `pose` multiply–adds to make, and one more each time the routing goes over it."""
    return votes * (pose + sweeps)


def _number(value: int) -> str:
    return f"{value:,}" if value else "–"
