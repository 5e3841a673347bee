"""Backbones: from images to feature maps. Capsules, or a plain classifier, stand on top of one.

A backbone is any module that maps images (batch, channels, height, width) to one feature map or a sequence of them, and says how many
channels each has: in an attribute `out_channels`, or as timm's `features_only` networks do, in `feature_info.channels()`.
"""

from shortcaps.backbones.base import (
    BACKBONES,
    create_backbone,
    evaluating,
    feature_channels,
    feature_maps,
    lay_out_channels_last,
    list_backbones,
    read_channels_last,
    register_backbone,
)
from shortcaps.backbones.convolutional import ConvolutionalBackbone
from shortcaps.backbones.residual import ResidualBackbone
from shortcaps.backbones.shapes import feature_shapes
from shortcaps.backbones.stem import Stem

__all__ = [
    "BACKBONES",
    "ConvolutionalBackbone",
    "ResidualBackbone",
    "Stem",
    "create_backbone",
    "evaluating",
    "feature_channels",
    "feature_maps",
    "feature_shapes",
    "lay_out_channels_last",
    "list_backbones",
    "read_channels_last",
    "register_backbone",
]
