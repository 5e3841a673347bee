"""The network of Sabour et al. (2017), "Dynamic routing between capsules": vector capsules, three iterations, a decoder."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shortcaps.layers import ClassCapsules
from shortcaps.layers.initial import draw_normal
from shortcaps.models.network import Network
from shortcaps.models.plan import Size
from shortcaps.models.registry import register_model
from shortcaps.models.summary import Summary, summary_row
from shortcaps.routing import Dynamic, route, squash

CHANNELS, KERNEL = 256, 9
PRIMARY_CHANNELS, PRIMARY_SIZE, CLASS_SIZE = 32, 8, 16
HIDDEN = (512, 1024)
RECONSTRUCTION_WEIGHT = 0.0005


@register_model("sabour", description="the CapsNet of Sabour et al. (2017), 8.2M parameters at 28x28")
class SabourNetwork(Network):
    """ReLU Conv1 → PrimaryCaps (32 channels of 8-vectors) → DigitCaps (one 16-vector for each class), routed by agreement.

    Unlike the paper's networks it has a separate transformation for each position. In training it reconstructs the image from the
    capsule of the true class: `forward(images, labels)` returns the activations and that error, to be added to the loss.

    Args:
        image_size: Height and width of the images.
        channels: Channels of the images.
        classes: Number of classes.
        iterations: Routing iterations.
    """

    reconstructs = True
    min_image_size = 2 * KERNEL - 1

    def __init__(self, *, image_size: Size, channels: int, classes: int, iterations: int = 3) -> None:
        super().__init__(image_size, channels, classes)
        self.routing = Dynamic(iterations=iterations)
        self.convolution = nn.Conv2d(channels, CHANNELS, KERNEL)
        self.primary = nn.Conv2d(CHANNELS, PRIMARY_CHANNELS * PRIMARY_SIZE, KERNEL, stride=2)
        self.positions = math.prod((side - 2 * (KERNEL - 1) + 1) // 2 for side in image_size)
        inputs = PRIMARY_CHANNELS * self.positions
        # Scaled so that equal shares of squashed vectors of length 1 add up to the scale of one.
        self.transform = nn.Parameter(torch.empty(inputs, classes, CLASS_SIZE, PRIMARY_SIZE))
        draw_normal(self.transform, classes / math.sqrt(inputs * CLASS_SIZE))
        pixels = channels * math.prod(image_size)
        self.decoder = nn.Sequential(
            nn.Linear(classes * CLASS_SIZE, HIDDEN[0]),
            nn.ReLU(),
            nn.Linear(HIDDEN[0], HIDDEN[1]),
            nn.ReLU(),
            nn.Linear(HIDDEN[1], pixels),
            nn.Sigmoid(),
        )

    @property
    def title(self) -> str:
        """What kind of network this is, in a few words."""
        return f"network of Sabour et al. (2017), dynamic routing, {self.routing.iterations} iterations"

    @property
    def body(self) -> tuple[nn.Module, ...]:
        """The modules that extract features: the convolution below the capsules."""
        return (self.convolution,)

    def capsules(self, images: Tensor) -> ClassCapsules:
        """Poses (batch, classes, 16, 1) and activations (batch, classes) of images (batch, channels, height, width) in 0–1."""
        self._check_images(images)
        maps = self.primary(torch.relu(self.convolution(images)))
        vectors = maps.unflatten(1, (PRIMARY_CHANNELS, PRIMARY_SIZE)).movedim(2, -1).flatten(1, 3)
        primary = squash(vectors.unsqueeze(-1)).squeeze(-1)
        votes = torch.einsum("imhk,bik->bimh", self.transform, primary)
        capsules = route(votes, self.routing)
        assert capsules.activation is not None, "it was requested"
        return ClassCapsules(capsules.pose.unsqueeze(-1), capsules.activation)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Classify images and, in training, reconstruct them.

        Args:
            images: (batch, channels, height, width) in 0–1.
            labels: (batch,), the true classes, for the reconstruction; None outside training.

        Returns:
            Activations (batch, classes); with labels, also the weighted reconstruction error, a scalar.
        """
        capsules = self.capsules(images)
        if labels is None:
            return capsules.activation
        drawn = self.draw(capsules.pose, labels)
        error = (drawn - images.flatten(1)).square().sum(1).mean()
        return capsules.activation, RECONSTRUCTION_WEIGHT * error

    def draw(self, pose: Tensor, labels: Tensor) -> Tensor:
        """Reconstruct images from one class capsule each; the other capsules are masked.

        Args:
            pose: (batch, classes, 16, 1).
            labels: (batch,), which capsule to reconstruct from.

        Returns:
            (batch, channels · height · width) in 0–1.
        """
        shown = F.one_hot(labels, self.classes).to(pose.dtype)[..., None, None]
        return self.decoder((pose * shown).flatten(1))

    def summary(self) -> Summary:
        """Layer by layer: shape, parameters, votes, multiply–adds."""
        height, width = (side - KERNEL + 1 for side in self.image_size)
        below = (height - KERNEL) // 2 + 1, (width - KERNEL) // 2 + 1
        votes = self.transform.numel() // PRIMARY_SIZE
        routing = nn.ParameterList([self.transform])
        sweeps = self.routing.sweeps(from_start=False, activates=True)
        rows = [
            summary_row(
                "convolution",
                (CHANNELS, height, width),
                self.convolution,
                multiply_adds=height * width * self.convolution.weight.numel(),
            ),
            summary_row(
                "primary capsules",
                (PRIMARY_CHANNELS, PRIMARY_SIZE, *below),
                self.primary,
                multiply_adds=self.positions * self.primary.weight.numel(),
            ),
            summary_row(
                "class capsules",
                (self.classes, CLASS_SIZE),
                routing,
                votes=votes,
                multiply_adds=votes * (PRIMARY_SIZE + sweeps),
            ),
            summary_row("decoder (training only)", (self.channels, *self.image_size), self.decoder, multiply_adds=0),
        ]
        return Summary.of(self, rows, "votes built in full (each position has its own transformation)")
