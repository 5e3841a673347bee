"""Measures the server: requests per second and latency at 1, 8 and 64 clients, what happens past the limit, and 10,000
malformed uploads. Needs `wrk` (a package of that name in most distributions).

    python benchmarks/server.py --json results/server.json
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import random
import re
import subprocess
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from serving import resident_megabytes, serving, write_section

PARTS = 5
LUA = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "image/png"
local file = io.open("{picture}", "rb")
wrk.body = file:read("*all")
done = function(summary, latency, requests)
  io.write(string.format("RESULT %d %d %.3f %.3f %.3f\\n", summary.requests, summary.errors.status,
    summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
"""


def load(address: str, clients: int, seconds: int, picture: Path) -> dict[str, float]:
    """wrk with so many connections: every one sends its next request when it has its answer."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(LUA.format(picture=picture))
        script.flush()
        command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "--latency", "--timeout", "30s", "-s", script.name]
        result = subprocess.run([*command, f"{address}/predict"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr + result.stdout
    output = result.stdout
    requests, refused, duration, median, p99 = map(float, re.findall(r"RESULT (.*)", output)[0].split())
    return {
        "clients": clients,
        "requests_per_second": (requests - refused) / duration,
        "refused": refused,
        "median_ms": median,
        "p99_ms": p99,
    }


def seeds() -> list[bytes]:
    made = []
    for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP"):
        for mode in ("L", "RGB"):
            stream = io.BytesIO()
            Image.effect_noise((48, 48), 80).convert(mode).save(stream, kind)
            made.append(stream.getvalue())
    return made


def bomb(chance: random.Random) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    side = chance.choice([6_000, 30_000, 65_535, 2**31 - 1])
    header = side.to_bytes(4, "big") * 2 + bytes([8, chance.choice([0, 2, 3, 6]), 0, 0, 0])
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(200_000)))
        + chunk(b"IEND", b"")
    )


def malformed(chance: random.Random, originals: list[bytes]) -> dict[str, Any]:
    """The arguments of one bad request."""
    data = bytearray(chance.choice(originals))
    for _ in range(chance.randrange(1, 30)):
        data[chance.randrange(min(len(data), chance.choice([32, 128, 100_000])))] = chance.randrange(256)
    kind = chance.randrange(8)
    if kind == 0:
        return {
            "content": bytes(data),
            "headers": {"Content-Type": chance.choice(["text/html", "image/png", "", "x/y"])},
        }
    if kind == 1:
        return {"content": bytes(data), "headers": {"Content-Type": "multipart/form-data; boundary=x"}}
    if kind == 2:
        return {"content": bytes(data), "headers": {"Content-Type": "application/json"}}
    if kind == 3:
        return {"json": {"image": chance.choice([None, 3, "", "AAAA", "%", [1], "data:,x", bytes(data).hex()])}}
    if kind == 4:
        return {"files": {"image": bomb(chance)}}
    if kind == 5:
        return {"files": {chance.choice(["image", "x"]): bytes(data[: chance.randrange(len(data))])}}
    query = {
        chance.choice(["scale", "rotation", "details", "shear"]): chance.choice(["nan", "1e999", "-", "0", "True", "9"])
    }
    return {"files": {"image": bytes(data)}, "params": query if kind == 6 else {}}


async def fuzz(address: str, count: int, seed: int) -> Counter[int]:
    chance, originals, codes = random.Random(seed), seeds(), Counter[int]()
    async with httpx.AsyncClient(timeout=60) as client:
        for _ in range(0, count, 20):
            requests = [client.post(f"{address}/predict", **malformed(chance, originals)) for _ in range(20)]
            codes.update(response.status_code for response in await asyncio.gather(*requests))
    return codes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--uploads", type=int, default=10_000)
    parser.add_argument("--json", type=Path, help="the record; its section 'throughput' is replaced")
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder, "digit.png")
        Image.effect_noise((28, 28), 60).save(picture)
        with serving() as (process, address):
            load(address, 8, 3, picture)  # warm
            found["load"] = [load(address, clients, arguments.seconds, picture) for clients in (1, 8, 64)]
            # What is loaded or grown once, by the first of its kind, shows in the first part; a leak would show in all.
            memory, codes = [resident_megabytes(process.pid)], Counter[int]()
            started = time.perf_counter()
            for part in range(PARTS):
                codes += asyncio.run(fuzz(address, arguments.uploads // PARTS, seed=part))
                memory.append(resident_megabytes(process.pid))
            found["malformed"] = {
                "uploads": sum(codes.values()),
                "seconds": time.perf_counter() - started,
                "answers": {str(code): count for code, count in sorted(codes.items())},
                "memory_mb_before_and_after_each_fifth": memory,
                "still_serving": httpx.get(f"{address}/healthz").json()["status"] == "ok",
            }
        # wrk has one address for all its connections.
        with serving("--queue", "16", "--connections-per-address", "300") as (process, address):
            load(address, 8, 3, picture)
            before = resident_megabytes(process.pid)
            found["past_the_limit"] = {
                "queue": 16,
                **load(address, 256, arguments.seconds, picture),
                "memory_before_mb": before,
                "memory_after_mb": resident_megabytes(process.pid),
            }
    print(json.dumps(found, indent=2))
    if arguments.json:
        write_section(arguments.json, "throughput", found)
    assert "500" not in found["malformed"]["answers"], "the server failed on a malformed upload"


if __name__ == "__main__":
    main()
