"""The native library: loads it, if it was built, and calls it with tensors."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from shortcaps.kernels.checks import DTYPES

LIBRARY = Path(__file__).parent / "_native.so"
_DISABLE = "SHORTCAPS_NO_NATIVE"
# As in routing.h. Every entry point returns 0, or what went wrong.
_UNKNOWN_KIND, _OUT_OF_MEMORY = -1, -2


class RoutingProblem(ctypes.Structure):
    """The struct of that name in `routing.h`, field by field."""

    _fields_ = (
        [
            (name, ctypes.c_int64)
            for name in ("kind", "iterations", "activate", "keep_state", "threads", "is_double", "rectified")
        ]
        + [(name, ctypes.c_int64) for name in ("batch", "groups", "members", "outputs", "rows", "cols")]
        + [("pose_strides", ctypes.c_int64 * 5)]
        + [(name, ctypes.c_double) for name in ("softness", "sharpness", "floor")]
        + [
            (name, ctypes.c_void_p)
            for name in (
                "poses",
                "transforms",
                "start",
                "activations",
                "beta",
                "beta_use",
                "readout",
                "readout_bias",
                "pose",
                "activation",
                "state",
            )
        ]
        + [
            (name, ctypes.c_void_p)
            for name in (
                "pose_grad",
                "activation_grad",
                "poses_grad",
                "transforms_grad",
                "start_grad",
                "activations_grad",
                "beta_grad",
                "beta_use_grad",
                "readout_grad",
                "readout_bias_grad",
            )
        ]
    )


class LocalProblem(ctypes.Structure):
    """The struct of that name in `local.h`, field by field."""

    _fields_ = (
        [(name, ctypes.c_int64) for name in ("threads", "is_double")]
        + [(name, ctypes.c_int64) for name in ("batch", "cols", "channels", "rows", "height", "width")]
        + [(name, ctypes.c_int64) for name in ("kernel_height", "kernel_width", "stride", "out_height", "out_width")]
        + [("map_strides", ctypes.c_int64 * 6)]
        + [
            (name, ctypes.c_void_p)
            for name in ("maps", "transform", "scale", "out", "out_grad", "maps_grad", "transform_grad")
        ]
    )


class MixProblem(ctypes.Structure):
    """The struct of that name in `local.h`, field by field."""

    _fields_ = [
        (name, ctypes.c_int64) for name in ("threads", "is_double", "cols", "in_channels", "out_channels", "numbers")
    ] + [(name, ctypes.c_void_p) for name in ("mix", "maps", "out", "out_grad", "maps_grad", "mix_grad")]


class SquashProblem(ctypes.Structure):
    """The struct of that name in `local.h`, field by field."""

    _fields_ = [
        (name, ctypes.c_int64) for name in ("threads", "is_double", "outer", "cols", "channels", "rows", "places")
    ] + [(name, ctypes.c_void_p) for name in ("poses", "out", "out_grad", "poses_grad")]


PROBLEMS: dict[str, type[ctypes.Structure]] = {
    "route": RoutingProblem,
    "local": LocalProblem,
    "mix": MixProblem,
    "squash": SquashProblem,
}


def source_digest() -> str:
    """SHA-256 of the source files that come with the package; `setup.py` puts the same into the library."""
    files = sorted(file for file in LIBRARY.parent.iterdir() if file.suffix in (".h", ".cpp"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _load() -> ctypes.CDLL | str:
    """The native library, or why there is none: not built, not matching, or disabled by SHORTCAPS_NO_NATIVE=1."""
    if os.environ.get(_DISABLE, "") not in ("", "0"):
        return f"disabled by {_DISABLE}"
    if not LIBRARY.exists():
        return "not built (a C++ compiler at install time builds it)"
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        return f"not available on this platform ({error})"
    source = getattr(library, "shortcaps_source", None)
    if source is not None:
        source.restype = ctypes.c_char_p
    if source is None or source().decode() != source_digest():
        return "built from other source files than these (reinstall the package)"
    library.shortcaps_problem_sizes.restype = ctypes.c_int64
    if library.shortcaps_problem_sizes() != reduce(
        lambda sizes, kind: sizes * 1000 + ctypes.sizeof(kind), PROBLEMS.values(), 0
    ):
        return "built with a different memory layout than Python expects (see PROBLEMS in kernels/library.py)"
    library.shortcaps_variant.restype = ctypes.c_char_p
    library.shortcaps_routing_kinds.restype = ctypes.c_int64
    library.shortcaps_route_state_size.restype = ctypes.c_int64
    library.shortcaps_route_state_size.argtypes = [ctypes.POINTER(RoutingProblem)]
    for name, problem in PROBLEMS.items():
        for direction in ("forward", "backward"):
            function = getattr(library, f"shortcaps_{name}_{direction}")
            function.restype, function.argtypes = ctypes.c_int64, [ctypes.POINTER(problem)]
    return library


# Loaded once, on import: a compiled network must not look for files while it is traced.
_LOADED = _load()
_LIBRARY = None if isinstance(_LOADED, str) else _LOADED
AVAILABLE = _LIBRARY is not None


def native() -> ctypes.CDLL | None:
    """The native library, or None."""
    return _LIBRARY


def call(name: str, problem: ctypes.Structure) -> None:
    """Solve a problem with an entry point of the library, e.g. `route_forward`.

    Raises:
        RuntimeError: There is no library, it has no kernel for the problem, or there is not enough memory; the last with the words of
            PyTorch's own error, `DefaultCPUAllocator: can't allocate memory`.
    """
    if _LIBRARY is None:
        raise RuntimeError(f"{name} needs the native library, which is {description()}")
    code = getattr(_LIBRARY, f"shortcaps_{name}")(problem)
    if code == _UNKNOWN_KIND:
        raise RuntimeError(
            f"the native library has no kernel for routing kind {problem.kind}: "
            f"it has the kinds 0 to {_LIBRARY.shortcaps_routing_kinds() - 1}"
        )
    if code == _OUT_OF_MEMORY:
        raise RuntimeError(
            f"DefaultCPUAllocator: can't allocate memory: {name} of the native library needs more than there is; "
            "try a smaller batch or fewer threads"
        )
    if code:
        raise RuntimeError(f"{name} of the native library failed with code {code}")


def description() -> str:
    """The instruction set and threads of the native path, or why there is none, in words."""
    if isinstance(_LOADED, str):
        return _LOADED
    return f"{_LOADED.shortcaps_variant().decode()}, {torch.get_num_threads()} threads"


def accepts(*tensors: Tensor) -> bool:
    """Whether the native library is available and can compute with these tensors.

    An exported program has to run without this package, so tracing for export goes through PyTorch's own operators.
    """
    dtype = tensors[0].dtype
    if not AVAILABLE or dtype not in DTYPES:
        return False
    for tensor in tensors:  # a loop, here and below: what `all` takes to begin, a single image notices
        if tensor.dtype != dtype or tensor.device.type != "cpu":
            return False
    return not torch.compiler.is_exporting() and not torch.jit.is_tracing()  # type: ignore[attr-defined]


def needs_grad(*tensors: Tensor | None) -> bool:
    """Whether a gradient will be needed through what is computed from these tensors."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _carries_tangents(*tensors: Tensor | None) -> bool:
    # Outside of a dual level, nearly always, no tensor has one: for a single image it is worth not asking each.
    if getattr(forward_ad, "_current_level", 0) < 0:
        return False
    return any(tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def is_transformed(*tensors: Tensor | None) -> bool:
    """Whether a transform of `torch.func` (grad, vmap, jvp, …) or forward-mode differentiation is at work on these tensors."""
    if _carries_tangents(*tensors):
        return True
    if torch.compiler.is_compiling():  # the compiler takes such transforms apart itself
        return False
    return any(tensor is not None and torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor in tensors)


def is_plain(*tensors: Tensor | None) -> bool:
    """Whether nothing is traced and no derivative will be needed."""
    for tensor in tensors:
        if tensor is not None and type(tensor) not in (Tensor, torch.nn.Parameter):
            return False
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False  # a dispatch mode, such as that of make_fx, would not see a call of native code
    return not needs_grad(*tensors) and not is_transformed(*tensors)


def refuse_transforms(*tensors: Tensor | None) -> None:
    """Raise NotImplementedError for forward-mode derivatives (jvp), which PyTorch would silently drop, and for transforms of `torch.func`."""
    if _carries_tangents(*tensors):
        raise NotImplementedError(
            "native code has no forward-mode derivatives (jvp): use path='dense', which PyTorch differentiates"
        )
    if is_transformed(*tensors):
        raise NotImplementedError("native code has no transforms of torch.func: use path='dense' or path='auto'")


def refuse_second_derivatives(ctx: object, *gradients: object) -> None:
    """The backward pass of a native backward pass: raises NotImplementedError."""
    raise NotImplementedError(
        "native code has no second derivatives (double backward, create_graph=True): use path='factored' or path='dense', "
        "which PyTorch differentiates"
    )


def choose(direct: Callable[..., Any], operator: Callable[..., Any], *tensors: Tensor | None) -> Callable[..., Any]:
    """The function itself if PyTorch need not know of the call, otherwise the operator registered for it.

    For a single image, PyTorch's bookkeeping takes as long as the work.
    """
    if is_plain(*tensors):
        return direct
    refuse_transforms(*tensors)
    return operator


def without_gaps(tensor: Tensor) -> Tensor:
    """The tensor unchanged, in whatever memory order it has, unless it overlaps itself or has gaps: then a contiguous copy."""
    like = torch.empty_like(tensor)
    same = all(a == b for a, b, size in zip(like.stride(), tensor.stride(), tensor.shape, strict=True) if size > 1)
    return tensor if same else tensor.contiguous()


def address(tensor: Tensor | None) -> int | None:
    """The address of a tensor's numbers; None if there are none.

    Raises:
        ValueError: The tensor is not on the CPU.
    """
    if tensor is None or tensor.numel() == 0:
        return None
    if not tensor.is_cpu:
        raise ValueError(f"native code cannot reach a tensor on {tensor.device}: it runs on the cpu")
    return tensor.data_ptr()
