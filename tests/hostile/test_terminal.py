"""A hostile terminal: a program that root runs as the owner of a mount can be traced by that owner, and has nothing of root's."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.users import REPOSITORY, run_as_users, script_of_python
from zarrfs.lifecycle import as_owner, programs
from zarrfs.lifecycle.mount_table import Mount, Owner

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users"), pytest.mark.real_exec]

NOBODYS = Mount("/m", "fuse.zarrfs", "0:1", Owner(65534, 65534))
ON_A_TERMINAL = """
import os, pty, sys
status = pty.spawn(sys.argv[1:])
sys.exit(os.waitstatus_to_exitcode(status))
"""

# A hostile owner's actions in the process: type a line into every terminal that can be reached.
TYPES_A_COMMAND = """
import fcntl, os, sys, termios
def typed(descriptor):
    for byte in b"echo typed\\n":
        fcntl.ioctl(descriptor, termios.TIOCSTI, bytes([byte]))
for name in ["/dev/tty", *sys.argv[1:]]:
    try:
        with open(name, "wb", buffering=0) as terminal:
            typed(terminal.fileno())
        print(name, "typed")
    except OSError as error:
        print(name, error.strerror)
for descriptor in range(1024):
    try:
        print(descriptor, os.ttyname(descriptor))
        typed(descriptor)
        print(descriptor, "typed")
    except OSError:
        continue
print("session", os.getsid(0) == os.getpid(), sorted(os.environ))
"""

# On a terminal of its own, which is standard input, output and error, and which the owner may open, as after su in it.
ASKS = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(REPOSITORY)!r})
from zarrfs.lifecycle import as_owner, programs
from zarrfs.lifecycle.mount_table import Mount, Owner
os.chown(os.ttyname(0), 65534, -1)
os.environ["LD_LIBRARY_PATH"] = "/nowhere"
os.set_inheritable(os.open("/dev/tty", os.O_RDWR), True)
programs.find = lambda name: "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
mount = Mount("/m", "fuse.zarrfs", "0:1", Owner(65534, 65534))
done = as_owner.run(mount, "python3", "-c", {TYPES_A_COMMAND!r}, os.ttyname(0), patience=30)
Path(sys.argv[1]).write_bytes(done.stdout + done.stderr)
"""


# For `str.format`: a program, and a list of its arguments. Prints its output.
ASKS_FOR = f"""
import os, sys
sys.path.insert(0, {str(REPOSITORY)!r})
from zarrfs.lifecycle import as_owner, programs
from zarrfs.lifecycle.mount_table import Mount, Owner
find, programs.find = programs.find, lambda name: "/usr/bin/python3" if name == "python3" else find(name)
sys.stdout.buffer.write(as_owner.run(Mount("/m", "fuse.zarrfs", "0:1", Owner(65534, 65534)), {{!r}}, *{{!r}}, patience=30).stdout)
"""


def test_a_process_of_the_owner_reaches_no_terminal(tmp_path: Path) -> None:
    said = tmp_path / "said"
    master, terminal = pty.openpty()
    name = os.ttyname(terminal)
    command = ["setsid", "--ctty", "--wait", sys.executable, "-c", ASKS, str(said)]
    subprocess.run(command, stdin=terminal, stdout=terminal, stderr=terminal, check=True, timeout=60)
    os.close(terminal)
    os.close(master)
    lines = said.read_text().splitlines()
    assert lines[0] == "/dev/tty No such device or address"
    assert lines[1] == f"{name} Operation not permitted"
    assert lines[2] == "session True ['LC_ALL']", lines


def run(script: str, patience: float = 20) -> subprocess.CompletedProcess[bytes]:
    return as_owner.run(NOBODYS, "bash", "-c", script, patience=patience)


def test_output_without_end_is_not_read_to_its_end() -> None:
    for script in ("cat /dev/zero", "cat /dev/zero >&2", "while :; do printf '%1000d' 1; printf '%1000d' 1 >&2; done"):
        with pytest.raises(OSError, match="more than 65536 bytes"):
            run(script)


def test_output_that_fills_the_pipe_is_read_while_it_comes() -> None:
    done = run("head -c 65536 /dev/zero; head -c 65536 /dev/zero >&2")
    assert (done.returncode, len(done.stdout), len(done.stderr)) == (0, 65536, 65536)


def test_who_else_holds_the_pipe_is_not_waited_for() -> None:
    began = time.monotonic()
    done = run("echo said; setsid sleep 1000 & echo $!")
    assert time.monotonic() - began < 10
    said, pid = done.stdout.split()
    assert said == b"said"
    os.kill(int(pid), 9)


def test_what_it_left_in_its_group_ends_with_it() -> None:
    pid = int(run("sleep 1000 & echo $!").stdout)
    while os.path.exists(f"/proc/{pid}") and "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text():
        pass


def test_it_ends_when_its_time_is_over() -> None:
    for script in ("exec sleep 1000", "kill -STOP $$", "exec 1>&- 2>&-; exec sleep 1000"):
        with pytest.raises(TimeoutError):
            run(script, patience=0.3)


def test_it_has_no_limits_wider_than_a_users() -> None:
    assert run("ulimit -c; ulimit -l; ulimit -e; ulimit -r; ulimit -t").stdout.split() == [b"0", b"0", b"0", b"0", b"21"]


def test_it_has_no_higher_priority_than_a_users() -> None:
    script = f"import os; os.setpriority(os.PRIO_PROCESS, 0, -5)\n{ASKS_FOR.format('bash', ['-c', 'nice'])}"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=60).stdout == b"0\n"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of the system calls are those of x86_64")
def test_it_does_not_have_the_keys_of_root() -> None:
    # keyctl(2), add_key(2): in a new session keyring, a key whose possessors may read it.
    keyctl, add_key, join, search, session = 250, 248, 1, 10, -3
    finds = f"import ctypes; print(ctypes.CDLL(None).syscall({keyctl}, {search}, ctypes.c_long({session}), b'user', b'roots', 0))"
    script = f"""
import ctypes
libc = ctypes.CDLL(None)
own = libc.syscall({keyctl}, {join}, None)
key = libc.syscall({add_key}, b"user", b"roots", b"secret", 6, ctypes.c_long({session})) if own >= 0 else -1
print(key, flush=True)
{finds}
{ASKS_FOR.format("python3", ["-c", finds])}"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=60).stdout.split()
    if said[0] == b"-1":
        pytest.skip("no keys in this kernel or container")
    assert said[1] == said[0] and said[2] == b"-1"


def test_paths_that_no_file_has_are_errors() -> None:
    for path in ("/a\0b", "/\ud800"):
        with pytest.raises(OSError, match=r"head"):
            as_owner.read(NOBODYS, path, 5)


def test_root_runs_no_program_that_lies_where_path_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "head").write_text("#!/bin/sh\necho mine\n")
    (tmp_path / "head").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:.:")
    assert programs.find("head") == "/usr/bin/head"
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    assert programs.find("head") == str(tmp_path / "head")
    monkeypatch.setenv("PATH", ".:")
    monkeypatch.chdir(tmp_path)
    assert programs.find("head") == "/usr/bin/head"


@pytest.mark.fuse
def test_what_umount_asks_a_strangers_mount_with_has_nothing_of_roots() -> None:
    plan = json.dumps({"config": "{}", "seen": "SEEN"})
    umount = script_of_python(ON_A_TERMINAL)
    said = run_as_users(f"""
    A="$W/65534"
    plan={json.dumps(plan)}; plan=${{plan/SEEN/$A/seen}}
    as 65534 {sys.executable} {REPOSITORY}/tests/support/strangers_mount.py "$A/m" "$plan" > "$A/said" &
    until [ -s "$A/said" ]; do :; done
    {umount} "$SCRIPTS/zarrfs" umount "$A/m" || [ $? = 1 ]
    wait
    cat "$A/seen"
    """)
    *_, line = said.splitlines()
    seen = json.loads(line)
    assert (seen["terminal"], seen["session"]) == (0, seen["pid"])
    assert seen["descriptors"] == ["/dev/null", "pipe", "pipe"]
    assert seen["environment"] == ["LC_ALL=C"]
