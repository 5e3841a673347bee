"""What the network says of several pictures at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from shortcaps.inference.explain import routing_maps, transformed
from shortcaps.inference.predict import Prediction, Predictor
from shortcaps.serve.schema import Answer


@dataclass(frozen=True)
class Question:
    """A picture to look at.

    Attributes:
        image: (channels, height, width)
        details: Whether pose, routing maps and the image itself are wanted.
        moves: How the image is to be transformed first, as `transformed` takes it.
    """

    image: Tensor
    details: bool
    moves: dict[str, float] = field(default_factory=dict)


@torch.inference_mode()
def answer_all(predictor: Predictor, questions: list[Question]) -> list[Answer]:
    """One run of the network for all; another, with routing maps, for those who ask for details."""
    images = [transformed(question.image[None], **question.moves)[0] for question in questions]
    found = predictor.activations(torch.stack(images))
    answers = []
    for question, image, activations in zip(questions, images, found.tolist(), strict=True):
        said = Prediction("", dict(zip(predictor.class_names, activations, strict=True)))
        answers.append(
            Answer(answer=said.ranking[0][0], probabilities=said.probabilities, activations=said.activations)
        )
        if question.details:
            explained = routing_maps(predictor.network, image[None].to(predictor.device))
            winner = int(explained.classes[0])
            if explained.poses is not None:
                answers[-1].pose = explained.poses[0, winner].tolist()
                answers[-1].maps = [block[0, -1].tolist() for block in explained.over_channels()]
            answers[-1].image = (image[0] if len(image) == 1 else image).tolist()
    return answers
