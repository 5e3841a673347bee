"""Contact sheets: a data set as one picture."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from shortcaps.data.dataset import Dataset
from shortcaps.files import atomic_write

COLUMNS, ROWS, SCALE, GAP, CAPTION = 8, 3, 2, 6, 14


def contact_sheet(parts: list[Dataset], target: Path, *, seed: int = 0) -> None:
    """Write a PNG with some images of each split and their labels, and the training images after augmentation as well.

    Args:
        parts: The splits.
        target: The file.
        seed: Decides which images.
    """
    from PIL import Image, ImageDraw

    bands = []
    for data in parts:
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(data), generator=generator)[: COLUMNS * ROWS]
        images, labels = data.images[chosen], data.labels[chosen]
        names = [data.class_names[label] for label in labels]
        bands.append(
            (f"{data.label}: {data.split}, {len(data):,} images, as evaluated ({data.view})", data.view(images), names)
        )
        for augment in (data.augment, data.augment_anywhere) if data.split == "train" else ():
            if augment is not None:
                bands.append(
                    (f"{data.label}: the same after augmentation ({augment})", augment(images, generator), names)
                )

    side = max(max(band[1].shape[-2:]) for band in bands) * SCALE
    cell = max(side, 84)
    width = GAP + COLUMNS * (cell + GAP)
    row_height = side + CAPTION + GAP
    height = sum(24 + -(-len(names) // COLUMNS) * row_height for _, _, names in bands) + GAP
    sheet = Image.new("RGB", (width, height), (250, 250, 250))
    draw = ImageDraw.Draw(sheet)
    top = 0
    for title, images, names in bands:
        draw.text((GAP, top + 7), title, fill=(20, 20, 20))
        top += 24
        for n, (image, name) in enumerate(zip(images, names, strict=True)):
            x, y = GAP + n % COLUMNS * (cell + GAP), top + n // COLUMNS * row_height
            picture = _picture(image)
            picture = picture.resize((picture.width * SCALE, picture.height * SCALE), Image.Resampling.NEAREST)
            sheet.paste(picture, (x, y))
            draw.text((x, y + picture.height + 1), name[:14], fill=(90, 90, 90))
        top += -(-len(names) // COLUMNS) * row_height
    with atomic_write(target) as file:
        sheet.save(file, "PNG")


def _picture(image: Tensor):  # type: ignore[no-untyped-def]
    """An image (channels, height, width) in 0–1 as a PIL image; the left one of a stereo pair."""
    from PIL import Image

    pixels = (image * 255).round().to(torch.uint8)
    if len(pixels) == 3:
        return Image.fromarray(pixels.permute(1, 2, 0).numpy())
    return Image.fromarray(pixels[0].numpy())
