"""Options of mount(8) in -o: none of them is taken for a mistake, and no mistake for one of them."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zarrfs.errors import UsageError
from zarrfs.options.config import join_mount_options, options, resolve, split_mount_options
from zarrfs.options.mount8 import STANDARD, is_standard, refusal

# mount(8), "FILESYSTEM-INDEPENDENT MOUNT OPTIONS", util-linux 2.38 to 2.41, in its order; with the names that it mentions elsewhere.
DOCUMENTED = """
async atime noatime auto noauto defaults dev nodev diratime nodiratime dirsync exec noexec group iversion noiversion mand nomand
_netdev nofail relatime norelatime strictatime nostrictatime lazytime nolazytime suid nosuid silent loud owner ro rw sync user
user=somebody nouser users X-anything x-gvfs-show X-mount.mkdir X-mount.mkdir=0700 x-mount.mkdir X-mount.subdir=a X-mount.owner=me
X-mount.group=us X-mount.mode=0700 X-mount.idmap=u:0:1:1 X-mount.auto-fstypes=a nosymfollow comment comment=systemd.automount
private rprivate shared rshared slave rslave unbindable runbindable helper=x uhelper=x
""".split()
# systemd.mount(5) and systemd-fstab-generator(8).
DOCUMENTED += """
x-systemd.requires=a.service x-systemd.before=b x-systemd.after=c x-systemd.wanted-by=d x-systemd.required-by=e
x-systemd.requires-mounts-for=/a x-systemd.wants-mounts-for=/a x-systemd.device-bound x-systemd.device-bound=no x-systemd.automount
x-systemd.idle-timeout=1min x-systemd.device-timeout=1 x-systemd.mount-timeout=infinity x-systemd.makefs x-systemd.growfs
x-systemd.pcrfs x-systemd.rw-only x-initrd.mount x-initrd.attach
""".split()
REFUSED = (
    "remount bind rbind move loop loop=/dev/loop1 offset=5 sizelimit=7 context=a fscontext=a defcontext=a rootcontext=a".split()
)


@pytest.mark.parametrize("option", DOCUMENTED)
def test_what_mount_8_documents_is_no_mistake(option: str) -> None:
    resolve("/x", mount_options=[option], environment={})
    resolve("/x", mount_options=[option.replace("_", "-", 1) if option != "_netdev" else option], environment={})


@pytest.mark.parametrize("option", REFUSED)
def test_what_cannot_be_had_is_refused_with_a_reason(option: str) -> None:
    for unknown in (None, lambda name: None):  # not ignored either where unknown options are
        with pytest.raises(UsageError, match=f"-o {option.partition('=')[0]}: .*: (unmount|leave out|leave it out)"):
            resolve("/x", mount_options=[option], environment={}, unknown=unknown)


@pytest.mark.skipif(shutil.which("man") is None, reason="needs man(1)")
def test_the_manual_of_this_machine_names_no_other() -> None:
    shown = subprocess.run(["man", "-P", "cat", "mount"], capture_output=True, text=True, check=False, env={"MANWIDTH": "150"})
    if shown.returncode != 0:
        pytest.skip("mount(8) has no manual here")
    section = re.search(r"^FILESYSTEM-INDEPENDENT MOUNT OPTIONS$(.*?)^FILESYSTEM-SPECIFIC", shown.stdout, re.S | re.M)
    assert section is not None, shown.stdout[:1000]
    headings = re.findall(r"^\n {7}(\S.*)\n {11}\S", section[1], re.M)
    names = {word for heading in headings for word in re.split(r",? and |, ", heading)}
    assert {"nofail", "relatime", "sync", "users"} <= names
    for name in names:
        option = name.replace("*", "anything").partition("[")[0]
        if refusal(option) is None:
            resolve("/x", mount_options=[option], environment={})


def test_no_option_of_ours_is_taken_for_somebody_elses() -> None:
    assert not STANDARD & options().keys()
    assert not any(is_standard(name) or refusal(name) for name in options())


@given(st.text("abcdefghijklmnopqrstuvwxyz_-", min_size=1))
def test_every_other_word_is_a_mistake(name: str) -> None:
    known = {*STANDARD, *options(), *(f"no_{name}" for name in options()), *REFUSED, "config", "ro", "rw", "fg", "sync", "exec"}
    if name.replace("-", "_") not in known and not name.startswith("x-"):
        with pytest.raises(UsageError, match="unknown option"):
            resolve("/x", mount_options=[name], environment={})


def test_a_typo_is_told_with_what_was_meant() -> None:
    for typo, meant in {"metadata_tll=5": "metadata_ttl", "nofial": "nofail", "_netdv": "_netdev", "noatme": "noatime"}.items():
        with pytest.raises(UsageError, match=f"did you mean {meant}\\?"):
            resolve("/x", mount_options=[typo], environment={})


@pytest.mark.parametrize("option", ["nofail=1", "noatime=no", "defaults=x", "auto=1"])
def test_a_value_where_mount_8_has_none_is_a_mistake(option: str) -> None:
    with pytest.raises(UsageError, match="unknown option"):
        resolve("/x", mount_options=[option], environment={})


def test_unknown_ones_may_be_told_instead() -> None:
    told: list[str] = []
    found = resolve("/x", mount_options=["foo,metadata_tll=secret,nofail,metadata_ttl=3"], environment={}, unknown=told.append)
    assert told == ["foo", "metadata_tll"]
    assert found.metadata_ttl == 3


def test_sync_asks_for_durability_and_async_takes_none_away() -> None:
    assert resolve("/x", mount_options=["sync"], environment={}).durable
    assert resolve("/x", mount_options=["async"], environment={"ZARRFS_DURABLE": "yes"}).durable


def test_exec_takes_back_what_user_brought() -> None:
    assert resolve("/x", mount_options=["noexec,user"], environment={}).noexec
    assert not resolve("/x", mount_options=["noexec,user,exec"], environment={}).noexec


@given(st.lists(st.text(min_size=1)))
def test_joined_options_are_split_as_they_were(parts: list[str]) -> None:
    assert split_mount_options(join_mount_options(parts)) == parts
