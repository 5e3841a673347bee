"""Preparation of any picture into what a trained network expects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from shortcaps.errors import RunError
from shortcaps.inference.pixels import PixelPreparation
from shortcaps.models.plan import as_size

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

    from shortcaps.runs.manifest import Manifest


class Preparation(PixelPreparation):
    """How pictures become images, tensors (channels, height, width) in 0–1."""

    @classmethod
    def of_run(cls, manifest: Manifest) -> Preparation:
        """The preparation for the network of a run.

        Raises:
            RunError: No picture could be prepared so: what the network should see is larger, or digits are to be in colour.
        """
        data, network = manifest.data, manifest.network
        image_size, channels = as_size(network["image_size"]), int(network["channels"])
        if any(stored < shown for stored, shown in zip(data.stored_size, image_size, strict=True)):
            stored, shown = ("x".join(map(str, size)) for size in (data.stored_size, image_size))
            raise RunError(
                f"stored_size {stored} is smaller than the {shown} of which the network sees the middle: give at least {shown}"
            )
        if data.centred_digits and channels != 1:
            raise RunError(
                f"centred_digits goes with grey pictures, but the network takes {channels} channels: set it to false"
            )
        return cls(data.stored_size, image_size, channels, data.bright_on_dark, data.centred_digits, data.fit)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "stored_size": list(self.stored_size),
            "image_size": list(self.image_size),
            "channels": self.channels,
            "range": [0, 1],
            "bright_on_dark": self.bright_on_dark,
            "digits": self.digits,
            "fit": self.fit,
        }

    def __call__(self, picture: Picture, *, invert: bool | None = None) -> Tensor:
        """The image of a picture, (channels, height, width) in 0–1.

        Args:
            picture: A PIL image, grey or RGB as the network expects.
            invert: Whether to exchange light and dark; None decides by the border of the picture, and only for networks that were
                trained on light strokes on black.
        """
        return torch.from_numpy(self.pixels(picture, invert=invert))
