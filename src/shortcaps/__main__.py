"""`python -m shortcaps`."""

from shortcaps.cli import main

if __name__ == "__main__":
    main()
