"""Views: exact, seeded, and never outside 0–1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from shortcaps.data import DATASETS, Dataset
from shortcaps.data.augment import (
    AUGMENTATIONS,
    Affine,
    BrightnessAndContrast,
    CentreCrop,
    Colour,
    Elastic,
    Erase,
    HorizontalFlip,
    PlaceAnywhere,
    Posterise,
    RandomCrop,
    Sharpness,
    Shift,
    Solarise,
    SomeOf,
    VerticalFlip,
    View,
    list_augmentations,
)
from shortcaps.data.sheet import augmented_sheet
from shortcaps.errors import DataError

IMAGES = torch.randint(0, 256, (64, 2, 12, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))
STEPS = [Shift(3), RandomCrop(7), CentreCrop(8), BrightnessAndContrast()]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_view_gives_floats_in_range_and_repeats_with_its_seed(step) -> None:
    view = View((step,))
    first, again, other = view(IMAGES, seeded()), view(IMAGES, seeded()), view(IMAGES, seeded(1))
    assert first.dtype == torch.float32
    assert 0 <= first.min() <= first.max() <= 1
    assert torch.equal(first, again)
    assert torch.equal(first, other) != step.random


def test_without_steps_a_view_only_scales() -> None:
    assert torch.equal(View()(IMAGES), IMAGES.float() / 255)


def test_shifts_reach_every_offset_and_no_further() -> None:
    one = torch.zeros(4000, 1, 9, 9, dtype=torch.uint8)
    one[:, :, 4, 4] = 255
    shifted = Shift(2)(one, seeded())
    places = shifted[:, 0].flatten(1).argmax(1)
    offsets = {(int(p) // 9 - 4, int(p) % 9 - 4) for p in places}
    assert offsets == {(y, x) for y in range(-2, 3) for x in range(-2, 3)}
    assert (shifted.flatten(1).sum(1) == 255).all()


def test_a_shift_moves_all_channels_alike_and_fills_with_black() -> None:
    shifted = Shift(3)(IMAGES, seeded())
    offsets = torch.randint(7, (2, len(IMAGES)), generator=seeded())
    for n in range(len(IMAGES)):
        y, x = (3 - offsets[:, n]).tolist()
        expected = torch.zeros_like(IMAGES[n])
        source = IMAGES[n, :, max(0, -y) : 12 - max(0, y), max(0, -x) : 10 - max(0, x)]
        expected[:, max(0, y) : 12 + min(0, y), max(0, x) : 10 + min(0, x)] = source
        assert torch.equal(shifted[n], expected)


def test_crops_are_windows_of_the_image() -> None:
    cropped = RandomCrop(7)(IMAGES, seeded())
    for image, whole in zip(cropped, IMAGES, strict=True):
        windows = whole.unfold(1, 7, 1).unfold(2, 7, 1)
        assert (windows == image[:, None, None]).all((-1, -2)).all(0).any()
    assert torch.equal(CentreCrop(8)(IMAGES, None), IMAGES[:, :, 2:10, 1:9])


def test_a_random_view_without_a_generator_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the step 'shift within 3 px' is random: give a torch\.Generator"):
        View((Shift(3),))(IMAGES)


def centre_of_ink(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = images.sum((1, 2, 3))
    rows = (images.sum((1, 3)) * torch.arange(images.shape[2])).sum(1) / total
    columns = (images.sum((1, 2)) * torch.arange(images.shape[3])).sum(1) / total
    return rows, columns


def test_placing_anywhere_is_a_translation_and_nothing_else() -> None:
    """By so far as the ink's centre moved, every image is its original, interpolated between pixels."""
    images = torch.zeros(200, 1, 16, 16, dtype=torch.float64)
    images[:, :, 5:10, 7:11] = torch.rand(200, 1, 5, 4, dtype=torch.float64, generator=seeded())
    placed = PlaceAnywhere()(images, seeded(1))
    (old_y, old_x), (new_y, new_x) = centre_of_ink(images), centre_of_ink(placed)
    y, x = torch.meshgrid(
        torch.arange(16.0, dtype=torch.float64), torch.arange(16.0, dtype=torch.float64), indexing="ij"
    )
    for n in range(200):
        from_y, from_x = y - (new_y[n] - old_y[n]), x - (new_x[n] - old_x[n])
        expected = torch.zeros(16, 16, dtype=torch.float64)
        for row in range(5, 10):
            for column in range(7, 11):
                near = (1 - (from_y - row).abs()).clamp_min(0) * (1 - (from_x - column).abs()).clamp_min(0)
                expected += images[n, 0, row, column] * near
        torch.testing.assert_close(placed[n, 0], expected, atol=1e-6, rtol=0)


def test_placing_anywhere_reaches_every_edge_and_loses_no_ink() -> None:
    images = torch.zeros(4000, 1, 12, 16)
    images[:, :, 5:8, 9:11] = 1
    placed = PlaceAnywhere()(images, seeded())
    assert torch.equal(placed, PlaceAnywhere()(images, seeded()))
    assert not torch.equal(placed, PlaceAnywhere()(images, seeded(1)))
    torch.testing.assert_close(placed.sum((1, 2, 3)), torch.full((4000,), 6.0), atol=1e-4, rtol=0)
    down, right = centre_of_ink(placed)
    for found, first, last in ((down, 1.0, 10.0), (right, 0.5, 14.5)):  # where the ink's centre can lie
        assert first - 1e-4 <= found.min() < first + 0.02
        assert last - 0.02 < found.max() <= last + 1e-4
        assert abs(found.mean() - (first + last) / 2) < 0.15


def test_an_image_without_ink_stays_as_it_is() -> None:
    black = torch.zeros(3, 1, 8, 8)
    assert torch.equal(PlaceAnywhere()(black, seeded()), black)


def test_an_elastic_deformation_has_no_affine_part_and_bends_as_far_as_it_says() -> None:
    field = Elastic(2.0).displacements(200, 24, 30, torch.Generator().manual_seed(0))
    assert 1.0 < field.std().item() < 2.0
    down, right = torch.meshgrid(torch.linspace(-1, 1, 24), torch.linspace(-1, 1, 30), indexing="ij")
    for part in (torch.ones(24, 30), down, right):
        assert (field * part).mean((2, 3)).abs().max().item() < 1e-5, (
            "nothing is moved, turned, scaled or sheared as a whole"
        )


def test_an_elastic_deformation_fetches_values_from_where_it_says() -> None:
    """Shown images whose values are their own coordinates, it gives the displacements back."""
    size = 41
    across = torch.linspace(0, 1, size).expand(50, 1, size, size)
    images = torch.cat([across.transpose(2, 3), across], 1)
    step = Elastic(1.0)
    bent = step(images, torch.Generator().manual_seed(3))
    field = step.displacements(50, size, size, torch.Generator().manual_seed(3))
    inner = (..., slice(8, -8), slice(8, -8))  # where no black comes in from outside
    torch.testing.assert_close(((bent - images) * (size - 1))[inner], field[inner], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(Elastic(0.0)(images, torch.Generator()), images, rtol=0, atol=1e-5)


def test_an_elastic_deformation_keeps_floats_in_their_range_and_is_said() -> None:
    images = torch.randint(256, (4, 1, 28, 28), dtype=torch.uint8)
    view = View((Elastic(0.7), Shift(2)))
    seen = view(images, torch.Generator().manual_seed(0))
    assert seen.dtype == torch.float32
    assert 0 <= seen.min() <= seen.max() <= 1
    assert str(view) == "bent by 0.7 px, nothing affine, shift within 2 px"


PHOTOS = torch.rand(32, 3, 14, 18, generator=torch.Generator().manual_seed(6))
NEW_STEPS = [
    Shift(3, border="reflect"),
    HorizontalFlip(),
    VerticalFlip(),
    Affine(rotation=30, shear=0.2, crop=0.5, stretch=1.5, shift=0.1),
    Colour(),
    Sharpness(),
    Posterise(),
    Solarise(0.4),
    Erase(0.5),
    SomeOf((HorizontalFlip(), Affine(rotation=90), Colour()), count=3),
]


@pytest.mark.parametrize("step", NEW_STEPS, ids=lambda step: type(step).__name__)
def test_a_step_for_photos_keeps_size_and_range_and_repeats_with_its_seed(step) -> None:
    view = View((step,))
    first, again, other = view(PHOTOS, seeded()), view(PHOTOS, seeded()), view(PHOTOS, seeded(1))
    assert first.shape == PHOTOS.shape
    assert -1e-6 <= first.min() <= first.max() <= 1 + 1e-6
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, PHOTOS)


def test_a_reflecting_shift_brings_in_the_mirrored_image_and_no_black() -> None:
    shifted = Shift(3, border="reflect")(IMAGES, seeded())
    offsets = torch.randint(7, (2, len(IMAGES)), generator=seeded()) - 3
    wide = torch.cat([IMAGES.flip(2), IMAGES, IMAGES.flip(2)], 2)
    wide = torch.cat([wide.flip(3), wide, wide.flip(3)], 3)
    for n, (y, x) in enumerate(offsets.T.tolist()):
        assert torch.equal(shifted[n], wide[n, :, 12 + y : 24 + y, 10 + x : 20 + x])


@pytest.mark.parametrize("border", ["black", "reflect"])
def test_an_affine_step_without_change_gives_the_image_back(border: str) -> None:
    torch.testing.assert_close(Affine(border=border)(PHOTOS, seeded()), PHOTOS, rtol=0, atol=1e-5)


def test_a_rotation_turns_as_far_as_it_says_and_both_ways() -> None:
    """A bright spot to the right of the centre is found at angles of all of ±40°, and at its distance."""
    images = torch.zeros(500, 1, 41, 41)
    images[:, :, 19:22, 32:35] = 1
    turned = Affine(rotation=40, border="black")(images, seeded())
    rows, columns = centre_of_ink(turned)
    angles = torch.rad2deg(torch.atan2(rows - 20, columns - 20))
    assert -40.5 < angles.min() < -38
    assert 38 < angles.max() < 40.5
    torch.testing.assert_close(torch.hypot(rows - 20, columns - 20), torch.full((500,), 13.0), atol=0.2, rtol=0)


def test_a_crop_shows_windows_inside_the_image_of_the_area_it_says() -> None:
    """Shown images whose values are their own coordinates, it gives the corners of its windows."""
    size = 40
    across = ((torch.arange(size) + 0.5) / size).expand(400, 1, size, size)
    seen = Affine(crop=0.36, stretch=1.5)(torch.cat([across.transpose(2, 3), across], 1), seeded())
    tall = (seen[:, 0, -1, 0] - seen[:, 0, 0, 0]) * size / (size - 1)
    wide = (seen[:, 1, 0, -1] - seen[:, 1, 0, 0]) * size / (size - 1)
    assert 0.2 < (tall * wide).min() < 0.4
    assert (tall * wide).max() > 0.9
    assert 1.3 < (tall / wide).max() <= 1.5 + 1e-4
    assert seen.min() >= 0.5 / size - 1e-5
    assert seen.max() <= 1 - 0.5 / size + 1e-5
    assert seen[:, :, 0, 0].std() > 0.05, "windows lie in many places"


def test_colour_keeps_the_luma_and_leaves_grey_images_alone() -> None:
    faint = 0.4 + 0.2 * PHOTOS  # far enough from 0 and 1 that nothing is cut off
    changed = Colour(0.5, 0.1)(faint, seeded())
    luma = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    torch.testing.assert_close((changed * luma).sum(1), (faint * luma).sum(1), rtol=0, atol=1e-5)
    assert (changed - faint).abs().max() > 0.05
    grey = PHOTOS[:, :1]
    assert Colour()(grey, seeded()) is grey
    torch.testing.assert_close(Colour()(grey.expand(-1, 3, -1, -1), seeded()), grey.expand(-1, 3, -1, -1))


def test_some_of_takes_every_image_through_steps_of_its_own() -> None:
    one = PHOTOS[:1].expand(400, -1, -1, -1)
    seen = SomeOf((HorizontalFlip(), VerticalFlip()), count=1)(one, seeded())
    kinds = [PHOTOS[0], PHOTOS[0].flip(2), PHOTOS[0].flip(1)]
    counts = [sum(torch.equal(image, kind) for image in seen) for kind in kinds]
    assert sum(counts) == 400
    assert all(count > 60 for count in counts)


def test_erase_paints_a_rectangle_no_larger_than_it_says() -> None:
    erased = (Erase(0.25)(PHOTOS.repeat(20, 1, 1, 1), seeded()) != PHOTOS.repeat(20, 1, 1, 1)).any(1)
    area = erased.flatten(1).float().mean(1)
    assert 0.15 < area.max() <= 0.3
    for image in erased:
        rows, columns = image.any(1), image.any(0)
        assert torch.equal(image, rows[:, None] & columns)


@pytest.mark.parametrize("name", list_augmentations())
@pytest.mark.parametrize("channels", [1, 3])
def test_every_named_augmentation_works_on_grey_and_colour(name: str, channels: int) -> None:
    view = View(tuple(AUGMENTATIONS[name].steps(28)))
    images = torch.randint(256, (6, channels, 28, 30), dtype=torch.uint8)
    seen = view(images, seeded())
    assert seen.shape == images.shape
    assert -1e-6 <= seen.min() <= seen.max() <= 1 + 1e-6
    assert AUGMENTATIONS[name].description


def test_only_digits_thumbnails_and_none_are_not_affine() -> None:
    upright = [name for name in list_augmentations() if not View(tuple(AUGMENTATIONS[name].steps(28))).affine]
    assert upright == ["digits", "none", "thumbnails"]


def data_with(**settings: Any) -> Dataset:
    images = torch.randint(256, (8, 1, 20, 20), dtype=torch.uint8)
    return Dataset("set", "set", "train", "default", images, torch.arange(8) % 2, ("a", "b"), **settings)


def test_an_augmentation_follows_the_crop_that_a_network_sees() -> None:
    data = data_with(view=View((CentreCrop(12),)))
    assert data.augmented_by("photos")(data.images, seeded()).shape == (8, 1, 12, 12)


def test_a_set_that_tests_affine_changes_refuses_to_train_on_them() -> None:
    for name in ("affnist", "affnist-regenerated"):
        assert DATASETS[name].affine_is_unseen
    data = data_with(affine_is_unseen=True)
    for name in ("photos", "photos-strong", "objects"):
        with pytest.raises(DataError, match=f"augmentation {name} rotates, scales or shears images, which set tests"):
            data.augmented_by(name)
    assert data.augmented_by("digits").steps
    with pytest.raises(DataError, match=r"unknown augmentation 'foto': choose one of .*photos"):
        data.augmented_by("foto")


def test_an_augmented_sheet_shows_each_image_beside_its_variants(tmp_path: Path) -> None:
    data = data_with()
    augmented_sheet(data, data.augmented_by("objects"), tmp_path / "sheet.png", rows=3)
    with Image.open(tmp_path / "sheet.png") as sheet:
        left = np.asarray(sheet.convert("L"))[::, 6 : 6 + 40 : 2]
    for image in data.images[torch.randperm(8, generator=seeded())[:3], 0].numpy():
        assert any(np.array_equal(left[top : top + 40 : 2], image) for top in range(len(left) - 40))
