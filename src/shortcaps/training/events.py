"""TensorBoard events, where TensorBoard is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shortcaps.training.state import EpochMetrics


class Events:
    """Writes each epoch's numbers into the run's `events` folder; does nothing without TensorBoard."""

    def __init__(self, run: Path, first_epoch: int) -> None:
        self.writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self.writer = SummaryWriter(str(run / "events"), purge_step=first_epoch)

    def epoch(self, row: EpochMetrics) -> None:
        if self.writer is not None:
            for name in ("loss", "accuracy", "validation_error", "lr", "images_per_second"):
                self.writer.add_scalar(name, getattr(row, name), row.epoch)
            self.writer.flush()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
