"""Messages to a service manager, over real sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from zarrfs.daemon.systemd import Nobody, service_manager


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A service manager's end of the socket in NOTIFY_SOCKET."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@zarrfs-{tmp_path}"[:100]
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name[1:]}" if name.startswith("@") else name)
        listening.setblocking(False)
        yield listening


def heard(listening: socket.socket) -> list[str]:
    """Return all messages that have arrived."""
    messages = []
    while True:
        try:
            messages.append(listening.recv(1 << 16).decode())
        except BlockingIOError:
            return messages


def test_the_words_of_the_protocol(manager: socket.socket) -> None:
    async def live() -> None:
        told = service_manager()
        await told.ready("/data/x.zarr is mounted on /mnt/z")
        await told.stopping("ending", 2.5)
        await told.progress("1 file left", 60)
        await told.status("all is stored")

    trio.run(live)
    assert heard(manager) == [
        "READY=1\nSTATUS=/data/x.zarr is mounted on /mnt/z",
        "STOPPING=1\nSTATUS=ending\nEXTEND_TIMEOUT_USEC=2500000",
        "STATUS=1 file left\nEXTEND_TIMEOUT_USEC=60000000",
        "STATUS=all is stored",
    ]


def test_what_is_said_at_once_arrives_in_its_order_and_nothing_is_ready_that_stops(manager: socket.socket) -> None:
    async def live() -> None:
        told = service_manager()
        said: list[str] = []

        async def say(number: int) -> None:
            said.append(f"STATUS={number}")
            await told.status(str(number))

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(say, number)
        assert heard(manager) == said and len(said) == 8
        async with trio.open_nursery() as nursery:
            nursery.start_soon(told.stopping, "ending", 1)
            nursery.start_soon(told.stopping, "ending again", 1)
        await told.ready("mounted")

    trio.run(live)
    assert len(heard(manager)) == 1


def test_a_text_is_one_line_of_utf8_that_fits(manager: socket.socket) -> None:
    """A path may contain a line feed, which would begin another assignment, and bytes that are not text."""

    async def live() -> None:
        told = service_manager()
        await told.status("Lufttemperatur °C, 气温 on /mnt/a\nMAINPID=1")
        await told.status("\udcff")
        await told.status("🌡" * 5000)

    trio.run(live)
    first, second, third = heard(manager)
    assert first == "STATUS=Lufttemperatur °C, 气温 on /mnt/a\\nMAINPID=1"
    assert second == "STATUS=\\udcff"
    assert 1000 < len(third.encode()) < 4096 and "\n" not in third


@pytest.mark.logs("service manager .* not notified")
@pytest.mark.parametrize("name", ["{tmp}/none", "{tmp}", "@nobody-listens-here", "relative", "vsock:2:1234", "/" + "x" * 200])
def test_a_socket_that_never_was_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", name.format(tmp=tmp_path))

    async def live() -> None:
        told = service_manager()
        await told.ready("mounted")
        await told.stopping("ending", 1)

    trio.run(live)
    assert caplog.text.count("not notified") == 1


@pytest.mark.logs("service manager .* not notified")
def test_a_service_manager_that_is_gone(manager: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    async def live() -> None:
        told = service_manager()
        await told.ready("mounted")
        manager.close()
        await told.stopping("ending", 1)
        await told.progress("1 file left", 1)

    trio.run(live)
    assert caplog.text.count("not notified") == 1


@pytest.mark.logs("service manager .* not notified: timed out")
def test_a_service_manager_that_does_not_read_is_not_waited_for(manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zarrfs.daemon.systemd._PATIENCE", 0.01)

    async def live() -> None:
        told = service_manager()
        # More than any queue holds.
        for _ in range(10_000):
            await told.status("x" * 900)
            if getattr(told, "_failed", False):
                return
        raise AssertionError("everything was taken")

    trio.run(live)


def test_without_a_service_manager_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (None, ""):
        monkeypatch.delenv("NOTIFY_SOCKET", raising=False) if name is None else monkeypatch.setenv("NOTIFY_SOCKET", name)
        assert isinstance(service_manager(), Nobody)
