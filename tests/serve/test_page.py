"""The page in a real browser: what a person would do with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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


TOKEN = "a-word-of-sixteen-letters"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str]]:
    """A browser, and the address of a server with its token."""
    file = tmp_path_factory.mktemp("secrets") / "token"
    file.write_text(TOKEN)
    with serving("--token-file", str(file)) as (address, _), playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser, address
        browser.close()


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
    playwright.expect(page.locator("#message")).to_have_text("Draw a digit, or drop a picture.")
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
