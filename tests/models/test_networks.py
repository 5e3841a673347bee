"""The paper's networks: parameter counts, any image, batches, compile and export, stable names."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import shortcaps
from shortcaps.models import PRESETS, Architecture, make_plan
from tests.problems import FUSED

# docs/fidelity.md; sequential: 88,916 and 377,748 with both β vectors and the activation convolution (EM). Fuzzy has one
# β for each output capsule, attention and dynamic none and no activation convolution.
PARAMETERS = {
    ("baseline", True): {"attention": 23_072, "dynamic": 23_072, "fuzzy": 23_082, "em": 23_132},
    ("expanded", True): {"attention": 67_648, "dynamic": 67_648, "fuzzy": 67_658, "em": 67_708},
    ("baseline", False): {
        "attention": 88_916 - 2 * 42 - 64 * 8,
        "dynamic": 88_916 - 2 * 42 - 64 * 8,
        "fuzzy": 88_916 - 42,
        "em": 88_916,
    },
    ("expanded", False): {
        "attention": 377_748 - 2 * 74 - 64 * 32,
        "dynamic": 377_748 - 2 * 74 - 64 * 32,
        "fuzzy": 377_748 - 74,
        "em": 377_748,
    },
}
NETWORKS = [(preset, routing, shortcut) for preset, shortcut in PARAMETERS for routing in shortcaps.ROUTINGS]
EVERY_NETWORK = pytest.mark.parametrize(("preset", "routing", "shortcut"), NETWORKS)


@pytest.mark.parametrize(
    ("preset", "shortcut", "routing", "expected"),
    [(*family, routing, count) for family, counts in PARAMETERS.items() for routing, count in counts.items()],
)
def test_parameter_counts_are_those_of_the_paper(preset: str, shortcut: bool, routing: str, expected: int) -> None:
    model = shortcaps.create_model(preset, routing=routing, shortcut=shortcut)
    assert sum(p.numel() for p in model.parameters()) == expected
    assert model.summary().parameters == expected


def test_dynamic_routing_is_attention_routing_only_where_it_starts_from_scratch() -> None:
    images = torch.rand(2, 1, 28, 28)
    for shortcut in (False, True):
        dynamic = shortcaps.create_model("baseline", routing="dynamic", shortcut=shortcut).eval()
        attention = shortcaps.create_model("baseline", routing="attention", shortcut=shortcut).eval()
        attention.load_state_dict(dynamic.state_dict())
        assert torch.allclose(dynamic(images), attention(images), rtol=1e-5, atol=1e-7) is not shortcut


@EVERY_NETWORK
def test_every_parameter_receives_a_gradient(preset: str, routing: str, shortcut: bool) -> None:
    model = shortcaps.create_model(preset, routing=routing, shortcut=shortcut)
    shortcaps.spread_loss(model(torch.rand(2, 1, 28, 28)), torch.tensor([1, 2])).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize("routing", shortcaps.ROUTINGS)
def test_a_batch_of_one_has_the_values_the_image_has_within_a_batch(routing: str, shortcut: bool) -> None:
    model = shortcaps.create_model(routing=routing, shortcut=shortcut).double().eval()
    images = torch.rand(5, 1, 28, 28, dtype=torch.float64)
    whole = model.capsules(images)
    for b in range(5):
        alone = model.capsules(images[b : b + 1])
        assert alone.activation.shape == (1, 10)
        assert alone.pose.shape == (1, 10, 4, 4)
        torch.testing.assert_close(alone.activation[0], whole.activation[b], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(alone.pose[0], whole.pose[b], rtol=1e-9, atol=1e-12)
    assert model(images[:0]).shape == (0, 10)


@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize("routing", shortcaps.ROUTINGS)
@pytest.mark.parametrize("path", ["factored", FUSED])
def test_networks_agree_on_all_paths(routing: str, shortcut: bool, path: str) -> None:
    """As the presets have it: full size, default floors."""
    fast = shortcaps.create_model(routing=routing, shortcut=shortcut, path=path, dropout=0).double()
    dense = shortcaps.create_model(routing=routing, shortcut=shortcut, path="dense", dropout=0).double()
    dense.load_state_dict(fast.state_dict())
    images, labels = torch.rand(3, 1, 28, 28, dtype=torch.float64), torch.tensor([1, 2, 3])
    gradients = []
    for model in (fast, dense):
        probabilities = model(images)
        shortcaps.spread_loss(probabilities, labels).backward()
        gradients.append([probabilities, *(p.grad for p in model.parameters())])
    for found, expected in zip(*gradients, strict=True):
        assert expected is not None
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9 * expected.abs().max().item())


@pytest.mark.parametrize("routing", ["fuzzy", "em"])
@pytest.mark.parametrize("path", ["factored", FUSED])
def test_networks_of_half_precision_agree_on_all_paths(routing: str, path: str) -> None:
    model = shortcaps.create_model(routing=routing, path=path).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "beta" in name:
                parameter.normal_()
    reference = shortcaps.create_model(routing=routing, path="dense").eval()
    reference.load_state_dict(model.state_dict())
    images = torch.rand(2, 1, 28, 28).bfloat16()
    torch.testing.assert_close(model.bfloat16()(images), reference.bfloat16()(images), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shortcut", [True, False])
@given(
    image_size=st.tuples(st.integers(17, 34), st.integers(17, 34)),
    channels=st.integers(1, 3),
    classes=st.integers(1, 7),
    pose=st.integers(1, 5),
    routing=st.sampled_from(list(shortcaps.ROUTINGS)),
)
def test_any_image_channel_count_class_count_and_pose_size(
    shortcut: bool, image_size: tuple[int, int], channels: int, classes: int, pose: int, routing: str
) -> None:
    model = shortcaps.create_model(
        Architecture((2, 3, 2), backbone_settings={"width": 4}),
        routing=routing,
        shortcut=shortcut,
        image_size=image_size,
        channels=channels,
        classes=classes,
        pose=pose,
    )
    capsules = model.capsules(torch.rand(2, channels, *image_size))
    assert capsules.activation.shape == (2, classes)
    assert capsules.pose.shape == (2, classes, pose, pose)
    assert ((capsules.activation >= 0) & (capsules.activation <= 1)).all()


@pytest.mark.parametrize("shortcut", [True, False])
def test_any_list_of_kernels_and_strides(shortcut: bool) -> None:
    architecture = Architecture(
        (2, 3, 4, 2), kernels=(3, 2, 2, None), strides=(1, 2, 1, 1), backbone_settings={"kernel": 3, "stride": 1}
    )
    model = shortcaps.create_model(architecture, shortcut=shortcut, image_size=14, classes=3)
    assert model(torch.rand(2, 1, 14, 14)).shape == (2, 3)


@pytest.mark.parametrize(("image_size", "kernel"), [(28, 3), (32, 4), (40, 6)])
def test_the_last_kernel_is_whatever_is_left(image_size: int, kernel: int) -> None:
    assert make_plan(PRESETS["baseline"], image_size).capsule_layers[-1].kernel == (kernel, kernel)


def test_coefficients_come_for_each_shortcut_pass_and_position() -> None:
    model = shortcaps.create_model(passes=3).eval()
    coefficients = model.capsules(torch.rand(2, 1, 28, 28)).coefficients
    assert coefficients is not None
    assert [tuple(c.shape) for c in coefficients] == [
        (2, 3, 10, 8, 5, 5),
        (2, 3, 10, 16, 3, 3),
        (2, 3, 10, 16, 1, 1),
    ]
    for block in coefficients:  # Eq. (10): they sum to 1 over the inputs of each class
        torch.testing.assert_close(block.sum((-3, -2, -1)), torch.ones(2, 3, 10))


def test_coefficients_of_capsule_layers_come_for_each_position_and_offset() -> None:
    model = shortcaps.create_model(shortcut=False).eval()
    coefficients = model.capsules(torch.rand(2, 1, 28, 28)).coefficients
    assert coefficients is not None
    assert [tuple(c.shape) for c in coefficients] == [
        (2, 16, 5, 5, 3, 3, 8),
        (2, 16, 3, 3, 3, 3, 16),
        (2, 10, 1, 1, 3, 3, 16),
    ]
    for layer in coefficients:
        torch.testing.assert_close(layer.sum((-3, -2, -1)), torch.ones(layer.shape[:4]))


def test_more_passes_and_iterations_reuse_the_same_parameters() -> None:
    once = shortcaps.create_model(passes=1, iterations=1)
    often = shortcaps.create_model(passes=3, iterations=4)
    often.load_state_dict(once.state_dict())
    assert once.routing.iterations == 1
    assert often.routing.iterations == 4


@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize("routing", shortcaps.ROUTINGS)
def test_every_network_compiles_whole_and_agrees_with_eager(routing: str, shortcut: bool) -> None:
    """The presets differ in widths only, so one stands for both."""
    assert_compiled_agrees(shortcaps.create_model(routing=routing, shortcut=shortcut, dropout=0))


@pytest.mark.slow
@pytest.mark.parametrize(("routing", "shortcut"), [("fuzzy", True), ("attention", False)])
def test_the_factored_path_compiles_whole_too(routing: str, shortcut: bool) -> None:
    assert_compiled_agrees(shortcaps.create_model(routing=routing, shortcut=shortcut, path="factored", dropout=0))


def assert_compiled_agrees(model: shortcaps.CapsuleNetwork) -> None:
    images, labels = torch.rand(2, 1, 28, 28), torch.tensor([3, 7])
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    losses = []
    gradients = []
    for network in (model, compiled):
        model.zero_grad()
        loss = shortcaps.spread_loss(network(images), labels)
        loss.backward()
        losses.append(loss.detach())
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
    for name, gradient in gradients[0].items():
        assert gradient is not None
        scale = gradient.abs().max().item()
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-3, atol=1e-4 * scale + 1e-9)


@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize("routing", shortcaps.ROUTINGS)
def test_every_network_exports_with_any_batch_and_agrees_with_eager(routing: str, shortcut: bool) -> None:
    model = shortcaps.create_model(routing=routing, shortcut=shortcut).eval()
    batch = torch.export.Dim("batch", min=1, max=256)
    program = torch.export.export(model, (torch.rand(2, 1, 28, 28),), dynamic_shapes=({0: batch},))
    for size in (1, 3):
        images = torch.rand(size, 1, 28, 28)
        torch.testing.assert_close(program.module()(images), model(images), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_inductor_agrees_with_eager() -> None:
    model = shortcaps.create_model(Architecture((2, 3, 2), backbone_settings={"width": 4}), routing="fuzzy").eval()
    images = torch.rand(2, 1, 28, 28)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Inductor warns of its own deprecations
        compiled = torch.compile(model, fullgraph=True)
        torch.testing.assert_close(compiled(images), model(images), rtol=1e-4, atol=1e-6)


SHORTCUT_NAMES = """
stem.convolution.weight stem.convolution.bias stem.norm.weight stem.norm.bias stem.norm.running_mean
stem.norm.running_var stem.norm.num_batches_tracked primary.convolution.weight primary.convolution.bias
primary.norm.weight primary.norm.bias primary.norm.running_mean primary.norm.running_var
primary.norm.num_batches_tracked local_blocks.0.transform local_blocks.0.mix local_blocks.1.transform
local_blocks.1.mix local_blocks.2.transform local_blocks.2.mix shortcuts.0.transform shortcuts.1.transform
shortcuts.2.transform
"""
SEQUENTIAL_NAMES = """
stem.convolution.weight stem.convolution.bias stem.norm.weight stem.norm.bias stem.norm.running_mean
stem.norm.running_var stem.norm.num_batches_tracked primary.pose.weight capsule_layers.0.transform
capsule_layers.1.transform capsule_layers.2.transform
"""
MORE_NAMES = {
    ("attention", True): "",
    ("dynamic", True): "",
    ("fuzzy", True): "shortcuts.2.beta",
    ("em", True): " ".join(f"shortcuts.{n}.beta_{which}" for n in range(3) for which in ("use", "activate")),
    ("attention", False): "",
    ("dynamic", False): "",
    ("fuzzy", False): "primary.activation.weight " + " ".join(f"capsule_layers.{n}.beta" for n in range(3)),
    ("em", False): "primary.activation.weight "
    + " ".join(f"capsule_layers.{n}.beta_{which}" for n in range(3) for which in ("use", "activate")),
}


@pytest.mark.parametrize(("routing", "shortcut"), MORE_NAMES)
def test_names_in_the_state_dict_are_stable(routing: str, shortcut: bool) -> None:
    model = shortcaps.create_model(routing=routing, shortcut=shortcut)
    common = SHORTCUT_NAMES if shortcut else SEQUENTIAL_NAMES
    assert set(model.state_dict()) == {*common.split(), *MORE_NAMES[routing, shortcut].split()}


def test_shapes_in_the_state_dict_are_stable() -> None:
    shapes = {name: tuple(value.shape) for name, value in shortcaps.create_model().state_dict().items()}
    assert shapes["local_blocks.0.transform"] == (8, 3, 3, 4, 4)
    assert shapes["local_blocks.0.mix"] == (16, 8)
    assert shapes["shortcuts.0.transform"] == (8, 10, 4, 4)
    sequential = {n: tuple(v.shape) for n, v in shortcaps.create_model(shortcut=False).state_dict().items()}
    assert sequential["capsule_layers.0.transform"] == (3, 3, 8, 16, 4, 4)


def test_summary_counts_votes_and_multiply_adds_as_the_paper_does() -> None:
    summary = shortcaps.create_model("baseline", routing="attention").summary()
    by_name = {row.layer: row for row in summary.rows}
    # C_out · C_in · H · W · D of Section 4.4
    assert by_name["shortcut 1"].votes == 10 * 8 * 5 * 5 * 16
    assert by_name["stem"].multiply_adds == 12 * 12 * 64 * 25
    assert by_name["primary capsules"].multiply_adds == 12 * 12 * 64 * 128
    assert by_name["local block 1"].multiply_adds == 25 * (8 * 9 * 64 + 8 * 16 * 16)
    sequential = {row.layer: row for row in shortcaps.create_model("baseline", shortcut=False).summary().rows}
    # A vote takes 4 multiply–adds for each of its numbers, and one more whenever the routing goes over it: twice in each
    # of 2 iterations and 2 passes; with fuzzy routing, once more at the very end, in the last shortcut only; with EM, three
    # times in each iteration and once before the first.
    assert by_name["shortcut 1"].multiply_adds == by_name["shortcut 1"].votes * (4 + 8)
    fuzzy = {row.layer: row for row in shortcaps.create_model(routing="fuzzy").summary().rows}
    assert fuzzy["shortcut 1"].multiply_adds == fuzzy["shortcut 1"].votes * (4 + 8)
    assert fuzzy["shortcut 3"].multiply_adds == fuzzy["shortcut 3"].votes * (4 + 9)
    em = {row.layer: row for row in shortcaps.create_model(routing="em").summary().rows}
    assert em["shortcut 1"].multiply_adds == em["shortcut 1"].votes * (4 + 14)
    # K · K · C'_out · C'_in · W' · H' · D
    assert sequential["capsule layer 1"].votes == 9 * 16 * 8 * 5 * 5 * 16
    text = str(summary)
    assert "23,072" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize("routing", shortcaps.ROUTINGS)
def test_networks_are_finite_under_bfloat16_autocast(routing: str, shortcut: bool) -> None:
    model = shortcaps.create_model(routing=routing, shortcut=shortcut)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        probabilities = model(torch.rand(2, 1, 28, 28))
    assert probabilities.dtype == torch.float32
    probabilities.sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: shortcaps.create_model("basline"),
            ValueError,
            "unknown network 'basline': choose one of baseline, cnn-23k, cnn-68k, compact-160k, compact-160k-plain, ",
        ),
        (lambda: shortcaps.create_model("basline"), ValueError, "sabour (did you mean baseline?)"),
        (
            lambda: shortcaps.create_model(routing="fuzzi"),
            ValueError,
            "unknown routing 'fuzzi': choose one of attention",
        ),
        (lambda: shortcaps.create_model(routing=None), ValueError, "unknown routing None: choose one of attention"),
        (lambda: shortcaps.create_model(path="quick"), ValueError, "unknown path 'quick': choose one of auto, dense"),
        (
            lambda: shortcaps.create_model(depth=4),
            TypeError,
            "the network baseline has no setting 'depth': did you mean path? it has image_size, channels, classes, routing",
        ),
        (lambda: shortcaps.create_model(iterations=0), ValueError, "iterations 0 is too small"),
        (lambda: shortcaps.create_model(passes=0), ValueError, "passes 0 is too small: it must be at least 1"),
        (
            lambda: shortcaps.create_model(image_size="28"),
            ValueError,
            "image_size '28' is neither a number nor a height",
        ),
        (lambda: shortcaps.create_model(routing=shortcaps.EM(), iterations=2), TypeError, "iterations is given twice"),
        (lambda: shortcaps.create_model(classes=0), ValueError, "classes 0 is too small"),
        (
            lambda: shortcaps.create_model(dropout=1.5),
            ValueError,
            "dropout 1.5 is out of range: it must be at least 0 and below 1",
        ),
        (
            lambda: shortcaps.create_model(image_size=9),
            ValueError,
            "image_size 9 is too small: capsule layer 2 with kernel 3 gets only 1x1; the image needs at least 17",
        ),
        (
            lambda: shortcaps.create_model(image_size=(28, 4)),
            ValueError,
            "image_size 28x4 is too small: the backbone (Stem) cannot take it",
        ),
        (
            lambda: shortcaps.create_model(image_size=32, kernels=(3, 3, 3)),
            ValueError,
            "kernel 3 of capsule layer 3 leaves 2x2 class capsules instead of one: it must cover 4x4",
        ),
        (lambda: shortcaps.create_model(kernels=(3, None, 3)), ValueError, "only the last may be None"),
        (lambda: shortcaps.create_model(strides=(2, 1)), ValueError, "give one of each for every capsule layer"),
        (
            lambda: shortcaps.create_model()(torch.rand(1, 28, 28)),
            ValueError,
            "images have shape (1, 28, 28): this network takes (batch, 1, 28, 28); for one image use images.unsqueeze(0)",
        ),
        (
            lambda: shortcaps.create_model()(torch.rand(2, 3, 28, 28)),
            ValueError,
            "images are 3x28x28, but this network was made for 1x28x28",
        ),
        (
            lambda: shortcaps.create_model()(torch.zeros(2, 1, 28, 28, dtype=torch.uint8)),
            TypeError,
            "images are torch.uint8: give floats in 0–1, e.g. images.float() / 255",
        ),
    ],
)
def test_bad_input_names_the_value_and_the_way_out(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call()


def test_the_smallest_image_that_the_message_promises_works() -> None:
    assert shortcaps.create_model(image_size=17)(torch.rand(1, 1, 17, 17)).shape == (1, 10)
    with pytest.raises(ValueError, match="at least 17"):
        shortcaps.create_model(image_size=16)


def test_not_a_number_does_not_silence_the_warning() -> None:
    images = torch.full((1, 1, 28, 28), 255.0)
    images[0, 0, 0, 0] = float("nan")
    with pytest.warns(UserWarning, match="this network expects 0 to 1"):
        shortcaps.create_model().eval()(images)


def test_images_outside_zero_to_one_give_a_warning() -> None:
    model = shortcaps.create_model().eval()
    with pytest.warns(UserWarning, match="image values run from 0 to 255: this network expects 0 to 1"):
        model(torch.tensor([0.0, 255.0]).repeat(392).reshape(1, 1, 28, 28))


def test_probabilities_of_an_untrained_network_are_neither_all_zero_nor_all_one() -> None:
    for _, routing, shortcut in NETWORKS[:4] + NETWORKS[8:12]:
        model = shortcaps.create_model(routing=routing, shortcut=shortcut)
        mean = model(torch.rand(16, 1, 28, 28)).mean().item()
        assert 0.02 < mean < 0.98, (routing, shortcut, mean)
        assert math.isfinite(mean)


def test_importing_shortcaps_pulls_in_torch_only() -> None:
    program = (
        "import sys, shortcaps; assert 'torch' not in sys.modules; shortcaps.create_model(); "
        "print([m for m in ('lightning_fabric', 'matplotlib', 'PIL', 'typer', 'rich', 'scipy', 'safetensors', "
        "'shortcaps.training', 'shortcaps.data', 'shortcaps.cli') "
        "if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_summary_says_which_path_a_routing_of_ones_own_takes() -> None:
    class Own(shortcaps.routing.Fuzzy):
        """Known to nobody's native code."""

    assert shortcaps.create_model(routing=Own()).summary().path.startswith("dense for small layers")
