"""Networks that name two classes at once."""

from __future__ import annotations

import pytest
import torch

from shortcaps.data.multimnist import CLASS_NAMES, PAIRS
from shortcaps.losses import log_probability_loss
from shortcaps.models import PairNetwork, create_model
from shortcaps.models.pairs import PAIRED, class_pairs
from shortcaps.runs.network import check_network
from shortcaps.runs.weights import read_header, write_weights


@pytest.mark.parametrize("name", PAIRED)
def test_the_largest_output_is_that_of_the_two_most_active_classes(name: str) -> None:
    model = create_model(f"pairs-{name}", image_size=36, classes=45).eval()
    assert isinstance(model, PairNetwork)
    images = torch.rand(6, 1, 36, 36)
    with torch.no_grad():
        pairs, single = model(images), model.single(images)
    assert pairs.shape == (6, 45)
    top = single.topk(2, 1).indices.sort(1).values
    assert torch.equal(model.pairs[pairs.argmax(1)], top)


def test_pairs_stand_in_the_order_of_the_data_s_class_names() -> None:
    assert class_pairs(10).tolist() == [list(pair) for pair in PAIRS]
    assert [f"{a} {b}" for a, b in class_pairs(10).tolist()] == list(CLASS_NAMES)


def test_it_has_as_many_parameters_as_the_network_of_single_classes() -> None:
    single, pairs = create_model("compact-23k"), create_model("pairs-compact-23k", classes=45)
    assert sum(p.numel() for p in single.parameters()) == sum(p.numel() for p in pairs.parameters())
    assert pairs.summary().parameters == single.summary().parameters


def test_for_a_plain_network_the_probability_of_a_pair_is_the_softmax_of_two_logits() -> None:
    logits = torch.randn(4, 10, dtype=torch.float64)
    pairs = class_pairs(10)
    single = logits.softmax(1)
    activations = single[:, pairs[:, 0]] * single[:, pairs[:, 1]]
    labels = torch.tensor([0, 7, 20, 44])
    expected = torch.nn.functional.cross_entropy(logits[:, pairs[:, 0]] + logits[:, pairs[:, 1]], labels)
    torch.testing.assert_close(log_probability_loss(activations, labels, absolute=0.0), expected)


def test_a_number_that_no_classes_have_as_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match="classes 44 is no number of pairs of classes: 10 classes have 45"):
        create_model("pairs-cnn-23k", classes=44)


def test_weights_are_checked_before_anything_is_allocated(tmp_path: object) -> None:
    from pathlib import Path

    file = Path(str(tmp_path)) / "model.safetensors"
    settings = {"name": "pairs-compact-23k", "image_size": 36, "channels": 1, "classes": 45, "routing": "fuzzy"}
    write_weights(create_model(**settings).state_dict(), file)
    check_network(settings, 45, read_header(file), is_plugin=False)
