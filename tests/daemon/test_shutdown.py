"""The end of a mount is announced first, and remaining work is reported afterwards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import trio
import trio.testing

from zarrfs.daemon.mount_tree import MountTree
from zarrfs.daemon.shutdown import Shutdown


class SlowManager:
    """A service manager that takes five seconds to receive the end."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def ready(self, status: str) -> None:
        self.heard.append("ready")

    async def stopping(self, status: str, seconds: float) -> None:
        await trio.sleep(5)
        self.heard.append("stopping")

    async def progress(self, status: str, seconds: float) -> None:
        self.heard.append("progress")

    async def status(self, status: str) -> None:
        pass


def tree_with_a_file_left() -> MountTree:
    staged = SimpleNamespace(content=SimpleNamespace(ident="raw/a"))
    return cast(
        MountTree,
        SimpleNamespace(
            staging=SimpleNamespace(unpublished_below=lambda below: [staged], dirty_nbytes=1),
            queue=SimpleNamespace(keys=[], nbytes=0),
            stats=lambda: {"store_operations": 0, "bytes_written": 0},
        ),
    )


async def taken(seconds: float) -> bool:
    return True


def test_what_is_left_is_told_after_the_end_was_announced() -> None:
    manager = SlowManager()

    async def main() -> None:
        shutdown = Shutdown(
            tree_with_a_file_left(),
            "/m",
            report=None,
            print_line=lambda line: None,
            every=1,
            patience=60,
            manager=manager,
            waiting_for=list,
            written_back=taken,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shutdown.watch)
            await shutdown.begun()
            await trio.sleep(10)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert manager.heard == ["stopping", "progress"]
