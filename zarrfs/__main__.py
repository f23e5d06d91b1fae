"""``python -m zarrfs`` and the command ``zarrfs``."""

from __future__ import annotations

import io
import sys

from zarrfs.cli import run


def main() -> None:
    """Run the command line of this process, and exit."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Whatever a name holds, and whatever the terminal's encoding has no letters for, the rest is told.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
