from __future__ import annotations

import os

from zarrfs import mount_table


def test_the_mount_table_with_odd_names() -> None:
    device = os.stat("/proc").st_dev
    assert mount_table.mount_at("/proc") == mount_table.Mount("/proc", "proc", f"{os.major(device)}:{os.minor(device)}")
    assert mount_table.mount_at("/proc/self") is None
    assert mount_table._unescape(rb"/a\040b\134\012") == b"/a b\\\n"
