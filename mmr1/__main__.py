"""``mmr1`` and ``python -m mmr1``: the command line, imported where Ctrl-C is already expected."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the console script; an interrupted command ends with exit code 130."""
    try:
        try:
            from mmr1.cli import main as run
        except ValueError as error:  # an entry point that is not there
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
