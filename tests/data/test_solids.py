"""The rendered sets: their geometry and views, their splits, and that rendering which is cut short goes on."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from shortcaps import progress
from shortcaps.data import cache_folder, load_dataset
from shortcaps.data.norb import FAMILIAR_AZIMUTHS, FAMILIAR_ELEVATIONS
from shortcaps.data.solids import render, sets, store
from shortcaps.data.solids.collection import CATEGORIES
from shortcaps.data.solids.rays import distance, normal
from shortcaps.data.solids.views import all_views, cameras, drawn_views
from shortcaps.reporting.paired import Answers
from tests.data.fakes import content_hashes

VIEWS = 54
# SHA-256 of what the renderer of version 0.2 gave, which was another: an object of each category, two viewpoints, two cameras, six lightings.
PIXELS_OF_SOLIDS_SMALL = (
    "28ac92c9234c53586802699d8e909ce276c433b3651b416dee2ae0a8e0578819",
    "8aadbd90b7ba70ec17053daf1fbfe0db7d639d79aabbbe85f49fe9b93a06d949",
    "0ba11bdc8a75a066f9ae592ebf74200f046c042d51636fee94edd80fb732c534",
    "a16b1b363289838323bcd1dc36b153d56327029d248485258d3e556040c7fd99",
    "004842bd76a4d533d46f28b3d11503629371c97949e132d5e247b80b495264a9",
)


@pytest.mark.parametrize("shape", ["sphere", "box", "cylinder"])
def test_rays_hit_solids_where_marching_along_them_does(shape: str) -> None:
    inside = {
        "sphere": lambda p: (p**2).sum(0) < 1,
        "box": lambda p: np.abs(p).max(0) < 1,
        "cylinder": lambda p: ((p[:2] ** 2).sum(0) < 1) & (np.abs(p[2]) < 1),
    }[shape]
    random = np.random.default_rng(0)
    origin = random.normal(size=(3, 300))
    origin *= 4 / np.linalg.norm(origin, axis=0)
    direction = random.normal(size=(3, 300)) * 0.8 - origin
    direction /= np.linalg.norm(direction, axis=0)
    found = distance(shape, origin, direction)
    steps = np.arange(0, 8, 0.002)
    within = inside(origin[..., None] + steps * direction[..., None])
    marched = np.where(within.any(1), steps[within.argmax(1)], np.inf)
    hit = np.isfinite(marched) & np.isfinite(found)
    grazing = np.isfinite(marched) != np.isfinite(found)
    assert grazing.mean() < 0.02
    assert hit.sum() > 100
    assert np.abs(found[hit] - marched[hit]).max() < 0.01
    outwards = normal(shape, origin[:, hit] + found[hit] * direction[:, hit])
    assert ((outwards * direction[:, hit]).sum(0) < 0).all()


@pytest.mark.parametrize("category", CATEGORIES)
def test_a_part_is_seen_nowhere_but_in_the_rectangle_that_is_searched_for_it(
    category: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def everywhere(solid: object, eyes: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
        return np.repeat(np.arange(len(eyes)), side * side), np.arange(len(eyes) * side * side)

    parts, eyes = sets.SOLIDS.build(category, 0), np.concatenate([cameras(0, 3), cameras(8, 11)])
    lightings = np.array([[0], [1], [2], [5]])
    found = render.render(parts, eyes, lightings, 48)
    monkeypatch.setattr(render, "covered", everywhere)
    assert np.array_equal(found, render.render(parts, eyes, lightings, 48))


@pytest.mark.parametrize("category", CATEGORIES)
def test_solids_small_has_the_pixels_that_its_records_were_made_with(category: int) -> None:
    eyes = np.concatenate([cameras(0, 1), cameras(8, 11)])
    parts = sets.SOLIDS_SMALL.build(category, category)
    pictures = render.render(parts, eyes, np.broadcast_to(np.arange(6), (4, 6)))
    assert hashlib.sha256(pictures.tobytes()).hexdigest() == PIXELS_OF_SOLIDS_SMALL[category]


def test_every_lighting_and_camera_shows_something_else() -> None:
    pictures = render.render(sets.SOLIDS.build(0, 0), cameras(2, 3), np.broadcast_to(np.arange(6), (2, 6)), 32)
    assert pictures.shape == (2, 6, 32, 32)
    assert len({picture.tobytes() for picture in pictures.reshape(12, -1)}) == 12


def test_drawn_views_are_balanced() -> None:
    grid = {tuple(view) for view in all_views(np.random.default_rng()).info.tolist()}
    assert len(grid) == 9 * 18 * 6
    for seed in range(3):
        info = drawn_views(np.random.default_rng(seed)).info
        assert {tuple(view) for view in info.tolist()} <= grid
        assert len(np.unique(info[:, :2], axis=0)) == VIEWS  # from no viewpoint twice
        elevation, azimuth, lighting = info.T
        assert set(Counter(azimuth.tolist()).values()) == {3}
        assert len(np.unique(np.stack([elevation, lighting]), axis=1).T) == 9 * 6
        familiar = np.isin(azimuth, FAMILIAR_AZIMUTHS), np.isin(elevation, FAMILIAR_ELEVATIONS)
        assert [int(which.sum()) for which in (*familiar, familiar[0] & familiar[1])] == [18, 18, 6]


def test_no_object_is_shared_between_training_validation_and_test() -> None:
    for collection in (sets.SOLIDS, sets.SOLIDS_SMALL):
        assert set(collection.validation) < set(collection.training)
        assert not set(collection.training) & set(collection.testing)
    objects = [(c, i) for c in CATEGORIES for i in (*sets.SOLIDS.training, *sets.SOLIDS.testing)]
    built = {tuple(part.matrix.tobytes() for part in sets.SOLIDS.build(*which)) for which in objects}
    assert len(built) == len(objects) == 5 * (125 + 100)


@pytest.fixture
def few_solids(monkeypatch: pytest.MonkeyPatch) -> None:
    few = replace(sets.SOLIDS, training=(4, 5, 9), validation=(9,), testing=(0, 1), instances_per_file=2, side=32)
    monkeypatch.setattr(sets, "SOLIDS", few)
    monkeypatch.setattr("shortcaps.data.norb.CROP", 12)


def test_splits_viewpoints_and_objects(few_solids: None) -> None:
    progress: list[tuple[int, int]] = []
    train = load_dataset("solids", "train", progress=lambda done, of: progress.append((done, of)))
    assert progress == [(done, 15) for done in range(1, 16)]
    validation, test = load_dataset("solids", "validation"), load_dataset("solids", "test")
    assert [len(part) for part in (train, validation, test)] == [2 * 5 * VIEWS, 5 * VIEWS, 2 * 5 * VIEWS]
    assert train.label == "solids (rendered), left camera"
    assert torch.equal(train.labels[:10], torch.arange(5).repeat(2))
    hashes = [set(content_hashes(part.images)) for part in (train, validation, test)]
    assert not (hashes[0] & hashes[1] or hashes[0] & hashes[2] or hashes[1] & hashes[2])
    assert len(load_dataset("solids", "train", "paper")) == 3 * 5 * VIEWS

    for viewpoint in ("azimuth", "elevation"):
        novel, familiar = (
            load_dataset(f"solids-{viewpoint}", "test", viewpoints=chosen) for chosen in ("novel", "familiar")
        )
        for part, views in ((novel, VIEWS * 2 // 3), (familiar, VIEWS // 3), (test, VIEWS)):
            answers = Answers.of([torch.ones(len(part))], part.originals)
            assert answers.sizes.tolist() == [views] * 10, "the unit of an interval is the object"
            assert part.originals is not None
            of_one_class = {(o, c) for o, c in zip(part.originals.tolist(), part.labels.tolist(), strict=True)}
            assert len(of_one_class) == 10


def test_images_are_where_their_labels_say(few_solids: None) -> None:
    files = sets.read_solids("training", None, lambda done, of: None)
    for number in (0, 7, 300, 700):
        instance, *view = files.info[number].tolist()
        category = int(files.categories[number])
        places = sets.SOLIDS.views_of(category, instance).info.tolist()
        expected = sets.SOLIDS.pictures(category, instance)[places.index(view)]
        assert np.array_equal(files.images[number].numpy(), expected)


def test_a_damaged_file_is_rendered_again_and_no_other(few_solids: None, said: pytest.LogCaptureFixture) -> None:
    before = load_dataset("solids", "train").images
    damaged, other = store.file_paths(sets.SOLIDS, "training").values()
    untouched = other.stat().st_mtime_ns
    content = bytearray(damaged.read_bytes())
    content[-7] ^= 4
    for data in (damaged.read_bytes()[:-1], bytes(content)):
        damaged.write_bytes(data)
        said.clear()
        assert torch.equal(load_dataset("solids", "train").images, before)
        assert said.messages == [
            f"{damaged} is damaged: rendering it again",
            "rendering solids (training): 10 objects, 5 are there already",
        ]
    assert other.stat().st_mtime_ns == untouched


def test_rendering_says_how_long_it_will_take(
    few_solids: None, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0)
    load_dataset("solids", "test")
    assert len(said.messages) == 10
    assert said.messages[3].startswith("rendering solids (testing): 3 of 10 objects, about ")
    assert said.messages[3].endswith(" s left")
    said.clear()
    load_dataset("solids", "test")
    assert not said.messages


KILLED = """
import os, signal, stat
from dataclasses import replace
from shortcaps.data.solids import sets, store

written = 0
keep = os.fsync
def fsync(file):
    global written
    written += stat.S_ISREG(os.fstat(file).st_mode)  # folders are synced too
    if written == 5:  # the third file is complete but for its name; each of the first two has a checksum beside it
        os.kill(os.getpid(), signal.SIGKILL)
    keep(file)

os.fsync = fsync
few = replace(sets.SOLIDS, testing=(0, 1, 2), instances_per_file=1, side=16)
store.read_part(few, "testing", None, lambda done, of: None)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="a signal of Unix")
def test_rendering_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED], check=False)
    assert killed.returncode == -signal.SIGKILL
    few = replace(sets.SOLIDS, testing=(0, 1, 2), instances_per_file=1, side=16)
    paths = list(store.file_paths(few, "testing").values())
    assert [path.exists() for path in paths] == [True, True, False]
    (part,) = cache_folder().rglob("*.part")
    os.utime(part, (0, 0))  # what is a minute old and nobody's is removed
    kept = [path.stat().st_mtime_ns for path in paths[:2]]

    progress: list[tuple[int, int]] = []
    resumed = store.read_part(few, "testing", None, lambda done, of: progress.append((done, of)))
    assert progress[-1] == (5, 5), "one of three instances was left to render"
    assert [path.stat().st_mtime_ns for path in paths[:2]] == kept
    assert not list(cache_folder().rglob("*.part"))
    whole = store.read_part(few, "testing", tmp_path, lambda done, of: None)
    assert torch.equal(resumed.images, whole.images)
