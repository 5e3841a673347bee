"""How a process uses the processor, decided before PyTorch is loaded: its threads read their settings once, when they start.

Threads that wait for one another spin by default, which is fastest on an idle machine and ruinous on a busy one: a thread that spins
keeps the one it waits for from running. So where the processor is shared they sleep instead. And in a container that may use a part of
the processor only, there are as many threads as fit into that part.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

BUSY = 0.5
"""From this load on, in processes per core, the machine counts as busy."""
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Machine:
    """What matters of the machine.

    Attributes:
        cores: Cores that it has.
        allowed: Cores that this process may run on.
        quota: Cores' worth of time that its container may use; None if that is not limited.
        is_container: Whether it runs in a container.
        load: Processes that have lately wanted to run; 0 where the system does not say.
    """

    cores: int
    allowed: int
    quota: float | None = None
    is_container: bool = False
    load: float = 0.0

    @property
    def usable(self) -> int:
        """Threads that can run at the same time."""
        return max(1, min(self.allowed, int(self.quota or self.allowed)))

    @property
    def shared_because(self) -> str:
        """Why others may need the processor too; empty if nothing speaks for it."""
        if self.quota is not None and self.quota < self.allowed:
            return f"the container may use {self.quota:g} of {self.allowed} cores"
        if self.allowed < self.cores:
            return f"the process may use {self.allowed} of {self.cores} cores"
        if self.load >= BUSY * self.cores:
            return f"the machine is busy, load {self.load:.1f} on {self.cores} cores"
        if self.is_container:
            return "it runs in a container"
        return ""


@dataclass(frozen=True)
class Choice:
    """An environment variable, and why it has its value.

    Attributes:
        variable: Its name.
        value: Its value.
        reason: Why.
        is_new: Whether it was chosen here, not by the user.
    """

    variable: str
    value: str
    reason: str
    is_new: bool = True

    def __str__(self) -> str:
        return f"{self.variable}={self.value}: {self.reason}"


def look_at_machine(root: Path = Path("/")) -> Machine:
    """Find out about the machine.

    Args:
        root: Where its file system begins.
    """
    cores = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    is_container = any((root / name).exists() for name in (".dockerenv", "run/.containerenv"))
    is_container = is_container or "KUBERNETES_SERVICE_HOST" in os.environ
    try:
        load = os.getloadavg()[0]
    except (OSError, AttributeError):
        load = 0.0
    return Machine(cores, allowed, cpu_quota(root), is_container, load)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The cores' worth of time that the control groups of this process leave it; None if they set no limit.

    Args:
        root: Where the file system begins.
    """
    groups: dict[str, str] = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        groups |= dict.fromkeys(controllers.split(","), path.strip("/"))
    quotas = []
    for base, path in (("sys/fs/cgroup", groups.get("", "")), ("sys/fs/cgroup/cpu", groups.get("cpu", ""))):
        # Within a container the path may be that outside of it; the root of what is mounted holds the limit then.
        parts = path.split("/") if path else []
        for depth in range(len(parts) + 1):
            folder = root.joinpath(base, *parts[:depth])
            limit = _read(folder / "cpu.max").split()  # version 2
            limit = limit or [_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]  # version 1
            if len(limit) == 2 and all(number.isdigit() for number in limit) and int(limit[1]):
                quotas.append(int(limit[0]) / int(limit[1]))
    return min((quota for quota in quotas if quota > 0), default=None)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def choose(machine: Machine, environment: Mapping[str, str]) -> list[Choice]:
    """What to set, and what the user has set already, which stays.

    The number of threads depends on limits only and never on load: a sum depends on how many threads share it, and a run that is resumed
    must compute the same.

    Args:
        machine: What is known of the machine.
        environment: The variables that are set.
    """
    choices = []
    for variables, new in (
        (
            _THREADS,
            (
                "OMP_NUM_THREADS",
                str(machine.usable),
                machine.shared_because if machine.usable < machine.allowed else "",
            ),
        ),
        (_WAITING, ("OMP_WAIT_POLICY", "passive", machine.shared_because)),
    ):
        own = [
            Choice(name, environment[name], "as you have set it", False) for name in variables if name in environment
        ]
        choices += own or ([Choice(*new)] if new[2] else [])
    return choices


_made: list[Choice] = []


def settle(environment: MutableMapping[str, str] | None = None, machine: Machine | None = None) -> list[Choice]:
    """Set what is right for this machine; too late for a process that has loaded PyTorch already.

    Args:
        environment: Where to set it; this process's if None.
        machine: What is known of the machine; looked at if None.

    Returns:
        What was chosen, and what the user has set.
    """
    environment = os.environ if environment is None else environment
    _made[:] = choose(machine or look_at_machine(), environment)
    environment.update({choice.variable: choice.value for choice in _made if choice.is_new})
    return list(_made)


def choices_made() -> list[Choice]:
    """What `settle` has chosen in this process."""
    return list(_made)
