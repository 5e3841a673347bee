"""Laws that a routing obeys, as checks for routings of your own.

Each check takes a routing, draws random votes from a seed, and raises `LawBroken` with the size of the violation.
`check_routing` runs the checks that every routing should pass, and reports which of the others it passes.

**Equivariance.** Multiplying all lower poses from the right by one matrix R (a change of viewpoint) multiplies every
vote by R, since votes are made by left multiplication: `T (p R) = (T p) R`. A routing is equivariant for R if its higher
poses are multiplied by R too (with the starting capsules multiplied as well, as they come from the same poses). Which R?

- *Attention, dynamic*: the coefficients come from `<v R, g R> = tr(R' v' g R)`, which is `<v, g>` for all votes exactly
  when `R R' = 1`. Then they stay as they were, sums of votes are multiplied by R, and squash sees only lengths, which R
  keeps. So: every orthogonal R, and no other; scaling by s changes the scores by s².
- *Fuzzy*: the memberships come from ratios of distances. An orthogonal R keeps distances, a scaling by s multiplies all of
  them by s, and the ratios stay. So: every similarity R = s Q with Q orthogonal, for the poses (exactly for orthogonal
  R; for s ≠ 1 up to the floor added to squared distances). The activation is kept by orthogonal R only: `ln σ` grows by
  `ln s`. A shear changes ratios and breaks it.
- *EM*: each number of a pose has a variance of its own, so the axes matter. A rotation mixes columns, and the diagonal
  Gaussian of the rotated votes is not the rotated Gaussian. Permuting columns and flipping their signs permutes the
  variances, and their products, sums and densities stay. So: every signed permutation matrix R, and no other orthogonal R.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from shortcaps.routing import Capsules, DenseVotes, Routing


class LawBroken(AssertionError):
    """A routing broke a law; the message names the law and the size of the violation."""


@dataclass(frozen=True)
class Problem:
    """A random routing problem in float64.

    Attributes:
        votes: (batch, inputs, outputs, rows, cols).
        start: The latest higher capsules (batch, outputs, rows, cols), or None.
        activations: (batch, inputs) in 0–1, or None.
    """

    votes: Tensor
    start: Tensor | None
    activations: Tensor | None

    def solve(self, routing: Routing) -> Capsules:
        """Route the votes, with coefficients and memberships."""
        return routing(DenseVotes(self.votes), start=self.start, activations=self.activations, keep_coefficients=True)


def random_problem(
    *,
    shortcut: bool,
    batch: int = 3,
    inputs: int = 7,
    outputs: int = 4,
    rows: int = 3,
    cols: int = 3,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Problem:
    """Draw a routing problem.

    Args:
        shortcut: Whether it starts from given higher capsules; otherwise it starts from scratch, with input activations.
        batch: Number of samples.
        inputs: Number of lower capsules.
        outputs: Number of higher capsules.
        rows: Rows of a pose.
        cols: Columns of a pose.
        seed: Decides the numbers.
        dtype: Their precision.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype)

    votes = normal(batch, inputs, outputs, rows, cols)
    if shortcut:
        return Problem(votes, normal(batch, outputs, rows, cols), None)
    return Problem(votes, None, torch.rand((batch, inputs), generator=generator, dtype=dtype) * 0.9 + 0.05)


def _demand_equal(law: str, routing: Routing, found: Tensor | None, expected: Tensor | None, tolerance: float) -> None:
    if found is None or expected is None:
        raise LawBroken(f"{routing} returned nothing to check '{law}' with")
    error = (found - expected).abs().max().item() / max(expected.abs().max().item(), 1e-30)
    if not error <= tolerance:
        raise LawBroken(f"{routing} breaks the law '{law}': relative error {error:.2e}, allowed {tolerance:.0e}")


def _random_cycle(size: int, seed: int) -> Tensor:
    """A random permutation that leaves nothing in its place, so that no special treatment of one place goes unseen."""
    names = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    order = torch.empty_like(names)
    order[names] = names.roll(1)
    return order


def check_permuting_inputs_changes_nothing(routing: Routing, *, tolerance: float = 1e-9, seed: int = 0) -> None:
    """The order of the lower capsules does not matter."""
    for shortcut in (True, False):
        problem = random_problem(shortcut=shortcut, seed=seed)
        order = _random_cycle(problem.votes.shape[1], seed)
        activations = None if problem.activations is None else problem.activations[:, order]
        before = problem.solve(routing)
        after = Problem(problem.votes[:, order], problem.start, activations).solve(routing)
        law = "permuting inputs changes nothing"
        _demand_equal(law, routing, after.pose, before.pose, tolerance)
        _demand_equal(law, routing, after.activation, before.activation, tolerance)


def check_permuting_outputs_permutes_results(routing: Routing, *, tolerance: float = 1e-9, seed: int = 0) -> None:
    """Permuting the higher capsules permutes their poses and activations in the same way."""
    for shortcut in (True, False):
        problem = random_problem(shortcut=shortcut, seed=seed)
        order = _random_cycle(problem.votes.shape[2], seed)
        start = None if problem.start is None else problem.start[:, order]
        before = problem.solve(routing)
        after = Problem(problem.votes[:, :, order], start, problem.activations).solve(routing)
        law = "permuting outputs permutes results"
        _demand_equal(law, routing, after.pose, before.pose[:, order], tolerance)
        expected = None if before.activation is None else before.activation[:, order]
        _demand_equal(law, routing, after.activation, expected, tolerance)


def check_samples_are_independent(routing: Routing, *, tolerance: float = 1e-12, seed: int = 0) -> None:
    """A sample routed alone gives the same capsules as in a batch."""
    for shortcut in (True, False):
        problem = random_problem(shortcut=shortcut, seed=seed)
        whole = problem.solve(routing)
        for sample in range(problem.votes.shape[0]):
            one = slice(sample, sample + 1)
            alone = Problem(
                problem.votes[one],
                None if problem.start is None else problem.start[one],
                None if problem.activations is None else problem.activations[one],
            ).solve(routing)
            _demand_equal("samples are independent", routing, alone.pose, whole.pose[one], tolerance)
            expected = None if whole.activation is None else whole.activation[one]
            _demand_equal("samples are independent", routing, alone.activation, expected, tolerance)


def check_memberships_sum_to_one_over_outputs(routing: Routing, *, tolerance: float = 1e-9, seed: int = 0) -> None:
    """The memberships of an input are not negative and sum to 1 over the outputs."""
    for shortcut in (True, False):
        capsules = random_problem(shortcut=shortcut, seed=seed).solve(routing)
        memberships = capsules.memberships
        total = None if memberships is None else memberships.sum(-1)
        expected = None if total is None else torch.ones_like(total)
        _demand_equal("memberships sum to 1 over the outputs", routing, total, expected, tolerance)
        if memberships is not None and bool((memberships < 0).any()):
            raise LawBroken(f"{routing} gives negative memberships, down to {memberships.min().item():.2e}")


def _equal_votes(shortcut: bool, seed: int) -> tuple[Problem, Tensor]:
    problem = random_problem(shortcut=shortcut, seed=seed)
    vote = problem.votes[:, :1]
    return Problem(vote.expand_as(problem.votes).contiguous(), problem.start, problem.activations), vote[:, 0]


def check_equal_votes_are_a_fixed_point(routing: Routing, *, tolerance: float = 1e-9, seed: int = 0) -> None:
    """When all inputs cast the same vote for an output, that vote is its pose. Fuzzy and EM obey it."""
    for shortcut in (True, False):
        problem, vote = _equal_votes(shortcut, seed)
        _demand_equal("equal votes are a fixed point", routing, problem.solve(routing).pose, vote, tolerance)


def check_equal_votes_keep_their_direction(routing: Routing, *, tolerance: float = 1e-9, seed: int = 0) -> None:
    """When all inputs cast the same vote for an output, its pose points the same way. All four routings obey it."""
    for shortcut in (True, False):
        problem, vote = _equal_votes(shortcut, seed)
        pose = problem.solve(routing).pose
        found, expected = (t / torch.linalg.vector_norm(t, dim=(-2, -1), keepdim=True) for t in (pose, vote))
        _demand_equal("equal votes keep their direction", routing, found, expected, tolerance)


def check_equivariance(
    routing: Routing, matrix: Tensor, *, activation_too: bool = True, tolerance: float = 1e-9, seed: int = 0
) -> None:
    """Multiplying all votes (and the start) from the right by a matrix multiplies the poses by it.

    See the docstring of this module for which matrices satisfy this with which routing.

    Args:
        routing: The routing to check.
        matrix: (cols, cols).
        activation_too: Whether the activations must stay the same as well.
        tolerance: Largest relative error allowed.
        seed: Decides the votes.

    Raises:
        LawBroken: The routing is not equivariant.
    """
    matrix = matrix.to(torch.float64)
    for shortcut in (True, False):
        problem = random_problem(shortcut=shortcut, seed=seed, cols=matrix.shape[0], rows=3)
        start = None if problem.start is None else problem.start @ matrix
        before = problem.solve(routing)
        after = Problem(problem.votes @ matrix, start, problem.activations).solve(routing)
        _demand_equal("equivariance of poses", routing, after.pose, before.pose @ matrix, tolerance)
        if activation_too:
            _demand_equal("invariance of activations", routing, after.activation, before.activation, tolerance)


def random_orthogonal(size: int = 3, seed: int = 0) -> Tensor:
    """A random orthogonal matrix in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[0]


def random_signed_permutation(size: int = 3, seed: int = 0) -> Tensor:
    """A random permutation matrix with random signs, in float64."""
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (size,), generator=generator, dtype=torch.float64) * 2 - 1
    return torch.eye(size, dtype=torch.float64)[torch.randperm(size, generator=generator)] * signs


LAWS: dict[str, Callable[[Routing], None]] = {
    "permuting inputs changes nothing": check_permuting_inputs_changes_nothing,
    "permuting outputs permutes results": check_permuting_outputs_permutes_results,
    "samples are independent": check_samples_are_independent,
    "equal votes keep their direction": check_equal_votes_keep_their_direction,
    "equivariance: signed permutations": lambda routing: check_equivariance(routing, random_signed_permutation()),
}
"""Laws that every routing should obey."""

FURTHER_LAWS: dict[str, Callable[[Routing], None]] = {
    "memberships sum to 1 over the outputs": check_memberships_sum_to_one_over_outputs,
    "equal votes are a fixed point": check_equal_votes_are_a_fixed_point,
    "equivariance: orthogonal matrices": lambda routing: check_equivariance(routing, random_orthogonal()),
    "equivariance of poses: scaling": lambda routing: check_equivariance(
        routing, 2 * torch.eye(3), activation_too=False, tolerance=1e-6
    ),
}
"""Laws that only some routings obey."""


def check_routing(routing: Routing) -> dict[str, bool]:
    """Check all of `LAWS`, and report which of `FURTHER_LAWS` hold.

    Returns:
        For each further law, whether the routing obeys it.

    Raises:
        LawBroken: It breaks a law that every routing should obey.

    Examples:
        >>> from shortcaps import Fuzzy
        >>> all(check_routing(Fuzzy()).values())
        True
    """
    for check in LAWS.values():
        check(routing)
    found = {}
    for law, check in FURTHER_LAWS.items():
        try:
            check(routing)
            found[law] = True
        except LawBroken:
            found[law] = False
    return found
