"""The registered operators look at their arguments themselves, and each mistake gets one line that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from shortcaps.kernels.local_op import run_squash
from shortcaps.routing import EM
from tests.problems import NATIVE, factored_problem

pytestmark = NATIVE

Arguments = dict[str, Any]


def route(batch: int = 3) -> Arguments:
    problem = factored_problem(EM(), shortcut=True, batch=batch, rows=4, cols=4, dtype=torch.float32, readout=True)
    activations = torch.rand(batch, problem.poses.shape[1] * problem.poses.shape[2])
    beta_use, beta = problem.thresholds.values()
    tensors = {"poses": problem.poses, "transforms": problem.transforms, "start": problem.start}
    assert EM.native is not None
    numbers = {"kind": EM.native.kind, "iterations": 2, "activate": True, "keep_state": True}
    settings = {"softness": 1.0, "sharpness": 1.0, "floor": 0.1}
    assert problem.readout is not None
    read = {"readout": problem.readout.weight, "readout_bias": problem.readout.bias}
    return {**tensors, "activations": activations, "beta": beta, "beta_use": beta_use, **numbers, **settings, **read}


def route_backward(batch: int = 3) -> Arguments:
    forward = route(batch)
    pose, activation, state = torch.ops.shortcaps.route(**forward)
    del forward["keep_state"]
    upstream = {"pose_grad": torch.randn_like(pose), "activation_grad": torch.randn_like(activation), "state": state}
    return {**upstream, **forward}


def pre_vote(batch: int = 3) -> Arguments:
    maps, transform = torch.randn(batch, 4, 2, 4, 5, 6), torch.randn(2, 3, 2, 4, 4)
    return {"maps": maps, "transform": transform, "scale": torch.rand(batch, 2, 5, 6), "stride": 1}


def mix(batch: int = 3) -> Arguments:
    return {"mix": torch.randn(5, 2), "maps": torch.randn(batch, 4, 2, 4, 5, 6)}


def squash(batch: int = 3) -> Arguments:
    return {"maps": torch.randn(batch, 4, 2, 4, 5, 6)}


def with_result_grad(operator: Callable[..., Tensor], forward: Arguments) -> Arguments:
    return {"result_grad": torch.randn_like(operator(**forward)), **forward}


OPERATORS: dict[str, Callable[..., Arguments]] = {
    "route": route,
    "route_backward": route_backward,
    "pre_vote": pre_vote,
    "pre_vote_backward": lambda batch=3: with_result_grad(torch.ops.shortcaps.pre_vote, pre_vote(batch)),
    "mix": mix,
    "mix_backward": lambda batch=3: with_result_grad(torch.ops.shortcaps.mix, mix(batch)),
    "squash": squash,
    "squash_backward": lambda batch=3: with_result_grad(torch.ops.shortcaps.squash, squash(batch)),
}
# What the others are compared with.
FIRST = {"poses", "maps"}
# Dimensions of any size: no other argument has them.
FREE = {
    ("pre_vote", "maps"): {1},
    ("pre_vote", "transform"): {1, 2},
    ("mix", "mix"): {0},
    ("mix", "maps"): {0, 1, 3, 4, 5},
    ("squash", "maps"): {0, 1, 2, 3, 4, 5},
}


def named(names: list[tuple[str, str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("operator", "name"), names, ids=[f"{operator}-{name}" for operator, name in names])


def tensors_of(operator: str) -> list[str]:
    schema = getattr(torch.ops.shortcaps, operator).default._schema
    return [argument.name for argument in schema.arguments if "Tensor" in str(argument.type)]


EVERY = [(operator, name) for operator in OPERATORS for name in tensors_of(operator)]
EVERY_FIRST = [(operator, name) for operator, name in EVERY if name in FIRST]
EVERY_OTHER = [(operator, name) for operator, name in EVERY if name not in FIRST]


def call(operator: str, arguments: Arguments) -> Any:
    return getattr(torch.ops.shortcaps, operator)(**arguments)


@pytest.fixture(params=["run", "traced"])
def refused(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Expects an operator to raise, when it runs and when only its shapes are computed."""

    def refuse(operator: str, arguments: Arguments, error: type[Exception], message: str) -> None:
        if request.param == "run":
            with pytest.raises(error, match=message):
                call(operator, arguments)
            return
        with FakeTensorMode() as mode:
            fakes = {
                name: mode.from_tensor(value) if isinstance(value, Tensor) else value
                for name, value in arguments.items()
            }
            with pytest.raises(error, match=message):
                call(operator, fakes)

    return refuse


def test_all_operators_are_here() -> None:
    registered = {
        name.removeprefix("shortcaps::") for name in torch._C._dispatch_get_all_op_names() if "shortcaps::" in name
    }
    assert registered == set(OPERATORS)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("batch", [0, 1, 3])
def test_what_is_right_passes(operator: str, batch: int) -> None:
    arguments = OPERATORS[operator](batch)
    assert [name for name in arguments if isinstance(arguments[name], Tensor)] == tensors_of(operator)
    results = call(operator, arguments)
    for result in [results] if isinstance(results, Tensor) else results:
        assert torch.isfinite(result).all()


@named(EVERY_OTHER)
def test_mixed_dtypes_are_refused(operator: str, name: str, refused: Callable[..., None]) -> None:
    arguments = OPERATORS[operator]()
    arguments[name] = arguments[name].double()
    refused(operator, arguments, TypeError, rf"^{name} has dtype torch.float64: it must be torch.float32")


@named(EVERY_FIRST)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.complex64], ids=str)
def test_dtypes_without_a_kernel_are_refused(
    operator: str, name: str, dtype: torch.dtype, refused: Callable[..., None]
) -> None:
    arguments = OPERATORS[operator]()
    for other in tensors_of(operator):
        arguments[other] = arguments[other].to(dtype)
    refused(operator, arguments, TypeError, rf"^{name} has dtype {dtype}: native code needs torch.float32 or")


@named(EVERY)
def test_a_dimension_too_few_is_refused(operator: str, name: str, refused: Callable[..., None]) -> None:
    arguments = OPERATORS[operator]()
    arguments[name] = arguments[name][0]
    refused(
        operator,
        arguments,
        ValueError,
        rf"^{name} has shape \({', '.join(map(str, arguments[name].shape))},?\): it must be \(",
    )


@named(EVERY)
def test_a_size_of_one_too_many_is_refused(operator: str, name: str, refused: Callable[..., None]) -> None:
    for dimension in range(OPERATORS[operator]()[name].ndim):
        if dimension in FREE.get((operator, name), ()):
            continue
        arguments = OPERATORS[operator]()
        tensor = arguments[name]
        arguments[name] = torch.cat([tensor, tensor.narrow(dimension, 0, 1)], dimension)
        refused(operator, arguments, ValueError, r"^\w+ has shape \(.*\): it must be \(.*\), for \(")


@named(EVERY)
def test_nothing_but_the_batch_may_be_empty(operator: str, name: str, refused: Callable[..., None]) -> None:
    for dimension in range(name in FIRST, OPERATORS[operator]()[name].ndim):
        arguments = OPERATORS[operator]()
        arguments[name] = arguments[name].narrow(dimension, 0, 0)
        refused(operator, arguments, ValueError, rf"^{name} has shape")


@named([(operator, name) for operator, name in EVERY if len(tensors_of(operator)) > 1])
def test_tensors_on_two_devices_are_refused(operator: str, name: str) -> None:
    arguments = OPERATORS[operator]()
    arguments[name] = arguments[name].to("meta")
    with pytest.raises(
        ValueError, match=r"^\w+ is on (meta: it must be on cpu|cpu: it must be on meta), as all tensors"
    ):
        call(operator, arguments)


@pytest.mark.parametrize("operator", OPERATORS)
def test_meta_tensors_get_their_shapes(operator: str) -> None:
    arguments = OPERATORS[operator]()
    expected = call(operator, arguments)
    arguments.update({name: arguments[name].to("meta") for name in tensors_of(operator)})
    found = call(operator, arguments)
    if isinstance(expected, Tensor):
        expected, found = [expected], [found]
    assert [result.shape for result in found] == [result.shape for result in expected]


def test_native_code_has_no_pointer_to_another_device() -> None:
    """Where nothing is traced and no gradient is wanted, PyTorch does not choose by the device."""
    with pytest.raises(ValueError, match="native code cannot reach a tensor on meta"):
        run_squash(torch.empty(3, 4, 2, 4, 5, 6, device="meta"))


@pytest.mark.parametrize("operator", ["route", "route_backward"])
@pytest.mark.parametrize("kind", [-1, 4000])
def test_an_unknown_kind_is_refused(operator: str, kind: int, refused: Callable[..., None]) -> None:
    message = rf"^unknown routing kind {kind}: the known kinds are 0 \(Attention\), "
    refused(operator, {**OPERATORS[operator](), "kind": kind}, ValueError, message)


@pytest.mark.parametrize("operator", ["route", "route_backward"])
@pytest.mark.parametrize("iterations", [0, -2])
def test_a_routing_needs_an_iteration(operator: str, iterations: int, refused: Callable[..., None]) -> None:
    message = rf"^iterations is {iterations}: it must be at least 1"
    refused(operator, {**OPERATORS[operator](), "iterations": iterations}, ValueError, message)


@pytest.mark.parametrize("operator", ["route", "route_backward"])
def test_a_readout_is_whole_and_of_activations(operator: str, refused: Callable[..., None]) -> None:
    arguments = OPERATORS[operator]()
    refused(operator, {**arguments, "readout": None}, ValueError, "^readout and readout_bias belong together")
    refused(operator, {**arguments, "activate": False}, ValueError, "^a readout is of activations")


@pytest.mark.parametrize("operator", ["pre_vote", "pre_vote_backward"])
def test_a_convolution_needs_a_stride(operator: str, refused: Callable[..., None]) -> None:
    refused(operator, {**OPERATORS[operator](), "stride": 0}, ValueError, "^stride is 0: it must be at least 1")


@pytest.mark.parametrize("operator", ["pre_vote", "pre_vote_backward"])
@pytest.mark.parametrize("kernel", [(6, 1), (1, 7)])
def test_a_kernel_has_to_fit(operator: str, kernel: tuple[int, int], refused: Callable[..., None]) -> None:
    arguments = {**OPERATORS[operator](), "transform": torch.randn(2, *kernel, 4, 4)}
    refused(
        operator,
        arguments,
        ValueError,
        rf"^maps has shape \(.*\): height and width must be at least {kernel[0]}x{kernel[1]},",
    )


@pytest.mark.parametrize("shape", [(0,), (16, 1), (3, 267), (267, 16)], ids=str)
def test_the_way_back_needs_the_state_of_the_way_there(shape: tuple[int, ...], refused: Callable[..., None]) -> None:
    arguments = route_backward()
    assert arguments["state"].shape == (16, 267)
    message = r"^state has shape \(.*\): it must be \(16, 267\), for \(.* keep_state\)$"
    refused("route_backward", {**arguments, "state": torch.empty(shape)}, ValueError, message)


def test_a_state_is_read_as_what_it_is_however_it_lies_in_memory() -> None:
    arguments = route_backward()
    expected = call("route_backward", arguments)
    arguments["state"] = arguments["state"].t().contiguous().t()
    for found, gradient in zip(call("route_backward", arguments), expected, strict=True):
        assert torch.equal(found, gradient)


@pytest.mark.parametrize("operator", [operator for operator in OPERATORS if operator.endswith("_backward")])
def test_the_operators_of_the_way_back_are_registered_properly(operator: str) -> None:
    """Those of the way there, with their gradients, are in tests/routing/test_paths.py."""
    arguments = OPERATORS[operator]()
    torch.library.opcheck(getattr(torch.ops.shortcaps, operator).default, (), arguments)
