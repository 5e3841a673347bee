"""Fashion-MNIST: pieces of clothing in MNIST's format; 50k / 10k / 10k images."""

from __future__ import annotations

from pathlib import Path

from shortcaps.data.augment import HorizontalFlip
from shortcaps.data.dataset import Dataset
from shortcaps.data.fetch import Folder, Mirror
from shortcaps.data.idx import IdxSet, idx_files, load_idx
from shortcaps.data.registry import register_dataset

FASHION_MNIST = IdxSet(
    "fashion-mnist",
    "Fashion-MNIST",
    ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    idx_files(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    (
        Folder(Path("/usr/share/datasets/fashion-mnist")),  # where Debian's dataset-fashion-mnist puts it
        Mirror("https://fashion-mnist.s3.eu-central-1.amazonaws.com"),
    ),
)


@register_dataset(
    "fashion-mnist", label=FASHION_MNIST.label, description="pieces of clothing", image_size=28, bright_on_dark=True
)
def load_fashion_mnist(split: str, protocol: str, *, folder: Path | None = None) -> Dataset:
    """The published set; the last 10,000 training images are for validation."""
    return load_idx(FASHION_MNIST, split, protocol, folder, HorizontalFlip())
