"""What a service manager (systemd) is told of a mount, by the protocol of sd_notify(3): datagrams to the socket NOTIFY_SOCKET names.

``READY=1`` says that the mount answers, ``STOPPING=1`` that it ends, ``STATUS=`` what it does, in words for ``systemctl status``, and
``EXTEND_TIMEOUT_USEC=`` that it needs more time than it was given. Nothing of it is needed for the mount itself: a service manager that
is gone, or a socket that never was one, is a line in the log.

Each message is sent from a thread, after the one before: the service manager may not be reading. It may even be waiting for this mount,
as PID 1 does when it looks at a mountpoint; so no message is waited for longer than `_PATIENCE`.
"""

from __future__ import annotations

import logging
import os
from typing import Protocol

import trio
from sdnotify import SystemdNotifier

from zarrfs import threads
from zarrfs.printable import printable

log = logging.getLogger(__name__)

_PATIENCE = 5.0
# A datagram has room for 4096 bytes (systemd's NOTIFY_BUFFER_MAX), and a character may take four.
_STATUS_LENGTH = 900


class ServiceManager(Protocol):
    """Who is told. The texts are for people, and hold no secrets; each of these returns when it was sent, or could not be."""

    async def ready(self, status: str) -> None:
        """The mount answers. Once; nothing is said when it is ending already."""

    async def stopping(self, status: str, seconds: float) -> None:
        """The mount is ending; the next sign of progress comes within so many ``seconds``. Said once."""

    async def progress(self, status: str, seconds: float) -> None:
        """It is a step nearer to its end, and the next one comes within so many ``seconds``."""

    async def status(self, status: str) -> None:
        """What is to be known, and changes nothing."""


class Nobody:
    """No service manager waits for this process."""

    async def ready(self, status: str) -> None:
        pass

    async def stopping(self, status: str, seconds: float) -> None:
        pass

    async def progress(self, status: str, seconds: float) -> None:
        pass

    async def status(self, status: str) -> None:
        pass


NOBODY = Nobody()


class NotifySocket:
    """The service manager behind NOTIFY_SOCKET, which is connected to now."""

    def __init__(self) -> None:
        self._order = trio.Lock()
        self._is_stopping = False
        self._failed = False
        self._notifier: SystemdNotifier | None = None
        try:
            self._notifier = SystemdNotifier(debug=True)
            self._notifier.socket.settimeout(_PATIENCE)
        except OSError as error:
            self._unheard(error)

    async def ready(self, status: str) -> None:
        if not self._is_stopping:
            await self._tell("READY=1", _status(status))

    async def stopping(self, status: str, seconds: float) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            await self._tell("STOPPING=1", _status(status), _extended(seconds))

    async def progress(self, status: str, seconds: float) -> None:
        await self._tell(_status(status), _extended(seconds))

    async def status(self, status: str) -> None:
        await self._tell(_status(status))

    async def _tell(self, *said: str) -> None:
        notifier = self._notifier
        if notifier is None:
            return
        # First come, first served: messages keep their order.
        async with self._order:
            try:
                # The library sends Latin-1, the protocol is UTF-8: this way the bytes are those.
                await threads.io(notifier.notify, "\n".join(said).encode(errors="replace").decode("latin-1"))
            except OSError as error:
                self._unheard(error)

    def _unheard(self, error: OSError) -> None:
        # Once: the mount goes on, and so would the complaints.
        log.log(logging.DEBUG if self._failed else logging.WARNING, "the service manager (NOTIFY_SOCKET) is not told: %s", error)
        self._failed = True


def service_manager() -> ServiceManager:
    """The one that started this process and waits for it, if there is one."""
    return NotifySocket() if os.environ.get("NOTIFY_SOCKET") else NOBODY


def _status(text: str) -> str:
    # On one line: what follows a line feed would be another assignment, and a path may hold one.
    return f"STATUS={printable(text)[:_STATUS_LENGTH]}"


def _extended(seconds: float) -> str:
    return f"EXTEND_TIMEOUT_USEC={int(seconds * 1_000_000)}"
