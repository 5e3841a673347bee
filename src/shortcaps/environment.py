"""The machine: where networks run on it, and what a result depends on besides its settings."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch


def best_device() -> str:
    """The device a network runs on by default: `cuda`, `mps` or `cpu`."""
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def is_first_process() -> bool:
    """Whether this is the first of the processes that train together; it alone prints and writes."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK"))


def describe_environment(device: str | None = None) -> dict[str, str]:
    """Versions, commit, machine and device, as they are stored with every result.

    Args:
        device: The device that does the work; the best one available if None.
    """
    from shortcaps.kernels import library

    return {
        "shortcaps": version("shortcaps"),
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "threads": str(torch.get_num_threads()),
        "device": _device_name(device or best_device()),
        "native kernels": library.description(),
    }


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return "CPU" if device == "cpu" else device


def _commit() -> str:
    """The commit of a source checkout, with a mark where the package differs from it; `-` for an installed package."""
    here = Path(__file__).parent
    try:
        # A virtual environment may lie inside a repository that is not this package's.
        subprocess.run(
            ["git", "ls-files", "--error-unmatch", "--", Path(__file__).name], cwd=here, capture_output=True, check=True
        )
        commit = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=here, capture_output=True, text=True, check=True
        )
        changed = subprocess.run(
            ["git", "status", "--porcelain", "-uno", "--", "."], cwd=here, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "-"
    return commit.stdout.strip() + (" with changes" if changed.stdout.strip() else "")


def _processor() -> str:
    """The name of the processor, where the system reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
