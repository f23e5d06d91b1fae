"""``python -m zarrfs`` and the command ``zarrfs``."""

from __future__ import annotations

import io
import os
import sys
from types import TracebackType

from zarrfs.lifecycle import interpreter, interrupts, standard_files


def main() -> None:
    """Run the command line of this process, and exit."""
    # Before slow imports.
    interrupts.are_quiet()
    interrupts.are_as_usual()
    standard_files.open_missing()
    interpreter.use_utf8()
    # No linear algebra is done here: NumPy's library for it need not start a thread for each core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from zarrfs.lifecycle.parent import Parent

    if isinstance(sys.stdout, io.TextIOWrapper):
        # Characters that the terminal's encoding lacks are escaped; the rest of the text is printed.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.excepthook = _uncaught
    if (adopted := Parent.adopt()) is not None:
        # There are no arguments to parse.
        from zarrfs.command.exit_codes import ended
        from zarrfs.command.serving import serve

        code = ended(lambda: serve(*adopted), [adopted[0].store])
    else:
        from zarrfs.command.main import run

        code = run(sys.argv[1:])
    standard_files.end(code)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    import traceback

    from zarrfs.printable import printable_lines

    print(printable_lines("".join(traceback.format_exception(kind, error, trace))), file=sys.stderr)


if __name__ == "__main__":
    main()
