"""What a run needs before its first step: processes, images, a network, an optimiser, a manifest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from shortcaps.data import SPLITS, Dataset, View, draw_per_class, load_dataset
from shortcaps.data.augment import Elastic
from shortcaps.environment import best_device, describe_environment
from shortcaps.errors import RunError
from shortcaps.losses import LOSSES
from shortcaps.models import MODELS, Network, create_model, recommend_model
from shortcaps.models.recommend import LARGE_SIDE
from shortcaps.recipes import Recipe
from shortcaps.runs.config import TrainConfig
from shortcaps.runs.located import absolute_paths
from shortcaps.runs.manifest import Manifest, TrainedOn, digest_of
from shortcaps.runs.origins import plugins_of
from shortcaps.schedules import SCHEDULES
from shortcaps.startup import choices_made
from shortcaps.training.display import Display
from shortcaps.training.replicas import Replicas
from shortcaps.training.seeds import derive
from shortcaps.training.start import Start

_STEPS_TRIED = 100
"""Steps of an epoch, of those that a schedule is tried with."""
_ROUNDING = 1e-6
"""By how much a factor may exceed its bounds, where it was computed."""


def make_fabric(config: TrainConfig) -> Fabric:
    """The processes that train together, on the best devices there are.

    Raises:
        RunError: There are not as many devices.
    """
    accelerator = best_device()
    available = {"cuda": torch.cuda.device_count(), "mps": 1, "cpu": os.cpu_count() or 1}[accelerator]
    devices, machines = config.run.devices, 1
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun has started the processes, and knows how many
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        machines = int(os.environ["WORLD_SIZE"]) // devices
    if devices > available:
        raise RunError(f"devices {devices} is too large: this machine has {available} ({accelerator})")
    if devices > 1:
        _share_threads(devices)
    return Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=machines,
        strategy=Replicas() if devices * machines > 1 else "auto",
        precision=config.run.precision,  # type: ignore[arg-type]
    )


def _share_threads(processes: int) -> None:
    """Divide the threads among the processes of this machine, if their number was not the user's choice."""
    for choice in choices_made():
        if choice.is_new and choice.variable == "OMP_NUM_THREADS":
            threads = max(1, int(choice.value) // processes)
            os.environ[choice.variable] = str(threads)
            torch.set_num_threads(threads)


def in_order(splits: Mapping[str, Dataset]) -> dict[str, Dataset]:
    """Images that were given by split, in the order of `SPLITS`.

    Raises:
        RunError: There are other splits than these.
    """
    if sorted(splits) != sorted(SPLITS):
        raise RunError(f"splits {', '.join(map(str, splits))} should be {', '.join(SPLITS)}")
    return {split: splits[split] for split in SPLITS}


def load_split(config: TrainConfig, split: str, display: Display) -> Dataset:
    """The images of a split, all of them or as many as a trial run, or one on few images, wants."""
    data = load_dataset(
        config.data.name, split, config.data.protocol, progress=display.rendering, **config.data.load_options
    )
    if config.data.per_class is not None and split != "test":
        seed = derive(config.data.draw, f"few {split}", 0)
        # A class may have too few images to validate on as many as it is trained on: of MNIST's 10,000 validation images 991 show a zero.
        data = data.subset(draw_per_class(data, config.data.per_class, seed, at_most=split == "validation"))
    if config.data.max_images is None:
        return data
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(derive(0, "trial", 0)))
    return data.subset(order[: config.data.max_images])


def augmentation(recipe: Recipe, data: Dataset) -> View:
    """How training images reach the network.

    Raises:
        DataError: The recipe's augmentation shows what the test of this data set asks for.
    """
    if recipe.augment is not None:
        return data.augmented_by(recipe.augment)
    view = data.augment_anywhere or data.augment if recipe.placement == "anywhere" else data.augment
    return View((Elastic(recipe.elastic), *view.steps)) if recipe.elastic else view


def check_recipe(recipe: Recipe, model: Network) -> None:
    """Call loss and schedule with the recipe's settings, as they alone know which they take.

    Args:
        recipe: The recipe that takes effect.
        model: The network.

    Raises:
        RunError: A setting is unknown, makes no sense or does not go with the network.
    """
    if recipe.mixup and model.reconstructs:
        raise RunError(
            f"mixup {recipe.mixup:g} does not go with the {model.title}, which reconstructs images of one class: set mixup = 0"
        )
    if "weights" in recipe.loss_settings:
        raise RunError(
            "weights is no setting of a loss, which is given those of the images: use class_weights or balance"
        )
    activations = torch.full((1, model.classes), 0.5)
    labels = torch.eye(model.classes)[:1] if recipe.mixup else torch.zeros(1, dtype=torch.int64)
    weighted = {"weights": torch.ones(1)} if weighs_classes(recipe) else {}
    try:
        LOSSES[recipe.loss](activations, labels, epoch=0.0, **weighted, **recipe.loss_settings)
    except (TypeError, ValueError, RuntimeError) as error:
        used = f"loss_settings {recipe.loss_settings}" if recipe.loss_settings else ""
        used = " and ".join(filter(None, [used, "mixup" * bool(recipe.mixup), "class weights" * bool(weighted)]))
        raise RunError(f"the loss {recipe.loss} does not work{' with ' * bool(used)}{used}: {error}") from error
    try:
        _try_schedule(recipe)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise RunError(
            f"the schedule {recipe.schedule} does not work with schedule_settings {recipe.schedule_settings}: {error}"
        ) from error


def _try_schedule(recipe: Recipe) -> None:
    """Call the schedule for the first step, one in the middle and the last.

    Raises:
        ValueError: A factor is not in 0–1: below, training would climb, and above, `lr` would not be the highest rate.
    """
    steps = recipe.epochs * _STEPS_TRIED
    for step in (0, steps // 2, steps - 1):
        factor = SCHEDULES[recipe.schedule](step, steps, _STEPS_TRIED, **recipe.schedule_settings)
        if not -_ROUNDING <= factor <= 1 + _ROUNDING:
            raise ValueError(f"its factor at step {step} of {steps} is {factor:g}, not in 0 to 1")


def weighs_classes(recipe: Recipe) -> bool:
    """Whether the losses of images are weighted by their class."""
    return recipe.balance == "weights" or bool(recipe.class_weights)


def class_weights(recipe: Recipe, data: Dataset) -> Tensor | None:
    """The factor of each class's losses, (classes,), whose mean over the images shown is 1; None if classes are not weighted.

    Raises:
        RunError: The recipe weights a class that the data set does not have, or gives all classes weight 0.
    """
    if not weighs_classes(recipe):
        return None
    for name in recipe.class_weights:
        if name not in data.class_names:
            raise RunError(
                f"class_weights has {name!r}, but the classes of {data.name} are {', '.join(data.class_names)}"
            )
    counts = torch.bincount(data.labels, minlength=len(data.class_names)).double()
    weights = torch.tensor([recipe.class_weights.get(name, 1.0) for name in data.class_names], dtype=torch.float64)
    if recipe.balance == "weights":
        weights = weights / counts.clamp_min(1)
    elif recipe.balance == "sampling":  # which shows equally many of each class that has images
        counts = (counts > 0) * len(data) / (counts > 0).sum()
    total = (weights * counts).sum()
    if total == 0:
        raise RunError(f"class_weights {recipe.class_weights} leave no image with a weight: give one class more than 0")
    return (weights * len(data) / total).float()


def network_settings(config: TrainConfig, recipe: Recipe, data: Dataset) -> dict[str, Any]:
    """What `create_model` needs to build this run's network, now and when it is loaded again."""
    channels, height, width = data.image_shape
    own = dict(config.model.settings)
    if recipe.dropout is not None and "dropout" in MODELS[config.model.name].settings:
        own.setdefault("dropout", recipe.dropout)
    routed: dict[str, Any] = {}
    if config.has_routing:
        settings = recipe.routing_settings | own.pop("routing_settings", {})
        routed = {"routing": config.model.routing, "routing_settings": settings}
        if "shortcut" in MODELS[config.model.name].settings:
            routed["shortcut"] = config.model.shortcut
    return {
        "name": config.model.name,
        **routed,
        "image_size": height if height == width else [height, width],
        "channels": channels,
        "classes": len(data.class_names),
        **own,
    }


def make_network(settings: Mapping[str, Any], seed: int) -> Network:
    """The network with its initial weights.

    Raises:
        RunError: It cannot be built with these settings.
    """
    torch.manual_seed(derive(seed, "weights", 0))
    try:
        return create_model(**settings)
    except (ValueError, TypeError) as error:
        raise RunError(str(error)) from error


def freeze_backbone(model: Network) -> None:
    """Leave the part of a network that extracts features as it is: its weights, and its batch norms' statistics.

    Batch norms in it normalise by the statistics that they have, as in evaluation, and dropout in it is off.

    Raises:
        RunError: The network does not say which part that is.
    """
    if not model.body:
        raise RunError(f"a {type(model).__name__} does not say what its backbone is: it cannot be frozen")
    for part in model.body:
        part.requires_grad_(False).eval()


def smaller_network(model: Network, images: int) -> str | None:
    """Advice to take a compact network, where one that grows with its images has grown large.

    Args:
        model: The network.
        images: Number of training images.
    """
    parameters = sum(parameter.numel() for parameter in model.parameters())
    name = recommend_model(model.image_size, model.channels, images)
    with torch.device("meta"):
        small = create_model(name, image_size=model.image_size, channels=model.channels, classes=model.classes)
    least = sum(parameter.numel() for parameter in small.parameters())
    if model.takes_any_size or max(model.image_size) < LARGE_SIDE or parameters < 2 * least:
        return None
    return (
        f"this network has {parameters:,} parameters for images of {model.image_size[0]}x{model.image_size[1]}; {name} has {least:,} at any "
        f"size: --model {name}"
    )


def faster_precision(precision: str, device: torch.device) -> str | None:
    """Advice to compute in single precision, where the processor has no instructions for bfloat16 and emulates them.

    Args:
        precision: One of `PRECISIONS`.
        device: What the network is trained on.
    """
    # Other processors than these say "DEFAULT" or a name of their own, and may well have them.
    if precision != "bf16-mixed" or device.type != "cpu" or torch.backends.cpu.get_cpu_capability() != "AVX2":
        return None
    return "this processor has no instructions for bfloat16 and may take ten times as long with it: --precision 32-true"


def make_manifest(
    config: TrainConfig,
    recipe: Recipe,
    splits: Mapping[str, Dataset],
    start: Start | None = None,
    *,
    in_memory: bool = False,
) -> Manifest:
    """What config.json will say of a new run.

    Args:
        config: The requested config.
        recipe: The recipe that takes effect.
        splits: The images.
        start: The network that it begins with, if it does not begin with weights drawn by its seed.
        in_memory: Whether the images were given in Python.
    """
    data = splits["train"]
    asked, took_effect = config.to_dict(), asdict(recipe)
    if start is None:
        network = network_settings(config, recipe, data)
    else:
        # It is there already: what the recipe has for networks takes no effect.
        network, took_effect = start.network_for(data), {**took_effect, "dropout": None, "routing_settings": {}}
    return Manifest(
        asked,
        took_effect,
        network,
        TrainedOn(
            data.name,
            data.label,
            data.protocol,
            tuple(data.class_names),
            (data.images.shape[2], data.images.shape[3]),
            data.bright_on_dark,
            data.centred_digits,
            str(data.view),
            str(augmentation(recipe, data)),
            {split: part.fingerprint() for split, part in splits.items()},
            data.fit,
            {} if in_memory else absolute_paths(config.data),
            in_memory,
        ),
        describe_environment(),
        plugins_of(config, recipe, network),
        digest_of(asked, took_effect),
        None if start is None else start.origin_for(data),
    )
