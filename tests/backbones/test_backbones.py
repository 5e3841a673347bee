"""Backbones: what they promise is what they make, and networks of other libraries fit as they are."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

import shortcaps
from shortcaps.backbones import BACKBONES, create_backbone, feature_channels, feature_maps, feature_shapes
from shortcaps.backbones.convolutional import ConvolutionalBackbone


class FeatureInfo:
    """As timm's: what each feature map is like."""

    def channels(self) -> list[int]:
        return [4, 6]


class FeaturesOnly(nn.Module):
    """A stand-in for `timm.create_model(..., features_only=True)`: a list of maps, and `feature_info`."""

    def __init__(self) -> None:
        super().__init__()
        self.feature_info = FeatureInfo()
        self.shallow = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(4, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU())

    def forward(self, images: Tensor) -> list[Tensor]:
        shallow = self.shallow(images)
        return [shallow, self.deep(shallow)]


def shapes_of(maps: tuple[Tensor, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(features.shape[1:]) for features in maps)


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("size", [(28, 28), (33, 40), (6, 7)])
def test_every_backbone_makes_the_maps_that_it_promises(name: str, size: tuple[int, int]) -> None:
    backbone = create_backbone(name, 3).eval()
    maps = feature_maps(backbone, torch.rand(2, 3, *size))
    assert tuple(features.shape[1] for features in maps) == feature_channels(backbone)
    assert shapes_of(maps) == feature_shapes(backbone, 3, size)


@pytest.mark.parametrize("settings", [{"strides": (1, 3, 2, 1), "first_kernel": 7}, {"first_kernel": 4}], ids=str)
def test_shapes_follow_kernels_and_strides(settings: dict[str, object]) -> None:
    backbone = create_backbone("convolutional", 1, out_indices=(0, 1, 2, 3), **settings).eval()
    for side in range(3, 20):
        maps = feature_maps(backbone, torch.rand(1, 1, side, 2 * side))
        assert shapes_of(maps) == feature_shapes(backbone, 1, (side, 2 * side))


class Pooled(ConvolutionalBackbone):
    """Computes something else than the class whose shapes are known."""

    def forward(self, images: Tensor) -> list[Tensor]:
        return [nn.functional.avg_pool2d(features, 2) for features in super().forward(images)]


class OtherWords(FeaturesOnly):
    """Uses the name for something of its own."""

    planned_shapes = ((1, 2, 3),)

    def forward(self, images: Tensor) -> list[Tensor]:
        return super().forward(images)


def with_other_parts(change: str) -> nn.Module:
    convolutional, residual = create_backbone("convolutional", 3), create_backbone("residual", 3)
    if change == "dilated":
        convolutional.layers[1][0] = nn.Conv2d(16, 24, 3, dilation=2)
        return convolutional
    if change == "padded with a word":
        convolutional.layers[0][0] = nn.Conv2d(3, 16, 5, padding="same")
        return convolutional
    if change == "pooled":
        residual.stem.append(nn.MaxPool2d(2))
    elif change == "another block":
        residual.stages[1].append(nn.AvgPool2d(3))
    return residual


@pytest.mark.parametrize(
    "backbone",
    [
        Pooled(3),
        OtherWords(),
        *(with_other_parts(change) for change in ("dilated", "padded with a word", "pooled", "another block")),
    ],
    ids=["subclass", "other words", "dilated", "padded with a word", "pooled", "another block"],
)
def test_shapes_are_those_of_what_is_computed_whatever_was_exchanged(backbone: nn.Module) -> None:
    maps = feature_maps(backbone.eval(), torch.rand(1, 3, 40, 32))
    assert shapes_of(maps) == feature_shapes(backbone, 3, (40, 32))


@pytest.mark.parametrize("name", ["convolutional", "residual"])
@pytest.mark.parametrize("channels", [1, 3])
def test_own_backbones_are_traced_by_fx(name: str, channels: int) -> None:
    backbone, images = create_backbone(name, channels).eval(), torch.rand(2, channels, 16, 16)
    traced = torch.fx.symbolic_trace(backbone)
    for ours, expected in zip(traced(images), backbone(images), strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("name", ["convolutional", "residual"])
def test_several_depths_can_be_asked_for(name: str) -> None:
    backbone = create_backbone(name, 1, out_indices=(0, -1))
    shapes = feature_shapes(backbone, 1, (28, 28))
    assert len(shapes) == 2
    assert shapes[0][1] > shapes[1][1]
    deepest = create_backbone(name, 1)
    assert feature_shapes(deepest, 1, (28, 28)) == shapes[1:]


def test_asking_for_shapes_leaves_the_backbone_as_it_was() -> None:
    backbone = FeaturesOnly().train()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    feature_shapes(backbone, 3, (28, 28))
    assert backbone.training
    for name, tensor in backbone.state_dict().items():
        assert tensor.device.type == "cpu"
        assert torch.equal(tensor, before[name]), name


def test_a_features_only_network_carries_a_capsule_head() -> None:
    backbone = FeaturesOnly()
    assert feature_channels(backbone) == (4, 6)
    head = shortcaps.CapsuleHead(feature_channels(backbone), classes=5, capsules=(2, 3))
    activations = head(backbone(torch.rand(2, 3, 20, 20)))
    assert activations.shape == (2, 5)


@pytest.mark.parametrize("shortcut", [True, False])
def test_a_features_only_network_carries_the_papers_capsules(shortcut: bool) -> None:
    model = shortcaps.create_model(
        "baseline", backbone=FeaturesOnly(), channels=3, image_size=48, classes=4, shortcut=shortcut
    )
    assert model.plan.features == (6, 12, 12)
    assert model(torch.rand(2, 3, 48, 48)).shape == (2, 4)
    rows = {row.layer: row for row in model.summary().rows}
    assert rows["backbone"].shape == (6, 12, 12)
    assert rows["backbone"].multiply_adds == 24 * 24 * 4 * 3 * 9 + 12 * 12 * 6 * 4 * 9


def test_a_features_only_network_carries_a_compact_head_and_its_twin() -> None:
    for name in ("compact-23k", "compact-23k-plain"):
        more = {"capsules": (2, 3)} if name == "compact-23k" else {}
        model = shortcaps.create_model(name, backbone=FeaturesOnly(), channels=3, image_size=24, classes=4, **more)
        assert model(torch.rand(2, 3, 24, 24)).shape == (2, 4)
        assert model.summary().parameters == sum(parameter.numel() for parameter in model.parameters())


def test_a_preset_takes_another_backbone_by_name() -> None:
    model = shortcaps.create_model(
        "baseline", backbone="residual", backbone_settings={"widths": (4, 8), "blocks": (1, 1)}
    )
    assert model.plan.features == (8, 14, 14)
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 10)


class Liar(nn.Conv2d):
    """Says it makes more channels than it does."""

    def __init__(self) -> None:
        super().__init__(1, 4, 3)
        self.out_channels = 5


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: feature_channels(nn.ReLU()), TypeError, "ReLU is no backbone: it should say in `out_channels`"),
        (lambda: create_backbone("stam", 1), ValueError, "unknown backbone 'stam': choose one of"),
        (lambda: create_backbone("stem", 1, depth=3), TypeError, "backbone 'stem' with settings {'depth': 3}"),
        (lambda: create_backbone("stem", 1, width=0), ValueError, "width 0 is too small: it must be at least 1"),
        (lambda: create_backbone("convolutional", 1, strides=(2, 0, 2, 1)), ValueError, "strides 0 is too small"),
        (lambda: create_backbone("convolutional", 1, first_kernel=0), ValueError, "first_kernel 0 is too small"),
        (lambda: create_backbone("residual", 1, blocks=(1, -1, 2)), ValueError, "blocks -1 is too small"),
        (
            lambda: create_backbone("convolutional", 1, widths=(4,)),
            ValueError,
            "give one of each for every convolution",
        ),
        (lambda: create_backbone("residual", 1, widths=(4,)), ValueError, "give one of each for every stage"),
        (lambda: create_backbone("residual", 1, out_indices=(3,)), ValueError, "there are 3 stages, counted from 0"),
        (
            lambda: shortcaps.create_model("compact-23k", backbone=create_backbone("convolutional", 3)),
            ValueError,
            "ConvolutionalBackbone takes images of 3 channels, not 1: create it for 1, or say so with `channels`",
        ),
        (
            lambda: shortcaps.create_model("baseline", backbone=create_backbone("stem", 3)),
            ValueError,
            "Stem takes images of 3 channels, not 1: create it for 1, or say so with `channels`",
        ),
        (
            lambda: shortcaps.create_model("compact-23k", backbone="stem", image_size=4),
            ValueError,
            "image_size 4 is too small: the backbone (Stem) cannot take it (a kernel of 5x5 does not fit into a map of 4x4); "
            "the image needs at least 5",
        ),
        (
            lambda: feature_shapes(Liar(), 1, (9, 9)),
            ValueError,
            "Liar makes feature maps of 4 channels, but promises 5",
        ),
    ],
)
def test_bad_input_names_the_value_and_the_way_out(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call()


def test_a_backbone_of_ones_own_is_used_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BACKBONES, "_parts", dict(BACKBONES._parts))

    @shortcaps.register_backbone("pool")
    class Pool(nn.Module):
        def __init__(self, in_channels: int, factor: int = 2) -> None:
            super().__init__()
            self.out_channels, self.pool = in_channels, nn.AvgPool2d(factor)

        def forward(self, images: Tensor) -> Tensor:
            return self.pool(images)

    assert "pool" in shortcaps.list_backbones("po*")
    model = shortcaps.create_model("compact-23k", backbone="pool", backbone_settings={"factor": 4}, channels=3)
    assert model(torch.rand(2, 3, 28, 28)).shape == (2, 10)
    assert model.summary().rows[0].shape == (3, 7, 7)


@pytest.mark.parametrize("name", ["convolutional", "residual"])
def test_maps_of_our_backbones_have_their_channels_innermost_in_memory(name: str) -> None:
    backbone = create_backbone(name, 3)
    for features in feature_maps(backbone, torch.rand(2, 3, 16, 16)):
        assert features.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["compact-23k", "compact-23k-plain", "compact-160k-plain", "cnn-23k"])
def test_maps_of_images_with_one_channel_lie_channels_last_from_the_first(name: str) -> None:
    model = shortcaps.create_model(name, image_size=28)
    orders = []
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.register_forward_hook(lambda part, given, found: orders.append(found))
    images = torch.rand(2, 1, 28, 28)
    model(images).sum().backward()
    assert len(orders) >= 3
    assert all(found.is_contiguous(memory_format=torch.channels_last) for found in orders)
    assert images.stride() == (784, 784, 28, 1)
