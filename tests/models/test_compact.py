"""Compact networks: what makes the comparison of a network with its plain twin a fair one."""

from __future__ import annotations

import pytest
import torch

import shortcaps
from shortcaps.backbones import feature_shapes
from shortcaps.models.compact import COMPACT
from shortcaps.models.recommend import recommend_model


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", COMPACT)
def test_a_network_and_its_twin_are_as_large_as_the_name_says(name: str) -> None:
    channels = 3 if name == "compact-160k" else 1
    capsules, twin = (parameters(shortcaps.create_model(kind, channels=channels)) for kind in (name, f"{name}-plain"))
    promised = 1000 * int(name.removeprefix("compact-").removesuffix("k"))
    assert capsules == pytest.approx(promised, rel=0.02)
    assert twin == pytest.approx(capsules, rel=0.02)


@pytest.mark.parametrize("name", COMPACT)
def test_a_twin_sees_as_much_and_is_nowhere_narrower(name: str) -> None:
    """Only widths may differ: as many convolutions with the same kernels and strides, none of them narrower in the twin."""
    backbones = [shortcaps.create_model(kind).backbone for kind in (name, f"{name}-plain")]
    assert type(backbones[0]) is type(backbones[1])
    own, twins = (
        [module for module in backbone.modules() if isinstance(module, torch.nn.Conv2d)] for backbone in backbones
    )
    assert [(c.kernel_size, c.stride, c.padding) for c in own] == [(c.kernel_size, c.stride, c.padding) for c in twins]
    assert all(mine.out_channels <= its.out_channels for mine, its in zip(own, twins, strict=True))


@pytest.mark.parametrize("name", COMPACT)
def test_the_twin_with_sigmoids_differs_in_its_outputs_alone(name: str) -> None:
    twin, control = (shortcaps.create_model(kind).eval() for kind in (f"{name}-plain", f"{name}-sigmoid"))
    control.load_state_dict(twin.state_dict())
    images = torch.rand(3, 1, 28, 28)
    torch.testing.assert_close(twin(images).log() - control(images).logit(), _row_constants(twin, images))
    assert ((control(images).sum(1) - 1).abs() > 1e-3).all()
    with pytest.raises(ValueError, match="unknown outputs 'tanh': choose softmax or sigmoid"):
        shortcaps.create_model(f"{name}-plain", outputs="tanh")


@pytest.mark.parametrize("name", ["compact-23k-plain", "compact-23k-sigmoid", "cnn-23k"])
def test_plain_networks_give_outputs_in_full_precision_under_autocast(name: str) -> None:
    """In bfloat16 sure outputs would round to 1, and lose their gradient."""
    model = shortcaps.create_model(name)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(torch.rand(2, 1, 28, 28))
    assert outputs.dtype == torch.float32
    assert not torch.equal(outputs, outputs.bfloat16().float())


def _row_constants(twin: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Logarithms of a softmax are its logits but for the logarithm of their sum."""
    logits = twin.classify(twin.features(images))
    return -logits.logsumexp(1, keepdim=True).expand_as(logits)


@pytest.mark.parametrize("name", ["compact-23k", "compact-68k"])
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


def test_a_compact_network_takes_photos_with_as_many_parameters() -> None:
    for name, count in (("compact-23k", 23_934), ("compact-160k", 161_620)):
        sizes = {parameters(shortcaps.create_model(name, image_size=side, channels=3)) for side in (32, 224)}
        assert sizes == {count}
    model = shortcaps.create_model("compact-160k", image_size=224, channels=3, classes=3).eval()
    with torch.no_grad():
        assert model(torch.rand(1, 3, 224, 224)).shape == (1, 3)
    with torch.device("meta"):
        assert parameters(shortcaps.create_model("baseline", image_size=224, channels=3)) == 716_202


@pytest.mark.parametrize(
    ("size", "channels", "images", "name"),
    [
        (28, 1, None, "compact-23k"),
        (224, 1, 100_000, "compact-23k"),
        (47, 3, 100_000, "compact-23k"),
        (48, 3, 1_999, "compact-23k"),
        (48, 3, 2_000, "compact-160k"),
        ((40, 90), 3, 2_000, "compact-23k"),
        (224, 3, None, "compact-160k"),
    ],
)
def test_a_network_is_recommended_by_the_size_and_number_of_images(
    size: int | tuple[int, int], channels: int, images: int | None, name: str
) -> None:
    assert recommend_model(size, channels, images) == name
    assert name in COMPACT
