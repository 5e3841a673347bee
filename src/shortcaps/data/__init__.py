"""Data sets by name, or a folder of your own: `load_dataset("mnist", "train")`."""

# Each registers itself.
from shortcaps.data import affnist, cifar10, fashion_mnist, mnist, multimnist, smallnorb, solids  # noqa: F401
from shortcaps.data.augment import AUGMENTATIONS, View, list_augmentations, register_augmentation
from shortcaps.data.cache import cache_folder
from shortcaps.data.dataset import PROTOCOLS, SPLITS, Dataset, draw_per_class, join, sample_images
from shortcaps.data.registry import DATASETS, find_spec, list_datasets, load_dataset, register_dataset
from shortcaps.data.spec import DatasetSpec
from shortcaps.errors import DataError

__all__ = [
    "AUGMENTATIONS",
    "DATASETS",
    "PROTOCOLS",
    "SPLITS",
    "DataError",
    "Dataset",
    "DatasetSpec",
    "View",
    "cache_folder",
    "draw_per_class",
    "find_spec",
    "join",
    "list_augmentations",
    "list_datasets",
    "load_dataset",
    "register_augmentation",
    "register_dataset",
    "sample_images",
]
