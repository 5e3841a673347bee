"""A recipe made for tens of thousands of images, fitted to a few hundred."""

from __future__ import annotations

from math import ceil

from shortcaps.recipes import Recipe
from shortcaps.runs.config import TrainConfig

MIN_STEPS = 1000
"""Updates of the weights that a run has at least: with far fewer, a network has hardly begun to learn."""
STEPS_PER_EPOCH = 8
"""Smaller batches are taken rather than fewer steps in an epoch."""
SMALLEST_BATCH = 16
TOLERATED_REST = 0.01
"""Share of the images that an epoch may leave out; the order is drawn anew in each, so that every image gets its turn."""


def adapt_recipe(config: TrainConfig, recipe: Recipe, images: int, processes: int = 1) -> tuple[Recipe, str]:
    """Fit epochs, batch size and the rest of an epoch to the number of training images.

    What the user has set stays. Sets large enough for the recipe, and trial runs (`max_images`), are trained exactly as it says.

    Args:
        config: What the user asked for.
        recipe: The recipe with the user's changes.
        images: Number of training images.
        processes: Number of processes that share a batch.

    Returns:
        The recipe to train by, and a line that says what was chosen and why; an empty one if nothing was.
    """
    if not config.optim.adapt or config.data.max_images is not None:
        return recipe, ""
    size = recipe.batch_size
    if config.optim.batch_size is None and images < STEPS_PER_EPOCH * size:
        wanted = max(SMALLEST_BATCH, images // STEPS_PER_EPOCH)
        power = 1 << wanted.bit_length() - 1
        size = min(size, ceil(power / processes) * processes)
    shown = min(size, images // processes * processes)
    drop_last = recipe.drop_last and images % shown <= TOLERATED_REST * images
    steps = images // shown if drop_last else ceil(images / shown)
    epochs = recipe.epochs if config.optim.epochs else max(recipe.epochs, ceil(MIN_STEPS / steps))

    reasons: list[str] = []
    if epochs > recipe.epochs:
        reasons.append(f"at least {MIN_STEPS:,} updates")
    if size < recipe.batch_size and shown < images:
        reasons.append("several updates in each epoch")
    if drop_last != recipe.drop_last:
        reasons.append("no image left out")
    if not reasons:
        return recipe, ""
    before = max(1, images // recipe.batch_size)
    return recipe.changed({"epochs": epochs, "batch_size": size, "drop_last": drop_last}), (
        f"{images:,} training images: {epochs} epochs of {steps} steps instead of {recipe.epochs} of {before}, for "
        f"{', '.join(reasons)} (--epochs and --batch-size choose others, --no-adapt keeps the recipe's)"
    )
