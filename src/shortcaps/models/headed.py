"""Networks from a backbone and a head: class capsules, or their plain twin, a mean and a linear layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from shortcaps.backbones import feature_channels, feature_maps
from shortcaps.layers import CapsuleHead, ClassCapsules, ShortcutRouting
from shortcaps.models.network import CapsuleNetwork, Network, full_precision_logits
from shortcaps.models.plan import Size, plan_features
from shortcaps.models.summary import Summary, SummaryRow, module_row, routing_multiply_adds, summary_row
from shortcaps.routing.paths import describe_path


class HeadNetwork(CapsuleNetwork):
    """A backbone and a `CapsuleHead`. It takes images of any size, as no weight depends on it.

    Args:
        backbone: Any backbone.
        head: A head for the backbone's feature maps.
        image_size: Height and width of the images that summary and export assume.
        channels: Channels of the images.

    Raises:
        ValueError: The head was made for other feature maps, or the backbone for larger images or other channels.
    """

    shortcut = True
    takes_any_size = True

    def __init__(self, backbone: nn.Module, head: CapsuleHead, *, image_size: Size, channels: int) -> None:
        super().__init__(image_size, channels, head.classes, head.routing, head.path)
        if head.in_channels != feature_channels(backbone):
            raise ValueError(
                f"the head takes feature maps of {', '.join(map(str, head.in_channels))} channels, but the backbone makes "
                f"{', '.join(map(str, feature_channels(backbone)))}"
            )
        self._backbone_shapes = plan_features(backbone, image_size, channels)
        self.backbone = backbone
        self.head = head

    @property
    def title(self) -> str:
        """What kind of network this is, in a few words."""
        return f"capsule head on {type(self.backbone).__name__}, {self.routing.name} routing"

    def _capsules(self, images: Tensor, keep_coefficients: bool) -> ClassCapsules:
        return self.head.capsules(feature_maps(self.backbone, images), keep_coefficients=keep_coefficients)

    def summary(self) -> Summary:
        """Layer by layer: shape, parameters, the votes a plain implementation would have built, multiply–adds."""
        size, passes = self.head.pose, self.head.passes
        shapes = self._backbone_shapes
        rows = [module_row("backbone", self.backbone, (self.channels, *self.image_size))]
        for shape, primary, channels in zip(shapes, self.head.primary, self.head.channels, strict=True):
            rows.append(module_row("capsules", primary, shape, (channels, size, size, *shape[1:])))
        shortcuts = cast("Iterable[ShortcutRouting]", self.head.shortcuts)
        for number, (shape, channels, shortcut) in enumerate(zip(shapes, self.head.channels, shortcuts, strict=True)):
            rows.append(self._routing_row(number, shape, channels, shortcut, passes))
        if self.head.pose_weight is not None and self.head.pose_bias is not None:
            readout = nn.ParameterList([self.head.pose_weight, self.head.pose_bias])
            rows.append(summary_row("readout", (self.classes,), readout, multiply_adds=self.head.pose_weight.numel()))
        return Summary.of(self, rows, describe_path(self.path, self.routing))

    def _routing_row(
        self, number: int, shape: tuple[int, int, int], channels: int, shortcut: ShortcutRouting, passes: int
    ) -> SummaryRow:
        size, depth = self.head.pose, len(self.head.channels)
        votes = channels * shape[1] * shape[2] * self.classes * size**2
        sweeps = 0
        for turn in range(passes):
            last = turn == passes - 1 and number == depth - 1
            sweeps += self.routing.sweeps(from_start=turn > 0 or number > 0, activates=last)
        name = "class capsules" if depth == 1 else f"shortcut {number + 1}"
        multiply_adds = routing_multiply_adds(votes, size, sweeps)
        return summary_row(name, (self.classes, size, size), shortcut, votes=votes, multiply_adds=multiply_adds)


OUTPUTS: dict[str, Callable[[Tensor], Tensor]] = {"softmax": partial(torch.softmax, dim=-1), "sigmoid": torch.sigmoid}
"""What a plain network makes of its logits, by name."""


class PlainNetwork(Network):
    """A backbone, the mean over all positions of its deepest feature map, a linear layer and softmax or sigmoids: the twin of a `HeadNetwork`.

    The mean makes it insensitive to where something lies; a flattened map would not be, and would be a weaker opponent.

    Args:
        backbone: Any backbone.
        image_size: Height and width of the images that summary and export assume.
        channels: Channels of the images.
        classes: Number of classes.
        outputs: `softmax` for probabilities, which sum to 1, or `sigmoid` for outputs each in 0–1 by itself, as activations of capsules are.

    Raises:
        ValueError: There are no such outputs, or the backbone was made for larger images or other channels.
    """

    takes_any_size = True

    def __init__(
        self, backbone: nn.Module, *, image_size: Size, channels: int, classes: int, outputs: str = "softmax"
    ) -> None:
        super().__init__(image_size, channels, classes)
        if outputs not in OUTPUTS:
            raise ValueError(f"unknown outputs {outputs!r}: choose {' or '.join(OUTPUTS)}")
        self.outputs, self.sums_to_one = outputs, outputs == "softmax"
        self._backbone_shapes = plan_features(backbone, image_size, channels)
        self.backbone = backbone
        self.classify = nn.Linear(feature_channels(backbone)[-1], classes)

    @property
    def title(self) -> str:
        """What kind of network this is, in a few words."""
        return f"mean, linear layer and {self.outputs} on {type(self.backbone).__name__}"

    def forward(self, images: Tensor) -> Tensor:
        """Outputs in 0–1 (batch, classes), which sum to 1 unless they are sigmoids, of images (batch, channels, height, width) in 0–1."""
        return OUTPUTS[self.outputs](full_precision_logits(self.classify, self.features(images)))

    def features(self, images: Tensor) -> Tensor:
        """What the linear layer sees, (batch, features), of images (batch, channels, height, width) in 0–1."""
        self._check_images(images)
        return feature_maps(self.backbone, images)[-1].mean((2, 3))

    def summary(self) -> Summary:
        """Layer by layer: shape, parameters, multiply–adds."""
        rows = [
            module_row("backbone", self.backbone, (self.channels, *self.image_size)),
            summary_row("classes", (self.classes,), self.classify, multiply_adds=self.classify.weight.numel()),
        ]
        return Summary.of(self, rows, "PyTorch's own convolutions")
