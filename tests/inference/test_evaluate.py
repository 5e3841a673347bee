"""Figures of an evaluation against their definitions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from shortcaps.data import Dataset
from shortcaps.inference.evaluate import (
    class_activations,
    evaluate,
    expected_calibration_error,
    percent,
    summarise,
)
from shortcaps.reporting.intervals import independent_images, wilson_interval


def dataset(labels: list[int], classes: int = 3) -> Dataset:
    images = torch.zeros(len(labels), 1, 4, 4, dtype=torch.uint8)
    return Dataset("toy", "toy", "test", "default", images, torch.tensor(labels), tuple("abc"[:classes]))


def test_confusion_accuracy_and_classes_are_counted() -> None:
    answers = torch.tensor([0, 1, 1, 2, 2, 2])
    found = summarise(torch.nn.functional.one_hot(answers, 3).float(), dataset([0, 0, 1, 2, 2, 1]))
    assert found.confusion.tolist() == [[1, 1, 0], [0, 1, 1], [0, 0, 2]]
    assert found.accuracy == pytest.approx(4 / 6)
    assert found.per_class == pytest.approx((0.5, 0.5, 1.0))


def test_a_class_without_images_has_no_share_of_right_answers() -> None:
    found = summarise(torch.eye(3)[:2], dataset([0, 0]))
    assert found.per_class == (0.5, None, None)
    assert found.to_dict()["per_class"] == {"a": 0.5, "b": None, "c": None}
    assert (percent(0.5), percent(None)) == ("50.00%", "–")


def test_views_of_one_original_are_no_independent_evidence() -> None:
    answers = torch.nn.functional.one_hot(torch.tensor([0, 0, 0, 1, 0, 0, 1, 1]), 3).float()
    originals = torch.arange(8) // 2
    alone, views = (summarise(answers, replace(dataset([0] * 8), originals=of)) for of in (None, originals))
    assert alone.accuracy == views.accuracy == 0.625
    assert alone.interval == wilson_interval(5, 8)
    independent = independent_images(answers.argmax(1) == 0, originals)
    assert views.interval == wilson_interval(0.625 * independent, independent)
    nothing = replace(dataset([0], 3), originals=torch.zeros(1)).subset(slice(0))
    assert summarise(torch.empty(0, 3), nothing).interval == (0.0, 1.0)


def test_a_confusion_is_drawn_with_any_names() -> None:
    from shortcaps.training.plots import confusion

    found = replace(summarise(torch.eye(3), dataset([0, 1, 1])), class_names=("$1_$5", "<b>", "c"))
    drawn = confusion(found)
    assert "$1_$5" in drawn
    assert "&lt;b&gt;" in drawn


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


def test_parts_that_are_shared_out_add_up_to_the_whole_bit_for_bit() -> None:
    data = replace(dataset([0, 1, 2] * 5), images=torch.randint(0, 255, (15, 1, 4, 4), dtype=torch.uint8))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    whole = class_activations(model, data, batch_size=4)
    for parts in (2, 3, 7):  # with seven, some have nothing to do
        found = [class_activations(model, data, batch_size=4, part=part, parts=parts) for part in range(parts)]
        assert torch.equal(torch.stack(found).sum(0), whole)
        shown = torch.stack([part.any(1) for part in found])
        assert torch.equal(shown.sum(0), torch.ones(15, dtype=torch.long))
