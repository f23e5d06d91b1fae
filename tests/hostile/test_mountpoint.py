"""Root mounts on a folder in the home of another user, who replaces it by a link to another folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.attackers import EVE, act, home, needs_root, repeating
from tests.support.mounting import ROOT, mount_table, zarrfs
from tests.support.waiting import until
from zarrfs.errors import MountpointUnusable
from zarrfs.lifecycle import mountpoint

TRIES = 12


@needs_root
def test_the_folder_that_was_looked_at_is_the_one_that_is_mounted_on() -> None:
    with home() as eve:
        victim = eve.parent / "root"
        act(EVE, 'mkdir "$1/m"', eve)
        with mountpoint.held(str(eve / "m")) as name:
            act(EVE, 'mv "$1/m" "$1/gone"; ln -s "$2" "$1/m"', eve, victim)
            assert os.path.samestat(os.stat(name), os.stat(eve / "gone"))
        with pytest.raises(MountpointUnusable, match="not usable"), mountpoint.held(str(eve / "m")):
            pass
        act(EVE, 'ln -s "$2" "$1/way"', eve, victim.parent)
        with (
            pytest.raises(MountpointUnusable, match=r"symbolic link .* belongs to another user"),
            mountpoint.held(str(eve / "way" / "root")),
        ):
            pass


@needs_root
def test_a_folder_that_is_filled_at_the_last_moment_is_not_mounted_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MountpointUnusable, match="not empty"), mountpoint.held(str(tmp_path)):
        pass


@needs_root
@pytest.mark.fuse
@pytest.mark.timeout(300)
def test_nothing_is_mounted_on_a_folder_of_roots_however_quick_the_owner_is(tmp_path: Path) -> None:
    with home() as eve:
        victim = eve.parent / "root"
        store = eve / "s"
        act(EVE, 'mkdir "$1/m" "$1/s"', eve)
        place, aside, link = (str(eve / name) for name in ("m", "aside", "link"))

        def exchange() -> None:
            os.symlink(victim, link)
            os.rename(place, aside)
            os.rename(link, place)
            os.rename(place, link)
            os.rename(aside, place)
            os.unlink(link)

        with repeating(EVE, exchange):
            for _ in range(TRIES):
                done = zarrfs("mount", str(store), place, "-o", "allow_other")
                here = [fields[4] for fields in mount_table() if fields[4].startswith(str(eve.parent))]
                assert str(victim) not in here, "root's own folder is eve's now"
                assert done.returncode in (0, 1, 5)
                for each in here:
                    subprocess.run(["umount", "-l", each], check=True)


@needs_root
@pytest.mark.fuse
def test_a_mount_below_a_folder_that_its_owner_renames_ends_as_any_other(tmp_path: Path) -> None:
    with home() as eve:
        act(EVE, 'mkdir -p "$1/a/m"', eve)
        os.chmod(tmp_path, 0o755)
        daemon = [sys.executable, "-P", "-m", "zarrfs", "mount", "--foreground", str(tmp_path), str(eve / "a/m")]
        with subprocess.Popen(daemon, cwd="/", env=os.environ | {"PYTHONPATH": str(ROOT)}) as process:
            try:
                until(lambda: (eve / "a/m/raw").is_dir())
                act(EVE, 'mv "$1/a" "$1/b" && mkdir -p "$1/a/m"', eve)
                process.terminate()
                assert process.wait(60) == 0
                assert not any(fields[4].startswith(str(eve)) for fields in mount_table())
            finally:
                subprocess.run(["umount", "-il", eve / "b/m"], capture_output=True, check=False)
                process.kill()
