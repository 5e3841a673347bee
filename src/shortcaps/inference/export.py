"""A trained network as an ONNX file, checked against PyTorch before it is written."""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import shortcaps
from shortcaps.data import Dataset, sample_images
from shortcaps.errors import RunFault
from shortcaps.files import atomic_write
from shortcaps.inference.evaluate import summarise
from shortcaps.models import CapsuleNetwork

# Batches at which an exported network is compared, and the difference it may show.
CHECKED_BATCHES = (1, 3, 64)
TOLERANCE = 1e-4
OUTPUTS = ("probabilities", "poses")
# Images from which the ranges of activations are learned for int8.
CALIBRATION_IMAGES = 512


@dataclass(frozen=True)
class Exported:
    """The file that was written. `error`: the largest difference from PyTorch's probabilities and poses."""

    file: Path
    bytes: int
    error: float
    latency_ms: float


@dataclass(frozen=True)
class Quantized:
    file: Path
    bytes: int
    latency_ms: float
    accuracy: float
    full_accuracy: float
    images: int


class _Capsules(nn.Module):
    """Probabilities and poses, side by side."""

    def __init__(self, model: CapsuleNetwork) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        capsules = self.model.capsules(images, keep_coefficients=False)
        return capsules.activation, capsules.pose


def to_onnx(model: CapsuleNetwork, metadata: dict[str, Any]) -> bytes:
    """The network as an ONNX program with a free batch size, its input called `images`."""
    # An example of one image would fix the batch at one.
    example = torch.rand(2, model.channels, *model.image_size)
    with _quietly():
        program = torch.onnx.export(
            _Capsules(model).eval(),
            (example,),
            dynamo=True,
            input_names=["images"],
            output_names=list(OUTPUTS),
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            optimize=True,
            verbose=False,
        )
    assert program is not None, "the exporter returns a program unless it is given a file"
    proto = program.model_proto
    for key, value in metadata.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value if isinstance(value, str) else json.dumps(value)
    content: bytes = proto.SerializeToString()
    return content


def export(model: CapsuleNetwork, images: Tensor, target: Path, *, metadata: dict[str, Any] | None = None) -> Exported:
    """Writes the network to `target` if onnxruntime says the same as PyTorch about the images (count, channels, height,
    width), at several batch sizes; raises RunFault if it does not."""
    model = model.cpu().float().eval()
    described = {
        "shortcaps": shortcaps.__version__,
        "class_names": list(model.class_names),
        "routing": model.routing.name,
        **(metadata or {}),
    }
    content = to_onnx(model, described)
    session = _session(content)
    error = largest_difference(model, session, images)
    if not error <= TOLERANCE:
        raise RunFault(
            f"the exported network differs from PyTorch by {error:.1e}, more than {TOLERANCE:.0e}: nothing was written"
        )
    with atomic_write(target) as file:
        file.write(content)
    return Exported(target, len(content), error, latency(session, images))


@torch.no_grad()
def largest_difference(model: CapsuleNetwork, session: Any, images: Tensor) -> float:
    """Over probabilities and poses, at every batch size that is checked. Poses are compared relative to the largest."""
    worst = 0.0
    for batch in CHECKED_BATCHES:
        part = images[torch.arange(batch) % len(images)]
        capsules = model.capsules(part, keep_coefficients=False)
        probabilities, poses = session.run(list(OUTPUTS), {"images": part.numpy()})
        scale = max(1.0, float(capsules.pose.abs().max()))
        differences = (
            float(np.abs(probabilities - capsules.activation.numpy()).max()),
            float(np.abs(poses - capsules.pose.numpy()).max()) / scale,
        )
        if probabilities.shape[0] != batch or any(np.isnan(difference) for difference in differences):
            return float("inf")
        worst = max(worst, *differences)
    return worst


def latency(session: Any, images: Tensor, repeats: int = 50) -> float:
    """Milliseconds for one image, the median."""
    one = {"images": images[:1].numpy()}
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        session.run(list(OUTPUTS), one)
        times.append(time.perf_counter() - started)
    return 1000 * median(times)


def quantize(exported: Path, target: Path, training: Dataset, test: Dataset) -> Quantized:
    """Convolutions and matrix products in int8, their ranges learned from training images; what that costs in accuracy is
    measured on the whole test set."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Images(CalibrationDataReader):
        def __init__(self) -> None:
            self.parts = iter(sample_images(training, CALIBRATION_IMAGES).split(64))

        def get_next(self) -> dict[str, np.ndarray] | None:
            part = next(self.parts, None)
            return None if part is None else {"images": part.numpy()}

    with tempfile.TemporaryDirectory() as folder, _quietly():
        prepared, small = Path(folder, "prepared.onnx"), Path(folder, "small.onnx")
        quant_pre_process(str(exported), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared),
            str(small),
            Images(),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            # Routing divides by small distances, which eight bits cannot tell apart.
            op_types_to_quantize=["Conv", "Gemm"],
        )
        content = small.read_bytes()
    session = _session(content)
    accuracy = summarise(_probabilities(session, test), test).accuracy
    full = summarise(_probabilities(_session(exported.read_bytes()), test), test).accuracy
    with atomic_write(target) as file:
        file.write(content)
    one = test.view(test.images[:1])
    return Quantized(target, len(content), latency(session, one), accuracy, full, len(test))


def _probabilities(session: Any, data: Dataset) -> Tensor:
    parts = [
        torch.from_numpy(session.run(["probabilities"], {"images": data.view(images).numpy()})[0])
        for images in data.images.split(256)
    ]
    return torch.cat(parts)


def _session(content: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporter's remarks about itself."""
    import logging

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
