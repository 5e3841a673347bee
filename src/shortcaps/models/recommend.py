"""Which network to begin with on images of one's own."""

from __future__ import annotations

from shortcaps.models.plan import Size, as_size

LARGE_SIDE = 48
MANY_IMAGES = 2000


def recommend_model(image_size: int | Size, channels: int, images: int | None = None) -> str:
    """The name of the network to begin with on images of one's own.

    The compact networks take images of any size with the same number of parameters, where those of the paper grow with it (the baseline has
    23 thousand at 28 px and 716 thousand at 224 px in colour). `compact-160k`, on a residual backbone, is for images that have more to tell, and enough of
    them to learn it from: in colour, of at least 48 px, and 2,000 of them. A rule of thumb to begin with, not a measured border.

    Args:
        image_size: Height and width of the images, or one number for both.
        channels: 1 for grey, 3 for colour.
        images: How many there are; None if nobody knows, which counts as many.

    >>> recommend_model(28, 1), recommend_model(224, 3, 300), recommend_model(96, 3, 20_000)
    ('compact-23k', 'compact-23k', 'compact-160k')
    """
    is_rich = channels >= 3 and min(as_size(image_size)) >= LARGE_SIDE
    is_many = images is None or images >= MANY_IMAGES
    return "compact-160k" if is_rich and is_many else "compact-23k"
