"""Pictures of all kinds reach the network as it learned to see them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageOps

import shortcaps
from shortcaps.errors import DataError
from shortcaps.inference.predict import Predictor, find_pictures
from shortcaps.inference.prepare import Preparation
from shortcaps.pretrained import pretrained_names
from tests.pictures import short_exif
from tests.test_cli import run

RUN = "mnist-baseline-fuzzy"


def draw(size: int = 200, paper: str = "white", ink: str = "black") -> Image.Image:
    """A one, drawn with a thick pen."""
    picture = Image.new("RGB", (size, size), paper)
    pen = ImageDraw.Draw(picture)
    pen.line([(size * 0.52, size * 0.2), (size * 0.48, size * 0.8)], fill=ink, width=size // 12)
    return picture


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor(RUN)


def test_the_network_that_comes_along_is_there_with_its_record() -> None:
    assert RUN in pretrained_names()
    record = json.loads((Path(__file__).parents[2] / "results" / "pretrained" / RUN / "result.json").read_text())
    assert record["test"]["accuracy"] > 0.99
    assert sum(p.numel() for p in shortcaps.load(RUN).parameters()) == 23_082


def test_dark_on_light_and_light_on_dark_are_the_same_digit(predictor: Predictor, tmp_path: Path) -> None:
    answers = []
    for name, picture in {
        "paper.png": draw(),
        "board.jpg": draw(paper="black", ink="white"),
        "small.png": draw(60),
        "grey.png": draw(paper="#dddddd", ink="#333333").convert("L"),
        "wide.png": ImageOps.expand(draw(), (120, 0), "white"),
    }.items():
        picture.save(tmp_path / name)
        answers += predictor.predict([tmp_path / name])
    assert [prediction.answer for prediction in answers] == ["1"] * 5
    assert all(prediction.ranking[0][1] > 0.5 for prediction in answers)
    (upside,) = predictor.predict([tmp_path / "paper.png"], invert=False)
    assert upside.probabilities["1"] < answers[0].probabilities["1"]


def test_an_image_of_the_right_size_is_left_alone(predictor: Predictor) -> None:
    pixels = np.random.default_rng(0).integers(0, 60, (28, 28), dtype=np.uint8)
    image = predictor.preparation(Image.fromarray(pixels))
    assert torch.equal(image, torch.from_numpy(pixels)[None].float() / 255)


def test_a_drawn_digit_is_centred_by_its_mass(predictor: Predictor) -> None:
    picture = Image.new("L", (300, 300), 0)
    picture.paste(255, (10, 20, 60, 140))
    image = predictor.preparation(picture)[0]
    assert image.shape == (28, 28)
    rows, columns = torch.nonzero(image > 0.5, as_tuple=True)
    assert rows.max() - rows.min() + 1 == 20
    assert abs(float(rows.float().mean()) - 13.5) <= 0.6
    assert abs(float(columns.float().mean()) - 13.5) <= 0.6
    assert predictor.preparation(Image.new("L", (90, 90), 255)).sum() == 0  # nothing drawn


def test_other_networks_see_pictures_as_their_training_showed_them() -> None:
    crop = Preparation((48, 48), (32, 32), 1, bright_on_dark=False, digits=False)
    picture = Image.new("L", (96, 96), 0)
    picture.paste(255, (16, 16, 80, 80))  # the middle two thirds, which is what the crop keeps
    image = crop(picture)
    assert image.shape == (1, 32, 32)
    assert image.mean() > 0.95
    colour = Preparation((20, 20), (20, 20), 3, bright_on_dark=False, digits=False)
    assert colour(Image.new("RGB", (50, 30), "red"))[:, 0, 0].tolist() == [1, 0, 0]
    shifted = Preparation((40, 40), (40, 40), 1, bright_on_dark=True, digits=True)
    assert shifted(draw().convert("L")).shape == (1, 40, 40)
    with pytest.raises(DataError, match="takes 2 channels"):
        Preparation((48, 48), (32, 32), 2, bright_on_dark=False, digits=False)(picture)


def test_files_folders_and_patterns_are_found(tmp_path: Path) -> None:
    for name in ("a.png", "deep/b.jpg", "deep/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    names = [path.name for path in find_pictures([str(tmp_path), str(tmp_path / "*.png"), str(tmp_path / "a.png")])]
    assert names == ["a.png", "b.jpg", "a.png", "a.png"]
    with pytest.raises(DataError, match="does not exist"):
        list(find_pictures([str(tmp_path / "nothing*")]))
    assert [path.name for path in find_pictures([str(tmp_path / "d*")])] == ["b.jpg"], "in the folders it matches"
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="matches no pictures"):
        list(find_pictures([str(tmp_path / "e*")]))
    with pytest.raises(DataError, match="holds no pictures"):
        list(find_pictures([str(tmp_path / "empty")]))


def test_batches_keep_their_order_around_what_is_broken(predictor: Predictor, tmp_path: Path) -> None:
    stream = io.BytesIO()
    draw().save(stream, "PNG")
    sources = [(f"{n}", stream.getvalue() if n % 3 else b"nonsense") for n in range(8)]
    found = list(predictor.predict(sources, batch_size=3))
    assert [prediction.source for prediction in found] == [str(n) for n in range(8)]
    assert [prediction.problem for prediction in found] == ["not an image" if n % 3 == 0 else None for n in range(8)]


def test_whatever_a_decoder_raises_costs_that_picture_and_no_other(predictor: Predictor, tmp_path: Path) -> None:
    """An eXIf chunk of four bytes makes Pillow raise struct.error, which is no kind of OSError or ValueError."""
    stream = io.BytesIO()
    draw().save(stream, "PNG")
    found = list(predictor.predict([("good", stream.getvalue()), ("bad", short_exif()), ("good", stream.getvalue())]))
    assert [prediction.answer for prediction in found] == ["1", None, "1"]
    assert found[1].problem is not None
    assert found[1].problem.startswith("broken (")
    draw().save(tmp_path / "good.png")
    (tmp_path / "exif.png").write_bytes(short_exif())
    result = run("predict", RUN, str(tmp_path), "--json", expect=1)
    assert [answer.get("class") for answer in json.loads(result.stdout)] == [None, "1"]
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "failure", [KeyError("tile"), MemoryError(), RuntimeError("two\nlines"), RecursionError("deep")]
)
def test_a_failure_of_any_kind_is_one_line(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    stream = io.BytesIO()
    draw().save(stream, "PNG")
    for place in ("PIL.ImageOps.exif_transpose", "shortcaps.inference.pixels.rim_of"):
        with monkeypatch.context() as patch:
            patch.setattr(place, fail)
            (found,) = predictor.predict([("picture", stream.getvalue())])
        assert found.problem is not None
        assert found.problem.startswith("broken (")
        assert "\n" not in found.problem


def test_predict_prints_a_table_json_or_csv_and_goes_on_after_a_broken_picture(tmp_path: Path) -> None:
    draw().save(tmp_path / "one.png")
    (tmp_path / "two.png").write_bytes(b"\x89PNG\r\n\x1a\nnope")
    result = run("predict", RUN, str(tmp_path), "--json", expect=1)
    good, bad = json.loads(result.stdout)
    assert good["class"] == "1"
    assert abs(sum(good["probabilities"].values()) - 1) < 1e-6
    assert bad["problem"]
    assert "two.png: not an image" in result.stderr
    rows = list(csv.DictReader(io.StringIO(run("predict", RUN, str(tmp_path), "--csv", expect=1).stdout)))
    assert [row["class"] for row in rows] == ["1", ""]
    table = run("predict", RUN, str(tmp_path / "one.png")).stdout  # a long path is folded
    assert "one.png" in "".join(table.split())
    alone = run("predict", RUN, str(tmp_path / "two.png"), expect=1).stderr
    assert alone.startswith("shortcaps: ")
    assert alone.count("\n") == 1
    some = run("predict", RUN, "gone.png", str(tmp_path / "one.png"), str(tmp_path / "no*.gif"), "--json", expect=1)
    missing, good, none = json.loads(some.stdout)
    assert (missing["file"], good["class"]) == ("gone.png", "1")
    assert missing["problem"] == none["problem"] == "does not exist, and no file matches it as a pattern"
    assert some.stderr.splitlines()[0] == "shortcaps: gone.png: does not exist, and no file matches it as a pattern"
    assert "is not a run directory" in run("predict", str(tmp_path / "no"), str(tmp_path), expect=2).stderr
