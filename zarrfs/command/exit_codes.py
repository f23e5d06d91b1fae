"""Exit codes of commands, from one table, and their error messages, without secrets."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence

from zarrfs.errors import (
    FuseUnavailable,
    MountpointUnusable,
    NotPublished,
    RootNeeded,
    StoreAccessDenied,
    StoreNotFound,
    StoreReadOnly,
    UsageError,
    ZarrfsError,
    is_want_of_memory,
)
from zarrfs.lifecycle.exit_report import Outcome
from zarrfs.lifecycle.interrupts import Interrupted
from zarrfs.options.redact import redact
from zarrfs.printable import printable, printable_lines

log = logging.getLogger("zarrfs")

# A class that is not listed has the code of its nearest listed base.
EXIT_CODES: dict[type[BaseException], int] = {
    BaseException: 1,
    ZarrfsError: 1,
    UsageError: 2,
    StoreNotFound: 3,
    StoreAccessDenied: 4,
    StoreReadOnly: 4,
    RootNeeded: 4,
    MountpointUnusable: 5,
    FuseUnavailable: 6,
    NotPublished: 7,
}


INTERRUPTED = 130


def ended(command: Callable[[], object], urls: Sequence[str]) -> int:
    """Run ``command`` and return its exit code. Errors are printed, without the secrets of ``urls``."""
    try:
        code = command()
        # Not left to the interpreter's end, where a full disk would be neither a line nor an exit code of the table.
        if sys.stdout is not None:
            sys.stdout.flush()
    except Interrupted as error:
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 (each has a line and an exit code)
        if isinstance(cause(error), BrokenPipeError):
            # The reader of stdout closed it (`zarrfs info x | head`): print nothing.
            sys.stdout = None
            return 1
        log_cause(logging.DEBUG, error, urls)
        return end(outcome_of(error, urls))
    except BaseExceptionGroup as group:
        # Ctrl-C, wrapped in the exception groups of nurseries.
        if not isinstance(cause(group), KeyboardInterrupt):
            raise
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def end(outcome: Outcome) -> int:
    """Print the message of an outcome, if any, and return its exit code."""
    if outcome.message:
        print_line(outcome.message)
    return outcome.exit_code


def print_line(line: str, program: str = "zarrfs") -> None:
    """Print a line on stderr, after the name of the program."""
    # A closed stderr, as of a daemon whose terminal is gone, is no reason to fail.
    with contextlib.suppress(OSError):
        print(f"{program}: {printable_lines(line)}", file=sys.stderr, flush=True)


def outcome_of(error: BaseException, urls: Sequence[str]) -> Outcome:
    """Return the exit code and message of an error, `printable` and without the secrets of ``urls``."""
    if is_want_of_memory(error):
        return Outcome(
            EXIT_CODES[BaseException], "out of memory or threads (ulimit -v, ulimit -u, limits of a service or container)"
        )
    error = cause(error)
    code = next(EXIT_CODES[base] for base in type(error).__mro__ if base in EXIT_CODES)
    message = str(error)
    if isinstance(error, FileNotFoundError) and error.filename is None and not _has_working_directory():
        # Of each relative path.
        message = "the working directory no longer exists: change to another one, or give absolute paths"
    elif isinstance(error, OSError):
        # Of the terminal or the file that the command prints to: a full disk.
        message = f"{error.strerror or error}" + (f": {error.filename}" if error.filename is not None else "")
    elif not isinstance(error, ZarrfsError):
        message = f"{type(error).__name__}: {error}: a defect of zarrfs (traceback: --log-level debug)"
    return Outcome(code, printable(_without_secrets(message, urls)))


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def log_cause(level: int, error: BaseException, urls: Sequence[str]) -> None:
    """Log the traceback of an error, without the secrets of ``urls``."""
    if log.isEnabledFor(level):
        import traceback

        how = "".join(traceback.format_exception(error)).rstrip()
        log.log(level, "traceback:", extra={"more": _without_secrets(how, urls)})


def _without_secrets(text: str, urls: Sequence[str]) -> str:
    for url in urls:
        text = redact(text, url)
    return text


def cause(error: BaseException) -> BaseException:
    """Return the innermost error of exception groups that contain one error only."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
