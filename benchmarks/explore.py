"""Compares networks and recipes on validation images; the test images are never loaded.

    python benchmarks/explore.py --data mnist --model compact-23k --epochs 6 --seeds 2
    python benchmarks/explore.py --data affnist --model compact-23k --set network.capsules=4 --set recipe.weight_decay=0.01

`--watch 100` prints every hundred steps what shows a collapse: the loss, the mean activation of the true class and of the others, the norm of the gradient.
`--set` changes a setting of the network (`network.`) or of the recipe (`recipe.`); values are read as JSON where they can be. Prints a line
of JSON for each seed: validation error in % and mean negative log-likelihood, of the images as they are (affNIST's digits: placed anywhere)
and of the same images bent by a smooth field without affine part, and the median time of a step. Figures go into results/LOG.md by hand.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from shortcaps.data import Dataset, View, load_dataset
from shortcaps.data.augment import Elastic, PlaceAnywhere
from shortcaps.losses import LOSSES
from shortcaps.models import Network
from shortcaps.recipes import Recipe
from shortcaps.runs.config import TrainConfig
from shortcaps.schedules import SCHEDULES
from shortcaps.training.batches import Batches
from shortcaps.training.optimizer import make_optimizer, set_rate
from shortcaps.training.seeds import derive
from shortcaps.training.setup import augmentation, make_network, network_settings
from shortcaps.training.state import State

BENDING = {28: 1.3, 32: 1.5, 40: 1.8}
"""Size in pixels of the deformation of the second validation view, by the side of the images."""


def watch(step: int, loss: Tensor, activations: Tensor, labels: Tensor, model: Network) -> None:
    """Print how active the classes are, and how much gradient there is."""
    is_target = F.one_hot(labels, activations.shape[1]).bool()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    line = {
        "step": step,
        "loss": loss.item(),
        "true": activations[is_target].mean().item(),
        "others": activations[~is_target].mean().item(),
        "gradient": torch.nn.utils.get_total_norm(gradients).item(),
    }
    print(json.dumps({name: round(value, 5) for name, value in line.items()}), flush=True)


def train(
    model: Network, recipe: Recipe, data: Dataset, seed: int, arguments: argparse.Namespace
) -> tuple[Network, float]:
    """The network with its averaged weights, and the median time of a step in milliseconds."""
    if arguments.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    state = State(model, make_optimizer(model, recipe, torch.device("cpu")), recipe)
    augment, loss_function, schedule = augmentation(recipe, data), LOSSES[recipe.loss], SCHEDULES[recipe.schedule]
    batches = Batches(data.labels, len(data.class_names), recipe, seed)
    per_epoch = batches.per_epoch
    steps = recipe.epochs * per_epoch
    times = []
    for step in range(steps):
        began = time.perf_counter()
        chosen = batches.indices(step)
        images = augment(data.images[chosen], torch.Generator().manual_seed(derive(seed, "augment", step)))
        torch.manual_seed(derive(seed, "dropout 0", step))
        set_rate(state.optimizer, recipe.lr * schedule(step, steps, per_epoch, **recipe.schedule_settings))
        state.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.mixed):
            activations = model.train()(images)
        epoch = step / per_epoch
        loss = loss_function(activations.float(), data.labels[chosen], epoch=epoch, **recipe.loss_settings)
        loss.backward()
        if arguments.watch and step % arguments.watch == 0:
            watch(step, loss, activations.detach(), data.labels[chosen], model)
        state.optimizer.step()
        state.progress.step += 1
        state.update_average()
        times.append(time.perf_counter() - began)
    if state.average is not None:
        model.load_state_dict(state.average)
    return model.eval(), 1e3 * statistics.median(times)


@torch.no_grad()
def judge(model: Network, data: Dataset, view: View) -> tuple[float, float]:
    """Error in % and mean negative log-likelihood; the view draws the same for every network."""
    generator = torch.Generator().manual_seed(0)
    wrong, likelihood = 0, 0.0
    for part in torch.arange(len(data)).split(1000):
        found = model(view(data.images[part], generator))
        logarithms = found.clamp_min(torch.finfo(found.dtype).tiny).log()
        wrong += int((found.argmax(1) != data.labels[part]).sum())
        likelihood += float(F.cross_entropy(logarithms, data.labels[part], reduction="sum"))
    return 100 * wrong / len(data), likelihood / len(data)


def views(data: Dataset) -> dict[str, View]:
    """The images as they are, or as affNIST's digits are placed, and the same bent."""
    steps = (PlaceAnywhere(),) if data.augment_anywhere is not None else data.view.steps
    return {"plain": View(steps), "bent": View((Elastic(BENDING.get(data.image_shape[1], 1.3)), *steps))}


def parsed(changes: list[str], section: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for change in changes:
        name, _, value = change.partition("=")
        if name.startswith(f"{section}."):
            try:
                found[name.removeprefix(f"{section}.")] = json.loads(value)
            except ValueError:
                found[name.removeprefix(f"{section}.")] = value
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--model", default="compact-23k")
    parser.add_argument("--routing", default="fuzzy")
    parser.add_argument("--no-shortcut", action="store_true", help="the paper's networks, routed layer by layer")
    parser.add_argument("--recipe", default=None)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--max-images", type=int, help="use only so many training images")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--mixed", action="store_true", help="convolutions in bfloat16, as with --precision bf16-mixed")
    parser.add_argument("--watch", type=int, metavar="STEPS", help="print activations and gradient every so many steps")
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="SECTION.NAME=VALUE")
    arguments = parser.parse_args()
    routing: dict[str, Any] = {} if arguments.routing == "fuzzy" else {"routing": arguments.routing}
    if arguments.no_shortcut:
        routing["shortcut"] = False
    settings = {"epochs": arguments.epochs, "lr": arguments.lr, "recipe": arguments.recipe}
    network = parsed(arguments.changes, "network")
    config = TrainConfig.of(data=arguments.data, model=arguments.model, network=network, **routing, **settings)
    recipe = config.make_recipe().changed(parsed(arguments.changes, "recipe"))
    data, validation = load_dataset(arguments.data, "train"), load_dataset(arguments.data, "validation")
    if arguments.max_images:
        data = data.subset(slice(arguments.max_images))
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        model = make_network(network_settings(config, recipe, data), seed)
        began = time.monotonic()
        model, step = train(model, recipe, data, seed, arguments)
        line: dict[str, Any] = {
            "data": arguments.data,
            "model": arguments.model,
            "routing": arguments.routing,
            "changes": [
                *(["no shortcut"] if arguments.no_shortcut else []),
                *arguments.changes,
                *(["bf16-mixed"] if arguments.mixed else []),
            ],
            "epochs": recipe.epochs,
            "lr": recipe.lr,
            "seed": seed,
            "parameters": sum(p.numel() for p in model.parameters()),
        }
        for name, view in views(validation).items():
            error, likelihood = judge(model, validation, view)
            line |= {f"{name}_error": round(error, 3), f"{name}_likelihood": round(likelihood, 5)}
        line |= {"step_ms": round(step, 1), "seconds": round(time.monotonic() - began)}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
