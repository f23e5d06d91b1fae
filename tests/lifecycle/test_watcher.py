"""The watcher of a connection, where there is none to watch: the error names an alternative."""

from __future__ import annotations

import pytest

from zarrfs.lifecycle.watcher import Watcher, how_to_abort


@pytest.mark.logs("connection to the kernel")
def test_where_a_connection_cannot_be_aborted_the_log_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    watcher = Watcher("0:999999999")
    assert watcher.pid is None
    assert "/sys/fs/fuse/connections/999999999/abort` (as root)" in caplog.text
    caplog.clear()
    watcher.abort()
    assert how_to_abort("0:999999999") in caplog.text
    watcher.end()
