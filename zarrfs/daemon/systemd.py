"""Notification of a service manager (systemd) by the protocol of sd_notify(3): datagrams to the socket in NOTIFY_SOCKET.

``READY=1``: the mount answers; ``STOPPING=1``: it is ending; ``STATUS=``: its state, for ``systemctl status``;
``EXTEND_TIMEOUT_USEC=``: it needs more time. The mount itself depends on none of it: a service manager that is gone, or an invalid
socket, is a line in the log.

Each message is sent from a thread, after the previous one: the service manager may not be reading. It may even be waiting for this mount,
as PID 1 does when it accesses a mountpoint; so no message is waited for longer than `_PATIENCE`.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Protocol

import trio

from zarrfs import threads
from zarrfs.printable import printable

if TYPE_CHECKING:
    from sdnotify import SystemdNotifier

log = logging.getLogger(__name__)

_PATIENCE = 5.0
# A datagram has room for 4096 bytes (systemd's NOTIFY_BUFFER_MAX), and a character may take four.
_STATUS_LENGTH = 900


class ServiceManager(Protocol):
    """Receiver of notifications. Texts are for people, without secrets; each method returns once it was sent, or failed."""

    async def ready(self, status: str) -> None:
        """Report that the mount answers. Once; nothing is sent if it is already ending."""

    async def stopping(self, status: str, seconds: float) -> None:
        """Report that the mount is ending; the next progress comes within ``seconds``. Sent once."""

    async def progress(self, status: str, seconds: float) -> None:
        """Report a step towards the end; the next one comes within ``seconds``."""

    async def status(self, status: str) -> None:
        """Report a state without effect on the service."""


class Nobody:
    """Receiver for processes without a service manager."""

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
    """The service manager at NOTIFY_SOCKET, connected at creation."""

    def __init__(self) -> None:
        from sdnotify import SystemdNotifier

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
            await self._send("READY=1", _status(status))

    async def stopping(self, status: str, seconds: float) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            await self._send("STOPPING=1", _status(status), _extended(seconds))

    async def progress(self, status: str, seconds: float) -> None:
        await self._send(_status(status), _extended(seconds))

    async def status(self, status: str) -> None:
        await self._send(_status(status))

    async def _send(self, *assignments: str) -> None:
        notifier = self._notifier
        if notifier is None:
            return
        # The lock is fair: messages keep their order.
        async with self._order:
            try:
                # The library encodes Latin-1, the protocol UTF-8: in this way the bytes are right.
                await threads.io(notifier.notify, "\n".join(assignments).encode(errors="replace").decode("latin-1"))
            except OSError as error:
                self._unheard(error)

    def _unheard(self, error: OSError) -> None:
        # Once: the mount continues, and each further message would fail.
        log.log(logging.DEBUG if self._failed else logging.WARNING, "service manager (NOTIFY_SOCKET) not notified: %s", error)
        self._failed = True


def service_manager() -> ServiceManager:
    """Return the service manager that started this process and waits for it, if there is one."""
    return NotifySocket() if os.environ.get("NOTIFY_SOCKET") else NOBODY


def _status(text: str) -> str:
    # On one line: text after a line feed would be another assignment, and a path may contain one.
    return f"STATUS={printable(text)[:_STATUS_LENGTH]}"


def _extended(seconds: float) -> str:
    return f"EXTEND_TIMEOUT_USEC={int(seconds * 1_000_000)}"
