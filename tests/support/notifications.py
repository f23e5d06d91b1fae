"""The receiving end of a NOTIFY_SOCKET, for tests: a real datagram socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PATIENCE = 60


@dataclass(frozen=True)
class Notified:
    """A receiver of messages. ``name`` is the value for NOTIFY_SOCKET."""

    name: str
    socket: socket.socket

    def next(self) -> list[str]:
        """Wait for the next message and return its assignments."""
        self.socket.settimeout(_PATIENCE)
        return self.socket.recv(1 << 16).decode().split("\n")

    def rest(self) -> list[list[str]]:
        """Return all messages that have arrived and were not read."""
        self.socket.setblocking(False)
        messages = []
        while True:
            try:
                messages.append(self.socket.recv(1 << 16).decode().split("\n"))
            except BlockingIOError:
                return messages


@contextmanager
def notified(folder: Path, *, abstract: bool = False) -> Iterator[Notified]:
    """Yield a receiver with a socket in ``folder``, or in the abstract namespace."""
    name = f"@zarrfs-{abs(hash(str(folder)))}" if abstract else str(folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name[1:]}" if abstract else name)
        yield Notified(name, listening)
