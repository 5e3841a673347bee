"""`shortcaps`, and `python -m shortcaps`."""

from __future__ import annotations

import sys

from shortcaps.startup import settle


def main() -> None:
    """Run the command line, or print how to install what it needs: `pip install shortcaps` alone brings the library only."""
    settle()  # before anything loads PyTorch
    try:
        from shortcaps.cli import main as run
    except ModuleNotFoundError as missing:
        sys.exit(
            f"shortcaps: the command line needs {missing.name}, which is not installed: pip install 'shortcaps[all]'"
        )
    run()


if __name__ == "__main__":
    main()
