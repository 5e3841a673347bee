"""Capsule layers as modules, each with its equation.

Between layers, poses are stored as *capsule maps*: (batch, cols, channels, rows, height, width). Left multiplication acts on each column of
a pose by itself, so with the columns next to the batch a capsule layer is an ordinary 2-D operation on (batch·cols, channels·rows,
height, width), and both views are free.
"""

from shortcaps.layers.capsules import ClassCapsules
from shortcaps.layers.conv import CapsuleConvolution
from shortcaps.layers.dropout import CapsuleDropout
from shortcaps.layers.head import CapsuleHead
from shortcaps.layers.local import LocalBlock
from shortcaps.layers.primary import ActivatedPrimaryCapsules, PrimaryCapsules
from shortcaps.layers.shortcut import ShortcutRouting

__all__ = [
    "ActivatedPrimaryCapsules",
    "CapsuleConvolution",
    "CapsuleDropout",
    "CapsuleHead",
    "ClassCapsules",
    "LocalBlock",
    "PrimaryCapsules",
    "ShortcutRouting",
]
