"""Augmentations by name, for `shortcaps train --augment`: `none`, `digits`, `thumbnails`, `photos`, `photos-strong`, `objects`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shortcaps.data.augment.geometry import Affine, Elastic, HorizontalFlip, Shift, VerticalFlip
from shortcaps.data.augment.some_of import SomeOf
from shortcaps.data.augment.values import BrightnessAndContrast, Colour, Erase, Posterise, Sharpness, Solarise
from shortcaps.data.augment.view import Step
from shortcaps.registry import Registry

Make = Callable[[int], Sequence[Step]]


@dataclass(frozen=True)
class Augmentation:
    """Steps for training images that can be chosen by name.

    Attributes:
        name: The name for `shortcaps train --augment`.
        description: One line for lists and help texts.
        steps: Makes the steps for images whose shorter side has so many pixels. They are applied to what a network sees.
    """

    name: str
    description: str
    steps: Make


AUGMENTATIONS: Registry[Augmentation] = Registry("augmentation")


def register_augmentation(name: str, *, description: str = "") -> Callable[[Make], Make]:
    """Register steps for training images under a name: a decorator for a function that makes them.

    Args:
        name: The name for `shortcaps train --augment`.
        description: One line for lists and help texts; by default the first line of the docstring.

    Returns:
        The decorator. The function is called with the shorter side of the images in pixels.

    Raises:
        ValueError: The name is taken.

    Example:
        @register_augmentation("upside-down")
        def upside_down(side: int) -> list[Step]:
            return [VerticalFlip(), Shift(side // 8, border="reflect")]
    """

    def decorate(make: Make) -> Make:
        summary = description or (inspect.getdoc(make) or "").partition("\n")[0]
        AUGMENTATIONS.register(name, Augmentation(name, summary, make), defined_by=make)
        return make

    return decorate


def list_augmentations(pattern: str | Sequence[str] = "*", *, exclude: str | Sequence[str] = ()) -> list[str]:
    """Names of the registered augmentations.

    Args:
        pattern: A shell pattern, or several.
        exclude: Patterns whose matches are left out.

    Examples:
        >>> from shortcaps.data.augment import list_augmentations
        >>> list_augmentations("photos*")
        ['photos', 'photos-strong']
    """
    return AUGMENTATIONS.names(pattern, exclude=exclude)


@register_augmentation("none")
def none(side: int) -> Sequence[Step]:
    """Images as they are."""
    return ()


@register_augmentation("digits")
def digits(side: int) -> Sequence[Step]:
    """Shifted and bent a little; nothing is turned, scaled, sheared or mirrored."""
    return Elastic(side / 40), Shift(max(1, side // 14))


@register_augmentation("thumbnails")
def thumbnails(side: int) -> Sequence[Step]:
    """For pictures of some thirty pixels: mirrored left to right, shifted by up to an eighth, a patch erased."""
    return HorizontalFlip(), Shift(side // 8, border="reflect"), Erase(0.25)


@register_augmentation("photos")
def photos(side: int) -> Sequence[Step]:
    """Mirrored left to right, turned a little, cropped, other light and colours."""
    return (
        HorizontalFlip(),
        Affine(rotation=10, crop=0.6, stretch=4 / 3),
        BrightnessAndContrast(0.1, 0.3),
        Colour(0.3, 0.03),
    )


@register_augmentation("photos-strong")
def photos_strong(side: int) -> Sequence[Step]:
    """Mirrored and cropped, and two further changes of ten kinds for each image, as in RandAugment."""
    changes = (
        Affine(rotation=30),
        Affine(shear=0.3),
        Affine(shift=0.2),
        BrightnessAndContrast(0.3, 0),
        BrightnessAndContrast(0, 0.7),
        Colour(0.8, 0),
        Colour(0, 0.1),
        Sharpness(),
        Posterise(),
        Solarise(),
    )
    return HorizontalFlip(), Affine(crop=0.5, stretch=4 / 3), SomeOf(changes), Erase()


@register_augmentation("objects")
def objects(side: int) -> Sequence[Step]:
    """For things without an up, seen from above or under a lens: turned all the way round, mirrored, cropped, other light."""
    return (
        HorizontalFlip(),
        VerticalFlip(),
        Affine(rotation=180, crop=0.7, stretch=1.15),
        BrightnessAndContrast(0.1, 0.3),
        Colour(0.2, 0.02),
    )
