"""Measures beside accuracy equal their definitions, written as loops."""

from __future__ import annotations

import pytest
import torch

from shortcaps.data import Dataset
from shortcaps.inference.evaluate import describe_top_k, summarise
from shortcaps.inference.metrics import f1_scores, macro_f1, top_k_accuracies


def test_f1_is_the_harmonic_mean_of_precision_and_recall() -> None:
    generator = torch.Generator().manual_seed(0)
    confusion = torch.randint(1, 20, (4, 4), generator=generator)
    scores = []
    for k in range(4):
        precision = confusion[k, k].item() / confusion[:, k].sum().item()
        recall = confusion[k, k].item() / confusion[k].sum().item()
        scores.append(2 * precision * recall / (precision + recall))
    assert f1_scores(confusion) == pytest.approx(scores)
    assert macro_f1(confusion) == pytest.approx(sum(scores) / 4)


def test_a_class_that_is_never_recognised_pulls_macro_f1_down_and_one_that_does_not_exist_does_not() -> None:
    # 98 of 100 are right, but the two images of the second class are not among them.
    assert macro_f1(torch.tensor([[98, 0, 0], [2, 0, 0], [0, 0, 0]])) == pytest.approx((2 * 98 / 198 + 0) / 2)
    assert f1_scores(torch.tensor([[98, 0, 0], [2, 0, 0], [0, 0, 0]]))[1:] == (0.0, None)


def test_top_k_counts_images_whose_class_is_among_the_best_k() -> None:
    generator = torch.Generator().manual_seed(1)
    activations, labels = torch.rand(50, 6, generator=generator), torch.randint(6, (50,), generator=generator)
    expected = {}
    for k in (2, 3, 5):
        hits = 0
        for row, label in zip(activations.tolist(), labels.tolist(), strict=True):
            hits += label in sorted(range(6), key=lambda c: -row[c])[:k]
        expected[k] = hits / 50
    assert top_k_accuracies(activations, labels) == pytest.approx(expected)
    assert top_k_accuracies(activations[:, :3], labels % 3).keys() == {2}
    assert top_k_accuracies(activations[:, :2], labels % 2) == {}, "all images are among the best two of two"


def test_an_evaluation_has_them_and_writes_them_as_json() -> None:
    images, labels = torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 2, 2])
    data = Dataset("x", "x", "test", "default", images, labels, ("a", "b", "c"))
    found = summarise(torch.eye(3)[torch.tensor([0, 1, 2, 1])] + torch.tensor([0.0, 0.1, 0.2]), data)
    written = found.to_dict()
    assert written["macro_f1"] == found.macro_f1 == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)
    assert written["top_k"] == {"2": 1.0}
    assert written["f1"]["b"] == pytest.approx(2 / 3)
    assert describe_top_k(found.top_k) == "top-2 100.00%"
