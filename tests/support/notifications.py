"""A service manager's end of a NOTIFY_SOCKET, for tests: a real datagram socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PATIENCE = 60


@dataclass(frozen=True)
class Notified:
    """Where messages arrive. ``name`` is what NOTIFY_SOCKET has to be."""

    name: str
    socket: socket.socket

    def next(self) -> list[str]:
        """The next message, as its assignments; waits for it."""
        self.socket.settimeout(_PATIENCE)
        return self.socket.recv(1 << 16).decode().split("\n")

    def rest(self) -> list[list[str]]:
        """All that has arrived and was not looked at."""
        self.socket.setblocking(False)
        messages = []
        while True:
            try:
                messages.append(self.socket.recv(1 << 16).decode().split("\n"))
            except BlockingIOError:
                return messages


@contextmanager
def notified(folder: Path, *, abstract: bool = False) -> Iterator[Notified]:
    """A socket with a name in ``folder``, or in the abstract namespace."""
    name = f"@zarrfs-{abs(hash(str(folder)))}" if abstract else str(folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name[1:]}" if abstract else name)
        yield Notified(name, listening)
