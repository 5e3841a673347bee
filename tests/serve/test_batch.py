"""Several pictures in one request: answered as if each had come alone, within the limits of one request."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import pytest

from shortcaps.inference.predict import Predictor
from shortcaps.serve import Limits, create_app
from shortcaps.serve.refusals import Refused
from shortcaps.serve.schema import Answer
from shortcaps.serve.service import SLOW_PLACES, Service
from tests.pictures import endless_jpeg
from tests.serve.support import RUN, one, png

testclient = pytest.importorskip("fastapi.testclient")


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor(RUN)


@pytest.fixture(scope="module")
def client(predictor: Predictor) -> Iterator[Any]:
    app = create_app(predictor, Limits(body_bytes=300_000, pixels=1_000_000, pictures=4))
    with testclient.TestClient(app, "http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


def several(*contents: bytes) -> list[tuple[str, tuple[str, bytes]]]:
    return [("image", (f"{number}.png", content)) for number, content in enumerate(contents)]


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def test_each_picture_is_answered_as_if_it_had_come_alone(client: Any) -> None:
    alone = [client.post("/predict?rotation=10", files={"image": content}).json() for content in (one(), png())]
    form = client.post("/predict/batch?rotation=10", files=several(one(), png()))
    assert form.status_code == 200
    for found, expected in zip(form.json()["answers"], alone, strict=True):
        assert found["answer"] == expected["answer"]
        assert found["activations"] == pytest.approx(expected["activations"], abs=1e-5)
    listed = {"images": [encoded(one()), f"data:image/png;base64,{encoded(png())}"]}
    assert client.post("/predict/batch", json=listed).json()["answers"][0]["answer"] == "1"
    raw = client.post("/predict/batch", content=one(), headers={"Content-Type": "image/png"})
    assert [answer["answer"] for answer in raw.json()["answers"]] == ["1"]


def test_a_broken_picture_has_its_problem_in_its_place(client: Any) -> None:
    answers = client.post("/predict/batch", files=several(one(), b"no picture", one())).json()["answers"]
    assert [answer.get("answer") for answer in answers] == ["1", None, "1"]
    assert answers[1] == {"error": "the picture is not an image in PNG, JPEG, WEBP", "status": 422}


@pytest.mark.parametrize(
    ("request_of", "status", "reason"),
    [
        ({"files": several(*[png()] * 5)}, 413, "5 pictures are more than the 4 this server takes in one request"),
        ({"files": several(*[png()] * 40)}, 400, "more than 12 parts"),
        ({"json": {"images": [encoded(png())] * 5}}, 413, "5 pictures are more than the 4"),
        ({"json": {"images": ["a"] * 200}}, 400, "more than 108 values"),
        ({"json": {"images": []}}, 422, "no list called 'images'"),
        ({"json": {"image": encoded(png())}}, 422, "no list called 'images'"),
        ({"json": {"images": [encoded(png()), "%"]}}, 422, "'images[1]' is not base64"),
        ({"json": {"images": [3]}}, 422, "no text called 'images[0]'"),
        ({"files": {"picture": png()}}, 422, "no files called 'image'"),
        ({"files": several(*[bytes(90_000)] * 4)}, 413, "bytes"),
        ({"content": b"x", "headers": {"Content-Type": "text/plain"}}, 415, "content type 'text/plain'"),
        ({"files": several(png()), "params": {"scale": "0"}}, 422, "scale:"),
    ],
)
def test_bad_requests_get_one_line(client: Any, request_of: dict[str, Any], status: int, reason: str) -> None:
    response = client.post("/predict/batch", **request_of)
    assert response.status_code == status, response.text
    assert reason in response.json()["error"]


def test_every_picture_takes_a_place_of_its_address_and_gives_it_back(predictor: Predictor) -> None:
    app = create_app(predictor, Limits(queue=8, pictures=100))
    service = app.state.service
    with testclient.TestClient(app, "http://127.0.0.1") as client:
        # One address may fill half of the queue, so that more than four at once would never be answered.
        assert client.post("/predict/batch", files=several(*[png()] * 5)).status_code == 413
        service.queue.take("another", 3)
        service.queue.take("a third", 2)
        full = client.post("/predict/batch", files=several(*[png()] * 4))
        assert (full.status_code, full.headers["retry-after"]) == (503, "1")
        service.queue.give_back("a third", 2)
        assert client.post("/predict/batch", files=several(*[png()] * 4)).status_code == 200
        assert service.queue.taken == 3


def test_pictures_that_take_long_have_one_place_and_their_neighbours_are_answered(predictor: Predictor) -> None:
    async def check() -> None:
        service = Service(predictor, Limits(queue=8, decode_seconds=0.15))
        await service.start()

        async def ask(address: str, *contents: bytes) -> list[Answer | Refused]:
            return await service.answer_many(list(contents), invert=None, moves={}, address=address)

        try:
            slow, most = endless_jpeg(), 0

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, service.slow_queue.taken)
                    await asyncio.sleep(0.01)

            watcher = asyncio.create_task(watch())
            found = await ask("attacker", slow, one(), slow)
            watcher.cancel()
            assert most == 1
            assert [getattr(answer, "status_code", 200) for answer in found] == [422, 200, 422]
            # Where no place is left for what takes long, the quick ones are answered all the same.
            for number in range(SLOW_PLACES):
                service.slow_queue.take(f"another {number}")
            found = await ask("good", slow, one())
            assert [getattr(answer, "status_code", 200) for answer in found] == [503, 200]
        finally:
            await service.stop()

    asyncio.run(check())


def test_all_pictures_together_have_the_time_of_one(predictor: Predictor) -> None:
    async def check() -> None:
        service = Service(predictor, Limits(answer_seconds=0.3, decode_seconds=0.25))
        await service.start()
        try:
            found = await service.answer_many([endless_jpeg()] * 6, invert=None, moves={}, address="a")
            assert 504 in {answer.status_code for answer in found if isinstance(answer, Refused)}
            assert service.queue.taken == service.slow_queue.taken == 0
        finally:
            await service.stop()

    asyncio.run(check())
