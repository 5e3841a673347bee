"""Counting the arithmetic of PyTorch operators, including element-wise work, which torch's own counter leaves out."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Count = Callable[[tuple[Any, ...], Any], int]


def _outputs(arguments: tuple[Any, ...], result: Any) -> int:
    """One operation for each number that comes out."""
    return int(result.numel())


def _inputs(arguments: tuple[Any, ...], result: Any) -> int:
    """One operation for each number that goes in: a sum, a maximum."""
    return int(arguments[0].numel())


def _times(factor: int, count: Count) -> Count:
    return lambda arguments, result: factor * count(arguments, result)


def _product(arguments: tuple[Any, ...], result: Any) -> int:
    """A multiplication and an addition for every pair that meets in a matrix product."""
    return 2 * int(result.numel()) * int(arguments[0].shape[-1])


# An exponential, logarithm, root or division counts as one operation. A softmax is a maximum, a difference, an exponential, a
# sum and a division; its logarithm has a difference in place of the division. A norm is squares and a sum.
ARITHMETIC: dict[str, Count] = {
    **dict.fromkeys(("add", "sub", "mul", "div", "neg", "pow", "exp", "log", "reciprocal"), _outputs),
    "log_sigmoid_forward": lambda arguments, result: 3 * int(result[0].numel()),
    "sum": _inputs,
    **dict.fromkeys(("_softmax", "_log_softmax"), _times(5, _inputs)),
    "linalg_vector_norm": _times(2, _inputs),
    **dict.fromkeys(("mm", "bmm"), _product),
}
MOVEMENT = frozenset(
    "_unsafe_view alias cat clone full new_full ones ones_like permute slice unsqueeze view zeros".split()  # noqa: SIM905
)
"""Operators that only move numbers or allocate memory."""


class CountOperations(TorchDispatchMode):
    """Within, the arithmetic of every operator is counted; an unknown one raises NotImplementedError.

    Examples:
        >>> with CountOperations() as counted:
        ...     _ = (torch.ones(3, 4) * 2).sum()
        >>> counted.total
        24
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []
        """Operator and number of operations, of every call."""

    def __enter__(self) -> CountOperations:
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, value, traceback)

    @property
    def total(self) -> int:
        """Number of all operations."""
        return sum(count for _, count in self.calls)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.removesuffix("_") if func.overloadpacket.__name__ not in MOVEMENT else ""
        if name in ARITHMETIC:
            self.calls.append((name, ARITHMETIC[name](args, result)))
        elif name and name not in MOVEMENT:
            raise NotImplementedError(f"the cost of {func} is unknown: add it to ARITHMETIC or MOVEMENT")
        return result


def operations(work: Callable[[], object]) -> list[tuple[str, int]]:
    """Every call of an operator that does arithmetic, with the number of its operations."""
    with torch.no_grad(), CountOperations() as counted:
        work()
    return counted.calls
