"""The studies on the standard training: each measure gives 1 to a network that knows the answer, and chance to one that does not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from shortcaps.errors import RunError
from shortcaps.models import create_model
from shortcaps.studies.affine import AMOUNTS, Affine, matrices_for
from shortcaps.studies.attacks import fgsm, gradients, log_margin, pgd
from shortcaps.studies.corrupted import RADII, Corrupted
from shortcaps.studies.corruptions import CORRUPTIONS, corrupted
from shortcaps.studies.digits import Digits, placed, side_of
from shortcaps.studies.pose import TARGETS, Pose, Posed, best_strength, directions, read_off, reduced
from shortcaps.studies.study import Lookup, Study
from shortcaps.studies.unknown import SETS, Unknown, best_temperature, scrambled, shared_digits, tempered
from tests.studies.support import (
    NOWHERE,
    Capsules,
    Plain,
    coded_digits,
    mean_of,
    measurement,
    reads_the_code,
    says_nothing,
)


def with_digits(study: Study, **properties: Any) -> Any:
    """A study whose images are given, not loaded."""
    study.__dict__.update(properties)
    return study


# ---- affine


@pytest.fixture
def affine() -> Affine:
    return with_digits(Affine(quick=True), digits=coded_digits(30))


def test_affine_gives_one_to_a_network_that_knows_and_chance_to_one_that_does_not(affine: Affine) -> None:
    knows = affine.measure(Plain(reads_the_code), NOWHERE, Lookup())
    nothing = affine.measure(Plain(says_nothing), NOWHERE, Lookup())
    for kind in AMOUNTS:
        assert mean_of(knows, f"area {kind}") == 1, kind
        assert mean_of(nothing, f"area {kind}") == pytest.approx(0.1), kind
    assert knows.images == nothing.images


def test_other_amounts_are_other_images(affine: Affine, monkeypatch: pytest.MonkeyPatch) -> None:
    before = affine.identity(), Corrupted.identity(affine.digits.images, affine.digits.labels)
    monkeypatch.setitem(AMOUNTS, "rotation", (0, 5, 10))
    monkeypatch.setattr("shortcaps.studies.corrupted.RADII", (0.1,))
    after = affine.identity(), Corrupted.identity(affine.digits.images, affine.digits.labels)
    assert all(one != other for one, other in zip(before, after, strict=True))


def test_affine_amounts_begin_with_the_unchanged_digit() -> None:
    for kind, amounts in AMOUNTS.items():
        torch.testing.assert_close(matrices_for(kind, amounts[0], 3), torch.eye(2).expand(3, 2, 2))
        assert len(amounts) >= 5
    turned = matrices_for("rotation", 60, 50)
    assert turned[:, 0, 0].tolist() == pytest.approx([0.5] * 50)
    assert {round(float(sign)) for sign in turned[:, 1, 0].sign()} == {-1, 1}, "both ways"
    assert matrices_for("shrinking", 2.0, 1)[0, 0, 0] == 0.5


def test_affine_says_where_a_network_breaks(affine: Affine) -> None:
    scores = {}
    for kind, amounts in AMOUNTS.items():
        for place, amount in enumerate(amounts):
            scores[f"{kind} {amount:g}"] = torch.tensor([1.0 if place < 2 or kind == "shear" else 0.8])
    (said,) = affine.sentences([measurement("cnn-23k", 0, scores)])
    assert said.startswith("cnn-23k falls below 90% at: rotation 15, ")
    assert "shear beyond 0.6" in said


def test_affine_refuses_a_network_for_other_images(affine: Affine) -> None:
    with pytest.raises(RunError, match="takes 1x28x28 images: this study needs one for grey 40x40"):
        affine.measure(Plain(reads_the_code, side=28), NOWHERE, Lookup())


def test_digits_keep_their_ink_wherever_they_are_placed() -> None:
    digits = coded_digits(20).images
    on_40 = placed(digits, 40, seed=1)
    assert on_40.shape == (20, 1, 40, 40)
    torch.testing.assert_close(on_40.float().sum((1, 2, 3)), digits.float().sum((1, 2, 3)), rtol=0.05, atol=30)
    assert torch.equal(placed(digits, 28, seed=1), digits)
    assert side_of(create_model("cnn-23k", image_size=40)) == 40


# ---- corrupted


class Small(Corrupted):
    """The study with so few images that each call of the network sees all of them at once."""

    count, attacked = 60, 40  # type: ignore[assignment]


def knows_the_order(labels: Tensor) -> Any:
    """Logits that are right whatever the images look like, if they come in their order and all at once."""
    return lambda images: 20.0 * torch.nn.functional.one_hot(labels[: len(images)], 10).double()


@pytest.fixture
def harmed() -> Small:
    return with_digits(Small(quick=True), digits=coded_digits(60))


def test_corrupted_gives_one_to_a_network_that_knows_and_chance_to_one_that_does_not(harmed: Small) -> None:
    class Fake:
        network, seed, part = "cnn-23k", 0, ""

    trained: Any = Fake()
    knows = harmed.measure(Plain(knows_the_order(harmed.digits.labels)), trained, Lookup())
    nothing = harmed.measure(Plain(says_nothing), trained, Lookup())
    assert set(knows.scores) == set(nothing.scores)
    for name in knows.scores:
        assert mean_of(knows, name) == 1, name
        assert mean_of(nothing, name) == pytest.approx(0.1), name
    assert knows.values["images without gradient"] == 1, "it does not look at them"


def test_a_network_without_gradients_is_said_to_mask_them_and_an_honest_one_is_not(harmed: Small) -> None:
    def run(**changes: float) -> dict[str, Tensor]:
        curve = {f"{attack} {radius:g}": 1 - 4 * radius for attack in ("fgsm", "transfer") for radius in RADII}
        curve |= {f"pgd {radius:g}": 0.9 - 4 * radius for radius in RADII} | {"pgd 0.5": 0.0}
        return {name: torch.tensor([value]) for name, value in (curve | changes).items()}

    stuck, stronger, honest = harmed.sentences(
        [
            measurement("cnn-23k", 0, run()),
            measurement("compact-23k", 0, run(**{"transfer 0.1": 0.2})),
            measurement("baseline/fuzzy", 0, run(**{"pgd 0.5": 0.4})),
        ]
    )
    assert honest == "Nothing suggests that the gradients of cnn-23k are masked."
    assert "may be masked: within 0.1 another network's gradients (20.0%) do better than its own (50.0%)" in stronger
    assert "PGD within 0.5 leaves 40.0%" in stuck
    (one_of_three,) = harmed.sentences(
        [measurement("cnn-23k", seed, run(**({"pgd 0.5": 0.04} if seed == 2 else {}))) for seed in range(3)]
    )
    assert "may be masked: with seed 2 PGD within 0.5 leaves 4.0%, where nothing should be left." in one_of_three


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_a_corruption_grows_with_its_strength_and_is_the_same_each_time(kind: str) -> None:
    images = coded_digits(20).images.float() / 100
    strengths = CORRUPTIONS[kind].strengths
    assert len(strengths) == 5
    distances = [float((corrupted(images, kind, strength) - images).abs().mean()) for strength in strengths]
    assert distances == sorted(distances)
    assert distances[0] > 0
    assert torch.equal(corrupted(images, kind, strengths[2]), corrupted(images, kind, strengths[2]))
    assert float(corrupted(images, kind, strengths[-1]).min()) >= 0
    assert float(corrupted(images, kind, strengths[-1]).max()) <= 1


def linear_network() -> Plain:
    weights = torch.randn(1600, 10, generator=torch.Generator().manual_seed(2))
    return Plain(lambda images: images.flatten(1) @ weights.to(images)).requires_grad_(False)


def test_attacks_stay_within_their_radius_and_more_steps_do_more_harm() -> None:
    model = linear_network()
    images = 0.5 + 0.2 * torch.rand(8, 1, 40, 40)
    labels = model(images).argmax(1)
    before = log_margin(model(images), labels)
    one_step, many = fgsm(model, images, labels, 0.01), pgd(model, images, labels, 0.01)
    for attacked in (one_step, many):
        assert float((attacked - images).abs().max()) <= 0.01 + 1e-6
    assert (log_margin(model(one_step), labels) < before).all()
    # One step reaches the corner only if the nearest other class stays the same; many steps are never worse than their first.
    assert (log_margin(model(many), labels) <= log_margin(model(one_step), labels) + 0.5).all()


def test_the_margin_of_a_linear_softmax_is_that_of_its_logits_and_so_is_its_gradient() -> None:
    model = linear_network().double()
    images = torch.rand(3, 1, 40, 40, dtype=torch.float64)
    logits = model.answer(images)
    labels = logits.argmax(1)
    margin, gradient = gradients(model, images, labels)
    second = logits.scatter(1, labels[:, None], -math.inf).amax(1)
    torch.testing.assert_close(margin, logits.amax(1) - second)
    assert (gradient.flatten(1).abs().amax(1) > 0).all()


def test_real_networks_can_be_attacked_through_their_capsules() -> None:
    model = create_model("compact-23k", image_size=40).eval().requires_grad_(False)
    images, labels = torch.rand(4, 1, 40, 40), torch.arange(4)
    margin, gradient = gradients(model, images, labels)
    assert (gradient.flatten(1).abs().amax(1) > 0).all()
    assert (log_margin(model(pgd(model, images, labels, 0.1, steps=3)), labels) < margin).all()


# ---- unknown


def study_of_unknown() -> Unknown:
    """Known images are dark, unknown ones bright."""
    known = coded_digits(40)
    bright = torch.full_like(known.images, 255)
    study = Unknown(quick=True)
    unknown = dict.fromkeys(SETS, bright)
    return with_digits(study, known=known, validation=known, unknown=unknown)


def sure_of_the_dark(images: Tensor) -> Tensor:
    """Logits: those of the code, and nothing at all for images brighter than any code."""
    return reads_the_code(images) * (images.amax((1, 2, 3)) < 0.5)[:, None]


def test_unknown_gives_one_to_a_network_that_knows_and_a_half_to_one_that_does_not() -> None:
    study = study_of_unknown()
    knows = study.measure(Plain(sure_of_the_dark), NOWHERE, Lookup())
    nothing = study.measure(Plain(says_nothing), NOWHERE, Lookup())
    for name in ("all", *SETS):
        for rule in ("probability", "energy"):
            assert mean_of(knows, f"auroc {name} by {rule}") == 1
            assert mean_of(nothing, f"auroc {name} by {rule}") == 0.5
            assert mean_of(knows, f"false alarms {name} by {rule}") == 0
            assert mean_of(nothing, f"false alarms {name} by {rule}") == 1
    assert mean_of(knows, "accuracy") == 1
    assert mean_of(knows, "brier after") < 1e-3 < mean_of(nothing, "brier after")


def test_capsules_are_measured_by_activation_and_by_tightness() -> None:
    study = study_of_unknown()
    model = create_model("compact-23k", image_size=40).eval()
    names = set(study.measure(model, NOWHERE, Lookup()).scores)
    assert {"auroc all by activation", "auroc all by tightness", "auroc noise by probability"} <= names
    assert "auroc all by energy" not in names, "it has no logits"
    wanted = {name for claim in study.claims() for name in (claim.score, claim.other or claim.score)}
    plain = set(study.measure(Plain(sure_of_the_dark), NOWHERE, Lookup()).scores)
    assert wanted <= names | plain, "every claim is about something that is measured"
    assert "auroc all by activation" not in plain, "a softmax has probabilities instead"
    control = set(study.measure(create_model("compact-23k-sigmoid", image_size=40).eval(), NOWHERE, Lookup()).scores)
    assert {"auroc all by activation", "auroc all by energy"} <= control


def test_a_network_whose_outputs_happen_to_sum_to_one_is_measured_by_all_its_rules() -> None:
    """A sigmoid network that is sure of one class everywhere: what was measured must not depend on the images."""
    model = create_model("compact-23k-sigmoid", image_size=40).eval()
    with torch.no_grad():
        model.classify.weight.zero_()
        model.classify.bias.copy_(torch.tensor([100.0, *([-100.0] * 9)]))
    assert "auroc all by activation" in study_of_unknown().measure(model, NOWHERE, Lookup()).scores


def test_outputs_that_need_not_sum_to_one_are_compared_with_their_like() -> None:
    claims = [claim for claim in study_of_unknown().claims() if claim.is_main]
    assert [(claim.other, claim.unless) for claim in claims] == [
        ("auroc all by probability", "auroc all by activation"),
        ("auroc all by energy", "auroc all by activation"),
        ("auroc all by probability", ""),
        ("auroc all by activation", ""),
    ]


def test_a_digit_and_itself_scrambled_are_one_unit() -> None:
    found = shared_digits(2, ["fashion-mnist", "scrambled digits", "noise"])
    assert found["scrambled digits"].tolist() == [0, 1, 0, 1]
    assert found["all"].tolist() == [0, 1, 2, 3, 0, 1, 6, 7]
    assert shared_digits(2, ["noise"]) == {}


def test_scrambled_digits_have_the_same_pixels_in_other_places() -> None:
    images = torch.arange(28 * 28).reshape(1, 1, 28, 28).remainder(251).to(torch.uint8).expand(3, 1, 28, 28)
    mixed = scrambled(images, seed=1)
    assert torch.equal(mixed.flatten(1).sort(1).values, images.flatten(1).sort(1).values)
    assert not torch.equal(mixed[0], images[0])
    assert not torch.equal(mixed[0], mixed[1])
    blocks = {tuple(block.flatten().tolist()) for block in images[0, 0].unfold(0, 7, 7).unfold(1, 7, 7).flatten(0, 1)}
    assert blocks == {tuple(b.flatten().tolist()) for b in mixed[0, 0].unfold(0, 7, 7).unfold(1, 7, 7).flatten(0, 1)}


def test_overconfident_probabilities_are_softened() -> None:
    generator = torch.Generator().manual_seed(5)
    logits = 2 * torch.randn(4000, 10, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    sharp = (3 * logits).softmax(1)
    assert best_temperature(sharp, labels) == pytest.approx(3, rel=0.15)
    torch.testing.assert_close(tempered(sharp, 3.0), logits.softmax(1))


# ---- pose


def posed(count: int, seed: int) -> Posed:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (count, 1, 40, 40), generator=generator, dtype=torch.uint8)
    return Posed(images, torch.arange(count) % 10, 2 * torch.rand(count, len(TARGETS), generator=generator) - 1)


def told_the_pose(*sets: Posed) -> Capsules:
    """Capsules whose poses hold the targets, mixed by a matrix; of images it was not told about, nothing."""
    mix = torch.randn(len(TARGETS), 16, generator=torch.Generator().manual_seed(7))
    known = {
        image.numpy().tobytes(): target @ mix
        for each in sets
        for image, target in zip(each.images.float() / 255, each.targets, strict=True)
    }

    def answer(images: Tensor) -> tuple[Tensor, Tensor]:
        poses = torch.stack([known.get(image.numpy().tobytes(), torch.zeros(16)) for image in images])
        return poses.reshape(-1, 1, 4, 4).expand(-1, 10, 4, 4), torch.ones(len(images), 10) / 2

    return Capsules(answer)


def test_pose_gives_one_to_capsules_that_were_told_and_nothing_to_constant_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = with_digits(Pose(quick=True), fit=posed(200, 1), test=posed(60, 2))
    monkeypatch.setattr("shortcaps.studies.pose.draw_images", lambda *asked: coded_digits(300))
    constant = Capsules(lambda images: (torch.ones(len(images), 10, 4, 4), torch.ones(len(images), 10)))

    class Fake:
        seed = 0

        class manifest:  # noqa: N801
            network = {"name": "compact-23k", "image_size": 40, "channels": 1, "classes": 10}

    trained: Any = Fake()
    told = study.measure(told_the_pose(study.fit, study.test), trained, Lookup())
    untold = study.measure(constant, trained, Lookup())
    for target in (*TARGETS, "mean"):
        assert mean_of(told, target) == pytest.approx(1, abs=0.01), target
        assert mean_of(untold, target) < 0.05, target
        assert mean_of(untold, f"direction {target}") < 0.05, target
        assert mean_of(told, f"direction {target}") > 0.5, target  # all but their length is in it
        assert mean_of(told, f"untrained {target}") < 0.9
    assert "equivariance" in told.values


def test_a_reading_is_made_for_each_class_apart() -> None:
    """The sign of the only feature differs between classes: one map for all would find nothing."""
    fit, test = posed(300, 3), posed(100, 4)
    sign = lambda each: torch.where(each.labels % 2 == 0, 1.0, -1.0)[:, None] * each.targets  # noqa: E731
    predicted = read_off(sign(fit), fit, sign(test), test)
    torch.testing.assert_close(predicted, test.targets.double(), atol=0.05, rtol=0)


def test_the_direction_of_a_pose_is_read_whatever_its_length() -> None:
    fit, test = posed(300, 3), posed(100, 4)

    def poses(each: Posed) -> Tensor:
        """The targets, and what makes the length 1; then any length over three powers of ten."""
        share = each.targets / 3
        whole = torch.cat([share, (1 - share.square().sum(1, keepdim=True)).sqrt()], 1)
        return whole * 10 ** (-3 * torch.rand(len(whole), 1, generator=torch.Generator().manual_seed(5)))

    by_direction = read_off(directions(poses(fit)), fit, directions(poses(test)), test)
    torch.testing.assert_close(by_direction, test.targets.double(), atol=0.05, rtol=0)
    assert (read_off(poses(fit), fit, poses(test), test) - test.targets).abs().mean() > 0.2


def test_an_outlier_among_the_features_does_not_leave_the_range_of_what_was_fitted() -> None:
    fit, test = posed(300, 3), posed(100, 4)
    wild = test.targets.clone()
    wild[0] = 1e6
    predicted = read_off(fit.targets, fit, wild, test)
    assert float(predicted.abs().max()) <= float(fit.targets.abs().max())


def test_readings_are_kept_smaller_where_features_say_little() -> None:
    fit = posed(200, 3)
    noise = torch.randn(200, 16, generator=torch.Generator().manual_seed(1))
    assert best_strength(fit.targets, fit) < best_strength(noise, fit)


def test_features_are_reduced_to_as_many_numbers_as_a_pose_has() -> None:
    wide = torch.randn(50, 3) @ torch.randn(3, 34)
    fitted, tested = reduced(wide, wide[:5], 16)
    assert fitted.shape == (50, 16)
    torch.testing.assert_close(tested, fitted[:5])
    assert torch.equal(reduced(wide[:, :8], wide[:5, :8], 16)[0], wide[:, :8])


def test_plain_networks_are_read_off_their_features(monkeypatch: pytest.MonkeyPatch) -> None:
    study = with_digits(Pose(quick=True), fit=posed(100, 1), test=posed(40, 2))
    monkeypatch.setattr(
        "shortcaps.studies.pose.draw_images",
        lambda *asked: Digits(torch.zeros(300, 1, 28, 28, dtype=torch.uint8), torch.zeros(300, dtype=torch.int64)),
    )

    class Fake:
        seed = 0

        class manifest:  # noqa: N801
            network = {"name": "compact-23k-plain", "image_size": 40, "channels": 1, "classes": 10}

    trained: Any = Fake()
    found = study.measure(create_model("compact-23k-plain", image_size=40).eval(), trained, Lookup())
    assert set(TARGETS) <= set(found.scores)
    assert {"all features", "equivariance"} <= set(found.values)
    wide = create_model("compact-68k-plain", image_size=40)
    assert "equivariance" not in study.measure(wide.eval(), trained, Lookup()).values, "300 images are too few for it"
