"""The API: right answers to good requests, one clear line for bad ones, and never a stack trace."""

from __future__ import annotations

import asyncio
import base64
import copy
import io
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import shortcaps
from shortcaps.errors import RunError
from shortcaps.inference.predict import Predictor
from shortcaps.serve import Limits, create_app
from shortcaps.serve.answers import Question, answer_all
from shortcaps.serve.batching import Batcher
from shortcaps.serve.refusals import Refused
from shortcaps.serve.schema import Answer
from shortcaps.serve.service import SLOW_PLACES, Service
from tests.pictures import bomb, endless_jpeg, short_exif
from tests.serve.support import RUN, one, png

testclient = pytest.importorskip("fastapi.testclient")


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor(RUN)


@pytest.fixture(scope="module")
def client(predictor: Predictor) -> Iterator[object]:
    app = create_app(predictor, Limits(body_bytes=300_000, pixels=1_000_000))
    with testclient.TestClient(app, "http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


def test_a_picture_is_recognised_whichever_way_it_comes(client) -> None:  # type: ignore[no-untyped-def]
    form = client.post("/predict", files={"image": ("one.png", one())})
    assert form.status_code == 200
    assert form.json()["answer"] == "1"
    assert abs(sum(form.json()["probabilities"].values()) - 1) < 1e-6
    assert form.json()["maps"] is None
    encoded = base64.b64encode(one()).decode()
    for text in (encoded, f"data:image/png;base64,{encoded}"):
        assert client.post("/predict", json={"image": text}).json() == form.json()
    raw = client.post("/predict", content=one(), headers={"Content-Type": "image/png"})
    assert raw.json() == form.json()


def test_an_answer_that_is_not_a_number_is_refused_in_one_line(
    client,  # type: ignore[no-untyped-def]
    predictor: Predictor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(predictor.network, "forward", lambda images: torch.full((len(images), 10), torch.nan))
    answer = client.post("/predict", files={"image": ("one.png", one())})
    assert answer.status_code == 503
    assert "gives an answer that is not a number" in answer.json()["error"]


def test_details_and_transformations_on_request(client, predictor: Predictor) -> None:  # type: ignore[no-untyped-def]
    answer = client.post("/predict?details=true&rotation=90", files={"image": one()}).json()
    assert [len(block) for block in answer["maps"]] == [5, 3, 1]
    assert len(answer["pose"]) == 4
    image = torch.tensor(answer["image"])
    assert image.shape == (28, 28)
    rows, columns = torch.nonzero(image > 0.5, as_tuple=True)
    assert columns.max() - columns.min() > rows.max() - rows.min()  # the one lies down


def test_page_health_and_description(client) -> None:  # type: ignore[no-untyped-def]
    page = client.get("/")
    assert "/*ABOUT*/" not in page.text
    assert '"trained_on": "MNIST"' in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert client.get("/healthz").json() == {"status": "ok", "classes": 10, "waiting": 0}
    described = client.get("/openapi.json").json()["paths"]["/predict"]["post"]
    assert set(described["requestBody"]["content"]) >= {"multipart/form-data", "application/json"}
    assert {"200", "413", "415", "422", "503"} <= set(described["responses"])
    assert "openapi.json" in client.get("/docs").text
    assert client.get("/nothing").status_code == 404
    elsewhere = client.get("/docs/", follow_redirects=False)  # nobody is sent anywhere
    assert (elsewhere.status_code, elsewhere.json()) == (404, {"error": "Not Found"})


@pytest.mark.parametrize(
    ("request_of", "status", "reason"),
    [
        ({"content": b"x", "headers": {"Content-Type": "text/plain"}}, 415, "content type 'text/plain'"),
        ({"content": b"x"}, 415, "content type 'missing'"),
        ({"files": {"image": b"not a picture"}}, 422, "the picture is not an image"),
        ({"files": {"picture": b"x"}}, 422, "no file called 'image'"),
        ({"files": {"image": png()[:40]}}, 422, "the picture is "),
        ({"files": {"image": short_exif()}}, 422, "the picture is broken (unpack requires a buffer of 4 bytes)"),
        ({"files": {"image": png(kind="GIF")}}, 422, "the picture is not an image"),
        ({"files": {"image": png(kind="BMP")}}, 422, "the picture is not an image"),
        ({"json": {"image": "%%%"}}, 422, "'image' is not base64"),
        ({"json": [1, 2]}, 422, "no text called 'image'"),
        ({"content": b"{", "headers": {"Content-Type": "application/json"}}, 400, "not JSON"),
        ({"content": b"[" * 100_000, "headers": {"Content-Type": "application/json"}}, 400, "not JSON"),
        ({"content": b"--x", "headers": {"Content-Type": "multipart/form-data"}}, 400, "boundary"),
        ({"files": {"image": bytes(400_000)}}, 413, "bytes"),
        ({"files": {"image": bomb(1_200, 1_000)}}, 413, "megapixels"),
        ({"files": {"image": bomb(60_000, 60_000)}}, 413, "megapixels"),
        ({"files": {"image": png()}, "params": {"scale": "0"}}, 422, "scale:"),
        ({"files": {"image": png()}, "params": {"rotation": "nan"}}, 422, "rotation:"),
    ],
)
def test_bad_requests_get_one_line(client, request_of, status, reason) -> None:  # type: ignore[no-untyped-def]
    response = client.post("/predict", **request_of)
    assert response.status_code == status, response.text
    assert reason in response.json()["error"]
    assert "Traceback" not in response.text
    assert "\n" not in response.json()["error"]


def test_a_body_that_hides_its_length_is_cut_off(client) -> None:  # type: ignore[no-untyped-def]
    def parts() -> Iterator[bytes]:
        for _ in range(10):
            yield bytes(50_000)

    response = client.post("/predict", content=parts(), headers={"Content-Type": "image/png"})
    assert response.status_code == 413


def test_uploads_in_all_take_so_much_memory_and_no_more(predictor: Predictor) -> None:
    app = create_app(predictor, Limits(body_bytes=300_000, upload_bytes=100_000))
    with testclient.TestClient(app, "http://127.0.0.1") as client:
        for _ in range(2):  # and all of it is given back
            refused = client.post("/predict", content=bytes(200_000), headers={"Content-Type": "image/png"})
            assert refused.status_code == 503
            assert "too many large uploads" in refused.json()["error"]
            assert client.post("/predict", files={"image": one()}).status_code == 200


def test_it_is_ready_until_it_is_full_or_told_to_stop(predictor: Predictor) -> None:
    app = create_app(predictor, Limits(queue=1))
    service = app.state.service
    with testclient.TestClient(app, "http://127.0.0.1") as client:
        assert client.get("/readyz").json() == {"status": "ready"}
        service.queue.take("a")
        assert client.get("/readyz").json() == {"error": "too many requests are waiting"}
        service.queue.give_back("a")
        service.is_draining = True
        draining = client.get("/readyz")
        assert (draining.status_code, draining.headers["retry-after"]) == (503, "1")
        assert client.get("/healthz").status_code == 200


def test_damaged_pictures_never_break_the_server(client) -> None:  # type: ignore[no-untyped-def]
    """A taste of benchmarks/server.py, which sends ten thousand."""
    chance = random.Random(0)
    seeds = []
    for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP"):
        stream = io.BytesIO()
        Image.new("RGB", (40, 40), "orange").save(stream, kind)
        seeds.append(stream.getvalue())
    for _ in range(150):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randrange(1, 12)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        response = client.post("/predict", files={"image": bytes(data[: chance.randrange(1, len(data) + 1)])})
        assert response.status_code in (200, 413, 422), response.text


def test_questions_that_wait_are_answered_together(predictor: Predictor) -> None:
    sizes = []

    def slowly(questions: list[int]) -> list[int]:
        sizes.append(len(questions))
        time.sleep(0.05)
        return [question * 2 for question in questions]

    async def ask() -> list[int]:
        batcher = Batcher(slowly, largest=8)
        batcher.start()
        answers = await asyncio.gather(*(batcher.ask(n) for n in range(20)))
        await batcher.stop()
        return answers

    assert asyncio.run(ask()) == [2 * n for n in range(20)]
    assert max(sizes) == 8
    assert len(sizes) <= 4
    together = answer_all(predictor, [Question(torch.rand(1, 28, 28), False) for _ in range(3)])
    assert all(isinstance(answer, Answer) for answer in together)


def test_a_failure_reaches_who_asked_and_nobody_else() -> None:
    def answer(questions: list[int]) -> list[int]:
        if 7 in questions:
            raise ValueError("seven")
        return questions

    async def ask() -> None:
        batcher = Batcher(answer, largest=8)
        batcher.start()
        tasks = [asyncio.create_task(batcher.ask(n)) for n in (0, 7, 1)]
        with pytest.raises(ValueError, match="seven"):
            await tasks[1]
        assert await asyncio.gather(tasks[0], tasks[2]) == [0, 1]
        await batcher.stop()

    asyncio.run(ask())


def test_a_network_for_two_cameras_is_not_served(predictor: Predictor) -> None:
    stereo = copy.copy(predictor)
    stereo.preparation = replace(predictor.preparation, channels=2)
    with pytest.raises(RunError, match="this network takes 2 channels, and a picture has 1 or 3: it cannot be served"):
        create_app(stereo)


def test_pictures_that_take_long_leave_the_places_of_the_others_free(predictor: Predictor) -> None:
    """More of them than may wait, from addresses enough: who asks in between is answered, and not refused."""

    async def check() -> None:
        service = Service(predictor, Limits(queue=8, decode_seconds=0.15))
        await service.start()

        def ask(content: bytes, address: str) -> asyncio.Task[Answer]:
            return asyncio.create_task(service.answer(content, invert=None, moves={}, details=False, address=address))

        try:
            hostile, slow = [], endless_jpeg()
            for number in range(SLOW_PLACES + 2):
                hostile.append(ask(slow, f"attacker {number % 6}"))
                assert (await ask(one(), "good")).answer == "1"
            codes = [reason.status_code for reason in await asyncio.gather(*hostile, return_exceptions=True)]  # type: ignore[union-attr]
            # 504 where a busy machine does not come to them in time: what counts is that the good ones are answered.
            assert set(codes) <= {422, 503, 504}
        finally:
            await service.stop()

    asyncio.run(check())


def test_an_address_has_its_share_of_each_limit(predictor: Predictor) -> None:
    service = Service(predictor, Limits())
    assert (service.queue.total, service.queue.each) == (128, 64)
    assert (service.uploads.total, service.uploads.each) == (256_000_000, 64_000_000)
    assert (service.slow_queue.total, service.slow_queue.each) == (16, 8)
    assert (service.connections.total, service.connections.each) == (512, 128)


def test_what_is_not_answered_in_time_is_given_up(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.sleep(60)

    async def check() -> None:
        service = Service(predictor, Limits(answer_seconds=0.05))
        monkeypatch.setattr(service.decoders, "quick_image", never)
        with pytest.raises(Refused, match="no answer in time: try again") as caught:
            await service.answer(one(), invert=None, moves={}, details=False, address="a")
        assert caught.value.status_code == 504
        (found,) = await service.answer_many([one()], invert=None, moves={}, address="a")
        assert isinstance(found, Refused)
        assert found.status_code == 504
        assert service.queue.taken == 0

    asyncio.run(check())


@pytest.mark.parametrize("name", ["cnn-23k", "compact-23k-plain", "sabour"])
def test_a_network_without_pose_capsules_is_served_without_poses_and_maps(name: str, tmp_path: Path) -> None:
    model = shortcaps.create_model(name, classes=2, image_size=20)
    shortcaps.save(model, tmp_path / "run", class_names=("cat", "dog"), label="pets")
    app = create_app(Predictor(tmp_path / "run"))
    with testclient.TestClient(app, "http://127.0.0.1", raise_server_exceptions=False) as client:
        found = client.post("/predict?details=true", content=one(), headers={"Content-Type": "image/png"}).json()
        page = client.get("/").text
    assert found["answer"] in ("cat", "dog")
    assert (found["pose"], found["maps"]) == (None, None)
    assert len(found["image"]) == 20
    assert '"routing": null' in page
