"""What all routings share: the interface, its result, and the arithmetic that several of them need."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from shortcaps.kernels.spec import NativeSpec, register
from shortcaps.registry import Registry
from shortcaps.routing.votes import Votes

NO_THRESHOLDS: Mapping[str, Tensor] = {}
NEVER = -1e30
"""Stands for log 0; finite, so that the difference of two is a number."""


@dataclass
class Capsules:
    """Higher capsules: what a routing returns.

    Attributes:
        pose: (batch, outputs, rows, cols).
        activation: (batch, outputs), how present each capsule's entity is, in 0–1 by itself; None unless requested.
        coefficients: (batch, inputs, outputs), the weights `r` of Eq. (5) that formed the pose; None unless requested.
        memberships: (batch, inputs, outputs), how each input divides itself among the outputs (sums to 1 over the outputs); None
            unless requested.
    """

    pose: Tensor
    activation: Tensor | None = None
    coefficients: Tensor | None = None
    memberships: Tensor | None = None

    def read_by(self, readout: Readout | None) -> Capsules:
        """The same capsules, with activations as the readout has them."""
        if readout is None or self.activation is None:
            return self
        return Capsules(self.pose, readout.of(self.activation, self.pose), self.coefficients, self.memberships)


class Readout(NamedTuple):
    """Adds what a pose says to the activation that a routing gives: `sigmoid(logit(a) + ⟨w, pose⟩ + b)`.

    Attributes:
        weight: (outputs, rows, cols).
        bias: (outputs,).
    """

    weight: Tensor
    bias: Tensor

    def of(self, activation: Tensor, pose: Tensor) -> Tensor:
        """Activations (batch, outputs) of those of a routing and its poses (batch, outputs, rows, cols)."""
        limits = torch.finfo(activation.dtype)
        # Only what is no number any more is raised: a larger floor would take the gradient from all below it.
        logit = torch.logit(activation.clamp(limits.tiny, 1 - limits.eps))
        return torch.sigmoid(logit + (pose * self.weight).sum((-2, -1)) + self.bias)


@dataclass(frozen=True)
class Routing(ABC):
    """A routing algorithm: settings only, no trainable numbers and no state.

    Call it with votes. `start` holds the latest higher capsules (shortcut routing); without it the routing begins from
    equal shares (sequential routing). `activations` (batch, inputs) are those of the lower capsules, each in 0–1.

    To add a routing: subclass this, implement `route` and `sweeps`, and decorate it with `@register_routing`. Then it can be used by
    name everywhere. `shortcaps.testing.check_routing` reports which laws it obeys.

    Attributes:
        iterations: Updates of the higher capsules in one call, at least 1.
    """

    name: ClassVar[str]
    squashes: ClassVar[bool] = False
    """Whether the length of a pose is its activation, so that local layers squash their poses as well."""
    uses_activations: ClassVar[bool] = False
    """Whether a sequential network has to provide activations along with the poses."""
    native: ClassVar[NativeSpec | None] = None
    """How the native library computes exactly this class; None if it does not. Subclasses do not inherit it."""

    iterations: int = 2

    def __init_subclass__(cls, **arguments: Any) -> None:
        """A kernel computes one class. A subclass may compute something else, so it has to name its own kernel."""
        super().__init_subclass__(**arguments)
        cls.native = cls.__dict__.get("native")
        if cls.native is not None:
            register(cls.native, f"{cls.__module__}.{cls.__qualname__}")

    def __post_init__(self) -> None:
        if not isinstance(self.iterations, int) or self.iterations < 1:
            raise ValueError(f"iterations {self.iterations} is too small: a routing needs an integer of at least 1")

    def thresholds(self, *, activates: bool) -> dict[str, float]:
        """The trainable numbers of each output, by name, with their initial values.

        Args:
            activates: Whether the activation will be used; a number needed only for it would otherwise never be trained.
        """
        return {}

    @abstractmethod
    def sweeps(self, *, from_start: bool, activates: bool) -> int:
        """How often one call visits every number of every vote, each time with one multiply–add.

        Args:
            from_start: Whether it begins from given capsules instead of equal shares.
            activates: Whether activations are requested.
        """

    @abstractmethod
    def route(
        self,
        votes: Votes,
        start: Tensor | None,
        activations: Tensor | None,
        thresholds: Mapping[str, Tensor],
        activate: bool,
        keep_coefficients: bool,
    ) -> Capsules:
        """The algorithm itself.

        Args:
            votes: What the inputs predict for the outputs.
            start: The latest higher capsules (batch, outputs, rows, cols); None to begin from equal shares.
            activations: (batch, inputs), those of the lower capsules; None if all are 1.
            thresholds: The routing's trainable numbers by name, (outputs,) each.
            activate: Whether activations are requested.
            keep_coefficients: Whether coefficients and memberships are requested.
        """

    def __call__(
        self,
        votes: Votes,
        *,
        start: Tensor | None = None,
        activations: Tensor | None = None,
        thresholds: Mapping[str, Tensor] = NO_THRESHOLDS,
        activate: bool = True,
        keep_coefficients: bool = False,
        readout: Readout | None = None,
    ) -> Capsules:
        """Check the arguments and route.

        Args:
            votes: What the inputs predict for the outputs.
            start: The latest higher capsules (batch, outputs, rows, cols); None to begin from equal shares.
            activations: (batch, inputs), those of the lower capsules; None if all are 1.
            thresholds: The routing's trainable numbers by name, (outputs,) each.
            activate: Whether activations are requested.
            keep_coefficients: Whether coefficients and memberships are requested; native code keeps none.
            readout: What activations are read from besides; None for what the routing says alone. Without `activate` it has no effect.

        Returns:
            The higher capsules.

        Raises:
            ValueError: A shape, a device or the name of a threshold does not match the votes or the routing.
        """
        centre_shape = (votes.batch, votes.outputs, votes.rows, votes.cols)
        if start is not None and tuple(start.shape) != centre_shape:
            raise ValueError(f"start has shape {tuple(start.shape)}: these votes need {centre_shape}")
        if activations is not None and tuple(activations.shape) != (votes.batch, votes.inputs):
            raise ValueError(
                f"activations have shape {tuple(activations.shape)}: these votes need {(votes.batch, votes.inputs)}"
            )
        known = self.thresholds(activates=True)
        for name, value in thresholds.items():
            if name not in known:
                raise ValueError(f"{self.name} routing has no threshold {name!r}: it has {', '.join(known) or 'none'}")
            if tuple(value.shape) != (votes.outputs,):
                raise ValueError(
                    f"threshold {name} has shape {tuple(value.shape)}: these votes need ({votes.outputs},)"
                )
        read = () if readout is None else (("readout.weight", readout.weight), ("readout.bias", readout.bias))
        for name, tensor in (("start", start), ("activations", activations), *thresholds.items(), *read):
            if tensor is not None and tensor.device != votes.device:
                raise ValueError(
                    f"{name} is on {tensor.device}, but the votes are on {votes.device}: move them to one device"
                )
        thresholds = {name: value.to(votes.dtype) for name, value in thresholds.items()}
        if start is not None:
            start = start.to(votes.dtype)
        if activations is not None:
            activations = activations.to(votes.dtype)
        readout = self._checked(readout, votes) if activate and readout is not None else None
        given = (start, activations, thresholds, activate)
        with full_precision(votes.device):
            # Native code keeps no coefficients, so the algorithm itself computes them.
            capsules = None if keep_coefficients else votes.run(self, *given, *(() if readout is None else (readout,)))
            if capsules is None:
                capsules = self.route(votes, *given, keep_coefficients).read_by(readout)
        return capsules

    @staticmethod
    def _checked(readout: Readout, votes: Votes) -> Readout:
        shapes = (votes.outputs, votes.rows, votes.cols), (votes.outputs,)
        found = tuple(readout.weight.shape), tuple(readout.bias.shape)
        if found != shapes:
            raise ValueError(
                f"a readout has shapes {found[0]} and {found[1]}: these votes need {shapes[0]} and {shapes[1]}"
            )
        return Readout(readout.weight.to(votes.dtype), readout.bias.to(votes.dtype))


ROUTINGS: Registry[type[Routing]] = Registry("routing")
RoutingClass = TypeVar("RoutingClass", bound=type[Routing])


def register_routing(routing: RoutingClass) -> RoutingClass:
    """Register a routing under its `name`: a decorator for a subclass of `Routing`.

    Raises:
        TypeError: The class has no name, or is not a routing.
        ValueError: The name is taken.
    """
    if not isinstance(routing, type) or not issubclass(routing, Routing):
        raise TypeError(f"{routing!r} is not a subclass of Routing: @register_routing decorates one")
    if not isinstance(getattr(routing, "name", None), str):
        raise TypeError(f"{routing.__name__} has no name: give it one, e.g. `name = {routing.__name__.lower()!r}`")
    ROUTINGS.register(routing.name, routing)
    return routing


def list_routings(pattern: str | Sequence[str] = "*", *, exclude: str | Sequence[str] = ()) -> list[str]:
    """Names of the registered routings.

    Args:
        pattern: A shell pattern, or several.
        exclude: Patterns whose matches are left out.

    Examples:
        >>> import shortcaps
        >>> shortcaps.list_routings()
        ['attention', 'dynamic', 'em', 'fuzzy']
    """
    return ROUTINGS.names(pattern, exclude=exclude)


def full_precision(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Disable autocast inside a routing, so that matrix products keep their precision."""
    if device.type != "meta" and torch.is_autocast_enabled(device.type):  # meta tensors have no precision to keep
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def check_floor(floor: float) -> None:
    """Raise ValueError unless the floor is above 0."""
    if not floor > 0:
        raise ValueError(f"floor {floor} is too small: it must be above 0, e.g. 1e-6")


def threshold(thresholds: Mapping[str, Tensor], name: str, default: float, like: Tensor) -> Tensor:
    """A routing's trainable number (outputs,), or its initial value (1,) if the caller has none (`shortcaps.route`)."""
    return thresholds[name] if name in thresholds else like.new_full((1,), default)


def squash(poses: Tensor) -> Tensor:
    """`s ||s|| / (1 + ||s||^2)` over the last two dimensions: keeps the direction, maps the length to [0, 1).

    Safe at zero: the value is 0 and so is the gradient, since `vector_norm` takes 0 as its subgradient there.
    """
    length = torch.linalg.vector_norm(poses, dim=(-2, -1), keepdim=True)
    return poses * (length / (1 + length.square()))


def pose_length(poses: Tensor) -> Tensor:
    """The length of each pose, (…, rows, cols) → (…); Eq. (11) when the pose is squashed."""
    return torch.linalg.vector_norm(poses, dim=(-2, -1))


def equal_shares(votes: Votes) -> Tensor:
    """Every input divides itself equally among the outputs: (batch, inputs, outputs)."""
    return torch.full(
        (votes.batch, votes.inputs, votes.outputs), 1 / votes.outputs, dtype=votes.dtype, device=votes.device
    )


def scaled_by_activation(memberships: Tensor, activations: Tensor | None) -> Tensor:
    """Memberships (batch, inputs, outputs) times the activation (batch, inputs) of each input."""
    return memberships if activations is None else memberships * activations.unsqueeze(-1)


def shares_over_inputs(log_weights: Tensor, activations: Tensor | None) -> Tensor:
    """Weights (batch, inputs, outputs), given as logarithms, scaled to sum to 1 over the inputs.

    An input with activation 0 gets nothing; if all are 0, all count the same. Working with logarithms keeps an output that hardly any
    input belongs to from becoming 0 / 0.
    """
    if activations is None:
        return log_weights.softmax(1)
    exists = activations > 0
    log_activations = torch.where(exists, torch.where(exists, activations, 1).log(), NEVER)
    log_activations = torch.where(exists.any(1, keepdim=True), log_activations, 0)
    return (log_weights + log_activations.unsqueeze(-1)).softmax(1)
