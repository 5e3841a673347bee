"""Contact sheets: a data set as one picture."""

from __future__ import annotations

import textwrap
from pathlib import Path

import torch
from torch import Tensor

from shortcaps.data.augment import View
from shortcaps.data.dataset import Dataset
from shortcaps.files import atomic_write

COLUMNS, ROWS, SCALE, GAP, CAPTION, LINE = 8, 3, 2, 6, 14, 14


def contact_sheet(parts: list[Dataset], target: Path, *, seed: int = 0) -> None:
    """Write a PNG with some images of each split and their labels, and the training images after augmentation as well.

    Args:
        parts: The splits.
        target: The file.
        seed: Decides which images.
    """
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
    _draw(bands, target)


def augmented_sheet(data: Dataset, view: View, target: Path, *, rows: int = 8, seed: int = 0) -> None:
    """Write a PNG with some training images, each at the left of a row of what augmentation makes of it.

    Args:
        data: The training images.
        view: The augmentation.
        target: The file.
        rows: Number of images.
        seed: Decides which images, and what becomes of them.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(data), generator=generator)[:rows]
    images = data.images[chosen]
    variants = [view(images, generator) for _ in range(COLUMNS - 1)]
    table = torch.stack([data.view(images), *variants], 1).flatten(0, 1)
    names = [name for label in data.labels[chosen] for name in (data.class_names[label], *[""] * (COLUMNS - 1))]
    _draw([(f"{data.label}: {data.split}, each image and what becomes of it ({view})", table, names)], target)


def _draw(bands: list[tuple[str, Tensor, list[str]]], target: Path) -> None:
    """Write bands of images (count, channels, height, width) in 0–1, each with a title above and names below."""
    from PIL import Image, ImageDraw

    side = max(max(band[1].shape[-2:]) for band in bands) * SCALE
    cell = max(side, 84)
    width = GAP + COLUMNS * (cell + GAP)
    row_height = side + CAPTION + GAP
    titles = [textwrap.wrap(title, width // 6) for title, _, _ in bands]
    heights = [10 + LINE * len(lines) for lines in titles]
    height = sum(heights) + sum(-(-len(names) // COLUMNS) * row_height for _, _, names in bands) + GAP
    sheet = Image.new("RGB", (width, height), (250, 250, 250))
    draw = ImageDraw.Draw(sheet)
    top = 0
    for (_, images, names), lines, title_height in zip(bands, titles, heights, strict=True):
        draw.multiline_text((GAP, top + 7), "\n".join(lines), fill=(20, 20, 20))
        top += title_height
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
