"""How the command line uses the processor: chosen before PyTorch is loaded, and never against the user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import shortcaps
from shortcaps.startup import Choice, Machine, choose, cpu_quota, look_at_machine, settle

IDLE = Machine(cores=8, allowed=8)


def values(machine: Machine, **environment: str) -> dict[str, str]:
    return {choice.variable: choice.value for choice in choose(machine, environment) if choice.is_new}


def test_on_a_machine_of_ones_own_nothing_is_changed() -> None:
    assert choose(IDLE, {}) == []


@pytest.mark.parametrize(
    ("machine", "threads", "reason"),
    [
        (Machine(8, 8, quota=2.5), "2", "the container may use 2.5 of 8 cores"),
        (Machine(8, 8, quota=0.5), "1", "the container may use 0.5 of 8 cores"),
        (Machine(8, 8, quota=8.0, is_container=True), None, "it runs in a container"),
        (Machine(8, 2), None, "the process may use 2 of 8 cores"),
        (Machine(8, 8, load=4.0), None, "the machine is busy, load 4.0 on 8 cores"),
    ],
)
def test_where_the_processor_is_shared_threads_sleep_and_fit_the_quota(
    machine: Machine, threads: str | None, reason: str
) -> None:
    expected = {"OMP_WAIT_POLICY": "passive"} | ({"OMP_NUM_THREADS": threads} if threads else {})
    assert values(machine) == expected
    assert all(choice.reason == reason for choice in choose(machine, {}))


def test_the_number_of_threads_does_not_depend_on_load() -> None:
    for load in (0.0, 1.0, 50.0):
        assert values(Machine(8, 8, quota=2.0, load=load))["OMP_NUM_THREADS"] == "2"
        assert "OMP_NUM_THREADS" not in values(Machine(8, 8, load=load))


def test_what_the_user_has_set_stays() -> None:
    shared = Machine(8, 8, quota=2.0)
    assert values(shared, OMP_NUM_THREADS="8") == {"OMP_WAIT_POLICY": "passive"}
    assert values(shared, MKL_NUM_THREADS="8", GOMP_SPINCOUNT="100") == {}
    environment = {"OMP_WAIT_POLICY": "active"}
    said = settle(environment, shared)
    assert environment == {"OMP_WAIT_POLICY": "active", "OMP_NUM_THREADS": "2"}
    assert str(said[1]) == "OMP_WAIT_POLICY=active: as you have set it"


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "300000 100000",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000",
            },
            3.0,
        ),
        (
            {
                "proc/self/cgroup": "3:cpuset:/\n2:cpu,cpuacct:/docker/x\n0::/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ({}, None),
    ],
)
def test_the_quota_of_a_container_is_read_from_both_versions_of_control_groups(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_quota(tmp_path) == quota


def test_a_container_is_known_by_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert not look_at_machine(tmp_path).is_container
    (tmp_path / ".dockerenv").touch()
    assert look_at_machine(tmp_path).is_container


def test_torch_is_loaded_after_the_choice_only() -> None:
    program = (
        "import sys, shortcaps.__main__ as main; from shortcaps import startup\n"
        "assert 'torch' not in sys.modules\n"
        "startup.look_at_machine = lambda: startup.Machine(8, 8, quota=1.0)\n"
        "original = startup.settle\n"
        "def settle():\n"
        "    assert 'torch' not in sys.modules\n"
        "    return original()\n"
        "main.settle = settle\n"
        "sys.argv = ['shortcaps', '-v', 'recipe', 'list']\n"
        "main.main()\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP", "MKL", "GOMP", "KMP"))}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "OMP_NUM_THREADS=1: the container may use 1 of 8 cores" in done.stderr
    assert "OMP_WAIT_POLICY=passive: the container may use 1 of 8 cores" in done.stderr
    assert "PyTorch uses 1 threads" in done.stderr
    assert "fast" in done.stdout


def test_every_public_name_is_found_when_it_is_asked_for() -> None:
    for name in shortcaps.__all__:
        assert getattr(shortcaps, name) is not None
    assert set(shortcaps.__all__) <= set(dir(shortcaps))
    assert shortcaps.__dict__["_PLACES"].keys() == set(shortcaps.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'creat_model'"):
        shortcaps.__getattr__("creat_model")


def test_a_choice_says_why() -> None:
    assert str(Choice("OMP_WAIT_POLICY", "passive", "it runs in a container")) == (
        "OMP_WAIT_POLICY=passive: it runs in a container"
    )
