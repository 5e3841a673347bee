"""Looks at the numbers of a run: nothing is validated, selected or saved unless all are finite, and the last good weights are kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import Tensor

from shortcaps.errors import RunFault
from shortcaps.training.diagnose import first_nonfinite_layer
from shortcaps.training.replicas import largest_of_all
from shortcaps.training.state import State
from shortcaps.training.synced import apart

STEPS_BETWEEN_LOOKS = 20
"""How often, in steps, numbers are fetched from the device, for the display and to check that they are finite; on the CPU the check
is cheap and made at every step."""


class Watch:
    """Raises RunFault, in all processes, when a number is not finite in any of them.

    A process that went on alone would wait for the others in its next exchange with them.

    Args:
        state: What changes while training.
        fabric: The processes that train together.
        lr: The recipe's learning rate, for the advice.
        steps_per_epoch: To say in which epoch it was.
        last_good_file: Where the last good weights will be written.
    """

    def __init__(self, state: State, fabric: Fabric, *, lr: float, steps_per_epoch: int, last_good_file: Path) -> None:
        self.state, self.fabric = state, fabric
        self.lr, self.steps_per_epoch, self.last_good_file = lr, steps_per_epoch, last_good_file
        self.keep_weights()

    @property
    def looks_at_every_step(self) -> bool:
        """Whether it costs little to fetch numbers from the device."""
        return self.fabric.device.type == "cpu"

    def keep_weights(self) -> None:
        """Remember the current weights as good: everything was finite with them."""
        self.good = {name: tensor.clone() for name, tensor in self.state.model.state_dict().items()}

    def see_gradients(self, loss: Tensor, images: Tensor) -> None:
        """Called at every step, after the backward pass and before the update."""
        step = self.state.step
        self.latest = (step, loss.detach(), images)
        looks = step % STEPS_BETWEEN_LOOKS == 0
        if looks or self.looks_at_every_step:
            self.check_numbers(*self.latest)
        if looks:
            self.keep_weights()

    def check_numbers(self, step: int, loss: Tensor, images: Tensor) -> None:
        """Raise RunFault unless the loss and all gradients are finite."""
        gradients = [p.grad for p in self.state.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        self._check_finite({"the loss": loss, "a gradient": norm}, step, images)

    def check_state(self) -> None:
        """Raise RunFault unless all is finite that is about to be validated, selected or saved.

        A state that is not could never be resumed from, and after the last look (`STEPS_BETWEEN_LOOKS`) anything may have happened.
        """
        step, _, images = self.latest
        if not self.looks_at_every_step:
            self.check_numbers(*self.latest)
        tensors = self.state.to_checkpoint().tensors.values()
        finite = torch.stack([torch.isfinite(tensor).all().to(self.fabric.device) for tensor in tensors]).all()
        self._check_finite({"a number of the state": torch.where(finite, 0.0, torch.nan)}, step, images)

    def _check_finite(self, numbers: Mapping[str, Tensor], step: int, images: Tensor) -> None:
        mine = torch.stack([(~torch.isfinite(number)).int() for number in numbers.values()])
        found = largest_of_all(mine) if self.fabric.world_size > 1 else mine
        for what, here, anywhere in zip(numbers, mine.tolist(), found.tolist(), strict=True):
            if anywhere:
                raise self._fault(what, step, images if here else None)

    def _fault(self, what: str, step: int, images: Tensor | None) -> RunFault:
        """The error of a run in which something is not finite after this step, with these images; None: those of another process."""
        where: str | None = "another process"
        if images is not None:
            with apart():
                where = first_nonfinite_layer(self.state.model, images)
        epoch, batch = divmod(step, self.steps_per_epoch)
        return RunFault(
            f"{what} is not a number at step {step} (epoch {epoch + 1}, batch {batch}), first seen in "
            f"{where or 'the backward pass'}, {self.state.model.title}; the last good weights are in "
            f"{self.last_good_file}. Try a smaller --lr than {self.lr:g}"
        )
