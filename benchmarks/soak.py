"""Half an hour of good clients, while others send what nobody should and hold connections that they do not use.

    python benchmarks/soak.py --minutes 30 --json results/server.json

Needs Linux: every kind of client has addresses of its own in 127.0.0.0/8. Good clients are measured in a process of their own,
alone, then among the others. What the issue asks for is checked in the end, and the exit code says whether all of it held.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from serving import children, descriptors, is_running, resident_megabytes, serving, write_section

CLIENTS = Path(__file__).with_name("soak_clients.py")
QUIET_SECONDS = 20.0
"""After which the server has closed what the clients left behind: idle connections live 15 seconds."""
SETTLE_MEGABYTES = 24
"""What may be loaded or grown once after the first quarter of the soak."""


def start(role: str, address: str, seconds: float, out: Path, *options: str) -> subprocess.Popen[bytes]:
    place = urlsplit(address)
    command = [sys.executable, str(CLIENTS), role, str(place.port), str(seconds), str(out), *options]
    return subprocess.Popen(command)


def result_of(process: subprocess.Popen[bytes], out: Path) -> dict[str, Any]:
    assert process.wait() == 0, "a client program failed"
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def sample(pid: int, started: float) -> dict[str, float]:
    decoders = 0.0
    for child in children(pid):
        try:
            decoders += resident_megabytes(child)
        except (OSError, IndexError):  # it has just been replaced
            continue
    return {
        "second": round(time.monotonic() - started, 1),
        "server_mb": round(resident_megabytes(pid), 1),
        "decoders_mb": round(decoders, 1),
        "descriptors": descriptors(pid),
    }


def soak(minutes: float, rate: float, slow: int) -> dict[str, Any]:
    seconds = 60 * minutes
    alone_seconds = min(120.0, max(20.0, seconds / 10))
    with tempfile.TemporaryDirectory() as name, serving() as (process, address):
        folder = Path(name)
        result_of(start("good", address, 5, folder / "warm"), folder / "warm")
        alone = result_of(start("good", address, alone_seconds, folder / "alone"), folder / "alone")
        time.sleep(QUIET_SECONDS)
        before, started = sample(process.pid, time.monotonic()), time.monotonic()
        good = start("good", address, seconds, folder / "good")
        others = {
            "malformed": start("malformed", address, seconds, folder / "malformed", str(rate)),
            "slow": start("slow", address, seconds, folder / "slow", str(slow)),
        }
        samples = []
        while time.monotonic() - started < seconds - 1:
            time.sleep(max(1.0, seconds / 120))
            samples.append(sample(process.pid, started))
        among = result_of(good, folder / "good")
        found: dict[str, Any] = {role: result_of(client, folder / role) for role, client in others.items()}
        time.sleep(QUIET_SECONDS)
        after = sample(process.pid, started)
        helpers = children(process.pid)
        stopping = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        found |= {
            "minutes": minutes,
            "good_alone": alone,
            "good_among_others": among,
            "before": before,
            "after": after,
            "samples": samples,
            "shutdown": {
                "exit_code": code,
                "seconds": round(time.monotonic() - stopping, 2),
                "processes_left": sum(is_running(pid) for pid in helpers),
            },
        }
    return found


def verdict(found: dict[str, Any]) -> dict[str, bool]:
    """What was promised, and whether it held."""
    alone, among, malformed = found["good_alone"], found["good_among_others"], found["malformed"]
    memory = [one["server_mb"] for one in found["samples"]]
    quarter = max(1, len(memory) // 4)
    first, last = statistics.median(memory[quarter : 2 * quarter] or memory), statistics.median(memory[-quarter:])
    return {
        "p99 at most three times that without attackers": among["p99_ms"] <= 3 * alone["p99_ms"],
        "every good request answered rightly": among["wrong"] == alone["wrong"] == 0,
        "no 500": not any(status.startswith("5") and status not in ("503", "504") for status in malformed["answers"]),
        "every refusal is one line of JSON": malformed["not_json"] == 0,
        "flat memory": last <= first + SETTLE_MEGABYTES,
        "no leaked descriptor": found["after"]["descriptors"] <= found["before"]["descriptors"],
        "clean shutdown": found["shutdown"]["exit_code"] == found["shutdown"]["processes_left"] == 0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=40.0, help="malformed requests a second")
    parser.add_argument("--slow", type=int, default=200, help="slow or stuck connections at one time")
    parser.add_argument("--json", type=Path, help="the record; its section 'soak' is replaced")
    arguments = parser.parse_args()
    found = soak(arguments.minutes, arguments.rate, arguments.slow)
    found["held"] = verdict(found)
    print(json.dumps({name: value for name, value in found.items() if name != "samples"}, indent=2))
    if arguments.json:
        write_section(arguments.json, "soak", found)
    sys.exit(0 if all(found["held"].values()) else 1)


if __name__ == "__main__":
    main()
