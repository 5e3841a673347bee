"""What a capsule network can show: where the winning class takes its votes from, and how its pose follows the image.

The functions return plain tensors; `page.py` and `pictures.py` turn them into pictures.
"""

from shortcaps.inference.explain.equivariance import EquivarianceScore, equivariance_score, images_needed
from shortcaps.inference.explain.maps import RoutingMaps, routing_maps
from shortcaps.inference.explain.transform import TRANSFORMATIONS, Traversal, transformed, traverse

__all__ = [
    "TRANSFORMATIONS",
    "EquivarianceScore",
    "RoutingMaps",
    "Traversal",
    "equivariance_score",
    "images_needed",
    "routing_maps",
    "transformed",
    "traverse",
]
