"""Figures of an evaluation against their definitions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from shortcaps.data import Dataset
from shortcaps.evaluate import evaluate, expected_calibration_error, summarise, wilson_interval


def dataset(labels: list[int], classes: int = 3) -> Dataset:
    images = torch.zeros(len(labels), 1, 4, 4, dtype=torch.uint8)
    return Dataset("toy", "toy", "test", "default", images, torch.tensor(labels), tuple("abc"[:classes]))


def test_confusion_accuracy_and_classes_are_counted() -> None:
    answers = torch.tensor([0, 1, 1, 2, 2, 2])
    found = summarise(torch.nn.functional.one_hot(answers, 3).float(), dataset([0, 0, 1, 2, 2, 1]))
    assert found.confusion.tolist() == [[1, 1, 0], [0, 1, 1], [0, 0, 2]]
    assert found.accuracy == pytest.approx(4 / 6)
    assert found.per_class == pytest.approx((0.5, 0.5, 1.0))


@pytest.mark.parametrize(
    ("correct", "count", "low", "high"),
    # Wilson (1927); values from the closed form evaluated by hand for n = 10 and from published tables for 0 of 20.
    [(5, 10, 0.2366, 0.7634), (0, 20, 0.0, 0.1611), (20, 20, 0.8389, 1.0)],
)
def test_the_interval_is_wilsons(correct: int, count: int, low: float, high: float) -> None:
    assert wilson_interval(correct, count) == pytest.approx((low, high), abs=1e-4)


def test_views_of_one_original_count_as_one_observation() -> None:
    answers = torch.nn.functional.one_hot(torch.tensor([0] * 6 + [1] * 2), 3).float()
    alone, views = (summarise(answers, replace(dataset([0] * 8), views_of_each=count)) for count in (1, 4))
    assert alone.accuracy == views.accuracy == 0.75
    assert alone.interval == wilson_interval(6, 8)
    assert views.interval == wilson_interval(1.5, 2)


def test_calibration_error_is_the_weighted_gap_of_its_bins() -> None:
    confidences, correct = torch.rand(500), torch.rand(500) < 0.6
    total = 0.0
    for b in range(15):
        inside = (confidences >= b / 15) & (confidences < (b + 1) / 15)
        if inside.any():
            total += (
                inside.sum().item()
                / 500
                * abs(confidences[inside].mean().item() - correct[inside].float().mean().item())
            )
    assert expected_calibration_error(confidences, correct) == pytest.approx(total, abs=1e-6)


def test_evaluation_leaves_the_model_as_it_was_and_does_not_depend_on_the_batch() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = torch.nn.Parameter(torch.zeros(1))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            assert not self.training
            return torch.nn.functional.one_hot((images.sum((1, 2, 3)) > 0).long(), 3).float()

    data = dataset([0, 1, 0, 1, 1])
    data.images[1] = data.images[3] = 9
    model = Model().train()
    results = [evaluate(model, data, batch_size=size) for size in (1, 2, 100)]
    assert model.training
    assert {result.accuracy for result in results} == {0.8}
