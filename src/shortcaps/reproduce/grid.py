"""Training of the cells of a table, each in a process of its own; a stopped grid can be continued.

A cell is an ordinary training run under `runs/`, so it can be inspected, resumed and reported on like any other; its record is written when
it has finished. A cell with a record is done.
"""

from __future__ import annotations

import logging
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from shortcaps.errors import RunError
from shortcaps.files import read_json, remove_leftovers
from shortcaps.reproduce.cells import Cell
from shortcaps.reproduce.records import (
    Record,
    differences,
    find_record,
    read_records,
    record_of_run,
    still_counts,
    write_record,
)
from shortcaps.runs.config import FLAGS, TrainConfig
from shortcaps.runs.directory import read_manifest
from shortcaps.runs.origins import plugins_of
from shortcaps.startup import look_at_machine

log = logging.getLogger(__name__)

_SPELLED = {"start": "from"}
"""Settings whose option is not called as they are."""
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM)


@dataclass(frozen=True)
class Job:
    """The training of one cell.

    Attributes:
        cell: The cell.
        config: Its config.
        run: Its run directory.
    """

    cell: Cell
    config: TrainConfig
    run: Path

    @property
    def flags(self) -> list[str]:
        """The options of `shortcaps train` for this job."""
        routed = ("routing", "shortcut") if self.cell.routing is not None else ()
        flags: list[str] = []
        always = ("data", "model", *routed, "recipe", "protocol", "seed", "epochs", "max_images")
        default = TrainConfig()
        changed = (name for name in FLAGS if name not in always and self.config.get(name) != default.get(name))
        for name in (*always, *changed):
            value, spelled = self.config.get(name), _SPELLED.get(name, name.replace("_", "-"))
            if isinstance(value, bool):
                flags.append(f"--{spelled}" if value else f"--no-{spelled}")
            elif isinstance(value, Mapping):
                raise RunError(
                    f"{name} {dict(value)} has no option: register a network or data set that has these settings"
                )
            elif value is not None:
                flags += [f"--{spelled}", str(value)]
        return [*flags, *self._plugins]

    @property
    def resuming_flags(self) -> list[str]:
        """The options of `shortcaps train` that go on with this job, once it has begun: a run loads no plug-in by itself."""
        return ["--resume", str(self.run), *self._plugins]

    @property
    def _plugins(self) -> list[str]:
        model = self.config.model
        plugins = plugins_of(self.config, self.config.make_recipe(), {"name": model.name, "routing": model.routing})
        return [word for plugin in plugins for word in ("--plugin", plugin)]

    @property
    def command(self) -> str:
        """The command for this job, for people."""
        return shlex.join(["shortcaps", "train", *self.flags])

    def __str__(self) -> str:
        return f"{self.cell.name}, seed {self.config.run.seed}"


@dataclass(frozen=True)
class Outcome:
    """What became of the jobs.

    Attributes:
        done: Records, old and new.
        failed: What went wrong, by job.
        interrupted: Whether a signal stopped the grid.
    """

    done: list[Record]
    failed: dict[str, str]
    interrupted: bool = False


@dataclass
class Processes:
    """The training processes that are running, so that stopping the grid stops them too.

    Attributes:
        running: The processes.
        stopping: Set when the grid is asked to stop.
    """

    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Ask every run to save its state and exit."""
        self.stopping.set()
        for process in list(self.running):
            process.send_signal(signal.SIGTERM)

    @contextmanager
    def started(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """Within, the process is one of those running."""
        self.running.append(process)
        if self.stopping.is_set():  # between the last look and now
            process.send_signal(signal.SIGTERM)
        try:
            yield
        finally:
            self.running.remove(process)


Launch = Callable[[Job, int, int, Processes], str | None]
"""Called with a job, the number of its device, the number of devices and the processes; returns what went wrong, or None."""


def plan_jobs(cells: Sequence[Cell], runs: Path, *, seeds: int = 1, **settings: Any) -> list[Job]:
    """A job for each cell and seed, one seed of all cells before the next.

    Args:
        cells: What to train.
        runs: The folder of the training runs.
        seeds: How many; they are 0, 1, 2 …
        **settings: Of all runs, by their names on the command line: `recipe`, `protocol`, `epochs`, `max_images`, `precision`.
    """
    jobs = []
    for seed in range(seeds):
        for cell in cells:
            # Cells of a table are trained as the recipe says, however few images a data set has.
            config = cell.config(seed=seed, adapt=False, **settings)
            jobs.append(Job(cell, config, runs / f"{cell.name.replace('/', '-')}-seed{seed}"))
    return jobs


def run_grid(
    jobs: Sequence[Job],
    out: Path,
    *,
    devices: int = 1,
    finished: Callable[[Record], object] = lambda record: None,
    launch: Launch | None = None,
) -> Outcome:
    """Run the jobs that have no record yet.

    A job whose cell was run with other settings is skipped and counts as failed.

    Args:
        jobs: The jobs.
        out: Where the records are.
        devices: How many jobs run at the same time.
        finished: Called with each new record, one at a time.
        launch: Runs a job; `run_job` if None.

    Raises:
        RunError: All jobs were run with other settings.
    """
    remove_leftovers(out)
    known = read_records(out)
    waiting: list[Job] = []
    done: list[Record] = []
    failed: dict[str, str] = {}
    for job in jobs:
        try:
            record = find_record(known, job.cell, job.config)
            if record is None:
                check_run(job)
                waiting.append(job)
            else:
                done.append(record)
        except RunError as reason:
            if len(jobs) == len(failed) + 1:
                raise
            failed[str(job)] = str(reason)
            log.warning("%s is left out: %s", job, reason)
    log.info("%s runs, %s of them done already", len(jobs), len(done))
    one_at_a_time = threading.Lock()

    def write(job: Job) -> None:
        with one_at_a_time:
            record = record_of_run(job.cell, job.run, job.command)
            file = write_record(record, job.run, out)
            log.info("%s: %s, record %s", job, f"{record.accuracy:.2%}", file)
            done.append(record)
            try:
                finished(record)
            except Exception as error:  # the cell is done and recorded, whatever becomes of the report
                log.error("the report could not be written: %s", error)

    problems, interrupted = run_jobs(waiting, devices=devices, ended=write, launch=launch)
    return Outcome(done, failed | problems, interrupted)


def run_jobs(
    jobs: Sequence[Job],
    *,
    devices: int = 1,
    ended: Callable[[Job], object] = lambda job: None,
    launch: Launch | None = None,
) -> tuple[dict[str, str], bool]:
    """Train, or resume, one job after another, whatever becomes of the others.

    Args:
        jobs: The jobs.
        devices: How many run at the same time.
        ended: Called with each job whose training has ended.
        launch: Runs a job; `run_job` if None.

    Returns:
        What went wrong, by job, and whether a signal stopped it all.
    """
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    failed: dict[str, str] = {}
    processes = Processes()

    def do(job: Job, device: int) -> str | None:
        problem = (launch or run_job)(job, device, devices, processes)
        if problem is None and not processes.stopping.is_set():
            ended(job)
        return problem

    def work(device: int) -> None:
        while not processes.stopping.is_set():
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            log.info("%s: %s", job, job.command)
            try:
                problem = do(job, device)
            except Exception as error:  # one cell's misfortune is no reason to leave the others
                problem = str(error) or type(error).__name__
            if problem is not None:
                failed[str(job)] = problem
                log.error("%s: failed: %s", job, problem)

    workers = [threading.Thread(target=work, args=(device,)) for device in range(devices)]
    with _stopping(processes):
        for worker in workers:
            worker.start()
        for worker in workers:
            while worker.is_alive():
                worker.join(0.2)
    return failed, processes.stopping.is_set()


@contextmanager
def _stopping(processes: Processes) -> Iterator[None]:
    """Within, Ctrl-C, SIGTERM and a closed terminal stop the processes first; this one exits after them."""

    def stop(number: int, frame: object) -> None:
        log.info("stopping: every run saves its state; repeat the command to continue")
        processes.stop()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Under nohup a closed terminal is to be ignored, and Windows has no such signal.
    wanted = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
    ignored = {number for number in wanted if signal.getsignal(number) is signal.SIG_IGN}
    before = {number: signal.signal(number, stop) for number in wanted - ignored}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check_run(job: Job, option: str = "--runs") -> None:
    """Raise RunError if the run directory of a job holds a run with other settings.

    Args:
        job: The job.
        option: The option that chooses the folder of run directories.
    """
    if not (job.run / "config.json").is_file():
        return
    differing = differences(read_manifest(job.run), job.config, FLAGS)
    if differing:
        raise RunError(
            f"{job.run} holds a run with {', '.join(differing)}: choose another {option}, or move it away to start over"
        )


def run_job(job: Job, device: int, devices: int, processes: Processes) -> str | None:
    """Train one cell, or resume it; return what went wrong, or None."""
    result = job.run / "result.json"
    if _has_ended(result):
        return None  # but was stopped before its record was written
    job.run.mkdir(parents=True, exist_ok=True)
    begun = (job.run / "config.json").is_file()
    settings = job.resuming_flags if begun else [*job.flags, "--out", str(job.run)]
    command = [sys.executable, "-m", "shortcaps", "train", *settings]
    log_file = job.run / "log.txt"
    size_before = log_file.stat().st_size if log_file.is_file() else 0
    if log_file.is_symlink():  # out of the run
        log_file.unlink()
    with log_file.open("ab") as file:
        # Alone, a run shows its own progress, beside the grid's results; several at once would write over one another.
        shown = sys.stderr.fileno() if devices == 1 and sys.stderr.isatty() else file
        process = subprocess.Popen(
            command,
            env=_environment(device, devices),
            stdout=shown,
            stderr=file,
            start_new_session=True,  # so that a terminal's Ctrl-C reaches it once, from here
        )
        with processes.started(process):
            code = process.wait()
    if code == 0:
        return None
    if code in STOPPED and processes.stopping.is_set():
        return None
    lines = log_file.read_bytes()[size_before:].decode(errors="replace").strip().splitlines()
    reason = lines[-1].removeprefix("shortcaps: ") if lines and code in (1, 2) else f"it exited with code {code}"
    return f"{reason} (see {log_file})"


def _has_ended(result: Path) -> bool:
    """Whether a run has left a result that counts; one that is damaged is written anew when the run is resumed."""
    try:
        return result.is_file() and still_counts(read_json(result)["test_set"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _environment(device: int, devices: int) -> dict[str, str]:
    """One accelerator for each process, or its share of the processor's cores."""
    environment = dict(os.environ)
    if devices == 1:
        return environment
    if torch.cuda.is_available():
        allowed = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        environment["CUDA_VISIBLE_DEVICES"] = allowed[device] if len(allowed) > device and allowed[0] else str(device)
    else:
        environment["OMP_NUM_THREADS"] = str(max(1, _cores() // devices))
    return environment


def _cores() -> int:
    return look_at_machine().usable


def check_devices(devices: int) -> None:
    """Raise RunError if the machine has fewer devices."""
    on_gpus = torch.cuda.is_available()
    available, what = (torch.cuda.device_count(), "CUDA devices") if on_gpus else (_cores(), "processor cores")
    if devices > available:
        raise RunError(f"--devices {devices} is more than this machine has: {available} {what}")
