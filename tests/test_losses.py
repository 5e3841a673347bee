"""Losses equal their formulas, written as loops."""

from __future__ import annotations

import math
import re

import pytest
import torch

from shortcaps import log_odds_loss, log_probability_loss, margin_loss, spread_loss, spread_margin
from shortcaps.routing.base import pose_length, squash


def test_spread_loss_is_equation_14() -> None:
    probabilities, labels, margin = torch.rand(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 3, 0]), 0.7
    total = 0.0
    for b in range(6):
        for m in range(4):
            if m != labels[b]:
                total += max(0.0, margin - (probabilities[b, labels[b]] - probabilities[b, m]).item()) ** 2
    assert spread_loss(probabilities, labels, margin).item() == pytest.approx(total / 6)


def test_spread_loss_is_zero_when_the_target_leads_by_the_margin() -> None:
    probabilities = torch.tensor([[0.95, 0.05, 0.0]])
    assert spread_loss(probabilities, torch.tensor([0]), 0.9) == 0
    assert spread_loss(probabilities, torch.tensor([1]), 0.9) > 1


def test_spread_margin_grows_over_ten_epochs_and_then_stays() -> None:
    assert spread_margin(0) == pytest.approx(0.2)
    assert spread_margin(5) == pytest.approx(0.55)
    assert spread_margin(10) == spread_margin(150) == pytest.approx(0.9)
    with pytest.raises(ValueError, match="epoch -1"):
        spread_margin(-1)


def test_margin_loss_is_that_of_sabour_2017() -> None:
    probabilities, labels = torch.rand(5, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 1, 0])
    total = 0.0
    for b in range(5):
        for m in range(3):
            p = probabilities[b, m].item()
            total += max(0.0, 0.9 - p) ** 2 if m == labels[b] else 0.5 * max(0.0, p - 0.1) ** 2
    assert margin_loss(probabilities, labels).item() == pytest.approx(total / 5)


def test_log_probability_loss_is_the_share_of_the_target_and_a_tenth_of_each_by_itself() -> None:
    probabilities, labels = torch.rand(5, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 1, 0])
    total = 0.0
    for p, t in zip(probabilities.tolist(), labels.tolist(), strict=True):
        total -= math.log(p[t] / sum(p))
        total -= 0.1 * sum(math.log(p[m] if m == t else 1 - p[m]) for m in range(3))
    assert log_probability_loss(probabilities, labels).item() == pytest.approx(total / 5)


def test_log_probability_loss_keeps_its_gradient_where_probabilities_are_tiny_or_one() -> None:
    for logits in ([-60.0, -70.0, -50.0], [80.0, 90.0, 100.0]):
        scores = torch.tensor([logits], requires_grad=True)
        log_probability_loss(torch.sigmoid(scores), torch.tensor([0])).backward()
        assert scores.grad is not None
        assert torch.isfinite(scores.grad).all()
    small = torch.tensor([[-60.0, -50.0]], requires_grad=True)
    log_probability_loss(torch.sigmoid(small), torch.tensor([0])).backward()
    assert small.grad is not None
    assert small.grad[0, 0] < -0.9, "the target is raised with full force"


def test_log_odds_loss_is_the_odds_of_the_target_among_all_and_each_by_itself() -> None:
    activations, labels = torch.rand(5, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 1, 0])
    total = 0.0
    for a, t in zip(activations.tolist(), labels.tolist(), strict=True):
        odds = [each / (1 - each) for each in a]
        total -= math.log(odds[t] / sum(odds))
        total -= sum(math.log(a[m] if m == t else 1 - a[m]) for m in range(3))
    assert log_odds_loss(activations, labels).item() == pytest.approx(total / 5)


def test_log_odds_of_sigmoids_is_the_cross_entropy_of_what_they_were_given() -> None:
    scores, labels = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 1, 0])
    expected = torch.nn.functional.cross_entropy(scores, labels).item()
    assert log_odds_loss(torch.sigmoid(scores), labels, absolute=0.0).item() == pytest.approx(expected)


@pytest.mark.parametrize("factor", [30.0, 300.0])
def test_log_odds_tell_squashed_poses_apart_however_long_they_are(factor: float) -> None:
    poses = torch.randn(4, 3, 4, 4, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 1])

    def losses_of(scale: float) -> tuple[float, float]:
        activations = pose_length(squash(scale * poses))
        return (
            log_odds_loss(activations, labels, absolute=0.0).item(),
            log_probability_loss(activations, labels, absolute=0.0).item(),
        )

    assert losses_of(factor)[0] == pytest.approx(losses_of(1.0)[0])
    assert losses_of(300.0)[1] == pytest.approx(math.log(3), abs=1e-4), "their activations no longer differ"


def test_log_odds_keep_the_gradient_of_long_poses_in_single_precision() -> None:
    poses = torch.randn(64, 3, 4, 4)
    labels = torch.arange(64) % 3

    def gradient(loss, scale: float) -> float:
        scaled = (scale * poses).requires_grad_()
        loss(pose_length(squash(scaled)), labels, absolute=0.0).backward()
        assert scaled.grad is not None
        return scale * scaled.grad.norm().item()

    assert gradient(log_odds_loss, 100.0) == pytest.approx(gradient(log_odds_loss, 1.0), rel=0.05)
    assert gradient(log_probability_loss, 100.0) < 1e-3 * gradient(log_probability_loss, 1.0)


@pytest.mark.parametrize("loss", [spread_loss, margin_loss, log_probability_loss, log_odds_loss])
def test_the_loss_of_shares_is_the_mean_of_the_losses_of_the_classes(loss) -> None:
    activations = torch.rand(6, 4, dtype=torch.float64)
    shares = torch.rand(6, 4, dtype=torch.float64).softmax(1)
    expected = 0.0
    for b in range(6):
        for k in range(4):
            expected += shares[b, k].item() * loss(activations[b : b + 1], torch.tensor([k])).item()
    assert loss(activations, shares).item() == pytest.approx(expected / 6)
    certain = torch.tensor([0, 1, 2, 3, 3, 0])
    one_hot = torch.nn.functional.one_hot(certain, 4).double()
    assert loss(activations, one_hot).item() == pytest.approx(loss(activations, certain).item())


@pytest.mark.parametrize("loss", [spread_loss, margin_loss])
def test_label_smoothing_spreads_a_share_of_the_target_evenly(loss) -> None:
    activations, labels = torch.rand(3, 4, dtype=torch.float64), torch.tensor([0, 3, 1])
    smoothed = 0.8 * torch.nn.functional.one_hot(labels, 4).double() + 0.2 / 4
    expected = loss(activations, smoothed)
    assert loss(activations, labels, label_smoothing=0.2).item() == pytest.approx(expected.item())
    assert loss(activations, labels, label_smoothing=0.2) != loss(activations, labels)


@pytest.mark.parametrize("loss", [spread_loss, margin_loss, log_probability_loss, log_odds_loss])
@pytest.mark.parametrize("smoothing", [1.5, -0.3, float("nan")])
def test_label_smoothing_is_a_share(loss, smoothing: float) -> None:
    with pytest.raises(ValueError, match=r"label_smoothing \S+ is not a share of the target: give 0 to 1"):
        loss(torch.rand(3, 4), torch.tensor([0, 3, 1]), label_smoothing=smoothing)


def test_label_smoothing_of_log_probability_changes_its_first_term_only() -> None:
    activations, labels = torch.rand(3, 4, dtype=torch.float64), torch.tensor([0, 3, 1])
    shares = torch.nn.functional.one_hot(labels, 4).double()
    by_label = log_probability_loss(activations, labels, label_smoothing=0.2)
    assert by_label.item() == pytest.approx(log_probability_loss(activations, shares, label_smoothing=0.2).item())
    probabilities = activations / activations.sum(1, keepdim=True)
    first = -((0.8 * shares + 0.05) * probabilities.log()).sum(1).mean()
    assert log_probability_loss(activations, labels, absolute=0.0, label_smoothing=0.2).item() == pytest.approx(
        first.item()
    )
    second = log_probability_loss(activations, labels) - log_probability_loss(activations, labels, absolute=0.0)
    assert (by_label - first).item() == pytest.approx(second.item())


@pytest.mark.parametrize("loss", [spread_loss, margin_loss, log_probability_loss, log_odds_loss])
def test_gradcheck_of_the_losses(loss) -> None:
    probabilities = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda p: loss(p, torch.tensor([0, 1, 2, 1])), probabilities)


@pytest.mark.parametrize("loss", [spread_loss, margin_loss, log_probability_loss, log_odds_loss])
def test_bad_labels_are_named(loss) -> None:
    with pytest.raises(ValueError, match=re.escape("labels (3,): give (batch, classes) and (batch,)")):
        loss(torch.rand(4, 3), torch.tensor([0, 1, 2]))
    with pytest.raises(TypeError, match=re.escape("labels are torch.float32")):
        loss(torch.rand(2, 3), torch.tensor([0.0, 1.0]))
    with pytest.raises(TypeError, match=re.escape("shares of the classes are torch.int64")):
        loss(torch.rand(2, 3), torch.tensor([[0, 1, 0], [1, 0, 0]]))
