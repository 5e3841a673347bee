"""Every data set by name: `load_dataset`, `list_datasets`, `register_dataset`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from shortcaps.data.dataset import PROTOCOLS, Dataset, check_split_and_protocol
from shortcaps.data.own.load import is_own, own_spec
from shortcaps.data.spec import DatasetSpec
from shortcaps.errors import DataError
from shortcaps.registry import Registry

Loader = TypeVar("Loader", bound=Callable[..., Dataset])
Progress = Callable[[int, int], None]

DATASETS: Registry[DatasetSpec] = Registry("data set")


def register_dataset(
    name: str,
    *,
    image_size: int | tuple[int, int],
    channels: int = 1,
    label: str = "",
    description: str = "",
    bright_on_dark: bool = False,
    centred_digits: bool = False,
    affine_is_unseen: bool = False,
    notes: Sequence[str] = (),
    stand_in_for: str | None = None,
    replica_of: str | None = None,
    original_is_here: Callable[[], bool] = lambda: False,
    leaks: Mapping[str, str] | None = None,
) -> Callable[[Loader], Loader]:
    """Register a data set under a name: a decorator for a function that loads a split of it.

    Args:
        name: The name for `load_dataset` and `shortcaps train --data`.
        image_size: Height and width of the images as a network sees them, or one number for both.
        channels: Channels of the images.
        label: Its name in tables and reports; by default `name`.
        description: One line for lists and help texts; by default the first line of the docstring.
        bright_on_dark: Whether the images show light strokes or things on black.
        centred_digits: Whether they show digits centred as MNIST's are.
        affine_is_unseen: Whether the test asks for rotation, scaling and shear that training must not have seen.
        notes: What a reader must know before quoting a result, one sentence each.
        stand_in_for: A set with the same structure that this one is used in place of.
        replica_of: A set that this one regenerates from its published description.
        original_is_here: Whether the images of `replica_of` are available, so that the replica is not needed.
        leaks: For each protocol that leaks, what selection sees of the test.

    Returns:
        The decorator. The loader is called as `loader(split, protocol)`, with `folder`, `progress` and options by keyword if they are
        keyword-only parameters of it.

    Raises:
        ValueError: The name is taken, or `leaks` names an unknown protocol.

    Example:
        @register_dataset("noise", image_size=8)
        def load_noise(split: str, protocol: str, *, count: int = 100) -> Dataset:
            images = torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8)
            return Dataset("noise", "noise", split, protocol, images, torch.arange(count) % 2, ("heads", "tails"))

        load_dataset("noise", "test", count=20)
    """
    for protocol in leaks or ():
        if protocol not in PROTOCOLS:
            raise ValueError(f"leaks names an unknown protocol {protocol!r}: choose from {', '.join(PROTOCOLS)}")
    size = (image_size, image_size) if isinstance(image_size, int) else image_size

    def decorate(loader: Loader) -> Loader:
        summary = description or (inspect.getdoc(loader) or "").partition("\n")[0]
        spec = DatasetSpec(
            name=name,
            label=label or name,
            description=summary,
            load=loader,
            image_size=size,
            channels=channels,
            bright_on_dark=bright_on_dark,
            centred_digits=centred_digits,
            affine_is_unseen=affine_is_unseen,
            notes=tuple(notes),
            stand_in_for=stand_in_for,
            replica_of=replica_of,
            original_is_here=original_is_here,
            leaks=leaks or {},
        )
        DATASETS.register(name, spec, defined_by=loader)
        return loader

    return decorate


def list_datasets(pattern: str | Sequence[str] = "*", *, exclude: str | Sequence[str] = ()) -> list[str]:
    """Names of the registered data sets; `load_dataset` also loads folders of your own.

    Args:
        pattern: A shell pattern such as `smallnorb*`, or several.
        exclude: Patterns whose matches are left out.

    Examples:
        >>> import shortcaps
        >>> shortcaps.list_datasets("*mnist")
        ['fashion-mnist', 'mnist', 'multimnist']
    """
    return DATASETS.names(pattern, exclude=exclude)


def find_spec(name: str | Path) -> DatasetSpec:
    """The spec of a registered data set, or that of a folder or table of your own if the name is not registered."""
    return DATASETS[str(name)] if str(name) in DATASETS else own_spec(Path(name).expanduser())


def load_dataset(
    name: str | Path,
    split: str = "train",
    protocol: str = "default",
    *,
    folder: str | Path | None = None,
    progress: Progress = lambda done, of: None,
    **options: Any,
) -> Dataset:
    """Load a split of a data set; fetch and verify its files first if needed.

    Args:
        name: One of `list_datasets()`, or the path of images of your own: a folder with class folders, a CSV file of paths and labels,
            or a folder that `datasets.save_to_disk` has written.
        split: `train`, `validation` or `test`.
        protocol: `default` shows training and selection no rotation, scaling, shear or object of the test; `paper` is the authors'.
        folder: A folder that already has the published files of a named set.
        progress: Called with (done, of) while a set is rendered.
        **options: Further options of the data set: images of your own take `image_size`, `colour`, `fit`, `skip_broken`, `group_by` and
            `image_memory`; smallnorb and solids
            take `camera` (`left`, `right`, `stereo`); their novel-viewpoint variants also take `viewpoints` (`novel`, `familiar`).

    Returns:
        The images of the split as uint8, in memory or decoded as needed, and how they are shown to a network. It can be given to a
        `torch.utils.data.DataLoader`.

    Raises:
        DataError: There is no such data set, split, protocol or option, or its files are missing or damaged.

    Example:
        test = shortcaps.load_dataset("affnist", "test")
        images = test.view(test.images[:128])  # float, as a network sees them
    """
    check_split_and_protocol(split, protocol)
    if folder is not None:
        options["folder"] = Path(folder).expanduser()
        if not options["folder"].is_dir():
            raise DataError(f"{options['folder']} is not a folder")
    is_registered = str(name) in DATASETS
    if not is_registered and not is_own(Path(name).expanduser()):
        raise DataError(f"{DATASETS.unknown(str(name))}, or give the path of a folder or a CSV file")
    spec = find_spec(name)
    spec.check_options(options)
    if "progress" in spec.parameters:
        options["progress"] = progress
    data = spec.load(split, protocol, **options)
    if not isinstance(data, Dataset):
        raise TypeError(f"the loader of {spec.name} returned a {type(data).__name__}: it must return a Dataset")
    if not len(data):
        raise DataError(f"{spec.name} has no images for {split}: add some, or choose another protocol or other options")
    if is_registered:
        # A loader may have had to fall back on another set, whose name then says what it is.
        spec = DATASETS.get(data.name, spec)
        data = replace(data, name=spec.name)
    return replace(
        data,
        bright_on_dark=spec.bright_on_dark,
        centred_digits=spec.centred_digits,
        affine_is_unseen=spec.affine_is_unseen,
        caveats=spec.caveats(protocol),
    )
