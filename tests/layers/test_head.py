"""The capsule head: an oracle, any size, any number of depths, every path, and what it may not depend on."""

from __future__ import annotations

import copy
import re
from dataclasses import fields

import pytest
import torch
from torch import nn

import shortcaps
from shortcaps import CapsuleHead, Fuzzy
from shortcaps.routing import Readout
from shortcaps.routing.paths import make_votes
from tests.oracles import routings as oracle
from tests.problems import FUSED, PATHS, ROUTINGS, routing_name


def head(routing: object = "fuzzy", **settings) -> CapsuleHead:
    chosen = {"in_channels": 6, "classes": 4, "capsules": 3, "pose": 2, **settings}
    return CapsuleHead(routing=routing, **chosen).double().eval()  # type: ignore[arg-type]


@pytest.mark.parametrize("routing", ROUTINGS, ids=routing_name)
def test_the_head_agrees_with_an_oracle_written_from_the_equations(routing: shortcaps.Routing) -> None:
    """Lower capsules one by one, their votes one by one, then the oracle's routing from scratch."""
    made = head(routing)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "beta" in name:
                parameter.normal_()
    features = torch.rand(2, 6, 3, 2, dtype=torch.float64)
    primary, shortcut = made.primary[0], made.shortcuts[0]
    flat = primary.norm(torch.relu(primary.convolution(features)))
    votes = torch.zeros(2, 3 * 6, 4, 2, 2, dtype=torch.float64)
    for b in range(2):
        for c in range(3):
            for place in range(6):
                pose = torch.zeros(2, 2, dtype=torch.float64)
                for row in range(2):
                    for col in range(2):
                        # Channels are ordered by column, capsule, row.
                        pose[row, col] = flat[b, (col * 3 + c) * 2 + row, place // 2, place % 2]
                for k in range(4):
                    votes[b, c * 6 + place, k] = shortcut.transform[c, k] @ pose
    found = made.capsules(features)
    numbers = {name: value.tolist() for name, value in shortcut.thresholds().items()}
    settings = {field.name: getattr(routing, field.name) for field in fields(routing) if field.name != "iterations"}
    for b in range(2):
        solve = getattr(oracle, routing.name)
        pose, activation, *_ = solve(
            votes[b].flatten(2).tolist(), None, None, routing.iterations, **settings, **numbers
        )
        expected = torch.tensor(pose, dtype=torch.float64).unflatten(1, (2, 2))
        torch.testing.assert_close(found.pose[b], expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            found.activation[b], torch.tensor(activation, dtype=torch.float64), rtol=1e-9, atol=1e-9
        )


@pytest.mark.parametrize("routing", ROUTINGS, ids=routing_name)
def test_where_capsules_lie_changes_nothing(routing: shortcaps.Routing) -> None:
    """Transformations are shared by all positions: moving features about leaves the class capsules as they are."""
    made = head(routing, in_channels=(6, 4), capsules=(3, 2), passes=2)
    maps = torch.rand(2, 6, 4, 4, dtype=torch.float64), torch.rand(2, 4, 3, 2, dtype=torch.float64)
    moved = [m.flatten(2)[:, :, torch.randperm(m.shape[2] * m.shape[3])].reshape(m.shape) for m in maps]
    assert not torch.equal(moved[0], maps[0])
    for part in ("pose", "activation"):
        torch.testing.assert_close(getattr(made.capsules(moved), part), getattr(made.capsules(maps), part))


@pytest.mark.parametrize("routing", ROUTINGS, ids=routing_name)
@pytest.mark.parametrize("path", ["factored", FUSED])
def test_all_paths_agree_and_so_do_their_gradients(routing: shortcaps.Routing, path: str) -> None:
    fast = head(routing, in_channels=(6, 4), capsules=(3, 2), passes=2, path=path).train()
    dense = head(routing, in_channels=(6, 4), capsules=(3, 2), passes=2, path="dense").train()
    dense.load_state_dict(fast.state_dict())
    maps = torch.rand(3, 6, 4, 4, dtype=torch.float64), torch.rand(3, 4, 3, 2, dtype=torch.float64)
    found = []
    for made in (fast, dense):
        activations = made(maps)
        activations.square().sum().backward()
        found.append([activations, *(p.grad for p in made.parameters())])
    for ours, expected in zip(*found, strict=True):
        assert expected is not None
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9 * max(1.0, expected.abs().max().item()))


def test_no_weight_depends_on_the_size_of_the_image() -> None:
    made = head()
    assert made(torch.rand(2, 6, 3, 3, dtype=torch.float64)).shape == (2, 4)
    assert made(torch.rand(2, 6, 8, 5, dtype=torch.float64)).shape == (2, 4)


def test_coefficients_come_for_each_depth_pass_and_position() -> None:
    made = head(in_channels=(6, 4), capsules=(3, 2), passes=3)
    maps = torch.rand(2, 6, 4, 5, dtype=torch.float64), torch.rand(2, 4, 3, 2, dtype=torch.float64)
    capsules = made.capsules(maps)
    assert capsules.coefficients is not None
    assert [tuple(c.shape) for c in capsules.coefficients] == [(2, 3, 4, 3, 4, 5), (2, 3, 4, 2, 3, 2)]
    for block in capsules.coefficients:  # Eq. (10): they sum to 1 over the inputs of each class
        torch.testing.assert_close(block.sum((-3, -2, -1)), torch.ones(2, 3, 4, dtype=torch.float64))
    assert made.capsules(maps, keep_coefficients=False).coefficients is None


def test_gradcheck() -> None:
    made = head(routing=Fuzzy(floor=0.1))
    features = torch.rand(2, 6, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(made, (features,))


def test_every_parameter_receives_a_gradient_whatever_the_depth() -> None:
    made = head(in_channels=(6, 4), capsules=(3, 2)).train()
    made((torch.rand(3, 6, 4, 4).double(), torch.rand(3, 4, 2, 2).double())).sum().backward()
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_a_joint_readout_adds_what_the_pose_says_to_the_logit() -> None:
    made = head(readout="joint")
    plain = head()
    plain.load_state_dict(made.state_dict(), strict=False)
    features = torch.rand(2, 6, 3, 3, dtype=torch.float64)
    torch.testing.assert_close(made(features), plain(features))  # nothing, before training
    assert made.pose_weight is not None and made.pose_bias is not None
    with torch.no_grad():
        made.pose_weight.normal_()
        made.pose_bias.normal_()
    before = plain.capsules(features)
    for b in range(2):
        for k in range(4):
            logit = torch.logit(before.activation[b, k]) + made.pose_bias[k]
            for row in range(2):
                for col in range(2):
                    logit = logit + made.pose_weight[k, row, col] * before.pose[b, k, row, col]
            torch.testing.assert_close(made(features)[b, k], torch.sigmoid(logit))
    made.train()
    made(features).sum().backward()
    assert made.pose_weight.grad is not None and made.pose_weight.grad.abs().max() > 0


def test_a_joint_readout_keeps_the_gradient_of_tiny_activations() -> None:
    readout = Readout(torch.zeros(4, 2, 2), torch.zeros(4))
    activation = torch.tensor([[1e-30, 1e-9, 0.5, 1.0]], requires_grad=True)
    readout.of(activation, torch.zeros(1, 4, 2, 2)).log().sum().backward()
    assert activation.grad is not None
    assert torch.isfinite(activation.grad).all()
    assert (activation.grad[0, :3] > 0).all()


def test_a_joint_readout_of_half_precision_weights_is_read_in_full_precision() -> None:
    made = head(readout="joint")
    features = torch.rand(2, 6, 3, 3, dtype=torch.float64)
    expected = made(features)
    assert_close = torch.testing.assert_close
    assert_close(made.bfloat16()(features.bfloat16()), expected.float(), rtol=0.1, atol=0.05)


def test_a_transform_of_the_readout_alone_is_no_matter_of_native_code() -> None:
    made, features = head(readout="joint"), torch.rand(2, 6, 3, 3, dtype=torch.float64)
    found = torch.func.grad(lambda w: torch.func.functional_call(made, {"pose_weight": w}, (features,)).sum())
    assert made.pose_weight is not None
    (expected,) = torch.autograd.grad(made(features).sum(), made.pose_weight)
    torch.testing.assert_close(found(made.pose_weight.detach()), expected)


@pytest.mark.parametrize("shapes", [((4, 2, 3), (4,)), ((4, 2, 2), (3,))], ids=["weight", "bias"])
def test_a_readout_of_other_shapes_is_refused(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    readout = Readout(*(torch.zeros(shape) for shape in shapes))
    with pytest.raises(ValueError, match=r"^a readout has shapes .*: these votes need \(4, 2, 2\) and \(4,\)$"):
        Fuzzy()(make_votes(torch.rand(1, 3, 5, 2, 2), torch.rand(3, 4, 2, 2)), readout=readout)


def test_dropout_drops_in_training_only() -> None:
    made = head(dropout=0.5)
    features = torch.rand(2, 6, 4, 4, dtype=torch.float64)
    assert torch.equal(made(features), made(features))
    made.train()
    assert not torch.equal(made(features), made(features))


@pytest.mark.parametrize("readout", ["routing", "joint"])
def test_the_head_compiles_whole_and_agrees_with_eager(readout: str) -> None:
    made = head(in_channels=(6, 4), capsules=(3, 2), readout=readout).float()
    maps = [torch.rand(2, 6, 4, 4), torch.rand(2, 4, 2, 2)]
    torch._dynamo.reset()
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(maps), made(maps), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("path", ["auto", "dense", "factored"])
def test_a_head_in_training_compiles_whole_with_its_gradients(path: str) -> None:
    made = head(normalised=False, readout="joint", path=path).float().train()
    features = torch.randn(3, 6, 4, 4)
    torch._dynamo.reset()
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    gradients = []
    for network in (compiled, made):
        made.zero_grad()
        network(features).square().sum().backward()
        gradients.append([parameter.grad for parameter in made.parameters()])
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("keep_coefficients", [False, True])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("routing", ROUTINGS, ids=routing_name)
def test_a_relu_that_is_left_to_the_votes_is_one_that_is_not(
    routing: shortcaps.Routing, path: str, keep_coefficients: bool, dropout: float
) -> None:
    made = head(routing, normalised=False, dropout=dropout, path=path).train()
    by_itself = copy.deepcopy(made)
    # What is no PrimaryCapsules keeps its ReLU to itself.
    by_itself.primary[0] = nn.Sequential(by_itself.primary[0])
    found = []
    for network in (made, by_itself):
        torch.manual_seed(0)
        features = torch.linspace(-1, 1, 19 * 6 * 12, dtype=torch.float64).reshape(19, 6, 3, 4).requires_grad_()
        capsules = network.capsules(features, keep_coefficients=keep_coefficients)
        assert capsules.activation is not None
        (capsules.activation.sum() + capsules.pose.square().sum()).backward()
        found.append([capsules.pose, capsules.activation, features.grad, *(p.grad for p in network.parameters())])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CapsuleHead((6, 4), 3, capsules=(2,)), "give one of each for every feature map"),
        (lambda: CapsuleHead((), 3), "give one of each for every feature map"),
        (lambda: CapsuleHead(6, 0), "classes 0 is too small"),
        (lambda: CapsuleHead(6, 3, passes=0), "passes 0 is too small"),
        (lambda: CapsuleHead(6, 3, routing="fuzzi"), "unknown routing 'fuzzi': choose one of attention"),
        (lambda: CapsuleHead(6, 3, path="quick"), "unknown path 'quick'"),
        (lambda: CapsuleHead(6, 3, readout="both"), "unknown readout 'both': choose one of routing, joint"),
        (
            lambda: CapsuleHead(6, 3)(torch.rand(2, 5, 4, 4)),
            "feature maps have shapes (2, 5, 4, 4): this head takes (batch, 6, height, width)",
        ),
        (
            lambda: CapsuleHead((6, 4), 3)(torch.rand(2, 6, 4, 4)),
            "this head takes (batch, 6, height, width), (batch, 4, height, width)",
        ),
    ],
)
def test_bad_input_names_the_value_and_the_way_out(call, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_a_head_of_ones_own_network_can_be_asked_for_its_shapes() -> None:
    head = shortcaps.CapsuleHead(6, 3, capsules=2, pose=2)
    state = {name: tensor.to("meta") for name, tensor in head.state_dict().items()}
    with torch.no_grad():
        found = torch.func.functional_call(head, state, (torch.empty(2, 6, 5, 5, device="meta"),))
    assert found.shape == (2, 3)


def test_a_graph_of_operations_computes_what_native_code_does() -> None:
    torch.manual_seed(0)
    head = shortcaps.CapsuleHead(6, 3, capsules=2, pose=2).eval()
    maps = torch.rand(4, 6, 5, 5)
    with torch.no_grad():
        graph = torch.fx.experimental.proxy_tensor.make_fx(head)(maps)
        torch.testing.assert_close(graph(maps), head(maps))
