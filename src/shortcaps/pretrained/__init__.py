"""Trained networks that come with the package, as run directories: config.json and model.safetensors."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def pretrained_names() -> tuple[str, ...]:
    """Names of the networks that come with the package."""
    return tuple(sorted(place.parent.name for place in FOLDER.glob("*/config.json")))


def find_run(run: str | Path) -> Path:
    """The folder of a run; the name of a network that comes with the package gives that network's folder."""
    path = Path(run).expanduser()
    inside = FOLDER / str(run)
    return inside if not path.exists() and inside.is_dir() and str(run) in pretrained_names() else path
