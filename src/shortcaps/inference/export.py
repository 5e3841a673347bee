"""Export of trained networks to ONNX files, checked against PyTorch before they are written."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shortcaps.data import Dataset
from shortcaps.errors import RunFault
from shortcaps.files import atomic_write, to_json
from shortcaps.inference.evaluate import summarise
from shortcaps.models import CapsuleNetwork, Network, as_probabilities

# Batch sizes at which an exported network is compared, and the largest difference allowed.
_CHECKED_BATCHES = (1, 3, 64)
_TOLERANCE = 1e-4
OVERSHOOT = 0.1
"""How far outside 0–1 a pixel may be to be clipped; with more, the image is refused."""
# Number of images that the ranges of activations are estimated from for int8.
CALIBRATION_IMAGES = 512


@dataclass(frozen=True)
class Exported:
    """An ONNX file that was written.

    Attributes:
        file: Its path.
        bytes: Its size.
        error: The largest difference from PyTorch.
        latency_ms: Time for one image in onnxruntime, in milliseconds.
    """

    file: Path
    bytes: int
    error: float
    latency_ms: float


@dataclass(frozen=True)
class Quantized:
    """An int8 ONNX file that was written.

    Attributes:
        file: Its path.
        bytes: Its size.
        latency_ms: Time for one image in onnxruntime, in milliseconds.
        calibrated_on: Number of images that the ranges of activations were estimated from.
        agreement: Share of those images for which it gives the same answer as the file it was made from.
        accuracy: On the test set, as a fraction; None without one.
        full_accuracy: The same for the file it was made from.
        images: Number of test images.
    """

    file: Path
    bytes: int
    latency_ms: float
    calibrated_on: int
    agreement: float
    accuracy: float | None = None
    full_accuracy: float | None = None
    images: int = 0


class _Outputs(nn.Module):
    """The outputs of an exported network, in the order of `_output_names`.

    A graph cannot raise an error. So an image that is not in 0–1, such as one in 0–255 or normalised, gets an answer that nobody takes for
    one: not a number. What resampling leaves a little outside is clipped.
    """

    def __init__(self, model: Network) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        # Number by number: the least and the largest of an ONNX runtime may pass over what is not a number.
        is_in_range = ((images >= -OVERSHOOT) & (images <= 1 + OVERSHOOT)).flatten(1).all(1)
        return tuple(
            torch.where(is_in_range.reshape(-1, *[1] * (output.ndim - 1)), output, torch.nan)
            for output in self._answers(images.clamp(0, 1))
        )

    def _answers(self, images: Tensor) -> tuple[Tensor, ...]:
        if isinstance(self.model, CapsuleNetwork):
            capsules = self.model.capsules(images, keep_coefficients=False)
            return capsules.activation, as_probabilities(capsules.activation), capsules.pose
        activations = self.model(images)
        return activations, as_probabilities(activations)


def _output_names(model: Network) -> tuple[str, ...]:
    """Names of the outputs: activations, each in 0–1 by itself; probabilities, which sum to 1; poses if the network has any."""
    return (
        ("activations", "probabilities", "poses")
        if isinstance(model, CapsuleNetwork)
        else ("activations", "probabilities")
    )


def to_onnx(model: Network, metadata: dict[str, Any]) -> bytes:
    """Convert a network to an ONNX program with a free batch size, whose input is called `images`.

    Args:
        model: Any network, on the CPU.
        metadata: Kept in the file; values other than strings are stored as JSON.

    Returns:
        The contents of the file.
    """
    # An example of one image would fix the batch at one.
    example = torch.rand(2, model.channels, *model.image_size)
    with _quietly():
        program = torch.onnx.export(
            _Outputs(model).eval(),
            (example,),
            dynamo=True,
            input_names=["images"],
            output_names=list(_output_names(model)),
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            optimize=True,
            verbose=False,
        )
    assert program is not None, "the exporter returns a program unless it is given a file"
    proto = program.model_proto
    for key, value in metadata.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value if isinstance(value, str) else to_json(value, indent=None)
    content: bytes = proto.SerializeToString()
    return content


def export(model: Network, images: Tensor, target: Path, *, metadata: dict[str, Any] | None = None) -> Exported:
    """Write a network as an ONNX file, if onnxruntime agrees with PyTorch.

    Args:
        model: Any network.
        images: (count, channels, height, width) in 0–1, on which the two are compared, at several batch sizes.
        target: The file.
        metadata: Further metadata, besides version, class names and routing.

    Raises:
        RunFault: They disagree; nothing was written.
    """
    model = model.cpu().float().eval()
    described = {
        "shortcaps": version("shortcaps"),
        "class_names": list(model.class_names),
        **({"routing": model.routing.name} if isinstance(model, CapsuleNetwork) else {}),
        **(metadata or {}),
    }
    content = to_onnx(model, described)
    session = _session(content)
    error = largest_difference(model, session, images)
    if not error <= _TOLERANCE:
        raise RunFault(
            f"the exported network differs from PyTorch by {error:.1e}, more than {_TOLERANCE:.0e}: nothing was written"
        )
    with atomic_write(target) as file:
        file.write(content)
    return Exported(target, len(content), error, latency(session, images))


@torch.no_grad()
def largest_difference(model: Network, session: Any, images: Tensor) -> float:
    """The largest difference over all outputs and batch sizes; poses are compared relative to the largest number.

    Args:
        model: The network in PyTorch.
        session: The same in onnxruntime.
        images: (count, channels, height, width).
    """
    worst = 0.0
    for batch in _CHECKED_BATCHES:
        part = images[torch.arange(batch) % len(images)]
        expected = _Outputs(model)(part)
        found = session.run(list(_output_names(model)), {"images": part.numpy()})
        for ours, theirs in zip(expected, found, strict=True):
            scale = max(1.0, float(ours.abs().max()))
            difference = float(np.abs(theirs - ours.numpy()).max()) / scale
            if theirs.shape[0] != batch or np.isnan(difference):
                return float("inf")
            worst = max(worst, difference)
    return worst


def latency(session: Any, images: Tensor, repeats: int = 50) -> float:
    """Median time for one image, in milliseconds."""
    one = {"images": images[:1].numpy()}
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        session.run(None, one)
        times.append(time.perf_counter() - started)
    return 1000 * median(times)


def quantize(exported: Path, target: Path, calibration: Tensor, test: Dataset | None = None) -> Quantized:
    """Convert the convolutions and matrix products of an ONNX file to int8, and measure what that changes.

    Args:
        exported: The ONNX file.
        target: Where to write the int8 file.
        calibration: (count, channels, height, width) in 0–1, where the ranges of activations are estimated.
        test: Where both files are tested, on all images; None if there is none.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Images(CalibrationDataReader):
        def __init__(self) -> None:
            self.parts = iter(calibration.split(64))

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
    small_session, full_session = _session(content), _session(exported.read_bytes())
    answers = [_activations(session, calibration.split(64)).argmax(1) for session in (small_session, full_session)]
    agreement = float((answers[0] == answers[1]).double().mean())
    with atomic_write(target) as file:
        file.write(content)
    time_ms = latency(small_session, calibration)
    done = Quantized(target, len(content), time_ms, len(calibration), agreement)
    if test is None:
        return done
    accuracies = [_accuracy(session, test) for session in (small_session, full_session)]
    return replace(done, accuracy=accuracies[0], full_accuracy=accuracies[1], images=len(test))


def _activations(session: Any, batches: Iterable[Tensor]) -> Tensor:
    """Activations (count, classes) of images, a batch at a time."""
    return torch.cat([torch.from_numpy(session.run(["activations"], {"images": part.numpy()})[0]) for part in batches])


def _accuracy(session: Any, data: Dataset) -> float:
    shown = (data.view(images[:]) for images in data.images.split(256))
    return summarise(_activations(session, shown), data).accuracy


def _session(content: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporter's warnings about itself."""
    import logging

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
