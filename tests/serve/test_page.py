"""The page in a real browser: what a person would do with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import shortcaps
from shortcaps.inference.predict import Predictor
from shortcaps.training import TrainConfig, train
from tests.serve.support import serving

playwright = pytest.importorskip(
    "playwright.sync_api", reason="the browser part is skipped: playwright is not installed"
)
CHROMIUM = os.environ.get("SHORTCAPS_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the browser part is skipped: there is no chromium")

# A three, in shares of the drawing area.
THREE = [(0.32, 0.27), (0.42, 0.19), (0.56, 0.18), (0.66, 0.26), (0.66, 0.38), (0.56, 0.46), (0.45, 0.48), (0.58, 0.5)]
THREE += [(0.69, 0.58), (0.70, 0.71), (0.60, 0.81), (0.45, 0.83), (0.32, 0.76)]


BIRDS = {"red kite": "#c03020", "green woodpecker of the woods": "#30a040", "blue tit": "#3050d0"}
TOKEN = "a-word-of-sixteen-letters"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def browser(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str]]:
    """A browser, and the address of a server with its token."""
    file = tmp_path_factory.mktemp("secrets") / "token"
    file.write_text(TOKEN)
    with serving("--token-file", str(file)) as (address, _):
        yield chromium, address


@pytest.fixture(scope="module")
def birds(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str, Predictor]]:
    """A browser, a server of a network for colour pictures of three kinds, whose names are long, and that network."""
    place = tmp_path_factory.mktemp("birds")
    for split in ("train", "val", "test"):
        for name, colour in BIRDS.items():
            (place / "data" / split / name).mkdir(parents=True)
            for n in range(6):
                picture = Image.new("RGB", (30 + 4 * n, 24), colour)
                picture.save(place / "data" / split / name / f"{n}.png")
    small = {"capsule_channels": (2, 3, 2), "backbone_settings": {"width": 4}}
    asked = TrainConfig.of(data=str(place / "data"), colour=True, image_size=20, epochs=1, batch_size=9, network=small)
    train(asked, place / "run")
    with serving(run=str(place / "run")) as (address, _):
        yield chromium, address, Predictor(place / "run")


def draw(page: Any, points: list[tuple[float, float]]) -> None:
    box = page.locator("#pad").bounding_box()
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=4)
    page.mouse.up()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")], ids=["phone", "desktop"])
def test_draw_a_three_move_it_and_open_a_bad_file(browser: Any, width: int, scheme: str, tmp_path: Path) -> None:
    chromium, address = browser
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{address}/#token={TOKEN}")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")

    draw(page, THREE)
    playwright.expect(page.locator("#message")).to_have_text("It sees: 3", timeout=15_000)
    assert page.locator(".bar.top span").first.inner_text() == "3"
    assert page.locator("#maps canvas").count() == 3  # the image and the two shortcuts that have positions

    page.wait_for_timeout(500)
    before = page.evaluate("document.querySelector('#pose').toDataURL()")
    page.locator("#rotation").focus()
    for _ in range(15):
        page.keyboard.press("ArrowRight")
    playwright.expect(page.locator("#rotation + output")).to_have_text("15°")
    page.wait_for_function(
        "before => document.querySelector('#pose').toDataURL() !== before", arg=before, timeout=15_000
    )

    bad = tmp_path / "bad.png"
    bad.write_bytes(b"this is no picture")
    assert said == []
    page.locator("#file").set_input_files(bad)
    playwright.expect(page.locator("#message")).to_have_text(
        "the picture is not an image in PNG, JPEG, WEBP", timeout=15_000
    )
    # The browser itself notes the 422 in its console; nothing else may be there.
    assert all("422" in line for line in said), said
    assert all(url.startswith((address, "data:", "blob:")) for url in asked), asked
    context.close()


def test_draw_with_the_keyboard_alone_and_clear(browser: Any) -> None:
    chromium, address = browser
    page = chromium.new_page(viewport={"width": 1000, "height": 900})
    page.goto(f"{address}/#token={TOKEN}")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "pad"
    for key in ["ArrowUp"] * 8 + ["Space"] + ["ArrowDown"] * 17 + ["Space"]:
        page.keyboard.press(key)
    playwright.expect(page.locator("#message")).to_have_text("It sees: 1", timeout=15_000)
    page.keyboard.press("Delete")
    playwright.expect(page.locator("#message")).to_have_text("Draw a digit, or open, drop or paste a picture.")
    page.close()


def test_without_a_token_the_page_asks_for_it(browser: Any) -> None:
    chromium, address = browser
    page = chromium.new_page(viewport={"width": 1000, "height": 900})
    page.goto(address)
    draw(page, THREE)
    playwright.expect(page.locator("#message")).to_have_text("This server wants its token.", timeout=15_000)
    page.locator("#token").fill(TOKEN)
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#message")).to_have_text("It sees: 3", timeout=15_000)
    playwright.expect(page.locator("#access")).to_be_hidden()
    assert TOKEN not in page.url
    page.close()


def write_birds(folder: Path) -> list[Path]:
    files = []
    for name, colour in BIRDS.items():
        files.append(folder / f"{name}.jpg")
        Image.new("RGB", (60, 40), colour).save(files[-1], quality=95)
    return files


@pytest.mark.parametrize("width", [390, 1280], ids=["phone", "desktop"])
def test_a_network_for_colours_is_shown_pictures_and_shows_them_in_their_colours(
    birds: Any, width: int, tmp_path: Path
) -> None:
    chromium, address, predictor = birds
    page = chromium.new_page(viewport={"width": width, "height": 900})
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(address)
    # Nothing can be drawn: the first that the keyboard reaches are the buttons.
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "clear"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "file"
    red, *_ = write_birds(tmp_path)
    [expected] = predictor.predict([red])
    page.locator("#file").set_input_files(red)
    playwright.expect(page.locator("#message")).to_have_text(f"It sees: {expected.answer}", timeout=15_000)
    playwright.expect(page.locator("#pad")).to_have_attribute("aria-label", "The picture red kite.jpg")
    shown = page.evaluate(
        "[...document.querySelector('#maps canvas').getContext('2d').getImageData(80, 80, 1, 1).data].slice(0, 3)"
    )
    assert shown == pytest.approx([0xC0, 0x30, 0x20], abs=8)
    # Over maps the picture is grey.
    assert "most votes come from the" in page.locator("#maps canvas").nth(1).get_attribute("aria-label")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert [name.strip() for name in page.locator(".bar .name").all_inner_texts()] == sorted(BIRDS)
    assert said == []
    page.close()


def test_several_pictures_are_answered_in_a_list_and_one_opens_by_the_keyboard(birds: Any, tmp_path: Path) -> None:
    chromium, address, predictor = birds
    page = chromium.new_page(viewport={"width": 1000, "height": 900})
    page.goto(address)
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"this is no picture")
    files = write_birds(tmp_path)
    expected = [prediction.ranking[0] for prediction in predictor.predict(files)]
    page.locator("#file").set_input_files([*files, broken])
    rows = page.locator("#several button")
    for row, file, (answer, probability) in zip(range(3), files, expected, strict=True):
        playwright.expect(rows.nth(row)).to_have_text(f"{file.name}{answer}, {100 * probability:.0f} %", timeout=15_000)
    playwright.expect(rows.nth(3)).to_contain_text("the picture is not an image in PNG, JPEG, WEBP")
    rows.nth(2).focus()
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#message")).to_have_text(f"It sees: {expected[2][0]}", timeout=15_000)
    page.locator("#clear").click()
    playwright.expect(page.locator(".several")).to_be_hidden()
    page.close()


def test_a_plain_network_of_many_classes_shows_what_it_has(chromium: Any, tmp_path: Path) -> None:
    names = [f"kind {number}" for number in range(15)]
    model = shortcaps.create_model("cnn-23k", image_size=20, channels=3, classes=15)
    shortcaps.save(model, tmp_path / "run", class_names=names)
    [expected] = Predictor(tmp_path / "run").predict(write_birds(tmp_path)[:1])
    with serving(run=str(tmp_path / "run")) as (address, _):
        page = chromium.new_page(viewport={"width": 1000, "height": 900})
        said: list[str] = []
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(address)
        page.locator("#file").set_input_files(tmp_path / "red kite.jpg")
        playwright.expect(page.locator("#message")).to_have_text(f"It sees: {expected.answer}", timeout=15_000)
        assert page.locator("#maps canvas").count() == 1  # the image; there are no routing maps
        playwright.expect(page.locator(".pose-card")).to_be_hidden()
        assert page.locator(".bar .name").all_inner_texts() == [name for name, _ in expected.ranking[:12]]
        playwright.expect(page.locator("#bars-note")).to_have_text("The 12 most probable of 15 classes.")
        assert said == []
        page.close()


def test_what_is_shown_is_also_said_in_words(browser: Any) -> None:
    chromium, address = browser
    page = chromium.new_page(viewport={"width": 1000, "height": 900})
    page.goto(f"{address}/#token={TOKEN}")
    assert page.get_by_role("application", name="Drawing area").count() == 1
    for name in ("rotate", "scale", "shear", "shift to the right, in pixels", "shift down, in pixels"):
        assert page.get_by_role("slider", name=name).get_attribute("aria-valuetext")
    page.locator("#pad").focus()
    page.keyboard.press("ArrowRight")
    playwright.expect(page.locator("#pen")).to_have_text("pen up, 53 % across, 50 % down")
    page.keyboard.press("Space")
    playwright.expect(page.get_by_role("status")).to_contain_text("It sees:", timeout=15_000)
    assert page.get_by_role("listitem").count() == 10
    page.get_by_text("As numbers").click()
    assert page.locator("#pose-numbers td").count() == 16
    page.close()
