"""Native code needs little memory, and says so where there is not enough of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from shortcaps.kernels.library import native
from shortcaps.routing import EM, Dynamic, Routing
from tests.problems import NATIVE, NATIVE_ROUTINGS, factored_problem, routing_name

pytestmark = NATIVE

# Each problem needs gigabytes of scratch memory, of which hundreds of megabytes are allowed. One process for all: without
# an answer to the first, it would end there.
OUT_OF_MEMORY = """
import resource, torch
import shortcaps.kernels.local_op, shortcaps.kernels.route_op, shortcaps.routing
ops = torch.ops.shortcaps
def route(kind):
    poses, transforms = torch.zeros(1, 1, 1_000_000, 4, 4), torch.zeros(1, 1, 4, 4)
    return ops.route(poses, transforms, None, None, None, None, kind, 1, True, True, 2.0, 1.0, 0.1)
def route_backward(kind):
    poses, transforms = torch.zeros(1, 1, 1_000_000, 4, 4), torch.zeros(1, 1, 4, 4)
    numbers = shortcaps.kernels.spec.spec_of(kind).state_size(1, 1, 16)
    return ops.route_backward(torch.zeros(1, 1, 4, 4), torch.zeros(1, 1), torch.zeros(16, numbers), poses, transforms,
                              None, None, None, None, kind, 1, True, 2.0, 1.0, 0.1)
maps, transform = torch.zeros(1, 1, 1, 4, 2000, 1000), torch.zeros(1, 2, 2, 4, 4)
result = torch.empty(0).set_(maps.untyped_storage(), 0, (1, 1, 1, 4, 1999, 999))
problems = {f"route {kind}": lambda kind=kind: route(kind) for kind in range(4)}
problems |= {f"route_backward {kind}": lambda kind=kind: route_backward(kind) for kind in range(4)}
problems["pre_vote"] = lambda: ops.pre_vote(maps, transform, None, 1)
problems["pre_vote_backward"] = lambda: ops.pre_vote_backward(result, maps, transform, None, 1)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 600_000_000, resource.RLIM_INFINITY))
for name, solve in problems.items():
    try:
        solve()
        print(name, "was solved")
    except RuntimeError as error:
        print(name, "DefaultCPUAllocator: can't allocate memory" in str(error), "native" in str(error), sep=": ")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
def test_too_little_memory_is_an_error_like_pytorchs_own() -> None:
    result = subprocess.run([sys.executable, "-c", OUT_OF_MEMORY], capture_output=True, text=True)
    assert result.returncode == 0, (result.returncode, result.stdout, result.stderr)
    lines = result.stdout.splitlines()
    assert len(lines) == 10
    assert all(line.endswith(": True: True") for line in lines), result.stdout


@pytest.fixture(params=[1, 7, 40])
def pieces(request: pytest.FixtureRequest) -> Iterator[int]:
    """Small problems are solved in pieces, as only large ones are."""
    library = native()
    assert library is not None
    before = library.shortcaps_set_vectors_at_once(request.param)
    yield request.param
    assert library.shortcaps_set_vectors_at_once(before) == request.param


@pytest.mark.parametrize("batch", [1, 3, 19], ids=["lanes are inputs", "a part of a block", "two blocks"])
@pytest.mark.parametrize("shortcut", [True, False], ids=["shortcut", "sequential"])
@pytest.mark.parametrize("routing", NATIVE_ROUTINGS, ids=routing_name)
def test_pieces_give_the_same_numbers_as_dense_votes(routing: Routing, shortcut: bool, batch: int, pieces: int) -> None:
    if isinstance(routing, EM):
        routing = EM(iterations=3, floor=0.1, sharpness=0.1)
    problem = factored_problem(routing, shortcut=shortcut, batch=batch, members=21, outputs=5, rows=4, cols=4)
    dense, fused = problem.solve(routing, "dense"), problem.solve(routing, "fused")
    for part in ("pose", "activation"):
        torch.testing.assert_close(getattr(fused, part), getattr(dense, part), rtol=1e-9, atol=1e-9)
    expected = problem.gradients(routing, "dense")
    for name, gradient in problem.gradients(routing, "fused").items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("distance", [10.0, 1e3])
def test_em_in_pieces_divides_among_the_inputs_however_far_an_output_is(distance: float, pieces: int) -> None:
    problem = factored_problem(EM(), shortcut=True, batch=2, members=6)
    assert problem.start is not None
    problem.start[:, 0] += distance
    dense, fused = problem.solve(EM(), "dense"), problem.solve(EM(), "fused")
    torch.testing.assert_close(fused.pose, dense.pose, rtol=1e-9, atol=1e-9)


PEAK = """
import resource, torch
import shortcaps.kernels.route_op, shortcaps.routing
from shortcaps.kernels.route_op import _route_natively
torch.set_num_threads(1)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
poses, transforms = torch.randn(1, 2, 4000, 4, 4), torch.randn(2, 1000, 4, 4)
before = peak()
_route_natively(poses, transforms, None, None, None, None, {kind}, 1, True, True, 1.0, 1.0, 0.1)
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("routing", [EM(), Dynamic()], ids=routing_name)
def test_scratch_memory_does_not_grow_with_inputs_times_outputs(routing: Routing) -> None:
    assert routing.native is not None
    result = subprocess.run(
        [sys.executable, "-c", PEAK.format(kind=routing.native.kind)], capture_output=True, text=True, check=True
    )
    # 8,000 inputs and 1,000 outputs of 64 bytes are 488 MB; poses and results of a block are 40 MB.
    assert float(result.stdout) < 150
