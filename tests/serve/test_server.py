"""`shortcaps serve` as a process: what it says, whom it lets in, and how it ends."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests.serve.support import one, serving


def test_a_full_queue_a_token_and_a_clean_end(tmp_path: Path) -> None:
    """One process for all of it, because starting one takes seconds."""
    token = tmp_path / "token"
    token.write_text("a-word-of-sixteen-letters\n")
    known = {"Authorization": "Bearer a-word-of-sixteen-letters"}
    options = ("--queue", "1", "--token-file", str(token), "--access-log", "--allow-host", "box.example")
    with serving(*options) as (address, process):

        async def flood() -> list[httpx.Response]:
            async with httpx.AsyncClient(timeout=30, headers=known) as client:
                return await asyncio.gather(
                    *(client.post(f"{address}/predict", files={"image": one()}) for _ in range(30))
                )

        responses = asyncio.run(flood())
        assert {response.status_code for response in responses} == {200, 503}
        assert all(response.headers["retry-after"] == "1" for response in responses if response.status_code == 503)

        with httpx.Client(base_url=address) as client:
            stranger = client.post("/predict", files={"image": one()})
            assert stranger.status_code == 401
            assert stranger.headers["www-authenticate"] == "Bearer"
            assert client.get("/healthz", headers={"Host": "box.example"}).json()["status"] == "ok"
            assert client.get("/readyz").json() == {"status": "ready"}
            assert client.get("/metrics").status_code == 401
            metrics = client.get("/metrics", headers=known).text
            assert 'shortcaps_refusals_total{reason="token"} 2' in metrics
            assert 'shortcaps_requests_total{status="503"}' in metrics

        # An upload that is under way when the server is told to stop is finished and answered.
        place = urlsplit(address)
        head = f"POST /predict HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: image/png\r\n"
        head += f"Authorization: {known['Authorization']}\r\nContent-Length: {len(one())}\r\n\r\n"
        with socket.create_connection((place.hostname, place.port or 80), timeout=10) as connection:
            connection.sendall(head.encode() + one()[:50])
            assert httpx.get(f"{address}/healthz").status_code == 200  # so the head has been read
            process.terminate()
            while not refused(place.hostname or "", place.port or 80):
                time.sleep(0.02)
            connection.sendall(one()[50:])
            answer = connection.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 200")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["answer"] == "1"
        assert process.wait(15) == 0
        assert process.stdout is not None
        lines = [json.loads(line) for line in process.stdout.read().splitlines()]
        assert len(lines) == len(responses) + 7
        assert (lines[-1]["path"], lines[-1]["status"], lines[-1]["client"]) == ("/predict", 200, "127.0.0.1")


def refused(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except ConnectionError:
        return True
    return False
