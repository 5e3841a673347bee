"""Learning-rate schedules: the factor on a recipe's rate at each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from shortcaps.registry import Registry

Schedule = Callable[..., float]
"""Called with the step (from 0), the total number of steps and the number of steps per epoch and, by keyword, the recipe's
`schedule_settings`; returns a factor in 0–1."""
Function = TypeVar("Function", bound=Schedule)

SCHEDULES: Registry[Schedule] = Registry("schedule")


def register_schedule(name: str) -> Callable[[Function], Function]:
    """Register a schedule under a name: a decorator for a function `(step, steps, steps_per_epoch, **settings) -> factor`.

    Args:
        name: The name for recipes.

    Returns:
        The decorator.

    Raises:
        ValueError: The name is taken.
    """
    return SCHEDULES.decorator(name)


def list_schedules(pattern: str | Sequence[str] = "*", *, exclude: str | Sequence[str] = ()) -> list[str]:
    """Names of the registered schedules.

    Args:
        pattern: A shell pattern, or several.
        exclude: Patterns whose matches are left out.

    Examples:
        >>> list_schedules()
        ['cosine', 'one-cycle', 'steps', 'warmup-cosine']
    """
    return SCHEDULES.names(pattern, exclude=exclude)


@register_schedule("one-cycle")
def one_cycle(step: int, steps: int, steps_per_epoch: int) -> float:
    """Rise linearly from 4 % over the first 30 % of all steps, then fall linearly to zero."""
    rise = max(1, round(0.3 * steps))
    if step < rise:
        return 0.04 + 0.96 * step / rise
    return max(0.0, (steps - step) / (steps - rise))


@register_schedule("cosine")
def cosine(step: int, steps: int, steps_per_epoch: int) -> float:
    """Rise linearly over the first 5 % of all steps, then fall to zero along half a cosine."""
    rise = max(1, round(0.05 * steps))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


@register_schedule("warmup-cosine")
def warmup_cosine(step: int, steps: int, steps_per_epoch: int, *, warmup: float = 0.1, last: float = 0.0) -> float:
    """Rise linearly over the first `warmup` of all steps, then fall along half a cosine to `last`, both fractions."""
    for name, share in (("warmup", warmup), ("last", last)):
        if not 0 <= share <= 1:
            raise ValueError(f"{name} {share:g} is not a fraction: give 0 to 1")
    rise = round(warmup * steps)
    if step < rise:
        return (step + 1) / rise
    return last + (1 - last) * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


@register_schedule("steps")
def steps(step: int, steps: int, steps_per_epoch: int) -> float:
    """The paper's schedule: times 0.8 every 20 epochs."""
    return 0.8 ** (step // steps_per_epoch // 20)
