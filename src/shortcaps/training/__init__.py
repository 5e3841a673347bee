"""Training: a recipe, a loop that can be interrupted anywhere, and the run directory it leaves."""

from shortcaps.training.config import RECIPES, Recipe, RunError, TrainConfig
from shortcaps.training.loop import TrainingResult, train

__all__ = ["RECIPES", "Recipe", "RunError", "TrainConfig", "TrainingResult", "train"]
