"""TensorBoard events, where TensorBoard is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shortcaps.training.state import EpochMetrics


class Events:
    """Writes the metrics of each epoch to the run's `events` folder; does nothing without TensorBoard.

    Args:
        run: The run directory.
        first_epoch: The epoch that training begins with, counted from 1; later events of an earlier attempt are dropped.
    """

    def __init__(self, run: Path, first_epoch: int) -> None:
        self.writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self.writer = SummaryWriter(str(run / "events"), purge_step=first_epoch)

    def epoch(self, row: EpochMetrics) -> None:
        """Write the metrics of an epoch."""
        if self.writer is not None:
            for name in ("loss", "accuracy", "validation_error", "lr", "images_per_second"):
                self.writer.add_scalar(name, getattr(row, name), row.epoch)
            self.writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self.writer is not None:
            self.writer.close()
