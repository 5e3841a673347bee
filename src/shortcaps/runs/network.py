"""Whether the network that a config describes is the one whose weights a file holds, found out before anything is allocated."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from shortcaps.errors import RunError
from shortcaps.models import create_model
from shortcaps.registry import UnknownPart
from shortcaps.runs.bounds import check_settings, numbers_in
from shortcaps.runs.weights import WeightsHeader

_NEEDED = ("name", "image_size", "channels", "classes")


class _TooManyParts(Exception):
    """The network has more parts than the file could hold."""


def check_network(network: Mapping[str, Any], classes: int, header: WeightsHeader, *, is_plugin: bool) -> None:
    """Check a network's settings against each other, the number of class names, and the shapes in the header of its weights.

    Args:
        network: The arguments of `create_model`, from a config.
        classes: How many class names the config has.
        header: Of the weights.
        is_plugin: Whether parts of the network come from a plug-in, which may be unable to build without numbers.

    Raises:
        RunError: They do not fit.
        UnknownPart: The network, its routing or its backbone is not registered.
    """
    _check_numbers(network, header)
    if network["classes"] != classes:
        raise RunError(f"the network has {network['classes']} classes, but there are {classes} class_names")
    try:
        with torch.device("meta"), _at_most(4 * len(header.shapes) + 64):
            model = create_model(**network)
    except UnknownPart:
        raise
    except _TooManyParts as error:
        raise RunError(
            f"the network has more layers than the {len(header.shapes)} tensors of its weights allow"
        ) from error
    # Builders raise what they like about settings that make no sense (OverflowError, ZeroDivisionError…), so no list is complete.
    except Exception as error:
        if is_plugin and "meta" in str(error):
            return
        raise RunError(f"the network cannot be built: {' '.join(str(error).split())[:300]}") from error
    _compare(model, header)


def _check_numbers(network: Mapping[str, Any], header: WeightsHeader) -> None:
    for name in _NEEDED:
        if name not in network:
            raise RunError(f"the network's setting {name} is missing")
    check_settings(network)
    # Every width, kernel and count of the networks here is a side of some tensor, except strides and rounds, which are small.
    largest = max(4096, header.elements)
    for name, number in numbers_in(network):
        if isinstance(number, int) and abs(number) > largest:
            raise RunError(
                f"the network's setting {name} is {number:.3g}, but its weights have {header.elements:,} numbers in all"
                if abs(number) < 10**300
                else f"the network's setting {name} is a number of more than 300 digits"
            )


@contextmanager
def _at_most(parts: int) -> Iterator[None]:
    """Within, a network with more parameters and buffers than this is not built to its end, which might take hours."""
    left, own = parts, threading.get_ident()

    def count(module: nn.Module, name: str, value: object) -> None:
        nonlocal left
        if threading.get_ident() == own:  # the hook is everybody's, the limit is not
            left -= 1
            if left < 0:
                raise _TooManyParts

    hooks = register_module_parameter_registration_hook(count), register_module_buffer_registration_hook(count)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _compare(model: nn.Module, header: WeightsHeader) -> None:
    expected = model.state_dict()
    for name, tensor in expected.items():
        if name not in header.shapes:
            raise RunError(f"the weights have no {name}, which the network needs")
        if header.shapes[name] != tuple(tensor.shape):
            raise RunError(f"{name} is {header.shapes[name]} in the weights, but {tuple(tensor.shape)} in the network")
        if (name in header.floating) != tensor.is_floating_point():
            raise RunError(f"{name} has another type in the weights than in the network")
    for name in header.shapes:
        if name not in expected:
            raise RunError(f"the weights have {name}, which the network does not")
