"""New arrays on file systems that change modes and owners: they get those of any other new folder there."""

from __future__ import annotations

import shutil

import pytest

from tests.support.users import run_as_users, script_of_python

pytestmark = pytest.mark.fuse

_SFTP_SERVER = "/usr/lib/openssh/sftp-server"
_SAVE = script_of_python("import numpy, sys; numpy.save(sys.argv[1], numpy.arange(int(sys.argv[2])))")
_SSHFS = script_of_python(
    """
import socket, subprocess, sys
server, user, source, mountpoint = sys.argv[1:]
ends = socket.socketpair()
subprocess.Popen([server], stdin=ends[0], stdout=ends[0], user=2, group=2, extra_groups=[], umask=0o22)
mount = ["sshfs", "-f", "-o", "passive", ":" + source, mountpoint]
subprocess.run(mount, stdin=ends[1], stdout=ends[1], user=int(user), group=int(user), extra_groups=[], check=True)
""",
    _SFTP_SERVER,
)
_SCRIPT = """
umask 022
A="$W/65534" && mkdir "$W/s" "$W/f" && echo '{"zarr_format": 2}' > "$W/s/.zgroup" && chown -R %(owner)s:%(owner)s "$W/s"
chown 65534:65534 "$W/f"
%(mounted)s
as 65534 zarrfs mount "$W/f" "$A/m"
as 65534 %(save)s "$A/m/npy/a.npy" 3
as 65534 chmod 0750 "$W/f/a"
as 65534 %(save)s "$A/m/npy/a.npy" 4
as 65534 %(save)s "$A/m/npy/b.npy" 4
as 65534 zarrfs umount "$A/m"
(cd "$W/s" && find . -name '[ab]*' -printf '%%M %%U:%%G %%p\\n' | sort -k 3)
umount "$W/f" && wait
"""


@pytest.mark.parametrize("program", ["bindfs", "sshfs"])
def test_a_new_array_is_accessible_as_its_umask_allows(program: str) -> None:
    """bindfs creates no folder with the sticky bit, and sshfs shows the number of the user on the other machine."""
    if shutil.which(program) is None or (program == "sshfs" and shutil.which(_SFTP_SERVER) is None):
        pytest.skip(f"{program} is not installed")
    if program == "sshfs":
        owner, mounted = 2, f'{_SSHFS} 65534 "$W/s" "$W/f" & until as 65534 mountpoint -q "$W/f"; do :; done'
    else:
        owner, mounted = 65534, 'bindfs "$W/s" "$W/f"'
    said = run_as_users(_SCRIPT % {"save": _SAVE, "owner": owner, "mounted": mounted}).splitlines()
    assert said == [f"drwxr-x--- {owner}:{owner} ./a", f"drwxr-xr-x {owner}:{owner} ./b"]
