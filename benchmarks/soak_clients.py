"""The clients of `soak.py`, each role in a process of its own: `soak_clients.py ROLE PORT SECONDS OUT [NUMBER]`.

`good` asks and measures; `malformed` sends NUMBER hostile requests a second; `slow` holds NUMBER connections that it hardly uses.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import socket
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hostile import Hostile, encoded
from PIL import Image, ImageDraw

GOOD_CLIENTS = 4
GOOD_PAUSE = 0.05
"""Seconds between an answer and the next question: what a person's page or a steady script does, not a benchmark."""
HOSTILE_ADDRESSES = 8
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(port: int, source: str) -> Streams:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    while head.startswith(b"HTTP/1.1 1"):  # 100 Continue
        head = await reader.readuntil(b"\r\n\r\n")
    length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), None)
    return int(head[9:12]), await reader.readexactly(int(length.split(b":")[1])) if length else b""


def good_requests(port: int) -> list[bytes]:
    """Drawn digits and a photograph, as a form, as JSON and as they are."""
    picture = Image.new("L", (200, 200), 255)
    ImageDraw.Draw(picture).line([(100, 30), (100, 170)], fill=0, width=18)
    made = []
    for content in (
        encoded(picture, "PNG"),
        encoded(picture, "JPEG"),
        encoded(picture, "WEBP"),
        encoded(picture.resize((640, 480)).convert("RGB"), "JPEG"),
    ):
        form = b'--e\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n' + content + b"\r\n--e--\r\n"
        asked = json.dumps({"image": base64.b64encode(content).decode()}).encode()
        for kind, body in (
            ("multipart/form-data; boundary=e", form),
            ("application/json", asked),
            ("image/png", content),
        ):
            head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}"
            made.append(head.encode() + b"\r\n\r\n" + body)
    return made


async def good(port: int, seconds: float) -> dict[str, Any]:
    requests, latencies, wrong = good_requests(port), list[float](), Counter[str]()
    end = time.monotonic() + seconds

    async def client(number: int) -> None:
        chance, streams = random.Random(number), None
        while time.monotonic() < end:
            started = time.perf_counter()
            try:
                reader, writer = streams = streams or await connect(port, "127.0.0.1")
                writer.write(chance.choice(requests))
                status, body = await read_answer(reader)
                if status != 200 or json.loads(body)["answer"] != "1":
                    wrong[f"{status} {body[:80].decode()}"] += 1
            except (OSError, asyncio.IncompleteReadError) as error:
                wrong[type(error).__name__] += 1
                streams = None
            latencies.append(time.perf_counter() - started)
            await asyncio.sleep(GOOD_PAUSE)

    await asyncio.gather(*(client(number) for number in range(GOOD_CLIENTS)))
    ordered = sorted(latencies)
    return {
        "clients": GOOD_CLIENTS,
        "requests": len(ordered),
        "wrong": wrong.total(),
        "what_was_wrong": dict(wrong.most_common(5)),
        "median_ms": round(1e3 * ordered[len(ordered) // 2], 2),
        "p99_ms": round(1e3 * ordered[int(0.99 * len(ordered))], 2),
        "max_ms": round(1e3 * ordered[-1], 2),
    }


async def malformed(port: int, seconds: float, rate: float) -> dict[str, Any]:
    answers, not_json, examples = Counter[str](), Counter[str](), list[str]()
    end = time.monotonic() + seconds

    async def attack(number: int) -> None:
        source, hostile, chance = f"127.0.1.{number + 1}", Hostile(f"127.0.0.1:{port}", number), random.Random(number)
        under_way: set[asyncio.Task[None]] = set()
        while time.monotonic() < end:
            task = asyncio.create_task(ask(source, hostile.request(), chance.random()))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            await asyncio.sleep(chance.expovariate(rate / HOSTILE_ADDRESSES))
        await asyncio.gather(*under_way)

    async def ask(source: str, request: bytes, fate: float) -> None:
        try:
            reader, writer = await connect(port, source)
        except OSError:
            answers["no connection"] += 1
            return
        try:
            if fate < 0.05:  # broken off in the middle
                writer.write(request[: len(request) // 2])
                await writer.drain()
                answers["broken off by the client"] += 1
                return
            writer.write(request)
            if fate < 0.15:  # says that it has no more to say
                writer.write_eof()
            status, body = await asyncio.wait_for(read_answer(reader), 40)
            answers[str(status)] += 1
            if status >= 400 and not is_problem(body):
                not_json[str(status)] += 1
                examples.append(repr(body[:100]))
        except (OSError, asyncio.IncompleteReadError):
            answers["closed without an answer"] += 1
        except TimeoutError:
            answers["no answer in 40 seconds"] += 1
        finally:
            writer.transport.abort()

    await asyncio.gather(*(attack(number) for number in range(HOSTILE_ADDRESSES)))
    return {
        "addresses": HOSTILE_ADDRESSES,
        "requests": answers.total(),
        "answers": dict(sorted(answers.items())),
        "not_json": not_json.total(),
        "not_json_examples": examples[:5],
    }


async def read_for_a_while(reader: asyncio.StreamReader) -> bool:
    """Whether the connection is still there after a moment of listening."""
    try:
        return bool(await asyncio.wait_for(reader.read(1000), 0.05))
    except TimeoutError:
        return True


def is_problem(body: bytes) -> bool:
    try:
        reason = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return False
    return isinstance(reason, str) and "\n" not in reason


async def slow(port: int, seconds: float, count: int) -> dict[str, Any]:
    opened, ended = Counter[str](), Counter[str]()
    end = time.monotonic() + seconds
    host = f"Host: 127.0.0.1:{port}\r\n".encode()
    get = b"GET / HTTP/1.1\r\n" + host + b"\r\n"
    post = b"POST /predict HTTP/1.1\r\n" + host + b"Content-Type: image/png\r\nContent-Length: 500000\r\n\r\n"
    kinds = ("silent", "drips its head", "drips its body", "stuck in its body", "never reads", "reads drop by drop")

    async def hold(number: int) -> None:
        kind, source = kinds[number % len(kinds)], f"127.0.2.{number % 20 + 1}"
        while time.monotonic() < end:
            try:
                await misbehave(kind, source)
                ended["by the client"] += 1
            except (OSError, asyncio.IncompleteReadError):
                ended["by the server"] += 1
            await asyncio.sleep(0.2 + random.random())

    async def misbehave(kind: str, source: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0), limit=1024)
        opened[kind] += 1
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        try:
            if kind in ("never reads", "reads drop by drop"):
                reader._transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(get * 40)
            elif kind != "silent":
                writer.write(post if "body" in kind else get[:-4])
            while time.monotonic() < end:
                if writer.transport.is_closing():
                    raise ConnectionResetError
                if kind.startswith("drips"):
                    writer.write(b"a")
                elif kind in ("never reads", "reads drop by drop"):
                    writer.write(get)  # by which it learns that the server has had enough
                if kind == "reads drop by drop":
                    reader._transport.resume_reading()  # type: ignore[attr-defined]
                    await reader.read(10)
                elif kind != "never reads" and not await read_for_a_while(reader):
                    raise ConnectionResetError
                await asyncio.sleep(0.5 + random.random())
        finally:
            writer.transport.abort()

    await asyncio.gather(*(hold(number) for number in range(count)))
    return {"at_one_time": count, "connections": opened.total(), "kinds": dict(opened), "ended": dict(ended)}


def main() -> None:
    role, port, seconds, out, *number = sys.argv[1:]
    match role:
        case "good":
            found = asyncio.run(good(int(port), float(seconds)))
        case "malformed":
            found = asyncio.run(malformed(int(port), float(seconds), float(number[0])))
        case _:
            found = asyncio.run(slow(int(port), float(seconds), int(number[0])))
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
