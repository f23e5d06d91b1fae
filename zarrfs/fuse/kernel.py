"""Kernel interface, through pyfuse3: mount, requests without a blocking system call, notices.

pyfuse3 reads a request with read(2) when the descriptor is readable, and meanwhile holds the event loop and the interpreter lock. The
kernel withdraws a request whose process is killed; if that happens between the two, read(2) waits for the next request, and with it
deadlines, publishing and all other requests in progress, indefinitely (measured: 3 times in 523 rounds in which eight readers were
killed). pyfuse3 cannot use a non-blocking descriptor, so a timer interrupts the call.
"""

from __future__ import annotations

import logging
import os
import signal
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import pyfuse3

from zarrfs.errors import FuseUnavailable
from zarrfs.fuse.connection import Connection
from zarrfs.fuse.operations import Operations
from zarrfs.fuse.workers import kept_going

log = logging.getLogger(__name__)

_SECONDS = 0.5

# <linux/fuse.h>: FUSE_NOTIFY_INVAL_ENTRY, struct fuse_notify_inval_entry_out, FUSE_EXPIRE_ONLY.
_INVAL_ENTRY = 3
_INVAL_ENTRY_OUT = struct.Struct("=QII")
_EXPIRE_ONLY = 1


def mount(operations: Operations, mountpoint: str, options: Mapping[str, str], flags: Iterable[str]) -> Connection | None:
    """Mount on ``mountpoint`` with these options of mount.fuse3(8), served by ``operations``; return the connection, if found.

    Raises `FuseUnavailable` if libfuse fails, which prints the reason on stderr.
    """
    every = {*flags, *(f"{name}={_escaped(value)}" for name, value in options.items())}
    try:
        return Connection.opened_by(lambda: pyfuse3.init(operations, mountpoint, every))
    except RuntimeError as error:
        raise FuseUnavailable(str(error)) from error


async def serve(
    is_over: Callable[[], bool] = lambda: False,
    connection: Connection | None = None,
    has_changes: Callable[[], bool] = lambda: False,
) -> None:
    """Answer requests of ``connection`` until it has ended, or `stop` is called. Until ``is_over()``, no error ends this.

    ``has_changes()``: changes of the store are waiting to be reported.
    """
    has_request = connection.has_request if connection is not None else None
    with _interrupted(), _failed_answers_logged(connection), kept_going(is_over, has_request, has_changes):
        try:
            await pyfuse3.main()
        except* ConnectionAbortedError:
            log.info("connection to the kernel aborted")


def stop() -> None:
    """Stop taking requests."""
    pyfuse3.terminate()


def close(*, unmount: bool) -> None:
    """Close the connection, and with ``unmount`` the mount too."""
    pyfuse3.close(unmount=unmount)


class Notices:
    """Notices to the kernel: see `zarrfs.fuse.notice_queue.Kernel`. ``connection``: of the mount, once it exists and if it was found."""

    def __init__(self) -> None:
        self.connection: Connection | None = None

    def invalidate_entry(self, parent: int, name: str) -> None:
        """Invalidate a name in a folder."""
        pyfuse3.invalidate_entry(pyfuse3.InodeT(parent), pyfuse3.FileNameT(os.fsencode(name)))

    def expire_entry(self, parent: int, name: str) -> None:
        """Let the kernel look up a name in a folder again at its next use.

        Unlike an invalidated one, it does not become a removed folder for programs whose working directory it is, or is below it.
        Linux before 6.2 ignores the flag, and invalidates the name. pyfuse3 has no such function.
        """
        if self.connection is None:
            self.invalidate_entry(parent, name)
            return
        encoded = os.fsencode(name)
        self.connection.notify(_INVAL_ENTRY, _INVAL_ENTRY_OUT.pack(parent, len(encoded), _EXPIRE_ONLY) + encoded + b"\0")

    def invalidate_inode(self, ino: int, attributes_only: bool) -> None:
        """Invalidate the attributes of an inode, and its pages unless ``attributes_only``."""
        pyfuse3.invalidate_inode(pyfuse3.InodeT(ino), attr_only=attributes_only)

    def store(self, ino: int, offset: int, data: bytes) -> None:
        """Put ``data`` into the pages of an inode."""
        pyfuse3.notify_store(pyfuse3.InodeT(ino), offset, data)


@contextmanager
def _interrupted() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, _nothing)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before if before is not None else signal.SIG_DFL)


@contextmanager
def _failed_answers_logged(connection: Connection | None) -> Iterator[None]:
    """Let pyfuse3 log answers that failed, unless ``connection`` has ended: it may do so while the last RELEASE is in progress."""

    def is_missed(record: logging.LogRecord) -> bool:
        return "fuse_reply_" not in record.getMessage() or connection is None or not connection.is_gone

    pyfuse3_log = logging.getLogger("pyfuse3")
    pyfuse3_log.addFilter(is_missed)
    try:
        yield
    finally:
        pyfuse3_log.removeFilter(is_missed)


def _nothing(number: int, frame: object) -> None:
    """Do nothing: an ignored signal would not interrupt a system call."""


def _escaped(value: str) -> str:
    """Return an option's value escaped for libfuse (fuse_opt.c, ``process_real_option_group``): pyfuse3 passes ASCII only."""
    return "".join(chr(byte) if 0x20 <= byte < 0x7F and byte not in b",\\" else f"\\{byte:03o}" for byte in os.fsencode(value))
