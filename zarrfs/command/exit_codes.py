"""How commands end: the exit code of an error, and its line for people, without secrets."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from zarrfs.errors import (
    FuseUnavailable,
    MountpointUnusable,
    NotPublished,
    RootNeeded,
    StoreAccessDenied,
    StoreNotFound,
    UsageError,
    ZarrfsError,
)
from zarrfs.lifecycle.exit_report import Outcome
from zarrfs.options.redact import redact
from zarrfs.printable import printable

log = logging.getLogger("zarrfs")

# An error of a class that is not listed has the code of its nearest listed base.
EXIT_CODES: dict[type[BaseException], int] = {
    BaseException: 1,
    ZarrfsError: 1,
    UsageError: 2,
    StoreNotFound: 3,
    StoreAccessDenied: 4,
    RootNeeded: 4,
    MountpointUnusable: 5,
    FuseUnavailable: 6,
    NotPublished: 7,
}


def outcome_of(error: BaseException, urls: Sequence[str]) -> Outcome:
    """The exit code of an error and its line, `printable` and without the secrets of ``urls``."""
    error = cause(error)
    code = next(EXIT_CODES[base] for base in type(error).__mro__ if base in EXIT_CODES)
    message = str(error)
    if not isinstance(error, ZarrfsError):
        message = f"{type(error).__name__}: {error}: this is a defect of zarrfs; --log-level debug shows where"
    return Outcome(code, printable(_without_secrets(message, urls)))


def log_cause(level: int, error: BaseException, urls: Sequence[str]) -> None:
    """Log how an error came about, without the secrets of ``urls``."""
    if log.isEnabledFor(level):
        import traceback

        how = "".join(traceback.format_exception(error)).rstrip()
        log.log(level, "how it came about:", extra={"more": _without_secrets(how, urls)})


def _without_secrets(text: str, urls: Sequence[str]) -> str:
    for url in urls:
        text = redact(text, url)
    return text


def cause(error: BaseException) -> BaseException:
    """What a nursery wrapped, where it wrapped one error only."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
