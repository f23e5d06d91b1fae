"""Closing of files in a thread, whatever runs while that is being started."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest

from zarrfs.memory import disposal
from zarrfs.memory.spill import mapped


def test_the_garbage_collector_finds_a_mapping_while_the_thread_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Collecting(threading.Thread):
        def start(self) -> None:
            gc.collect()
            super().start()

    garbage: list[object] = [mapped(4096, str(tmp_path))]
    garbage.append(garbage)
    del garbage
    reader, writer = os.pipe()
    monkeypatch.setattr(disposal, "_thread", None)
    caller = threading.Thread(target=lambda: disposal.close(writer), daemon=True)
    monkeypatch.setattr(threading, "Thread", Collecting)
    caller.start()
    caller.join(30)
    assert not caller.is_alive()
    # The end of the pipe: its other end was closed.
    assert os.read(reader, 1) == b""
    os.close(reader)
