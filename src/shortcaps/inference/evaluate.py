"""Evaluation: accuracy with its interval, per class, macro F1, top-k, confusion, calibration, on any data set that fits the network."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from shortcaps.backbones import evaluating
from shortcaps.data import Dataset
from shortcaps.inference.metrics import f1_scores, macro_f1, top_k_accuracies
from shortcaps.models import as_probabilities
from shortcaps.progress import Pace
from shortcaps.reporting.intervals import independent_images, wilson_interval

log = logging.getLogger(__name__)

CALIBRATION_BINS = 15


@dataclass(frozen=True)
class Evaluation:
    """What a network does on a data set.

    Attributes:
        label: How tables and reports call the data set.
        count: Number of images.
        accuracy: Share of them that were recognised.
        interval: 95 % interval of the accuracy.
        per_class: Share of each class's images that were recognised; None where there were none.
        f1: F1 score of each class; None where it neither occurred nor was predicted.
        macro_f1: Mean of these scores.
        top_k: By k, the share of images whose class is among the k with the highest activations.
        calibration_error: Expected calibration error of the probabilities.
        confusion: (classes, classes), counts by [true, predicted].
        class_names: In the order of the network's outputs.
        activations: (count, classes), what the network gave, on the CPU.
    """

    label: str
    count: int
    accuracy: float
    interval: tuple[float, float]
    per_class: tuple[float | None, ...]
    f1: tuple[float | None, ...]
    macro_f1: float
    top_k: dict[int, float]
    calibration_error: float
    confusion: Tensor
    class_names: tuple[str, ...]
    activations: Tensor

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "dataset": self.label,
            "images": self.count,
            "accuracy": self.accuracy,
            "interval_95": list(self.interval),
            "per_class": dict(zip(self.class_names, self.per_class, strict=True)),
            "f1": dict(zip(self.class_names, self.f1, strict=True)),
            "macro_f1": self.macro_f1,
            "top_k": {str(k): share for k, share in self.top_k.items()},
            "expected_calibration_error": self.calibration_error,
            "confusion": self.confusion.tolist(),
        }


def percent(share: float | None) -> str:
    """A fraction as a percentage; a dash for None."""
    return "–" if share is None else f"{share:.2%}"


def describe_top_k(top_k: dict[int, float]) -> str:
    """Top-k accuracies in words: `top-2 99.10%, top-5 100.00%`."""
    return ", ".join(f"top-{k} {share:.2%}" for k, share in top_k.items())


def expected_calibration_error(confidences: Tensor, correct: Tensor, bins: int = CALIBRATION_BINS) -> float:
    """How far confidence is from accuracy: the mean gap over bins of confidence, weighted by their size."""
    which = (confidences * bins).long().clamp(0, bins - 1)
    sizes = torch.bincount(which, minlength=bins).double()
    confidence = torch.bincount(which, confidences.double(), minlength=bins)
    accuracy = torch.bincount(which, correct.double(), minlength=bins)
    return float((confidence - accuracy).abs().sum() / sizes.sum().clamp_min(1))


def _batch_size(data: Dataset) -> int:
    """As many images as take the memory of 512 images of 64x64, and no more than that."""
    _, height, width = data.image_shape
    return max(1, min(512, 512 * 64 * 64 // (height * width)))


@torch.no_grad()
def class_activations(
    model: nn.Module,
    data: Dataset,
    *,
    batch_size: int | None = None,
    device: torch.device | str = "cpu",
    part: int = 0,
    parts: int = 1,
) -> Tensor:
    """What a network gives for every image of a data set; leaves it in the mode it was in.

    Several processes may share the work: the sum of what each returns for its part is, bit for bit, what one returns for the whole, as
    each sees whole batches.

    Args:
        model: Maps images (batch, channels, height, width) to (batch, classes).
        data: The images.
        batch_size: How many it is shown at a time; None for 512, or fewer if images are larger than 64x64.
        device: Where it is.
        part: Which batches it is shown: every `parts`-th, from this one on.
        parts: Among how many the batches are divided.

    Returns:
        Activations (count, classes) on the CPU; probabilities for a plain network. Zeros for images of other parts.
    """
    batch_size = batch_size or _batch_size(data)
    dtype = next(model.parameters()).dtype
    # Made before the first batch: small results that live on between the large tensors of one batch and the next would keep
    # the C library from using that memory again, and hundreds of batches from fitting into it.
    answers = torch.zeros(len(data), len(data.class_names))
    batches = zip(data.images.split(batch_size), answers.split(batch_size), strict=True)
    pace, seen = Pace(), 0
    with evaluating(model):
        for images, answer in islice(batches, part, None, parts):
            seen += parts * batch_size
            if (left := pace.left(seen, len(data))) is not None:
                log.info("%s: %s of %s images seen, %s", data.label, f"{seen:,}", f"{len(data):,}", left)
            answer.copy_(model(data.view(images.to(device)).to(dtype)))
    return answers


def summarise(activations: Tensor, data: Dataset) -> Evaluation:
    """Evaluate the activations (count, classes) of a data set's images."""
    classes = len(data.class_names)
    predicted = activations.argmax(1)
    confusion = torch.bincount(data.labels * classes + predicted, minlength=classes**2).reshape(classes, classes)
    right = int(confusion.diagonal().sum())
    confidence = as_probabilities(activations).amax(1)
    per_class = tuple(int(confusion[k, k]) / int(row.sum()) if row.any() else None for k, row in enumerate(confusion))
    count = len(data)
    independent = count if data.originals is None else independent_images(predicted == data.labels, data.originals)
    return Evaluation(
        data.label,
        count,
        right / max(1, count),
        wilson_interval(right / max(1, count) * independent, independent),
        per_class,
        f1_scores(confusion),
        macro_f1(confusion),
        top_k_accuracies(activations, data.labels),
        expected_calibration_error(confidence, predicted == data.labels),
        confusion,
        data.class_names,
        activations,
    )


def evaluate(model: nn.Module, data: Dataset, **options: Any) -> Evaluation:
    """Run the network over the data set; options as for `class_activations`."""
    return summarise(class_activations(model, data, **options), data)
