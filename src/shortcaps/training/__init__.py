"""Training: a loop that can be interrupted anywhere, and the run directory it leaves."""

from typing import TYPE_CHECKING, Any

from shortcaps.errors import RunError, RunFault
from shortcaps.recipes import Recipe
from shortcaps.runs.config import TrainConfig

if TYPE_CHECKING:
    from shortcaps.training.run import TrainingResult, train

__all__ = ["Recipe", "RunError", "RunFault", "TrainConfig", "TrainingResult", "train"]


def __getattr__(name: str) -> Any:
    """Import the loop on demand: it needs Fabric and matplotlib, which loading a run does not."""
    if name in ("TrainingResult", "train"):
        from shortcaps.training import run

        return getattr(run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
