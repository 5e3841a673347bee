"""What the Python side has to know about a native routing, stated once: in the `NativeSpec` on the routing's class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class NativeSpec:
    """How a routing is computed by the native library.

    All kernels take the same arguments (routing.h). The fields below name the settings and thresholds of the routing that are passed
    as these arguments; the kernel ignores an argument without a name.

    Attributes:
        kind: The routing's number in `RoutingKind` (routing.h).
        state_size: Called with the iterations, the outputs and the numbers in a pose; returns how many numbers per sample the forward
            pass keeps for the backward pass (`state_vectors` in the kernel).
        softness: The setting that is passed as `softness`.
        sharpness: The setting that is passed as `sharpness`.
        floor: The setting that is passed as `floor`.
        beta: The threshold that is passed as `beta`.
        beta_use: The threshold that is passed as `beta_use`.
    """

    kind: int
    state_size: Callable[[int, int, int], int]
    softness: str | None = None
    sharpness: str | None = None
    floor: str | None = None
    beta: str | None = None
    beta_use: str | None = None

    def settings(self, routing: object) -> tuple[float, float, float]:
        """The softness, sharpness and floor of a routing."""
        return (
            1.0 if self.softness is None else getattr(routing, self.softness),
            1.0 if self.sharpness is None else getattr(routing, self.sharpness),
            0.0 if self.floor is None else getattr(routing, self.floor),
        )

    def thresholds(self, given: Mapping[str, Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """Beta and beta_use from a routing's thresholds, (outputs,) each; None for the kernel's initial value."""
        return (
            None if self.beta is None else given.get(self.beta),
            None if self.beta_use is None else given.get(self.beta_use),
        )


# Operators identify a routing by its number: for each kind its spec, and the name of the routing that defined it.
_KINDS: dict[int, tuple[NativeSpec, str]] = {}


def register(spec: NativeSpec, name: str) -> None:
    """Make a kind known to the operators.

    Args:
        spec: The description of the kind.
        name: Full name of the routing's class. Registering the same class again is allowed, e.g. when its file is reloaded.

    Raises:
        ValueError: Another routing has this kind, with another description.
    """
    known, owner = _KINDS.get(spec.kind, (spec, name))
    if known != spec and owner != name:
        raise ValueError(f"native kind {spec.kind} of {name} already belongs to {owner}: give it another number")
    _KINDS[spec.kind] = spec, owner


def spec_of(kind: int) -> NativeSpec:
    """The description of a kind.

    Raises:
        ValueError: No routing has this kind.
    """
    known = _KINDS.get(int(kind))
    if known is None:
        names = ", ".join(f"{number} ({name.rpartition('.')[2]})" for number, (_, name) in sorted(_KINDS.items()))
        raise ValueError(f"unknown routing kind {kind}: the known kinds are {names or 'none'}")
    return known[0]
