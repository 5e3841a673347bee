"""Shape planning: what every layer will see, worked out before anything is built."""

from __future__ import annotations

from dataclasses import dataclass, field

Size = tuple[int, int]


def as_size(image_size: int | Size) -> Size:
    """Height and width; one number stands for both."""
    return (image_size, image_size) if isinstance(image_size, int) else (int(image_size[0]), int(image_size[1]))


@dataclass(frozen=True)
class Architecture:
    """A network of the paper's kind, for any image. The presets are instances of it."""

    capsule_channels: tuple[int, ...] = field(
        metadata={"help": "capsule channels of the primary layer and of each capsule layer but the last"}
    )
    kernels: tuple[int | None, ...] = field(
        default=(3, 3, None),
        metadata={"help": "kernel of each capsule layer; None for the last takes whatever is left"},
    )
    strides: tuple[int, ...] = field(default=(2, 1, 1), metadata={"help": "stride of each capsule layer"})
    stem_channels: int = field(default=64, metadata={"help": "channels of the convolution below the capsules"})
    stem_kernel: int = field(default=5, metadata={"help": "its kernel"})
    stem_stride: int = field(default=2, metadata={"help": "its stride"})
    pose: int = field(default=4, metadata={"help": "P: a pose is a P x P matrix"})
    passes: int = field(default=2, metadata={"help": "how often the shortcuts are gone through, one after another"})
    iterations: int = field(default=2, metadata={"help": "routing iterations in each shortcut or capsule layer"})
    dropout: float = field(default=0.2, metadata={"help": "probability of dropping a primary capsule in training"})

    def __post_init__(self) -> None:
        layers = len(self.capsule_channels)
        if not (layers == len(self.kernels) == len(self.strides)) or layers == 0:
            raise ValueError(
                f"capsule_channels {self.capsule_channels}, kernels {self.kernels} and strides {self.strides}: "
                "give one of each for every capsule layer (the first channels are those of the primary capsules)"
            )
        if None in self.kernels[:-1]:
            raise ValueError(f"kernels {self.kernels}: only the last may be None, which takes whatever is left")
        numbers = {
            "capsule_channels": self.capsule_channels,
            "kernels": self.kernels,
            "strides": self.strides,
            **{
                name: (getattr(self, name),)
                for name in ("stem_channels", "stem_kernel", "stem_stride", "pose", "passes")
            },
        }
        for name, values in numbers.items():
            for value in values:
                if value is not None and value < 1:
                    raise ValueError(f"{name} {value} is too small: it must be at least 1")


@dataclass(frozen=True)
class PlannedLayer:
    """One convolution: what goes in, what comes out."""

    name: str
    in_channels: int
    out_channels: int
    in_size: Size
    out_size: Size
    kernel: Size
    stride: int


@dataclass(frozen=True)
class Plan:
    """An architecture laid out for images of one size: everything a network needs to know to be built."""

    architecture: Architecture
    image_size: Size
    channels: int
    classes: int
    stem: PlannedLayer
    capsule_layers: tuple[PlannedLayer, ...]


def make_plan(architecture: Architecture, image_size: int | Size = 28, channels: int = 1, classes: int = 10) -> Plan:
    """Lays the architecture out, or says which layer fails and what would fit."""
    size = as_size(image_size)
    for name, value in (("image_size", min(size)), ("channels", channels), ("classes", classes)):
        if value < 1:
            raise ValueError(f"{name} {value} is too small: it must be at least 1")
    smallest = _smallest_image(architecture)
    shown = str(size[0]) if size[0] == size[1] else f"{size[0]}x{size[1]}"

    def convolve(name: str, in_size: Size, kernel: Size, stride: int) -> Size:
        if in_size[0] < kernel[0] or in_size[1] < kernel[1]:
            raise ValueError(
                f"image_size {shown} is too small: {name} with kernel {kernel[0]} gets only "
                f"{in_size[0]}x{in_size[1]}; the image needs at least {smallest} "
                f"(strides {', '.join(map(str, (architecture.stem_stride, *architecture.strides)))})"
            )
        return (in_size[0] - kernel[0]) // stride + 1, (in_size[1] - kernel[1]) // stride + 1

    stem_kernel = (architecture.stem_kernel, architecture.stem_kernel)
    stem_size = convolve("the stem", size, stem_kernel, architecture.stem_stride)
    stem = PlannedLayer(
        "stem", channels, architecture.stem_channels, size, stem_size, stem_kernel, architecture.stem_stride
    )

    layers: list[PlannedLayer] = []
    out_channels = (*architecture.capsule_channels[1:], classes)
    in_size = stem_size
    for number, side in enumerate(architecture.kernels):
        kernel = in_size if side is None else (side, side)
        name, stride = f"capsule layer {number + 1}", architecture.strides[number]
        out_size = convolve(name, in_size, kernel, stride)
        layers.append(
            PlannedLayer(
                name, architecture.capsule_channels[number], out_channels[number], in_size, out_size, kernel, stride
            )
        )
        in_size = out_size
    if in_size != (1, 1):
        left = layers[-1].in_size
        raise ValueError(
            f"kernel {architecture.kernels[-1]} of {layers[-1].name} leaves {in_size[0]}x{in_size[1]} class capsules "
            f"instead of one: it must cover {left[0]}x{left[1]}; use None, which takes whatever is left"
        )
    return Plan(architecture, size, channels, classes, stem, tuple(layers))


def _smallest_image(architecture: Architecture) -> int:
    """The smallest image side for which every layer has at least one position."""
    side = 1
    kernels = (architecture.stem_kernel, *(kernel or 1 for kernel in architecture.kernels))
    for kernel, stride in zip(
        reversed(kernels), reversed((architecture.stem_stride, *architecture.strides)), strict=True
    ):
        side = (side - 1) * stride + kernel
    return side
