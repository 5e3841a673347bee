"""What a run needs before its first step: processes, images, a network, an optimiser, a manifest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn

from shortcaps.backbones import BACKBONES
from shortcaps.data import DATASETS, Dataset, View, load_dataset
from shortcaps.data.augment import Elastic
from shortcaps.environment import best_device, describe_environment
from shortcaps.errors import RunError
from shortcaps.losses import LOSSES
from shortcaps.models import MODELS, Network, create_model
from shortcaps.recipes import RECIPES, Recipe
from shortcaps.registry import Registry
from shortcaps.routing import ROUTINGS
from shortcaps.runs.config import TrainConfig
from shortcaps.runs.manifest import Manifest, TrainedOn, digest_of
from shortcaps.schedules import SCHEDULES
from shortcaps.training.display import Display
from shortcaps.training.replicas import Replicas
from shortcaps.training.seeds import derive


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
    return Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=machines,
        strategy=Replicas() if devices * machines > 1 else "auto",
        precision=config.run.precision,  # type: ignore[arg-type]
    )


def load_split(config: TrainConfig, split: str, display: Display) -> Dataset:
    """The images of a split, all of them or as many as a trial run wants."""
    data = load_dataset(
        config.data.name, split, config.data.protocol, progress=display.rendering, **config.data.load_options
    )
    if config.data.max_images is None:
        return data
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(derive(0, "trial", 0)))
    return data.subset(order[: config.data.max_images])


def augmentation(recipe: Recipe, data: Dataset) -> View:
    """How training images reach the network."""
    view = data.augment_anywhere or data.augment if recipe.placement == "anywhere" else data.augment
    return View((Elastic(recipe.elastic), *view.steps)) if recipe.elastic else view


def network_settings(config: TrainConfig, recipe: Recipe, data: Dataset) -> dict[str, Any]:
    """What `create_model` needs to build this run's network, now and when it is loaded again."""
    channels, height, width = data.image_shape
    own = dict(config.model.settings)
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


def make_optimizer(model: nn.Module, recipe: Recipe, device: torch.device) -> torch.optim.Optimizer:
    """Adam, or with weight decay AdamW, which leaves numbers that belong to a channel or class alone."""
    fused = device.type in ("cpu", "cuda")
    if not recipe.weight_decay:
        return torch.optim.Adam(model.parameters(), lr=recipe.lr, fused=fused)
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.lr, fused=fused)


def make_manifest(config: TrainConfig, recipe: Recipe, splits: Mapping[str, Dataset]) -> Manifest:
    """What config.json will say of a new run."""
    data = splits["train"]
    asked, took_effect = config.to_dict(), asdict(recipe)
    return Manifest(
        asked,
        took_effect,
        network_settings(config, recipe, data),
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
        ),
        describe_environment(),
        plugins_of(config, recipe),
        digest_of(asked, took_effect),
    )


def plugins_of(config: TrainConfig, recipe: Recipe) -> tuple[str, ...]:
    """The plug-ins that parts of this run come from, as they were named."""
    parts: list[tuple[Registry[Any], str]] = [
        (DATASETS, config.data.name),
        (MODELS, config.model.name),
        (ROUTINGS, config.model.routing),
        (BACKBONES, str(config.model.settings.get("backbone", ""))),
        (RECIPES, config.recipe_name),
        (LOSSES, recipe.loss),
        (SCHEDULES, recipe.schedule),
    ]
    origins = (registry.origin(name) for registry, name in parts)
    return tuple(dict.fromkeys(origin for origin in origins if origin is not None))
