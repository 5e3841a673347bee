"""The paper's complexity analysis, counted: sizes of voting tensors (Eq. 15–16) and arithmetic of an iteration (4Q, 7Q, 10Q)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from shortcaps.models import PRESETS, build_from_architecture
from shortcaps.reporting.tables import Grid, write_report
from shortcaps.reproduce import published
from shortcaps.reproduce.counting import operations
from shortcaps.routing import Capsules, DenseVotes, FactoredVotes, Fuzzy, Votes, make_routing

TITLE = "Complexity: what the paper's analysis says, and what is counted"
CLASSES, CHANNELS = (5, 10, 20, 50, 100, 200), (4, 8, 16, 32, 64)
POSE = 4
# The first shortcut of the baseline network on 28x28: 8 channels on 5x5 positions vote for 10 classes.
BATCH, LOWER_CHANNELS, POSITIONS, UPPER = 2, 8, 25, 10

DERIVATION = {
    "attention": "⟨v, g⟩ takes Q products and Q additions, Σ r v the same: 4Q. The softmax works on Q/16 numbers.",
    "dynamic": "As attention; the scores are added to those of the iteration before, which costs Q/16.",
    "fuzzy": (
        "‖v − g‖² takes a difference, a square and an addition, 3Q; Σ r v takes 2Q. Logarithm, membership (Eq. 9) and "
        "coefficient (Eq. 10) work on one number for each vote, Q/16, not on each of its 16 numbers. The paper does not "
        "derive its 7Q; it is reached if two of those per-vote operations are charged in full for all 16 numbers."
    ),
    "em": (
        "The E step takes a difference, a square, a product with 1/σ² and an addition, 4Q; the mean 2Q; the variance a "
        "difference, a square, a product and an addition, 4Q: 10Q. Densities and shares work on Q/16 numbers."
    ),
}


@dataclass(frozen=True)
class VotingTensor:
    """One layer of one network: the numbers in its voting tensor, for one image.

    Attributes:
        network: Name of the network.
        layer: Number of the capsule layer, from 1.
        shortcut: Numbers with shortcut.
        sequential: Numbers without.
        predicted: Their ratio by Eq. (16): classes / (K · K · C'_out).
    """

    network: str
    layer: int
    shortcut: int
    sequential: int
    predicted: float

    @property
    def ratio(self) -> float:
        """Numbers with shortcut divided by those without, Eq. (15)."""
        return self.shortcut / self.sequential


@dataclass(frozen=True)
class Iteration:
    """The arithmetic of one more iteration, in units of Q, the size of the voting tensor.

    Attributes:
        routing: Name of the routing.
        path: `dense` or `factored`.
        leading: Of operators that work on every number of every vote.
        rest: Of operators that work on less, such as one number for each vote.
        by_operator: The same by operator.
    """

    routing: str
    path: str
    leading: float
    rest: float
    by_operator: dict[str, float]

    @property
    def total(self) -> float:
        """All operations."""
        return self.leading + self.rest

    @property
    def published(self) -> int | None:
        """The paper's count, or None."""
        return published.FLOPS_PER_ITERATION.get(self.routing)


@dataclass(frozen=True)
class Growth:
    """Numbers in all voting tensors of a baseline network together, for one image.

    Attributes:
        quantity: What is varied, `classes` or `capsule channels`.
        value: Its value.
        shortcut: Numbers with shortcut.
        sequential: Numbers without.
    """

    quantity: str
    value: int
    shortcut: int
    sequential: int


@dataclass(frozen=True)
class Watching(Fuzzy):
    """Fuzzy routing that records the size of the votes it is given.

    Attributes:
        seen: Numbers in the voting tensor, for each call.
    """

    seen: list[int] = field(default_factory=list)

    def __call__(self, votes: Votes, **rest: Any) -> Capsules:
        """Record the size of the votes, and route them."""
        self.seen.append(votes.batch * votes.inputs * votes.outputs * votes.rows * votes.cols)
        return super().__call__(votes, **rest)


def voting_tensors(network: str, *, image_size: int = 28, classes: int = 10, **changes: Any) -> list[VotingTensor]:
    """Run both networks on one image and measure the votes that reach the routing, along with Eq. (16).

    Args:
        network: `baseline` or `expanded`.
        image_size: Side of the image.
        classes: Number of classes.
        **changes: Further changes to the architecture.
    """
    seen, plans = {}, {}
    for shortcut in (True, False):
        routing = Watching()
        settings = {"routing": routing, "shortcut": shortcut, "image_size": image_size, "classes": classes, **changes}
        model = build_from_architecture(PRESETS[network], **settings).eval()
        with torch.no_grad():
            model(torch.zeros(1, 1, image_size, image_size))
        seen[shortcut], plans[shortcut] = routing.seen, model.plan
    tensors = []
    for number, layer in enumerate(plans[False].capsule_layers):
        predicted = classes / (layer.kernel[0] * layer.kernel[1] * layer.out_channels)
        # There are several passes over the shortcuts, with the same votes: the first pass has one for each layer.
        tensors.append(VotingTensor(network, number + 1, seen[True][number], seen[False][number], predicted))
    return tensors


def growth() -> list[Growth]:
    """The voting tensors of the baseline network for several numbers of classes and of capsule channels."""
    changes: list[tuple[str, int, dict[str, Any]]] = [("classes", value, {"classes": value}) for value in CLASSES]
    changes += [("capsule channels", value, {"capsule_channels": (value,) * 3}) for value in CHANNELS]
    points = []
    for quantity, value, change in changes:
        tensors = voting_tensors("baseline", **change)
        points.append(Growth(quantity, value, sum(t.shortcut for t in tensors), sum(t.sequential for t in tensors)))
    return points


def count_iteration(routing: str, path: str) -> Iteration:
    """Count the operations of two runs of a routing, the second with one iteration more, and take the difference."""
    generator = torch.Generator().manual_seed(0)
    pose = torch.randn(BATCH, LOWER_CHANNELS, POSITIONS, POSE, POSE, generator=generator)
    transform = torch.randn(LOWER_CHANNELS, UPPER, POSE, POSE, generator=generator)
    start = torch.randn(BATCH, UPPER, POSE, POSE, generator=generator)
    factored = FactoredVotes(pose, transform)
    votes: Votes = DenseVotes(factored.dense()) if path == "dense" else factored
    size = BATCH * LOWER_CHANNELS * POSITIONS * UPPER * POSE * POSE

    def calls(iterations: int) -> Counter[tuple[str, int]]:
        algorithm = make_routing(routing, iterations=iterations)
        return Counter(operations(lambda: algorithm(votes, start=start, activate=False)))

    difference = calls(3)
    difference.subtract(calls(2))
    by_operator: Counter[str] = Counter()
    for (name, count), times in difference.items():
        by_operator[name] += times * count
    leading = sum(times * count for (_, count), times in difference.items() if count >= size)
    total = sum(by_operator.values())
    return Iteration(
        routing,
        path,
        leading / size,
        (total - leading) / size,
        {name: count / size for name, count in sorted(by_operator.items()) if count},
    )


def voting_grid(tensors: Sequence[VotingTensor]) -> Grid:
    """A table of voting tensors by layer, and their sums by network."""
    rows = [["network", "capsule layer", "with shortcut", "without", "ratio (Eq. 15)", "Eq. 16"]]
    for tensor in tensors:
        rows.append(
            [
                tensor.network,
                str(tensor.layer),
                f"{tensor.shortcut:,}",
                f"{tensor.sequential:,}",
                f"1 / {1 / tensor.ratio:.1f}",
                f"1 / {1 / tensor.predicted:.1f}",
            ]
        )
    for network in dict.fromkeys(tensor.network for tensor in tensors):
        own = [tensor for tensor in tensors if tensor.network == network]
        shortcut, sequential = sum(t.shortcut for t in own), sum(t.sequential for t in own)
        rows.append([network, "all", f"{shortcut:,}", f"{sequential:,}", f"1 / {sequential / shortcut:.1f}", ""])
    return rows


def growth_grid(points: Sequence[Growth], per_iteration: Mapping[str, float]) -> Grid:
    """A table of numbers in the voting tensors, and of operations of one iteration, with / without shortcut."""
    rows = [["quantity", "value", "numbers, with / without shortcut", "ratio"]]
    rows[0] += [f"{routing}, operations" for routing in per_iteration]
    for point in points:
        row = [point.quantity, str(point.value), f"{point.shortcut:,} / {point.sequential:,}"]
        row.append(f"1 / {point.sequential / point.shortcut:.1f}")
        for operations_each in per_iteration.values():
            row.append(f"{operations_each * point.shortcut:.2e} / {operations_each * point.sequential:.2e}")
        rows.append(row)
    return rows


def iteration_grid(counted: Sequence[Iteration]) -> Grid:
    """A table of the arithmetic of one iteration by routing, next to the paper's."""
    rows = [
        [
            "routing",
            "paper",
            "on all numbers of all votes",
            "on less",
            "in all",
            "dense, by operator",
            "factored, in all",
        ]
    ]
    for routing in dict.fromkeys(iteration.routing for iteration in counted):
        dense, factored = (
            next(i for i in counted if i.routing == routing and i.path == path) for path in ("dense", "factored")
        )
        rows.append(
            [
                routing,
                "" if dense.published is None else f"{dense.published}Q",
                f"{dense.leading:.0f}Q",
                f"{dense.rest:.2f}Q",
                f"{dense.total:.2f}Q",
                ", ".join(f"{name.strip('_')} {count:.2f}" for name, count in dense.by_operator.items()),
                f"{factored.total:.2f}Q",
            ]
        )
    return rows


def sentences(tensors: Sequence[VotingTensor], counted: Sequence[Iteration]) -> list[str]:
    """Which of the paper's claims hold, computed from the counts."""
    said = []
    off = [tensor for tensor in tensors if abs(tensor.ratio / tensor.predicted - 1) > 1e-9]
    said.append(
        "Eq. (16) holds exactly for every capsule layer of both networks, for the votes that reach the routing."
        if not off
        else "Eq. (16) does not hold for "
        + ", ".join(f"{t.network} layer {t.layer} ({t.ratio:.4f} instead of {t.predicted:.4f})" for t in off)
        + "."
    )
    dense = {iteration.routing: iteration for iteration in counted if iteration.path == "dense"}
    for routing, iteration in dense.items():
        if iteration.published is not None:
            met = "is the former" if iteration.leading == iteration.published else "is not met: see the derivation"
            said.append(
                f"One iteration of {routing} takes {iteration.leading:.0f}Q on the numbers of the votes and {iteration.rest:.2f}Q on "
                f"less than that, such as one number for each vote; the paper's {iteration.published}Q {met}."
            )
    said.append(
        f"EM takes {dense['em'].total / dense['fuzzy'].total:.2f} times the arithmetic of fuzzy (the paper: 1.42) and "
        f"{dense['em'].total / dense['attention'].total:.2f} times that of attention (the paper: 2.5)."
    )
    said.append(
        "Votes that are never built (factored) are computed anew each time they are asked for, 8Q each time for 4x4 poses where "
        "differences are needed; attention and dynamic need none."
    )
    return said


def write_complexity(folder: Path) -> tuple[Path, ...]:
    """Count, and write complexity.md, .html, .png and .json.

    Returns:
        The files.
    """
    from shortcaps.files import write_json
    from shortcaps.reporting.figures import as_svg, save_figure
    from shortcaps.reproduce.pictures import plot_complexity

    tensors = [tensor for network in published.NETWORKS for tensor in voting_tensors(network)]
    counted = [count_iteration(routing, path) for routing in published.ROUTINGS for path in ("dense", "factored")]
    points = growth()
    per_iteration = {i.routing: i.total for i in counted if i.path == "dense"}
    figure = plot_complexity(points, per_iteration)
    picture, data = folder / "complexity.png", folder / "complexity.json"
    save_figure(figure, picture)
    content = {
        "voting_tensors": list(map(asdict, tensors)),
        "iterations": list(map(asdict, counted)),
        "growth": list(map(asdict, points)),
    }
    write_json(data, content)
    derivation = [["routing", "derivation"], *([routing, DERIVATION[routing]] for routing in published.ROUTINGS)]
    return (
        *write_report(
            folder,
            "complexity",
            title=TITLE,
            command="shortcaps reproduce complexity",
            notes=[
                "Counted, not timed: every operator that the routing calls, with one operation for each number it adds, "
                "multiplies, divides, or takes a root, logarithm or exponential of. Q is the size of the voting tensor.",
            ],
            sentences=sentences(tensors, counted),
            parts=[
                ("Numbers in a voting tensor, for one 28x28 image and 10 classes", voting_grid(tensors)),
                ("Arithmetic of one iteration", iteration_grid(counted)),
                ("How both grow with classes and channels, baseline network", growth_grid(points, per_iteration)),
                ("How the counts come about", derivation),
            ],
            pictures={"The same as a picture": as_svg(figure)},
        ),
        picture,
        data,
    )
