"""The network without shortcuts: capsule convolutions one after another, with routing in every layer."""

from __future__ import annotations

import math

from torch import Tensor, nn

from shortcaps.backbones import feature_maps
from shortcaps.layers import ActivatedPrimaryCapsules, CapsuleConvolution, CapsuleDropout, ClassCapsules
from shortcaps.layers.maps import capsules_at_one_position
from shortcaps.models.network import PlannedNetwork
from shortcaps.models.plan import Plan
from shortcaps.models.summary import Summary, routing_multiply_adds, summary_row
from shortcaps.routing import Routing
from shortcaps.routing.paths import describe_path


class SequentialNetwork(PlannedNetwork):
    """The network without shortcuts: capsule convolutions one after another, with routing in every layer.

    Args:
        plan: What every layer will see.
        backbone: The backbone that the plan was made with.
        routing: The routing algorithm.
        path: How votes are computed, one of `shortcaps.routing.paths.PATHS`.
    """

    shortcut = False

    def __init__(self, plan: Plan, backbone: nn.Module, routing: Routing, *, path: str = "auto") -> None:
        super().__init__(plan, backbone, routing, path)
        architecture, layers = plan.architecture, plan.capsule_layers
        self.primary = ActivatedPrimaryCapsules(
            plan.features[0],
            layers[0].in_channels,
            architecture.pose,
            activates=routing.uses_activations,
            squashes=routing.squashes,
            path=path,
        )
        self.dropout = CapsuleDropout(architecture.dropout)
        self.capsule_layers = nn.ModuleList(
            CapsuleConvolution(
                layer.in_channels,
                layer.out_channels,
                layer.kernel,
                layer.stride,
                routing,
                architecture.pose,
                gain=self._gain(number),
                path=path,
            )
            for number, layer in enumerate(layers)
        )

    def _gain(self, number: int) -> float:
        """The initial scale of the votes of a layer.

        Where votes are summed, equal shares of them should add up to the scale of one pose. Where they are averaged, poses shrink by the
        root of the number of votes, for which the votes of the next layer compensate.
        """
        layers = self.plan.capsule_layers
        inputs = [layer.kernel[0] * layer.kernel[1] * layer.in_channels for layer in layers]
        if self.routing.squashes:
            return layers[number].out_channels / math.sqrt(inputs[number])
        return math.sqrt(inputs[number - 1]) if number else 1.0

    def _capsules(self, images: Tensor, keep_coefficients: bool) -> ClassCapsules:
        maps, activations = self.primary(feature_maps(self.backbone, images)[-1])
        if activations is None:
            maps = self.dropout(maps)
        else:
            maps, activations = self.dropout.drop_with_activations(maps, activations)
        kept: list[Tensor] = []
        for number, layer in enumerate(self.capsule_layers):
            maps, probabilities, capsules = layer(maps, activations, keep_coefficients=keep_coefficients)
            # Where the length of a pose is its activation, the next layer sees it in the pose already.
            activations = probabilities if self.routing.uses_activations else None
            if keep_coefficients:
                kept.append(self._as_maps(number, capsules.coefficients))
        return ClassCapsules(
            capsules_at_one_position(maps), probabilities.flatten(1), tuple(kept) if keep_coefficients else None
        )

    def _as_maps(self, number: int, coefficients: Tensor) -> Tensor:
        """(batch·height·width, inputs, outputs) → (batch, outputs, height, width, kernel, kernel, channels)."""
        layer = self.plan.capsule_layers[number]
        by_position = coefficients.unflatten(0, (-1, *layer.out_size)).movedim(-1, 1)
        return by_position.unflatten(-1, (*layer.kernel, layer.in_channels))

    def summary(self) -> Summary:
        """Layer by layer: shape, parameters, votes, multiply–adds."""
        size = self.plan.architecture.pose
        rows = self._rows_below()
        for planned, layer in zip(self.plan.capsule_layers, self.capsule_layers, strict=True):
            inputs = planned.kernel[0] * planned.kernel[1] * planned.in_channels
            votes = planned.out_size[0] * planned.out_size[1] * inputs * planned.out_channels * size**2
            rows.append(
                summary_row(
                    planned.name,
                    (planned.out_channels, size, size, *planned.out_size),
                    layer,
                    votes=votes,
                    multiply_adds=routing_multiply_adds(
                        votes, size, self.routing.sweeps(from_start=False, activates=True)
                    ),
                )
            )
        return Summary.of(self, rows, describe_path(self.path, self.routing))
