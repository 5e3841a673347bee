"""Who is let in, what is refused before it is read, and what is written down."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from shortcaps.errors import RunError
from shortcaps.serve.access import Access, allowed_hosts, read_token
from shortcaps.serve.guard import Guard
from shortcaps.serve.metrics import Metrics
from shortcaps.serve.refusals import Refused
from shortcaps.serve.shares import Shares, address_of

TOKEN = b"a-word-of-sixteen-letters"


def scope_of(
    path: str = "/predict", host: str = "127.0.0.1:8000", server: tuple[str, int] = ("127.0.0.1", 8000), **headers: str
) -> dict[str, Any]:
    named = [(b"host", host.encode())] + [(name.encode(), value.encode()) for name, value in headers.items()]
    return {
        "type": "http",
        "path": path,
        "method": "POST",
        "headers": named,
        "server": server,
        "client": ("9.9.9.9", 1),
    }


def test_what_is_beyond_the_limit_is_refused_unread_and_the_rest_is_served() -> None:
    """Two questions in hand, one too many: it gets its 503 without the application seeing it, and the place is given back."""
    seen: list[str] = []

    async def check() -> None:
        release, queue, metrics = asyncio.Event(), Shares(2, 2), Metrics()

        async def application(scope: Any, receive: Any, send: Any) -> None:
            seen.append(scope["path"])
            if scope["path"] == "/predict":
                assert queue.take("9.9.9.9")
                await release.wait()
                queue.give_back("9.9.9.9")
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        guard = Guard(application, paths={"/predict"}, queue=queue, access=Access(), metrics=metrics)

        async def ask(path: str = "/predict") -> dict[str, Any]:
            sent: list[dict[str, Any]] = []

            async def send(message: Any) -> None:
                sent.append(dict(message))

            async def receive() -> Any:
                raise AssertionError("nobody reads a body here")

            await guard(scope_of(path), receive, send)
            return {"status": sent[0]["status"], **{k.decode(): v.decode() for k, v in sent[0]["headers"]}}

        waiting = [asyncio.create_task(ask()) for _ in range(2)]
        await asyncio.sleep(0)
        refused, other = await asyncio.gather(ask(), ask("/healthz"))
        assert refused["status"] == 503
        assert refused["retry-after"] == "1"
        assert other["status"] == 200
        assert seen == ["/predict", "/predict", "/healthz"]
        release.set()
        for answer in await asyncio.gather(*waiting):
            assert answer["status"] == 200
            assert answer["x-content-type-options"] == "nosniff"
        assert (await ask())["status"] == 200
        assert 'shortcaps_refusals_total{reason="queue"} 1' in metrics.render()
        assert 'shortcaps_requests_total{status="200"} 4' in metrics.render()

    asyncio.run(check())


@pytest.mark.parametrize("failure", [RuntimeError("no\n\x1b[2Jnetwork" + 999 * "."), asyncio.CancelledError()])
def test_what_fails_or_is_cut_short_gets_one_line_of_json(
    failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        raise failure

    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(dict(message))

    guard = Guard(application, paths={"/predict"}, queue=Shares(1, 1), access=Access(), metrics=Metrics())
    asyncio.run(guard(scope_of(), send, send))
    assert sent[0]["status"] == (500 if isinstance(failure, RuntimeError) else 503)
    assert list(json.loads(sent[1]["body"])) == ["error"]
    for message in caplog.messages:  # one line too, and nothing that a terminal would obey
        assert r"unexpected RuntimeError: 'no\n\x1b[2Jnetwork" in message
        assert message.isprintable()
        assert len(message) < 600
    assert len(caplog.messages) == isinstance(failure, RuntimeError)


def refusal(access: Access, scope: dict[str, Any]) -> str | None:
    try:
        access.check(scope, scope["path"])
    except Refused as reason:
        return reason.reason
    return None


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:8000", True),
        ("localhost:8000", True),
        ("LOCALHOST:8000", True),
        ("[::1]:8000", True),
        ("box.lan:8000", True),  # what it was bound to
        ("192.168.1.7:8000", True),  # the address that the connection came in by
        ("example.org", True),
        ("example.org:443", True),
        ("tunnel:9000", True),
        ("tunnel:9001", False),
        ("localhost:9000", False),
        ("localhost", False),
        ("192.168.1.8:8000", False),
        ("rebound.attacker.example:8000", False),
        ("localhost.attacker.example:8000", False),
        ("", False),
        ("localhost:8000@attacker.example", False),
        ("localhost:800٠", False),
    ],
)
def test_only_names_of_this_server_are_answered(host: str, allowed: bool) -> None:
    access = Access("box.lan", allowed_hosts(["Example.org", "tunnel:9000"]))
    scope = scope_of("/healthz", host.encode().decode("latin-1"), ("192.168.1.7", 8000))
    assert refusal(access, scope) == (None if allowed else "host")


def test_only_its_own_page_may_ask() -> None:
    for origin, reason in (
        ("http://localhost:8000", None),
        ("https://localhost:8000", None),
        ("http://localhost:3000", "origin"),
        ("https://attacker.example", "origin"),
        ("null", "origin"),
        ("", "origin"),
    ):
        assert refusal(Access(), scope_of(host="localhost:8000", origin=origin)) == reason, origin
    twice = scope_of(host="localhost:8000", origin="https://attacker.example")
    twice["headers"].append((b"origin", b"http://localhost:8000"))
    assert refusal(Access(), twice) == "origin"


def test_who_has_the_token_is_let_in() -> None:
    access = Access(token=TOKEN)
    for given, reason in (
        (f"Bearer {TOKEN.decode()}", None),
        (f"bearer  {TOKEN.decode()}", None),
        (f"Bearer {TOKEN.decode()}x", "token"),
        (f"Basic {TOKEN.decode()}", "token"),
        ("Bearer", "token"),
        ("", "token"),
    ):
        assert refusal(access, scope_of(authorization=given)) == reason, given
    for path, reason in (
        ("/metrics", "token"),
        ("/nothing", "token"),
        ("/", None),
        ("/healthz", None),
        ("/readyz", None),
    ):
        assert refusal(access, scope_of(path)) == reason, path


def test_tokens_and_names_that_are_none_are_refused_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(TOKEN + b"\n")
    assert read_token(file) == TOKEN
    for content in (b"", b"short", b"two words that are long enough", b"sixteen letters\xff\xff\xff"):
        file.write_bytes(content)
        with pytest.raises(RunError, match="must hold one word of at least 16"):
            read_token(file)
    with pytest.raises(RunError, match="cannot be read"):
        read_token(tmp_path / "none")
    with pytest.raises(RunError, match="--allow-host http://x/ is neither a name nor an address"):
        allowed_hosts(["http://x/"])


def test_no_address_takes_everything() -> None:
    shares = Shares(4, 3)
    assert [shares.take("a") for _ in range(4)] == [True, True, True, False]
    assert shares.take("b")
    assert not shares.take("c")  # there is no more
    with pytest.raises(ZeroDivisionError), Shares(10, 10).holding("a") as take:
        assert take(4)
        raise ZeroDivisionError
    shares.give_back("a", 3)
    assert shares.take("c", 3)
    assert shares.taken == 4


def test_one_household_is_one_address() -> None:
    for host, address in (
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix", "unix"),
    ):
        assert address_of((host, 1)) == address
    assert address_of(None) == ""


def test_the_access_log_is_json_whatever_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Any) -> None: ...

    guard = Guard(application, paths={"/predict"}, queue=Shares(1, 1), access=Access(), metrics=Metrics())
    caplog.set_level(logging.INFO, logger="shortcaps")
    asyncio.run(guard(scope_of(), send, send))
    assert caplog.messages == []  # nobody has asked for it
    caplog.set_level(logging.INFO, logger="shortcaps.serve.access")
    asyncio.run(guard(scope_of('/"}\n{"status": 200'), send, send))
    line = json.loads(caplog.messages[0])
    assert "\n" not in caplog.messages[0]
    assert (line["path"], line["status"], line["client"]) == ('/"}\n{"status": 200', 404, "9.9.9.9")


def test_latencies_are_counted_in_buckets() -> None:
    metrics = Metrics()
    for seconds in (0.001, 0.005, 0.3, 99):
        metrics.answered(200, seconds)
    text = metrics.render()
    for bound, count in (("0.005", 2), ("0.25", 2), ("0.5", 3), ("10.0", 3), ("+Inf", 4)):
        assert f'shortcaps_predict_seconds_bucket{{le="{bound}"}} {count}\n' in text
    assert "shortcaps_predict_seconds_count 4\n" in text
