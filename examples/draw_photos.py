"""Draws a folder of photo-like pictures, to try training on images of your own: boats, houses and trees.

python examples/draw_photos.py photos/ --count 300

Like a folder off a telephone, they are in colour, upright and across, in several formats and lights, with things in the way; and a few files
are broken.
"""

import argparse
import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

KINDS = ("boats", "houses", "trees")
SIZES = ((160, 120), (120, 160), (176, 99), (128, 128), (150, 100))
SHARE_BROKEN = 0.02
FINE = 2  # drawn this much larger, and made smaller again


def colour(random: np.random.Generator, low: tuple[int, int, int], high: tuple[int, int, int]) -> tuple[int, int, int]:
    red, green, blue = (int(random.integers(a, b + 1)) for a, b in zip(low, high, strict=True))
    return red, green, blue


def gradient(width: int, height: int, top: tuple[int, int, int], bottom: tuple[int, int, int]) -> Image.Image:
    shares = np.linspace(0, 1, height)[:, None, None]
    rows = (1 - shares) * np.array(top) + shares * np.array(bottom)
    return Image.fromarray(np.broadcast_to(rows, (height, width, 3)).astype(np.uint8))


def scene(random: np.random.Generator, width: int, height: int, is_sea: bool) -> tuple[Image.Image, int]:
    """Sky above water or land, and the height of the horizon."""
    light = random.uniform(0.55, 1.0)
    sky = gradient(
        width, height, colour(random, (60, 120, 190), (150, 190, 240)), colour(random, (190, 200, 190), (250, 230, 230))
    )
    horizon = int(height * random.uniform(0.45, 0.65))
    near = colour(random, (20, 60, 90), (60, 110, 140)) if is_sea else colour(random, (60, 80, 30), (150, 150, 80))
    far = colour(random, (90, 140, 160), (140, 180, 190)) if is_sea else colour(random, (100, 130, 70), (170, 180, 120))
    sky.paste(gradient(width, height - horizon, far, near), (0, horizon))
    pen = ImageDraw.Draw(sky)
    for _ in range(random.integers(0, 5)):  # clouds
        x, y, w = random.uniform(0, width), random.uniform(0, 0.7 * horizon), random.uniform(0.1, 0.3) * width
        pen.ellipse([x - w, y - 0.2 * w, x + w, y + 0.2 * w], fill=colour(random, (220, 220, 220), (255, 255, 255)))
    return Image.fromarray((np.asarray(sky) * light).astype(np.uint8)), horizon


def draw_boat(pen: ImageDraw.ImageDraw, random: np.random.Generator, x: float, y: float, size: float) -> None:
    hull, side = colour(random, (60, 20, 20), (230, 220, 210)), random.choice([-1, 1])
    pen.polygon(
        [(x - size, y), (x + size, y), (x + 0.7 * size, y + 0.4 * size), (x - 0.7 * size, y + 0.4 * size)], fill=hull
    )
    pen.line([(x, y), (x, y - 1.7 * size)], fill=(70, 50, 40), width=max(1, int(size / 14)))
    sail = colour(random, (180, 120, 100), (255, 250, 240))
    pen.polygon([(x, y - 1.7 * size), (x, y - 0.15 * size), (x + side * 0.9 * size, y - 0.15 * size)], fill=sail)
    if random.random() < 0.6:
        pen.polygon([(x, y - 1.4 * size), (x, y - 0.2 * size), (x - side * 0.6 * size, y - 0.2 * size)], fill=sail)


def draw_house(pen: ImageDraw.ImageDraw, random: np.random.Generator, x: float, y: float, size: float) -> None:
    wall, roof = colour(random, (140, 110, 90), (250, 240, 230)), colour(random, (90, 30, 20), (180, 90, 70))
    tall = random.uniform(0.8, 1.3) * size
    pen.rectangle([x - size, y - tall, x + size, y + 0.3 * size], fill=wall)
    pen.polygon(
        [(x - 1.2 * size, y - tall), (x + 1.2 * size, y - tall), (x, y - tall - random.uniform(0.5, 1.0) * size)],
        fill=roof,
    )
    pane = colour(random, (30, 40, 60), (110, 130, 160))
    for column in (-0.6, 0.2):
        pen.rectangle([x + column * size, y - 0.75 * tall, x + (column + 0.35) * size, y - 0.4 * tall], fill=pane)
    pen.rectangle(
        [x - 0.15 * size, y - 0.3 * tall, x + 0.15 * size, y + 0.3 * size],
        fill=colour(random, (60, 30, 20), (130, 80, 60)),
    )


def draw_tree(pen: ImageDraw.ImageDraw, random: np.random.Generator, x: float, y: float, size: float) -> None:
    trunk = colour(random, (50, 35, 20), (110, 80, 60))
    pen.rectangle([x - 0.12 * size, y - 0.9 * size, x + 0.12 * size, y + 0.4 * size], fill=trunk)
    leaf = np.array(colour(random, (30, 60, 20), (190, 150, 60)))  # summer to autumn
    for _ in range(26):
        angle, radius = random.uniform(0, 2 * math.pi), 0.75 * size * math.sqrt(random.random())
        cx, cy = x + radius * math.cos(angle), y - 1.3 * size + 0.8 * radius * math.sin(angle)
        r, shade = (
            random.uniform(0.15, 0.35) * size,
            tuple(int(v) for v in (leaf * random.uniform(0.7, 1.15)).clip(0, 255)),
        )
        pen.ellipse([cx - r, cy - r, cx + r, cy + r], fill=shade)


DRAWERS = dict(zip(KINDS, (draw_boat, draw_house, draw_tree), strict=True))


def draw_photo(kind: str, random: np.random.Generator) -> Image.Image:
    """One picture of this kind, somewhere in its scene, with noise and blur as of a camera."""
    width, height = (FINE * side for side in SIZES[random.integers(len(SIZES))])
    picture, horizon = scene(random, width, height, kind == "boats" or random.random() < 0.15)
    pen = ImageDraw.Draw(picture)
    size = min(width, height) * random.uniform(0.14, 0.26)
    place = random.uniform(0.3, 0.7) * width, min(horizon + random.uniform(0, 0.25) * height, 0.85 * height)
    DRAWERS[kind](pen, random, *place, size)
    if random.random() < 0.3:  # a pole in the way
        at = random.uniform(0, width)
        pen.rectangle([at, 0, at + 0.02 * width, height], fill=colour(random, (40, 40, 40), (120, 120, 120)))
    picture = picture.rotate(random.uniform(-6, 6), Image.Resampling.BILINEAR).crop(
        (int(0.06 * width), int(0.06 * height), int(0.94 * width), int(0.94 * height))
    )
    picture = picture.filter(ImageFilter.GaussianBlur(random.uniform(0.5, 2.5))).resize((width // FINE, height // FINE))
    noisy = np.asarray(picture) + random.normal(0, random.uniform(2, 10), (height // FINE, width // FINE, 1))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def draw_folder(folder: Path, count: int, seed: int = 0) -> int:
    """Draw as many pictures, the same number of each kind, in a folder for each; returns how many of the files are broken."""
    random = np.random.default_rng(seed)
    broken = 0
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        file = folder / kind / f"{number:04}{random.choice(['.jpg', '.jpg', '.jpg', '.png', '.webp'])}"
        file.parent.mkdir(parents=True, exist_ok=True)
        draw_photo(kind, random).save(file, quality=85)
        if number % round(1 / SHARE_BROKEN) == 7:  # as a full disk, or a card pulled out too early, leaves them
            file.write_bytes(file.read_bytes()[:300])
            broken += 1
    return broken


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    damaged = draw_folder(asked.folder, asked.count, asked.seed)
    print(f"{asked.count} pictures of {', '.join(KINDS)} in {asked.folder}, {damaged} of them broken")
