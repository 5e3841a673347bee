"""`shortcaps.route`: votes of one's own, and one clear line for every mistake."""

from __future__ import annotations

import re

import pytest
import torch

import shortcaps
from shortcaps.routing import make_routing


@pytest.mark.parametrize("routing", shortcaps.ROUTINGS)
def test_any_routing_takes_votes_of_ones_own(routing: str) -> None:
    capsules = shortcaps.route(torch.randn(2, 6, 3, 4, 4), routing=routing, iterations=3, keep_coefficients=True)
    assert capsules.pose.shape == (2, 3, 4, 4)
    assert capsules.activation is not None and capsules.activation.shape == (2, 3)
    assert ((capsules.activation >= 0) & (capsules.activation <= 1)).all()
    assert capsules.coefficients is not None and capsules.coefficients.shape == (2, 6, 3)


@pytest.mark.parametrize("routing", shortcaps.ROUTINGS)
def test_vector_votes_are_matrices_with_one_column(routing: str) -> None:
    votes, start = torch.randn(2, 6, 3, 8), torch.randn(2, 3, 8)
    vectors = shortcaps.route(votes, routing, start=start)
    matrices = shortcaps.route(votes.unsqueeze(-1), routing, start=start.unsqueeze(-1))
    assert vectors.pose.shape == (2, 3, 8)
    torch.testing.assert_close(vectors.pose, matrices.pose.squeeze(-1))


def test_coefficients_are_kept_only_on_request() -> None:
    votes = torch.randn(1, 5, 3, 2, 2)
    assert shortcaps.route(votes, "attention").coefficients is None
    assert shortcaps.route(votes, "attention", keep_coefficients=True).coefficients is not None


@pytest.mark.parametrize("routing", shortcaps.ROUTINGS)
def test_coefficients_are_the_weights_that_formed_the_pose(routing: str) -> None:
    votes, activations = torch.randn(2, 5, 3, 2, 2), torch.rand(2, 5)
    capsules = shortcaps.route(votes, routing, activations=activations, keep_coefficients=True)
    assert capsules.coefficients is not None
    formed = torch.einsum("bim,bimrc->bmrc", capsules.coefficients, votes)
    torch.testing.assert_close(
        capsules.pose, shortcaps.squash(formed) if shortcaps.ROUTINGS[routing].squashes else formed
    )


@pytest.mark.parametrize("routing", shortcaps.ROUTINGS)
def test_an_input_that_does_not_exist_has_no_say(routing: str) -> None:
    votes, activations = torch.randn(1, 5, 3, 2, 2) * 20, torch.tensor([[1.0, 0.7, 0.0, 0.4, 1.0]])
    changed = votes.clone()
    changed[:, 2] += 1
    before, after = (shortcaps.route(v, routing, activations=activations).pose for v in (votes, changed))
    torch.testing.assert_close(before, after)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: shortcaps.route(torch.randn(1, 2, 3, 4), "fuzy"), ValueError, "unknown routing 'fuzy': choose one of"),
        (lambda: make_routing("fuzzy", fuzziness=1.0), ValueError, "fuzziness m_f = 1.0 is too small"),
        (lambda: make_routing("fuzzy", fuzziness=float("nan")), ValueError, "fuzziness m_f = nan is too small"),
        (
            lambda: make_routing("em", iterations=0),
            ValueError,
            "iterations 0 is too small: a routing needs an integer of at least 1",
        ),
        (
            lambda: make_routing("em", fuzziness=2),
            TypeError,
            "em routing has no setting 'fuzziness': it has iterations",
        ),
        (
            lambda: make_routing(shortcaps.EM(), iterations=2),
            TypeError,
            "already has its settings: give iterations when you create it",
        ),
        (lambda: shortcaps.route(torch.randn(2, 3)), ValueError, "votes have shape (2, 3): give (batch, inputs"),
        (lambda: shortcaps.route(torch.ones(1, 2, 3, 4, dtype=torch.long)), TypeError, "votes are torch.int64"),
        (lambda: shortcaps.route(torch.randn(1, 0, 3, 4)), ValueError, "only the batch may be empty"),
        (
            lambda: shortcaps.route(torch.randn(1, 5, 3, 2, 2), start=torch.randn(1, 3, 2)),
            ValueError,
            "start has shape (1, 3, 2): these votes need (1, 3, 2, 2)",
        ),
        (
            lambda: shortcaps.route(torch.randn(1, 5, 3, 2, 2), activations=torch.rand(1, 3)),
            ValueError,
            "activations have shape (1, 3): these votes need (1, 5)",
        ),
        (
            lambda: shortcaps.route(torch.randn(1, 5, 3, 2, 2), start=torch.empty(1, 3, 2, 2, device="meta")),
            ValueError,
            "start is on meta, but the votes are on cpu: move them to one device",
        ),
        (lambda: make_routing("fuzzy", fuzziness=float("inf")), ValueError, "fuzziness m_f = inf is too large"),
        (lambda: make_routing("em", floor=0.0), ValueError, "floor 0.0 is too small: it must be above 0"),
        (lambda: make_routing("em", iterations=1.5), ValueError, "iterations 1.5 is too small"),
        (lambda: make_routing(["em"]), ValueError, "unknown routing ['em']: choose one of"),
        (
            lambda: shortcaps.route(torch.randn(1, 5, 3, 2, 2), thresholds={"betta": torch.zeros(3)}),
            ValueError,
            "fuzzy routing has no threshold 'betta': it has beta",
        ),
        (
            lambda: shortcaps.route(torch.randn(1, 5, 3, 2, 2), thresholds={"beta": torch.zeros(1)}),
            ValueError,
            "threshold beta has shape (1,): these votes need (3,)",
        ),
        (
            lambda: shortcaps.FactoredVotes(torch.randn(1, 2, 3, 4, 4), torch.randn(3, 5, 4, 4)),
            ValueError,
            "do not fit transforms (3, 5, 4, 4)",
        ),
        (
            lambda: shortcaps.FactoredVotes(torch.randn(1, 2, 4, 4), torch.randn(2, 5, 4, 4)),
            ValueError,
            "give (batch, groups, members, rows, cols)",
        ),
    ],
)
def test_bad_input_names_the_value_and_the_way_out(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call()
