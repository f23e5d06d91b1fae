"""``python -m zarrfs`` and the command ``zarrfs``."""

from __future__ import annotations

import sys

from zarrfs.cli import run


def main() -> None:
    """Run the command line of this process, and exit."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
