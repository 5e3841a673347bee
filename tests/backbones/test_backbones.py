"""Backbones: what they promise is what they make, and networks of other libraries fit as they are."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

import shortcaps
from shortcaps.backbones import BACKBONES, create_backbone, feature_channels, feature_maps, feature_shapes


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


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("size", [(28, 28), (33, 40)])
def test_every_backbone_makes_the_maps_that_it_promises(name: str, size: tuple[int, int]) -> None:
    backbone = create_backbone(name, 3).eval()
    maps = feature_maps(backbone, torch.rand(2, 3, *size))
    assert tuple(features.shape[1] for features in maps) == feature_channels(backbone)
    assert tuple(tuple(features.shape[1:]) for features in maps) == feature_shapes(backbone, 3, size)


@pytest.mark.parametrize("name", ["convolutional", "residual"])
def test_several_depths_can_be_asked_for(name: str) -> None:
    backbone = create_backbone(name, 1, out_indices=(0, -1))
    shapes = feature_shapes(backbone, 1, (28, 28))
    assert len(shapes) == 2
    assert shapes[0][1] > shapes[1][1]
    deepest = create_backbone(name, 1)
    assert feature_shapes(deepest, 1, (28, 28)) == shapes[1:]


def test_asking_for_shapes_leaves_the_backbone_as_it_was() -> None:
    backbone = create_backbone("convolutional", 1).train()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    feature_shapes(backbone, 1, (28, 28))
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
        (lambda: create_backbone("stem", 1, width=0), ValueError, "width 0 of the stem is too small"),
        (
            lambda: create_backbone("convolutional", 1, widths=(4,)),
            ValueError,
            "give one of each for every convolution",
        ),
        (lambda: create_backbone("residual", 1, widths=(4,)), ValueError, "give one of each for every stage"),
        (lambda: create_backbone("residual", 1, out_indices=(3,)), ValueError, "there are 3 stages, counted from 0"),
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
