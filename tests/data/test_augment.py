"""Views: exact, seeded, and never outside 0–1."""

from __future__ import annotations

import pytest
import torch

from shortcaps.data.augment import BrightnessAndContrast, CentreCrop, Elastic, PlaceAnywhere, RandomCrop, Shift, View

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
