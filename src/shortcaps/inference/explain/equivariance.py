"""Do poses follow the image? How much of the effect of a transformation on them is one linear map, the same for all images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shortcaps.inference.explain.transform import transformed
from shortcaps.models import CapsuleNetwork

# Transformations that are small enough for nearly every image to keep its class.
PROBES: dict[str, tuple[float, ...]] = {
    "rotation": (-20.0, -10.0, 10.0, 20.0),
    "scale": (0.8, 0.9, 1.1, 1.2),
    "shear": (-0.2, -0.1, 0.1, 0.2),
    "shift_x": (-2.0, -1.0, 1.0, 2.0),
    "shift_y": (-2.0, -1.0, 1.0, 2.0),
}
# See `images_needed`.
IMAGES_PER_NUMBER = 8


@dataclass(frozen=True)
class EquivarianceScore:
    """How well poses follow the image.

    Attributes:
        score: The share of the poses' change that linear maps explain on images they were not fitted to; 1 is all of it, 0 is no
            better than predicting an unchanged pose, and below 0 is worse.
        by_transformation: The same for each transformation.
        movement: How far poses move, relative to their length. A pose that does not move has nothing to explain.
        images: Number of images, for fitting and testing together.
    """

    score: float
    by_transformation: dict[str, float]
    movement: dict[str, float]
    images: int


def images_needed(model: CapsuleNetwork) -> int:
    """The smallest number of images that an equivariance score says something with.

    A map between poses of n numbers has n columns of n numbers, each fitted to half of the images; with few images for each number the
    maps fit those images and no others, and the score says more about the sample than about the network: for the network that comes with the
    package, with poses of 16 numbers, it ran from -0.48 to 0.44 over six samples of 64 test images, and from 0.38 to 0.49 over six of 128. It
    still grows with the number of images (0.70 with 1,600), so compare scores of equally many (results/LOG.md).
    """
    return IMAGES_PER_NUMBER * _pose_numbers(model)


def _pose_numbers(model: CapsuleNetwork) -> int:
    """How many numbers a class pose of the network has."""
    with torch.no_grad():
        parameter = next(model.parameters(), None)
        blank = torch.zeros(1, model.channels, *model.image_size)
        blank = blank if parameter is None else blank.to(parameter)
        return model.capsules(blank, keep_coefficients=False).pose[0, 0].numel()


@torch.no_grad()
def equivariance_score(
    model: CapsuleNetwork, images: Tensor, *, ridge: float = 1e-2, batch_size: int = 256
) -> EquivarianceScore:
    """Measure equivariance: that a transformation t of the image acts on the pose by a linear map, `pose(t x) = A_t pose(x)`.

    For every probe, A_t is fitted by ridge regression to half of the images (batch, channels, height, width) and tested on
    the other half: `score = 1 - Σ‖pose(t x) - A_t pose(x)‖² / Σ‖pose(t x) - pose(x)‖²`. Poses are those of the class
    that wins on the original image, divided by their root mean square, so that networks can be compared.

    Args:
        model: A network with capsules.
        images: (count, channels, height, width) in 0–1, at least `images_needed`.
        ridge: Strength of the regularisation, as a share of the poses' mean square.
        batch_size: Images per batch.

    Raises:
        ValueError: There are too few images.
    """
    winners, still = _poses(model, images, batch_size)
    needed = IMAGES_PER_NUMBER * still.shape[1]
    if len(images) < needed:
        raise ValueError(
            f"{len(images)} images are too few to fit maps to half of them and test them on the others: give at least {needed}"
        )
    unit = still.square().sum(1).mean().sqrt().clamp_min(1e-12)
    still = still / unit
    half = len(images) // 2
    left, changed, moved = {}, {}, {}
    for name, values in PROBES.items():
        left[name] = changed[name] = 0.0
        for value in values:
            arguments = {name: value}
            _, poses = _poses(model, transformed(images, **arguments), batch_size, winners)
            poses = poses / unit
            change = poses - still
            # The map is the identity plus a correction, and it is the correction that is kept small.
            correction = _ridge(still[:half], change[:half], ridge)
            left[name] += float((change[half:] - still[half:] @ correction).square().sum())
            changed[name] += float(change[half:].square().sum())
        count = len(values) * (len(images) - half)
        moved[name] = (changed[name] / count) ** 0.5
    by_name = {name: 1 - left[name] / max(changed[name], 1e-12) for name in PROBES}
    total = 1 - sum(left.values()) / max(sum(changed.values()), 1e-12)
    return EquivarianceScore(total, by_name, moved, len(images))


def _poses(
    model: CapsuleNetwork, images: Tensor, batch_size: int, classes: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The classes that win, or those given, and their poses (batch, rows·cols) in double precision."""
    winners, poses = [], []
    for number, part in enumerate(images.split(batch_size)):
        capsules = model.capsules(part, keep_coefficients=False)
        chosen = (
            capsules.activation.argmax(1)
            if classes is None
            else classes[number * batch_size : number * batch_size + len(part)]
        )
        winners.append(chosen)
        poses.append(capsules.pose[torch.arange(len(part), device=part.device), chosen].flatten(1).double())
    return torch.cat(winners), torch.cat(poses)


def _ridge(x: Tensor, y: Tensor, strength: float) -> Tensor:
    """The matrix W that makes `‖x W - y‖² + strength · mean(x²) · count · ‖W‖²` smallest."""
    moments = x.mT @ x
    weight = strength * moments.diagonal().mean().clamp_min(1e-12)  # poses may all be zero
    return torch.linalg.solve(moments + weight * torch.eye(len(moments), dtype=x.dtype, device=x.device), x.mT @ y)
