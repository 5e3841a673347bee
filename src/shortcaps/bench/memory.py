"""Peak memory of one case, in a process of its own: `python -m shortcaps.bench.memory JOB`, JOB being JSON."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

from shortcaps.bench.cases import Case

log = logging.getLogger(__name__)

# By default glibc keeps much of what was freed; how much varies, and with it the peak of the same step, by 7 %. With a fixed
# threshold every larger block is returned to the system at once: repetitions agree to less than a percent.
_GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": str(128 * 1024)}


def measure_memory(case: Case, device: str = "cpu", *, training: bool = True) -> int | None:
    """Peak memory of two steps of a case, in bytes above what the process held before it created the network.

    Args:
        case: What to measure.
        device: Where.
        training: Whether a step is a training step or inference.

    Returns:
        Bytes; None if the system has no such counter or the case does not fit into memory, in which case the reason is logged.
    """
    job = json.dumps({**case.to_dict(), "training": training, "device": device})
    result = subprocess.run(
        [sys.executable, "-m", "shortcaps.bench.memory", job],
        env=os.environ | _GIVE_BACK,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode == 0 and result.stdout.strip().isdigit():
        return int(result.stdout)
    why = (result.stderr.strip().splitlines() or [f"it exited with code {result.returncode}"])[-1]
    log.warning("the memory of %s could not be measured: %s", case, why)
    return None


def _resident_peak() -> int:
    """The most memory that this process has held since the counter was reset, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("the system does not report the peak memory of a process")


def _main(job: str) -> None:
    import torch

    settings = json.loads(job)
    training, device = settings.pop("training"), settings.pop("device")
    case = Case(**settings)
    # What PyTorch sets up for itself on first use is not the network's: threads, and the modules that an optimizer loads, some 75 MB.
    torch.optim.Adam([torch.ones(8, requires_grad=True)], fused=True)
    torch.ones(8).sum()
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
    else:
        Path("/proc/self/clear_refs").write_text("5")
    before = 0 if device.startswith("cuda") else _resident_peak()
    step = case.training_step(device) if training else case.inference(device)
    for _ in range(2):
        step()
    print(torch.cuda.max_memory_allocated(device) if device.startswith("cuda") else _resident_peak() - before)


if __name__ == "__main__":
    _main(sys.argv[1])
