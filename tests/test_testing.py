"""The laws hold for our routings where they should, fail where they should, and catch a routing that breaks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from shortcaps import testing
from shortcaps.routing import EM, Attention, Capsules, Dynamic, Fuzzy, Routing, Votes
from tests.problems import ROUTINGS, routing_name

BY_AGREEMENT = [Attention(), Dynamic(), Attention(4), Dynamic(1)]
BY_DISTANCE = [Fuzzy(), Fuzzy(3, fuzziness=1.5), EM(), EM(3, sharpness=0.1)]
ALL = list(dict.fromkeys([*ROUTINGS, *BY_AGREEMENT, *BY_DISTANCE]))


@pytest.mark.parametrize("law", testing.LAWS)
@pytest.mark.parametrize("routing", ALL, ids=str)
def test_every_routing_obeys_the_common_laws(routing: Routing, law: str) -> None:
    testing.LAWS[law](routing)


@pytest.mark.parametrize("routing", ALL, ids=str)
def test_memberships_sum_to_one_over_outputs(routing: Routing) -> None:
    testing.check_memberships_sum_to_one_over_outputs(routing)


@pytest.mark.parametrize("routing", BY_DISTANCE, ids=str)
def test_equal_votes_are_a_fixed_point_of_fuzzy_and_em(routing: Routing) -> None:
    testing.check_equal_votes_are_a_fixed_point(routing)


@pytest.mark.parametrize("routing", BY_AGREEMENT, ids=str)
def test_equal_votes_are_no_fixed_point_of_attention_and_dynamic(routing: Routing) -> None:
    with pytest.raises(testing.LawBroken, match="fixed point"):
        testing.check_equal_votes_are_a_fixed_point(routing)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("routing", [*BY_AGREEMENT, Fuzzy(), Fuzzy(3, fuzziness=1.5)], ids=str)
def test_orthogonal_viewpoints_are_equivariant_for_all_but_em(routing: Routing, seed: int) -> None:
    testing.check_equivariance(routing, testing.random_orthogonal(4, seed), seed=seed)


@pytest.mark.parametrize("routing", [EM(), EM(1)], ids=str)
def test_em_is_not_equivariant_for_rotations_since_its_variances_have_axes(routing: Routing) -> None:
    with pytest.raises(testing.LawBroken, match="equivariance"):
        testing.check_equivariance(routing, testing.random_orthogonal(), tolerance=1e-3)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("routing", ROUTINGS, ids=routing_name)
def test_signed_permutations_are_equivariant_for_all(routing: Routing, seed: int) -> None:
    testing.check_equivariance(routing, testing.random_signed_permutation(4, seed), seed=seed)


def test_fuzzy_poses_are_equivariant_under_scaling_and_its_activations_are_not() -> None:
    scaling = 3 * testing.random_orthogonal()
    testing.check_equivariance(Fuzzy(), scaling, activation_too=False, tolerance=1e-6)
    with pytest.raises(testing.LawBroken, match="activations"):
        testing.check_equivariance(Fuzzy(), scaling, tolerance=1e-3)


@pytest.mark.parametrize("routing", [Attention(), Dynamic(), EM()], ids=str)
def test_scaling_is_not_equivariant_for_the_others(routing: Routing) -> None:
    with pytest.raises(testing.LawBroken, match="equivariance"):
        testing.check_equivariance(routing, 3 * torch.eye(3), activation_too=False, tolerance=1e-3)


@pytest.mark.parametrize("routing", ROUTINGS, ids=routing_name)
def test_a_shear_is_equivariant_for_none(routing: Routing) -> None:
    shear = torch.tensor([[1.0, 0.8, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    with pytest.raises(testing.LawBroken, match="equivariance"):
        testing.check_equivariance(routing, shear, activation_too=False, tolerance=1e-3)


@dataclass(frozen=True)
class Mean(Routing):
    """The plain mean of the votes: obeys every law. The routings below each break one."""

    name = "mean"

    def sweeps(self, *, from_start: bool, activates: bool) -> int:
        return 1

    def weights(self, votes: Votes) -> Tensor:
        return torch.full((votes.batch, votes.inputs, votes.outputs), 1 / votes.inputs, dtype=votes.dtype)

    def route(
        self,
        votes: Votes,
        start: Tensor | None,
        activations: Tensor | None,
        thresholds: Mapping[str, Tensor],
        activate: bool,
        keep_coefficients: bool,
    ) -> Capsules:
        weights = self.weights(votes)
        pose = self.finish(votes.weighted_sum(weights))
        memberships = torch.full_like(weights, 1 / votes.outputs)
        return Capsules(pose, pose.square().sum((-2, -1)), weights, memberships)

    def finish(self, pose: Tensor) -> Tensor:
        return pose


class FirstInputCountsDouble(Mean):
    def weights(self, votes: Votes) -> Tensor:
        weights = super().weights(votes)
        weights[:, 0] *= 2
        return weights / weights.sum(1, keepdim=True)


class FirstOutputIsNegated(Mean):
    def finish(self, pose: Tensor) -> Tensor:
        return torch.cat([-pose[:, :1], pose[:, 1:]], dim=1)


class MixesTheBatch(Mean):
    def finish(self, pose: Tensor) -> Tensor:
        return pose + 0.01 * pose.mean(0, keepdim=True)


class AddsOne(Mean):
    def finish(self, pose: Tensor) -> Tensor:
        return pose + 1


class Doubles(Mean):
    def finish(self, pose: Tensor) -> Tensor:
        return 2 * pose


class RectifiesThePose(Mean):
    def finish(self, pose: Tensor) -> Tensor:
        return pose.relu()


class ActivationOf(Mean):
    """The pose obeys every law; the activation breaks one."""

    def break_activation(self, activation: Tensor, votes: Votes) -> Tensor:
        raise NotImplementedError

    def route(self, votes: Votes, *arguments: object, **named: object) -> Capsules:
        capsules = super().route(votes, *arguments, **named)
        assert capsules.activation is not None
        capsules.activation = self.break_activation(capsules.activation, votes)
        return capsules


class FirstInputSetsTheActivation(ActivationOf):
    def break_activation(self, activation: Tensor, votes: Votes) -> Tensor:
        return activation + votes.dense()[:, 0].square().sum((-2, -1))


class FirstOutputIsMoreActive(ActivationOf):
    def break_activation(self, activation: Tensor, votes: Votes) -> Tensor:
        return torch.cat([activation[:, :1] + 1, activation[:, 1:]], dim=1)


class ActivationOfTheBatch(ActivationOf):
    def break_activation(self, activation: Tensor, votes: Votes) -> Tensor:
        return activation / activation.sum(0, keepdim=True)


class FirstColumnSetsTheActivation(ActivationOf):
    def break_activation(self, activation: Tensor, votes: Votes) -> Tensor:
        return activation + votes.dense()[..., 0].mean(1).sum(-1)


class ForgetsAnOutput(Mean):
    def route(self, *arguments: object, **named: object) -> Capsules:
        capsules = super().route(*arguments, **named)
        assert capsules.memberships is not None
        capsules.memberships[..., 0] = 0
        return capsules


def rotation_law(routing: Routing) -> None:
    testing.check_equivariance(routing, testing.random_orthogonal())


def signed_permutation_law(routing: Routing) -> None:
    testing.check_equivariance(routing, testing.random_signed_permutation())


BREAKERS: list[tuple[Callable[[Routing], None], Routing]] = [
    (testing.check_permuting_inputs_changes_nothing, FirstInputCountsDouble()),
    (testing.check_permuting_outputs_permutes_results, FirstOutputIsNegated()),
    (testing.check_samples_are_independent, MixesTheBatch()),
    (testing.check_memberships_sum_to_one_over_outputs, ForgetsAnOutput()),
    (testing.check_equal_votes_are_a_fixed_point, Doubles()),
    (testing.check_equal_votes_keep_their_direction, AddsOne()),
    (rotation_law, RectifiesThePose()),
    (signed_permutation_law, RectifiesThePose()),
    (testing.check_permuting_inputs_changes_nothing, FirstInputSetsTheActivation()),
    (testing.check_permuting_outputs_permutes_results, FirstOutputIsMoreActive()),
    (testing.check_samples_are_independent, ActivationOfTheBatch()),
    (rotation_law, FirstColumnSetsTheActivation()),
    (signed_permutation_law, FirstColumnSetsTheActivation()),
]


@pytest.mark.parametrize(
    ("law", "breaker"), BREAKERS, ids=lambda value: getattr(value, "__name__", type(value).__name__)
)
def test_each_law_catches_a_routing_that_breaks_it(law: Callable[[Routing], None], breaker: Routing) -> None:
    law(Mean())
    with pytest.raises(testing.LawBroken):
        law(breaker)


def test_check_routing_reports_what_holds() -> None:
    assert testing.check_routing(Fuzzy()) == dict.fromkeys(testing.FURTHER_LAWS, True)
    found = testing.check_routing(EM())
    assert found["equal votes are a fixed point"]
    assert not found["equivariance: orthogonal matrices"]
    with pytest.raises(testing.LawBroken, match="permuting inputs"):
        testing.check_routing(FirstInputCountsDouble())


def test_a_routing_that_returns_nan_is_caught() -> None:
    class Nan(Mean):
        def finish(self, pose: Tensor) -> Tensor:
            return pose * float("nan")

    with pytest.raises(testing.LawBroken):
        testing.check_permuting_inputs_changes_nothing(Nan())
