"""What is measured: a network, the path its votes take, and the size of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shortcaps.backbones import feature_maps
from shortcaps.losses import spread_loss
from shortcaps.models import CapsuleNetwork, create_model

BENCH_PATHS = {
    "dense": "votes built in full, the reference",
    "factored": "votes never built, PyTorch's own operators",
    "fused": "votes never built, native code",
    "compiled": "factored, through torch.compile",
}
BACKBONE = "backbone"
"""Instead of a path: only the part below the capsules, the stem and the primary convolution."""

Step = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    Attributes:
        network: Name of one of the paper's networks.
        shortcut: Whether it has shortcuts.
        routing: Name of the routing.
        path: One of `BENCH_PATHS`, or `BACKBONE`.
        batch: Images in a batch.
        image_size: Side of the images.
        classes: Number of classes.
        channels: Capsule channels of every layer, instead of the network's own.
        iterations: Routing iterations, instead of the network's own.
    """

    network: str = "baseline"
    shortcut: bool = True
    routing: str = "fuzzy"
    path: str = "fused"
    batch: int = 128
    image_size: int = 28
    classes: int = 10
    channels: int | None = None
    iterations: int | None = None

    @property
    def family(self) -> str:
        """`shortcut` or `sequential`."""
        return "shortcut" if self.shortcut else "sequential"

    def __str__(self) -> str:
        return f"{self.network} {self.family} {self.routing}, {self.path}, batch {self.batch}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def model(self) -> CapsuleNetwork:
        """The network, with weights from a fixed seed."""
        torch.manual_seed(0)
        changes: dict[str, Any] = {}
        if self.channels is not None:
            changes["capsule_channels"] = (self.channels,) * 3
        if self.iterations is not None:
            changes["iterations"] = self.iterations
        path = {"compiled": "factored", BACKBONE: "auto"}.get(self.path, self.path)
        model = create_model(
            self.network,
            routing=self.routing,
            shortcut=self.shortcut,
            image_size=self.image_size,
            classes=self.classes,
            path=path,
            **changes,
        )
        assert isinstance(model, CapsuleNetwork), "only these are measured"
        return model

    def batch_of_images(self) -> tuple[Tensor, Tensor]:
        """Random images (batch, 1, height, width) and labels (batch,), from a fixed seed."""
        generator = torch.Generator().manual_seed(0)
        images = torch.rand(self.batch, 1, self.image_size, self.image_size, generator=generator)
        return images, torch.randint(self.classes, (self.batch,), generator=generator)

    def training_step(self, device: str) -> Step:
        """Forward, backward and Adam, as in training."""
        model = self.model().to(device)
        images, labels = (tensor.to(device) for tensor in self.batch_of_images())
        if self.path == BACKBONE:
            return _backbone_step(model, images)
        run: Callable[[Tensor], Tensor] = torch.compile(model) if self.path == "compiled" else model
        optimizer = torch.optim.Adam(model.parameters(), fused=True)

        def step() -> None:
            optimizer.zero_grad()
            spread_loss(run(images), labels).backward()
            optimizer.step()

        return step

    def inference(self, device: str) -> Step:
        """Forward, without gradients."""
        model = self.model().to(device).eval()
        images, _ = self.batch_of_images()
        images = images.to(device)
        if self.path == BACKBONE:
            below = _backbone(model)
            return torch.inference_mode()(lambda: below(images))
        run: Callable[[Tensor], Tensor] = torch.compile(model) if self.path == "compiled" else model
        return torch.inference_mode()(lambda: run(images))


def _backbone(model: CapsuleNetwork) -> Callable[[Tensor], Tensor]:
    """Backbone and primary convolutions of a network, without the capsules above."""

    def below(images: Tensor) -> Tensor:
        features = model.primary(feature_maps(model.backbone, images)[-1])  # type: ignore[operator]  # every network of the paper's has one
        return features[0] if isinstance(features, tuple) else features

    return below


def _backbone_step(model: CapsuleNetwork, images: Tensor) -> Step:
    assert isinstance(model.primary, nn.Module)
    parameters = [*model.backbone.parameters(), *model.primary.parameters()]
    optimizer = torch.optim.Adam(parameters, fused=True)
    below = _backbone(model)
    # Stands for the gradient from the capsules, so that the backbone is not charged for a loss.
    gradient = torch.randn_like(below(images))

    def step() -> None:
        optimizer.zero_grad()
        below(images).backward(gradient)
        optimizer.step()

    return step
