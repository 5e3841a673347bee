"""Views and their steps: how images reach a network, in evaluation and, augmented, in training."""

from shortcaps.data.augment.geometry import (
    Affine,
    CentreCrop,
    Elastic,
    HorizontalFlip,
    PlaceAnywhere,
    RandomCrop,
    Shift,
    VerticalFlip,
)
from shortcaps.data.augment.sets import AUGMENTATIONS, Augmentation, list_augmentations, register_augmentation
from shortcaps.data.augment.some_of import SomeOf
from shortcaps.data.augment.values import (
    BrightnessAndContrast,
    Colour,
    Erase,
    Posterise,
    Sharpness,
    Solarise,
)
from shortcaps.data.augment.view import Step, View

__all__ = [
    "AUGMENTATIONS",
    "Affine",
    "Augmentation",
    "BrightnessAndContrast",
    "CentreCrop",
    "Colour",
    "Elastic",
    "Erase",
    "HorizontalFlip",
    "PlaceAnywhere",
    "Posterise",
    "RandomCrop",
    "Sharpness",
    "Shift",
    "Solarise",
    "SomeOf",
    "Step",
    "VerticalFlip",
    "View",
    "list_augmentations",
    "register_augmentation",
]
