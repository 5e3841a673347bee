"""Compact networks: what makes the comparison of a network with its plain twin a fair one."""

from __future__ import annotations

import pytest
import torch

import shortcaps
from shortcaps.backbones import ConvolutionalBackbone, feature_shapes
from shortcaps.models.compact import COMPACT


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", COMPACT)
def test_a_network_and_its_twin_are_as_large_as_the_name_says(name: str) -> None:
    capsules, twin = (parameters(shortcaps.create_model(kind)) for kind in (name, f"{name}-plain"))
    promised = 1000 * int(name.removeprefix("compact-").removesuffix("k"))
    assert capsules == pytest.approx(promised, rel=0.02)
    assert twin == pytest.approx(capsules, rel=0.02)


@pytest.mark.parametrize("name", COMPACT)
def test_a_twin_sees_as_much_and_is_nowhere_narrower(name: str) -> None:
    """Only widths may differ: as many convolutions with the same kernels and strides, none of them narrower in the twin."""
    backbones = [shortcaps.create_model(kind).backbone for kind in (name, f"{name}-plain")]
    assert all(isinstance(backbone, ConvolutionalBackbone) for backbone in backbones)
    own, twins = (
        [module for module in backbone.modules() if isinstance(module, torch.nn.Conv2d)] for backbone in backbones
    )
    assert [(c.kernel_size, c.stride, c.padding) for c in own] == [(c.kernel_size, c.stride, c.padding) for c in twins]
    assert all(mine.out_channels <= its.out_channels for mine, its in zip(own, twins, strict=True))


@pytest.mark.parametrize("name", COMPACT)
@pytest.mark.parametrize(("side", "deepest"), [(28, 7), (40, 10)])
def test_the_deepest_map_is_a_quarter_of_the_image_and_a_position_sees_a_digit(
    name: str, side: int, deepest: int
) -> None:
    torch.manual_seed(0)
    backbone = shortcaps.create_model(name).backbone.double().eval()
    assert feature_shapes(backbone, 1, (side, side))[-1][1:] == (deepest, deepest)
    image = torch.rand(1, 1, 40, 40, dtype=torch.float64, requires_grad=True)
    backbone(image)[-1][0, :, 5, 5].sum().backward()
    assert image.grad is not None
    seen = (image.grad[0, 0] != 0).nonzero()
    height, width = (seen.amax(0) - seen.amin(0) + 1).tolist()
    assert (height, width) == (21, 21)
