"""Training: a loop that can be interrupted anywhere, and the run directory it leaves."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shortcaps.errors import RunError, RunFault
from shortcaps.recipes import Recipe
from shortcaps.runs.config import TrainConfig

if TYPE_CHECKING:
    from shortcaps.training.callbacks import Callback, RunInfo, StepMetrics
    from shortcaps.training.loggers import register_logger
    from shortcaps.training.run import TrainingResult, train
    from shortcaps.training.state import EpochMetrics

__all__ = [
    "Callback",
    "EpochMetrics",
    "Recipe",
    "RunError",
    "RunFault",
    "RunInfo",
    "StepMetrics",
    "TrainConfig",
    "TrainingResult",
    "register_logger",
    "train",
]
# The loop needs Fabric and matplotlib, which loading a run does not.
_LAZY = {"TrainingResult": "run", "train": "run", "EpochMetrics": "state", "register_logger": "loggers"}
_LAZY |= dict.fromkeys(("Callback", "RunInfo", "StepMetrics"), "callbacks")


def __getattr__(name: str) -> Any:
    """Import on demand what is listed above."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
