"""zarrfs install and uninstall: links that are created, replaced and removed, and files that are left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.namespace import SCRIPTS
from zarrfs.command import install
from zarrfs.errors import RootNeeded, ZarrfsError

NAMES = sorted(install.LINKS)


@pytest.fixture
def sbin(tmp_path: Path) -> Path:
    folder = tmp_path / "sbin"
    folder.mkdir()
    return folder


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder of commands."""
    folder = tmp_path / "a b"
    folder.mkdir()
    for name in ("zarrfs", *install.LINKS.values()):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


def content(folder: Path) -> dict[str, str]:
    """Return the targets of the links in a folder; empty for other files."""
    return {path.name: os.readlink(path) if path.is_symlink() else "" for path in folder.iterdir()}


def test_the_three_names_lead_to_the_two_commands(sbin: Path, package: Path) -> None:
    install.do(install.to_install(package, sbin), "again")
    assert content(sbin) == {
        "mount.zarrfs": f"{package}/mount.zarrfs",
        "mount.fuse.zarrfs": f"{package}/mount.zarrfs",
        "umount.fuse.zarrfs": f"{package}/umount.zarrfs",
    }


def test_again_there_is_nothing_to_do(sbin: Path, package: Path) -> None:
    install.do(install.to_install(package, sbin), "again")
    assert install.to_install(package, sbin) == []
    install.do(install.to_uninstall(sbin), "again")
    assert content(sbin) == {}
    assert install.to_uninstall(sbin) == []


@pytest.mark.parametrize("dangling", [True, False])
def test_links_of_another_installation_are_replaced(sbin: Path, package: Path, tmp_path: Path, dangling: bool) -> None:
    other = tmp_path / "other"
    if not dangling:
        other.mkdir()
        for name in install.LINKS.values():
            (other / name).touch()
    (sbin / "mount.zarrfs").symlink_to(other / "mount.zarrfs")
    (sbin / "umount.fuse.zarrfs").symlink_to("../other/umount.zarrfs")
    install.do(install.to_install(package, sbin), "again")
    assert set(content(sbin).values()) == {f"{package}/mount.zarrfs", f"{package}/umount.zarrfs"}
    assert len(content(sbin)) == 3


def test_dangling_links_are_removed(sbin: Path, package: Path) -> None:
    install.do(install.to_install(package, sbin), "again")
    for path in package.iterdir():
        path.unlink()
    install.do(install.to_uninstall(sbin), "again")
    assert content(sbin) == {}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["file", "folder", "link", "wrong command"])
def test_what_is_not_ours_is_left_alone_and_named(sbin: Path, package: Path, name: str, kind: str) -> None:
    other = "umount.zarrfs" if install.LINKS[name] == "mount.zarrfs" else "mount.zarrfs"
    match kind:
        case "file":
            (sbin / name).write_text("somebody's")
        case "folder":
            (sbin / name).mkdir()
        case "link":
            (sbin / name).symlink_to("/bin/true")
        case _:
            (sbin / name).symlink_to(package / other)
    before = content(sbin)
    for steps in (lambda: install.to_install(package, sbin), lambda: install.to_uninstall(sbin)):
        with pytest.raises(ZarrfsError, match=f"^{sbin / name}: .*ls -l {sbin / name}.*move it away"):
            steps()
    assert content(sbin) == before


def test_what_is_printed_does_it_too(sbin: Path, package: Path) -> None:
    (sbin / "mount.zarrfs").symlink_to("/gone/mount.zarrfs")
    by_shell = "\n".join(map(str, install.to_install(package, sbin)))
    subprocess.run(["sh", "-ec", by_shell], check=True)
    assert install.to_install(package, sbin) == []
    subprocess.run(["sh", "-ec", "\n".join(map(str, install.to_uninstall(sbin)))], check=True)
    assert content(sbin) == {}


def test_without_the_right_to_it_nothing_is_done(sbin: Path, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write everywhere, so the answer for a user is simulated.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(RootNeeded, match=f"^{sbin}: owned by root .run `sudo /x/zarrfs install mount-helper`.$"):
        install.do(install.to_install(package, sbin), "/x/zarrfs install mount-helper")
    assert content(sbin) == {}


def test_who_else_than_root_could_change_the_commands_is_found(package: Path) -> None:
    if os.geteuid() != 0:
        assert install.others_who_decide(package) == package / "mount.zarrfs"
        return
    # For any owners of the folders above.
    above = install.others_who_decide(package)
    assert above is None or above in package.parents
    os.chown(package, 1, 1)
    assert install.others_who_decide(package) == package
    os.chown(package, 0, 0)
    package.chmod(0o775)
    assert install.others_who_decide(package) == package
    package.chmod(0o1777)
    assert install.others_who_decide(package) == above
    (package / "mount.zarrfs").chmod(0o757)
    assert install.others_who_decide(package) == package / "mount.zarrfs"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to own files and give them away")
def test_who_else_than_root_could_change_a_link_to_the_commands_is_found(package: Path, tmp_path: Path) -> None:
    above = install.others_who_decide(package)
    home = tmp_path / "home"
    home.mkdir()
    (home / "venv").symlink_to("../" + package.name)
    assert install.others_who_decide(home / "venv") == above
    os.chown(home, 1, 1)
    assert install.others_who_decide(home / "venv") == home
    os.chown(home, 0, 0)
    home.chmod(0o1777)
    os.chown(home / "venv", 1, 1, follow_symlinks=False)
    assert install.others_who_decide(home / "venv") == home / "venv"


def test_the_commands_are_those_of_this_installation() -> None:
    if not (SCRIPTS / "mount.zarrfs").exists():
        pytest.skip("zarrfs is not installed here")
    assert install.commands() == SCRIPTS


def test_a_source_tree_has_no_commands(tmp_path: Path) -> None:
    source = Path(install.__file__).parents[1]
    (tmp_path / "zarrfs").symlink_to(source)
    script = f"""
import sys, sysconfig
sys.path.insert(0, {str(tmp_path)!r})
sys.argv = [{str(tmp_path / "zarrfs" / "__main__.py")!r}]
sysconfig.get_path = lambda name: {str(tmp_path / "bin")!r}
from zarrfs.command.main import run
sys.exit(run(["install", "mount-helper", "--dry-run"]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"zarrfs: mount.zarrfs, umount.zarrfs, zarrfs: not all in {tmp_path}/bin or ")
    assert "pip install zarrfs" in done.stderr and done.stderr.count("\n") == 1
