"""Distribution of tests over processes: those of a file together, except where each takes long and none needs another."""

from __future__ import annotations

from pathlib import PurePath

from xdist.scheduler.loadfile import LoadFileScheduling

ALONE = {
    "test_bound_files.py",
    "test_bound_folders.py",
    "test_dead_mounts.py",
    "test_endings.py",
    "test_event_loop.py",
    "test_hung_folder.py",
    "test_kill.py",
    "test_memory.py",
    "test_mount_helper.py",
    "test_npy_programs.py",
    "test_several_steps.py",
    "test_stores.py",
    "test_two_writers.py",
    "test_umount.py",
    "test_users.py",
}
"""Files whose tests are distributed one by one."""


class Spread(LoadFileScheduling):
    """`--dist loadfile`, with those files distributed."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if PurePath(file).name in ALONE else file
