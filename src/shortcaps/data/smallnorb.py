"""smallNORB: 50 toys of five categories, from 162 viewpoints, under six lightings, by two cameras."""

from __future__ import annotations

from pathlib import Path

from shortcaps.data.cache import cache_folder
from shortcaps.data.dataset import Dataset
from shortcaps.data.fetch import Folder, Mirror, Source, WantedFile, fetch
from shortcaps.data.norb import (
    CROP,
    PROTOCOL_LEAKS,
    NorbFiles,
    norb_dataset,
    parse_matrix,
    part_of,
    read_norb_files,
    register_viewpoints,
)
from shortcaps.data.registry import register_dataset

# SHA-256 of the packed files as published.
_PACKED = {
    "training": {
        "dat": "5ffd6272a07d32695ee1082a26a41a93a37aab8c28da047f8c34ed348d214873",
        "cat": "2784e542c1922060691090952b6cd6278879a216c90f81476f0f00256d42cdaa",
        "info": "de7eb932ebe7a4ee16217fead60660d0eb3d23632c2f4d1c51f88c501c17bf32",
    },
    "testing": {
        "dat": "cf7104eed3e51174d2f65b66d1e5878b9da233b886f161b0d88f4510ba2c7474",
        "cat": "ecaf6d5bb8c3bc5eab9cf0258f6d2198dd474e016e374836fc097f2e5ff509ff",
        "info": "16adf314226327ee006d1a44db8cfef52773c06c829951d5653a9f6f310248a2",
    },
}
# Their sizes unpacked, from the format: a header and 24,300 pairs of images, categories, or rows of information.
_BYTES = {"dat": 24 + 24_300 * 2 * 96 * 96, "cat": 20 + 24_300 * 4, "info": 20 + 24_300 * 4 * 4}
_INSTANCES = {"training": "46789", "testing": "01235"}
FILES = {
    part: {
        kind: WantedFile(
            f"smallnorb-5x{_INSTANCES[part]}x9x18x6x2x96x96-{part}-{kind}.mat",
            packed_sha256=packed,
            max_bytes=_BYTES[kind],
        )
        for kind, packed in kinds.items()
    }
    for part, kinds in _PACKED.items()
}
MIRRORS: tuple[Source, ...] = (Mirror("https://cs.nyu.edu/~ylclab/data/norb-v1.0-small"),)


def _read_smallnorb(part: str, folder: Path | None = None) -> NorbFiles:
    """The published `training` or `testing` files."""
    sources = (*((Folder(folder),) if folder else ()), *MIRRORS)

    def check(name: str, data: bytes) -> None:
        parse_matrix(data, name)

    paths = fetch(tuple(FILES[part].values()), sources, cache_folder() / "smallnorb", check=check)
    return read_norb_files({kind: paths[wanted.name] for kind, wanted in FILES[part].items()})


@register_dataset(
    "smallnorb",
    label="smallNORB",
    description="toys from many viewpoints, cropped from 48x48",
    image_size=CROP,
    leaks=PROTOCOL_LEAKS,
)
def load_smallnorb(split: str, protocol: str, *, folder: Path | None = None, camera: str = "left") -> Dataset:
    """All viewpoints; one half of the toys is for training, the other for the test."""
    files = _read_smallnorb(part_of(split, protocol), folder)
    return norb_dataset("smallnorb", "smallNORB", split, protocol, files, camera=camera)


register_viewpoints("smallnorb", "smallNORB", lambda part, folder, progress: _read_smallnorb(part, folder))
