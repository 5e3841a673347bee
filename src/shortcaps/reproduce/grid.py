"""Runs the cells of Table 1, each in a process of its own, and goes on where it was stopped.

A cell is an ordinary training run under `runs/`, so it can be looked at, resumed and reported on like any other; its record is
written when it has ended. What has a record is done.
"""

from __future__ import annotations

import os
import queue
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from shortcaps.reproduce.cells import Cell
from shortcaps.reproduce.records import Record, find_record, read_records, record_of_run, write_record
from shortcaps.training.config import RunError, TrainConfig
from shortcaps.training.run import read_run_config

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    cell: Cell
    config: TrainConfig
    run: Path

    @property
    def flags(self) -> list[str]:
        """What `shortcaps train` takes to do this job."""
        config = self.config
        flags = ["--data", config.data, "--model", config.model]
        if self.cell.routing is not None:
            flags += ["--routing", config.routing, "--shortcut" if config.shortcut else "--no-shortcut"]
        flags += ["--recipe", config.recipe, "--protocol", config.protocol, "--seed", str(config.seed)]
        for name in ("epochs", "most_images"):
            value = getattr(config, name)
            flags += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
        return flags

    @property
    def command(self) -> str:
        return shlex.join(["shortcaps", "train", *self.flags])

    def __str__(self) -> str:
        return f"{self.cell.name}, seed {self.config.seed}"


@dataclass(frozen=True)
class Outcome:
    done: list[Record]
    failed: dict[str, str]
    """By cell, the last thing its process said."""
    interrupted: bool = False


def plan_jobs(
    cells: Sequence[Cell],
    runs: Path,
    *,
    seeds: int = 1,
    recipe: str = "fast",
    protocol: str = "default",
    epochs: int | None = None,
    most_images: int | None = None,
) -> list[Job]:
    """A job for each cell and seed, one seed of all cells before the next."""
    jobs = []
    for seed in range(seeds):
        for cell in cells:
            config = cell.config(seed=seed, recipe=recipe, protocol=protocol, epochs=epochs, most_images=most_images)
            jobs.append(Job(cell, config, runs / f"{cell.name.replace('/', '-')}-seed{seed}"))
    return jobs


def run_grid(
    jobs: Sequence[Job],
    out: Path,
    *,
    devices: int = 1,
    tell: Tell = lambda message: None,
    finished: Callable[[Record], object] = lambda record: None,
    launch: Callable[[Job, int, int], tuple[str | None, bool]] | None = None,
) -> Outcome:
    """Runs what has no record yet. `finished` is called with each new record, one at a time; `launch` does a job."""
    launch = launch or run_job
    known = read_records(out)
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    done: list[Record] = []
    for job in jobs:
        record = find_record(known, job.cell, job.config)
        if record is None:
            check_run(job)
            waiting.put(job)
        else:
            done.append(record)
    tell(f"{len(jobs)} runs, {len(done)} of them done already")
    failed: dict[str, str] = {}
    one_at_a_time, stop = threading.Lock(), threading.Event()

    def work(device: int) -> None:
        while not stop.is_set():
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            tell(f"{job}: {job.command}")
            problem, interrupted = launch(job, device, devices)
            if interrupted:
                stop.set()
                return
            with one_at_a_time:
                if problem is not None:
                    failed[str(job)] = problem
                    tell(f"{job}: failed: {problem}")
                    continue
                record = record_of_run(job.cell, job.run, job.command)
                tell(f"{job}: {record.accuracy:.2%}, record {write_record(record, out)}")
                done.append(record)
                finished(record)

    workers = [threading.Thread(target=work, args=(device,)) for device in range(devices)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        try:
            for worker in workers:
                worker.join(0.2)
        except KeyboardInterrupt:
            # The processes got the same signal and are saving what they have; the workers end when they do.
            stop.set()
            tell("stopping: every run saves its state, the same command goes on from it")
    return Outcome(done, failed, stop.is_set())


def check_run(job: Job) -> None:
    """A run that is there already must be this very job's."""
    if not (job.run / "config.json").is_file():
        return
    stored = read_run_config(job.run)
    if stored["train"] != job.config.to_dict() or stored["recipe"] != asdict(job.config.effective_recipe):
        raise RunError(f"{job.run} holds a run with other settings: choose other --runs, or move it away")


def run_job(job: Job, device: int, devices: int) -> tuple[str | None, bool]:
    """Trains one cell, or goes on with it. Returns what went wrong, and whether it was told to stop."""
    if (job.run / "result.json").is_file():  # ended, but stopped before its record was written
        return None, False
    job.run.mkdir(parents=True, exist_ok=True)
    place = ["--resume", str(job.run)] if (job.run / "config.json").is_file() else ["--out", str(job.run)]
    command = [sys.executable, "-m", "shortcaps", "train", *job.flags, *place]
    log = job.run / "log.txt"
    alone = devices == 1
    with log.open("ab") as file:
        # Alone, a run shows its own progress; several at once would write over one another.
        process = subprocess.run(
            command,
            env=_environment(device, devices),
            stdout=None if alone else file,
            stderr=subprocess.PIPE if alone else file,
            check=False,
        )
    if process.returncode == 0:
        return None, False
    if process.returncode in (130, 143, -2, -15):
        return None, True
    said = (process.stderr if alone else log.read_bytes()).decode(errors="replace").strip()
    return said.splitlines()[-1].removeprefix("shortcaps: ") if said else f"exit code {process.returncode}", False


def _environment(device: int, devices: int) -> dict[str, str]:
    """One accelerator for each process, or its share of the processor's cores."""
    environment = dict(os.environ)
    if devices == 1:
        return environment
    if torch.cuda.is_available():
        environment["CUDA_VISIBLE_DEVICES"] = str(device)
    else:
        environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // devices))
    return environment


def check_devices(devices: int) -> None:
    available = torch.cuda.device_count() if torch.cuda.is_available() else os.cpu_count() or 1
    what = "CUDA devices" if torch.cuda.is_available() else "processor cores"
    if devices > available:
        raise RunError(f"--devices {devices} is more than this machine has: {available} {what}")
