"""Any picture, made into what a trained network has learned to see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from shortcaps.data import find_spec
from shortcaps.inference.pixels import PixelPreparation
from shortcaps.models.plan import as_size

if TYPE_CHECKING:
    from PIL.Image import Image as Picture


class Preparation(PixelPreparation):
    """How pictures become images, tensors (channels, height, width) in 0–1."""

    @classmethod
    def of_run(cls, config: dict[str, Any]) -> Preparation:
        """From a run's config.json."""
        data, network = config["data"], config["network"]
        image_size = as_size(network["image_size"])
        facts = facts_of(data)
        return cls(
            as_size(data.get("stored_size", image_size)),
            image_size,
            int(network["channels"]),
            facts["bright_on_dark"],
            facts["centred_digits"],
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "stored_size": list(self.stored_size),
            "image_size": list(self.image_size),
            "channels": self.channels,
            "range": [0, 1],
            "bright_on_dark": self.bright_on_dark,
            "digits": self.digits,
        }

    def __call__(self, picture: Picture, *, invert: bool | None = None) -> Tensor:
        """The image of a picture, as `pixels` makes it."""
        return torch.from_numpy(self.pixels(picture, invert=invert))


def facts_of(data: dict[str, Any]) -> dict[str, bool]:
    """What a run says of its training images; of a run of version 0.1, which says nothing, what the spec of its data set does."""
    if "preparation" in data:
        return data["preparation"]
    spec = find_spec(data["name"])
    return {"bright_on_dark": spec.bright_on_dark, "centred_digits": spec.centred_digits}
