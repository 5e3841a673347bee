"""Your own images: `train/ val/ test/` with a folder for each class, or a single tree of class folders."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

import torch

from shortcaps.data.augment import Shift, View
from shortcaps.data.dataset import Dataset
from shortcaps.data.decode import decode_image, reading, resized
from shortcaps.data.spec import DatasetSpec
from shortcaps.errors import DataError

log = logging.getLogger(__name__)

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}
SPLIT_FOLDERS = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}
IMAGE_SIZE = 28


def folder_spec(root: Path) -> DatasetSpec:
    """A folder as a data set: nothing is known of its images but what they are resized to."""

    def load(
        split: str, protocol: str, *, image_size: int = IMAGE_SIZE, colour: bool = False, skip_broken: bool = False
    ) -> Dataset:
        return load_folder(root, split, protocol, image_size=image_size, colour=colour, skip_broken=skip_broken)

    return DatasetSpec(str(root), root.resolve().name, "a folder of your own", load, (IMAGE_SIZE, IMAGE_SIZE))


def list_classes(root: Path) -> dict[str, list[Path]]:
    """Class folders with their images, by name.

    Raises:
        DataError: A folder's name is not UTF-8, so that no report or web page could show it.
    """
    classes = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")):
        shown = os.fsencode(folder.name).decode("utf-8", "backslashreplace")
        if shown != folder.name:
            raise DataError(f"{root} has a class folder whose name is not UTF-8 ({shown}): rename it")
        classes[folder.name] = sorted(f for f in folder.rglob("*") if f.is_file() and f.suffix.lower() in SUFFIXES)
    return classes


def find_split(root: Path, split: str) -> Path | None:
    """The folder of a split, if this tree is divided into splits: it holds class folders itself."""
    for folder in sorted(root.iterdir()):
        if (
            folder.is_dir()
            and folder.name.lower() in SPLIT_FOLDERS[split]
            and any(f.is_dir() for f in folder.iterdir())
        ):
            return folder
    return None


def check_classes(root: Path, classes: dict[str, list[Path]]) -> None:
    """Raise DataError where a folder has fewer than two classes, or one without images."""
    if not classes:
        raise DataError(f"{root} has no class folders: put the images of each class into a folder named after it")
    if len(classes) == 1:
        raise DataError(f"{root} has one class only ({next(iter(classes))}): a classifier needs at least two")
    empty = [name for name, files in classes.items() if not files]
    if empty:
        raise DataError(
            f"{root}: no images for {', '.join(empty)}: add some ({', '.join(sorted(SUFFIXES))}) or remove the folder"
        )


def files_of_split(root: Path, split: str) -> tuple[tuple[str, ...], list[tuple[Path, int]]]:
    """Class names, and the files of a split with their class."""
    training = find_split(root, "train")
    if training is not None:
        place = find_split(root, split)
        if place is None:
            raise DataError(f"{root} has a train folder but none for {split}: add {root / SPLIT_FOLDERS[split][0]}")
        classes = list_classes(place)
        check_classes(place, classes)
        names = tuple(list_classes(training))
        if tuple(classes) != names:
            raise DataError(f"{place} has the classes {', '.join(classes)}, but {training} has {', '.join(names)}")
        return names, [(file, number) for number, files in enumerate(classes.values()) for file in files]
    classes = list_classes(root)
    check_classes(root, classes)
    chosen = []
    for number, files in enumerate(classes.values()):
        chosen += [(file, number) for file in split_by_content(files)[split]]
    return tuple(classes), chosen


def split_by_content(files: list[Path]) -> dict[str, list[Path]]:
    """A split of a class by what its pictures hold, whatever they are called.

    In the order of their SHA-256, the first tenth is for the test and the next for validation. So copies of a picture stay on
    one side; and where pictures come or go the borders hardly move: what was trained on does not become a test picture.
    """
    by_content: dict[str, list[Path]] = {}
    unreadable = []
    for file in files:
        try:
            by_content.setdefault(hashlib.sha256(file.read_bytes()).hexdigest(), []).append(file)
        except OSError:
            unreadable.append([file])
    pictures = [by_content[content] for content in sorted(by_content)]
    if len(pictures) < len(SHARES):
        name = files[0].parent.name
        raise DataError(
            f"class {name} has {len(pictures)} different images: dividing them needs at least {len(SHARES)}"
        )
    held_out = max(1, round(SHARES["test"] * len(pictures)))
    parts = {
        "test": pictures[:held_out],
        "validation": pictures[held_out : 2 * held_out],
        # Where what cannot be read is named, or skipped, like a picture that cannot be decoded.
        "train": pictures[2 * held_out :] + unreadable,
    }
    return {part: sorted(file for copies in chosen for file in copies) for part, chosen in parts.items()}


def load_folder(root: Path, split: str, protocol: str, *, image_size: int, colour: bool, skip_broken: bool) -> Dataset:
    """A split of a folder with class folders.

    Args:
        root: The folder.
        split: `train`, `validation` or `test`.
        protocol: Makes no difference here, and is said in the `Dataset`.
        image_size: Side that every picture is resized to, whole.
        colour: Keep three channels; otherwise one, grey.
        skip_broken: Leave out what cannot be read, instead of refusing the folder.
    """
    names, files = files_of_split(root, split)
    images, labels, broken = [], [], []
    for file, label in files:
        try:
            picture = decode_image(file, colour=colour)
            with reading():
                image = torch.from_numpy(resized(picture, (image_size, image_size)))
        except DataError as reason:
            broken.append(f"{file}: {reason}")
            continue
        images.append(image)
        labels.append(label)
    if broken and not skip_broken:
        listed = "".join(f"\n  - {line}" for line in broken[:20]) + (
            f"\n  … and {len(broken) - 20} more" if len(broken) > 20 else ""
        )
        raise DataError(
            f"{len(broken)} of {len(files)} images cannot be used; remove them or use --skip-broken:{listed}"
        )
    if broken:
        log.warning("%s images of %s were left out: %s", len(broken), root, "; ".join(broken))
    gone = [names[number] for number in range(len(names)) if number not in labels]
    if gone:
        raise DataError(f"{root}: no usable image is left for {', '.join(gone)}")
    return Dataset(
        str(root),
        root.resolve().name,
        split,
        protocol,
        torch.stack(images),
        torch.tensor(labels),
        names,
        augment=View((Shift(max(1, image_size // 14)),)),
    )
