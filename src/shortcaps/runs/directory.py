"""The run directory: everything a run leaves, each file written atomically."""

from __future__ import annotations

import csv
import glob
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors.torch import save as to_safetensors
from torch import Tensor

from shortcaps.errors import RunError
from shortcaps.files import atomic_write, read_json, remove_leftovers, sha256_of, write_json
from shortcaps.pretrained import pretrained_names
from shortcaps.runs.manifest import Manifest
from shortcaps.runs.weights import as_stored, read_tensors, write_weights

_CHECKPOINT_FORMAT = 2
"""Format 1, of version 0.1, had no checksum of the progress."""
_KEPT_CHECKPOINTS = 2


@dataclass
class Checkpoint:
    """The state between two steps.

    Attributes:
        tensors: Weights and optimiser state by name.
        progress: The rest, as plain values for JSON.
    """

    tensors: dict[str, Tensor]
    progress: dict[str, Any]


class RunDirectory:
    """The files of a run, of which config.json makes a directory one: see docs/run-directory.md."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: FileLock | None = None
        self._is_new = False

    @property
    def config_file(self) -> Path:
        """What was requested and took effect, see `Manifest`."""
        return self.path / "config.json"

    @property
    def weights_file(self) -> Path:
        """The selected weights."""
        return self.path / "model.safetensors"

    @property
    def sample_file(self) -> Path:
        """A few inputs as the network sees them, see `shortcaps.runs.sample`."""
        return self.path / "sample.safetensors"

    @property
    def answers_file(self) -> Path:
        """What the selected weights answered to the test images."""
        return self.path / "answers.npz"

    def epoch_file(self, epoch: int) -> Path:
        """The weights after an epoch, counted from 1, of a run that keeps them."""
        return self.path / f"epoch-{epoch:03d}.safetensors"

    @property
    def last_good_file(self) -> Path:
        """Weights from shortly before a run failed, for inspection only."""
        return self.path / "last-good.safetensors"

    def claim(self, *, resume: bool) -> None:
        """Create and lock the directory, and remove what a process that died left incomplete.

        Args:
            resume: Whether a run has to be there already.

        Raises:
            RunError: It holds a run, or none to resume, leads elsewhere, is in use by another process, or cannot be written to.
        """
        if self.config_file.exists() and not resume:
            raise RunError(
                f"{self.path} already holds a run: choose another --out, or continue it with --resume {self.path}"
            )
        if resume and not self.config_file.exists():
            raise RunError(f"{self.path} holds no run to resume: it has no config.json")
        self._is_new = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for place in self.path.iterdir():
                # Files are replaced, not followed; in a folder, what is written would be written elsewhere.
                if place.is_symlink() and place.is_dir():
                    raise RunError(f"{place} is a link to another folder: remove it, or choose another --out")
            self._lock = FileLock(self.path / ".lock")
            self._lock.acquire(timeout=0)
            self._remove_leftovers()
        except Timeout as error:
            raise RunError(f"{self.path} is in use by another process: wait for it, or choose another --out") from error
        except OSError as error:
            raise RunError(f"{self.path} cannot be written to ({error.strerror}): choose another --out") from error

    def release(self) -> None:
        """Unlock the directory; remove it if it was created for this run and is still empty."""
        if self._lock is None:
            return
        self._lock.release()
        # Where the disk itself has failed, that is the error to report, not that an empty folder stays behind.
        with suppress(OSError):
            if {file.name for file in self.path.iterdir()} <= {".lock"}:
                (self.path / ".lock").unlink(missing_ok=True)
                if self._is_new:
                    self.path.rmdir()

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write a JSON file of this name, atomically."""
        write_json(self.path / name, content)

    def read_manifest(self) -> Manifest:
        """What config.json holds."""
        return read_manifest(self.path)

    def write_weights(self, tensors: dict[str, Tensor], target: Path) -> None:
        """Write named tensors as a safetensors file with its checksum, atomically."""
        write_weights(tensors, target)

    def write_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write metrics.csv, a row for each epoch."""
        rows = list(rows)
        text = io.StringIO()
        if rows:
            writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        with atomic_write(self.path / "metrics.csv") as file:
            file.write(text.getvalue().encode())

    # A checkpoint is two files: the tensors, and a note with their checksum, written last. Without a matching note, it is
    # ignored.

    def write_checkpoint(self, checkpoint: Checkpoint, config_digest: str) -> None:
        """Write a checkpoint, and delete all but the newest two.

        Args:
            checkpoint: The state between two steps.
            config_digest: The digest of the run that it belongs to.
        """
        step = checkpoint.progress["step"]
        target = self.path / f"checkpoint-{step:08d}.safetensors"
        data = to_safetensors(as_stored(checkpoint.tensors))
        with atomic_write(target) as file:
            file.write(data)
        note = {
            "format": _CHECKPOINT_FORMAT,
            "sha256": hashlib.sha256(data).hexdigest(),
            "progress_sha256": _digest_of_progress(checkpoint.progress),
            "config": config_digest,
            "progress": checkpoint.progress,
        }
        self.write_json(f"checkpoint-{step:08d}.json", note)
        # Newer ones were rejected when the run was resumed; otherwise it would have continued from them.
        older = [note for note in self._notes() if note.stem <= target.stem]
        for old in set(self._notes()) - set(older[:_KEPT_CHECKPOINTS]):
            old.unlink()
            old.with_suffix(".safetensors").unlink(missing_ok=True)
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Remove what a process that died left incomplete: tensors without their note, files under temporary names."""
        for tensors in self.path.glob("checkpoint-*.safetensors"):
            if not tensors.with_suffix(".json").exists():
                tensors.unlink()
        remove_leftovers(self.path, is_claimed=True)

    def _notes(self) -> list[Path]:
        return sorted(self.path.glob("checkpoint-*.json"), reverse=True)

    def read_checkpoint(self, config_digest: str) -> tuple[Checkpoint | None, list[str]]:
        """Read the newest checkpoint that is complete and belongs to this run.

        Args:
            config_digest: The digest of the run.

        Returns:
            The checkpoint or None, and a message for each newer one that could not be used.

        Raises:
            RunError: All that are left belong to another run: starting over would delete them.
        """
        complaints, is_foreign = [], False
        for note_file in self._notes():
            tensors_file = note_file.with_suffix(".safetensors")
            try:
                note = read_json(note_file)
                if note["format"] not in (1, _CHECKPOINT_FORMAT) or note["config"] != config_digest:
                    complaints.append(f"{tensors_file.name} belongs to another run: not used")
                    is_foreign = True
                    continue
                is_whole = sha256_of(tensors_file) == note["sha256"]
                if note["format"] > 1 or "progress_sha256" in note:
                    is_whole = is_whole and _digest_of_progress(note["progress"]) == note["progress_sha256"]
                if not is_whole:
                    complaints.append(f"{tensors_file.name} is damaged (its checksum does not match): not used")
                    continue
                return Checkpoint(read_tensors(tensors_file), note["progress"]), complaints
            except (OSError, ValueError, KeyError, TypeError) as error:
                complaints.append(f"{note_file.name} is damaged ({error}): not used")
        if is_foreign:
            raise RunError(
                f"the checkpoints in {self.path} were made with other settings, another number of processes or another version of "
                "shortcaps: resume the run as it was started, or start a new one with another --out"
            )
        return None, complaints


def read_manifest(path: Path) -> Manifest:
    """Read config.json of a run.

    Args:
        path: The run directory.

    Raises:
        RunError: It is not a run directory, or its config.json is damaged or of an unknown version.
    """
    file = path / "config.json"
    if not file.is_file():
        why = "it has no config.json"
        if not path.exists():
            why = f"there is no such folder; networks that come with shortcaps: {', '.join(pretrained_names())}"
        raise RunError(f"{path} is not a run directory: {why}")
    try:
        stored = read_json(file)
        if not isinstance(stored, dict):
            raise RunError("it is not the config of a run")
        return Manifest.from_json(stored)
    except (RunError, ValueError, RecursionError) as error:
        raise RunError(f"{file} cannot be used: {' '.join(str(error).split())[:400]}") from error


def _digest_of_progress(progress: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(progress, sort_keys=True).encode()).hexdigest()


def runs_by_name(patterns: str, counts: Callable[[Path], bool]) -> Iterator[tuple[str, list[Path]]]:
    """Directories by their paths or patterns, separated by commas: each pattern with those of its directories that count.

    A path that counts is taken as it is, as a name may have brackets in it.
    """
    for pattern in filter(None, (word.strip() for word in patterns.split(","))):
        path = Path(pattern).expanduser()
        names = [str(path)] if counts(path) else sorted(glob.glob(str(path)))
        yield pattern, [Path(name) for name in names if counts(Path(name))]
