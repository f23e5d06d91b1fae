"""Root's umount of another user's mount: whatever that mount answers, it neither fails nor waits without end, and reports its actions."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import pytest

from tests.support.users import REPOSITORY, run_as_users
from zarrfs.lifecycle import daemons, exit_report, untrusted
from zarrfs.lifecycle.daemons import About
from zarrfs.lifecycle.mount_table import Mount, Owner

HOSTILE_DOCUMENTS = [
    b"",
    b"\xff\xfe",
    b"[" * 50_000,
    b'{"pid":' * 9_000,
    b"[]",
    b"null",
    b'"pid"',
    b'{"pid": NaN, "exit_code": NaN, "files": NaN}',
    b"{}",
    *(
        json.dumps({"pid": 0, "result": None, "exit_code": 0, "message": "", "files": 0, "nbytes": 0})
        .replace(": 0", f": {number}")
        .encode()
        for number in (
            "1" + "0" * 400,
            "1" + "0" * 5000,
            "1e400",
            "-1",
            "2.5",
            '"7"',
            "true",
            "null",
            "[7]",
            "Infinity",
            str(2**64),
        )
    ),
]


@pytest.mark.parametrize("document", HOSTILE_DOCUMENTS, ids=range(len(HOSTILE_DOCUMENTS)))
def test_documents_that_no_daemon_writes_say_nothing(document: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (whatever it says)
        About.of(document)
    assert exit_report.outcome_in(document) is None
    assert exit_report.left_in(document) is None


@pytest.mark.parametrize("pid", [-1, 0, 1, 2**22 + 1, 2**31, 2**63, 10**400, 2.0, True, "2", None])
def test_numbers_that_no_daemon_has(pid: object) -> None:
    with pytest.raises(ValueError, match="integer"):
        About.of(json.dumps({"pid": pid, "result": None}).encode())


@pytest.mark.parametrize("words", [1, [], "x" * 5000, "a\0b"])
def test_places_that_no_words_have(words: object) -> None:
    with pytest.raises(ValueError, match="text"):
        About.of(json.dumps({"pid": 2, "result": words}).encode())


@pytest.mark.parametrize("timeout", [0, -1, "60", None, True])
def test_times_that_no_store_takes(timeout: object) -> None:
    with pytest.raises(ValueError, match="seconds"):
        About.of(json.dumps({"pid": 2, "result": None, "timeout": timeout}).encode())


def test_what_a_daemon_tells() -> None:
    assert About.of(b'{"pid": 7, "result": "/w", "timeout": 1.5, "more": []}') == (7, "/w", 1.5, False)
    assert About.of(b'{"pid": 7, "result": null, "read_only": true}') == (7, None, 0, True)
    assert not About.of(b'{"pid": 7, "result": null, "read_only": 1}').read_only
    assert (
        About.of(b'{"pid": 7, "timeout": 1e400}').timeout == About.of(b'{"pid": 7, "timeout": 1' + b"0" * 400 + b"}").timeout == 600
    )
    assert untrusted.document(b"{}") == {}


def test_a_strangers_words_are_shown_on_one_line_without_control_sequences() -> None:
    words = json.dumps({"exit_code": 7, "message": "\x1b]0;owned\x07\r\nzarrfs: all is well\x9b31m\u202e" + "x" * 10_000})
    outcome = exit_report.outcome_in(words.encode())
    assert outcome is not None
    assert outcome.message.isprintable() and len(outcome.message) <= 4000


def test_no_process_counts_but_the_daemon() -> None:
    """No other process of the same user has the mount's connection open."""
    mine = Mount("/m", "fuse.zarrfs", "0:999999", Owner(os.geteuid(), os.getegid()))
    with subprocess.Popen(["sleep", "100"]) as other:
        assert not daemons._serves(other.pid, mine, float("inf"))
        other.kill()
    assert not daemons._serves(os.getpid(), mine, float("inf"))
    assert not daemons._serves(os.getppid(), mine, float("inf"))


STRANGE = f"""
A="$W/65534"
strange() {{  # PLAN; returns when it is mounted, and its process is $daemon
    plan=${{1//HOME/$A}}
    rm -f "$A/said"
    as 65534 {sys.executable} {REPOSITORY}/tests/support/strangers_mount.py "${{2:-$A/m}}" "$plan" > "$A/said" 2> /dev/null &
    until [ -s "$A/said" ]; do :; done
    daemon=$(cat "$A/said")
}}
"""


def umounted(plan: dict[str, object], more: str = "", umount: str = "zarrfs umount") -> list[str]:
    """Return the output of root's umount of the mount of ``plan``, with a line at the end if it is still mounted."""
    said = run_as_users(f"""{STRANGE}
    plan=$(cat <<'END'
{json.dumps(plan)}
END
    )
    strange "$plan"
    {more}
    code {umount} "$A/m"
    findmnt "$A/m" > /dev/null && echo "still mounted"
    killed $daemon 2> /dev/null || [ ! -e /proc/$daemon ]  # it may end on its own
    wait
    """)
    return [line.replace("W/65534", "A") for line in _short(said)]


def _short(said: str) -> list[str]:
    lines = said.splitlines()
    return [line[line.index("/w/65534") :].replace("/w/65534", "A", 1) if "/w/65534" in line else line for line in lines]


NOT_ASKED = "A/m: unmounted, but its daemon gives no information on when everything is stored"


@pytest.mark.fuse
@pytest.mark.parametrize(
    "config",
    [
        "",
        "[" * 50_000,
        '{"pid": 1' + "0" * 400 + ', "result": null}',
        '{"pid": 1, "result": null}',
        '{"pid": -1, "result": null}',
        '{"pid": 9223372036854775808, "result": null}',
    ],
    ids=["empty", "nested", "10^400", "1", "-1", "2^63"],
)
def test_root_unmounts_whatever_a_stranger_tells(config: str) -> None:
    assert umounted({"config": config}) == [NOT_ASKED, "code 1"]


@pytest.mark.full_length
@pytest.mark.fuse
def test_root_waits_for_no_process_of_a_strangers_but_the_daemon() -> None:
    said = run_as_users(f"""{STRANGE}
    as 65534 bash -c 'echo $$ > "$1/pid" && exec sleep 100' bash "$A" > /dev/null &
    until [ -s "$A/pid" ]; do :; done; sleeper=$(cat "$A/pid")
    tells() {{ printf '{{"config": "{{\\\\"pid\\\\": %d, \\\\"result\\\\": null}}"}}' $1; }}
    strange "$(tells $sleeper)"
    code zarrfs umount "$A/m"
    # The daemon of another mount of theirs: what it tells is true of that one alone.
    cp -r {REPOSITORY}/demo/example.zarr "$A/s.zarr" && chown -R 65534:65534 "$A/s.zarr"
    as 65534 zarrfs mount "$A/s.zarr" "$A/m"
    mkdir "$A/n"; chown 65534:65534 "$A/n"
    strange "$(tells $(pid_of "$A/m" as 65534))" "$A/n"
    code zarrfs umount "$A/n"
    code zarrfs umount "$A/m"
    kill $sleeper
    """)
    assert _short(said) == [NOT_ASKED, "code 1", NOT_ASKED.replace("A/m", "A/n"), "code 1", "code 0"]


ENDLESS = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from zarrfs.lifecycle import unmounting
print(*unmounting.unmount(sys.argv[1], print_line=print, every=0.2, spare=1.0, lazy=len(sys.argv) > 2), flush=True)
"""


def python(source: str) -> str:
    return f"{sys.executable} -P -c {shlex.quote(source)}"


@pytest.mark.fuse
def test_a_daemon_that_does_not_end_is_waited_for_for_some_time() -> None:
    words = '{"exit_code": 7, "message": "", "files": 3, "nbytes": 12582912}'
    plan: dict[str, object] = {"config": '{"pid": PID, "result": "HOME/words"}', "stays": True}
    said = umounted(plan, more=f"echo '{words}' > \"$A/words\"", umount=python(ENDLESS))
    assert said[0] == "A/m: 3 files, 12.0 MiB left"
    *_, last, code = said
    assert (
        ": unmounted, but its daemon (pid " in last and "has made no progress for 1 s: 3 files, 12.0 MiB left; `tail --pid=" in last
    )
    assert "-f /dev/null` waits for its end, `kill -9 " in last
    assert code == "code 0"  # exit code of the script


@pytest.mark.full_length
@pytest.mark.fuse
def test_words_that_cannot_be_read_to_an_end_are_none() -> None:
    plan: dict[str, object] = {"config": '{"pid": PID, "result": "HOME/words"}'}
    nested = "head -c 60000 /dev/zero | tr '\\0' '[' > \"$A/words\""
    for made in ('mkfifo "$A/words"', 'ln -s /dev/zero "$A/words"', 'ln -s /etc/shadow "$A/words"', nested):
        said = umounted(plan, more=made, umount=python(ENDLESS))
        assert said[-2].startswith("A/m: unmounted, but its daemon could not create an exit report"), (made, said)
        assert said[-1] == "code 0"


@pytest.mark.full_length
@pytest.mark.fuse
def test_pages_that_a_daemon_never_takes_do_not_hold_root() -> None:
    """A process that writes them waits in the kernel, beyond SIGKILL."""
    writes = (
        "import mmap, os, sys; mapped = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 4096); mapped[:1] = b'x'; print(1, flush=True)"
    )
    more = f"""as 65534 {python(writes)} "$A/m/file" > "$A/written" &
    until [ -s "$A/written" ]; do :; done
    code zarrfs umount "$A/m" """
    said = umounted({"config": "{}", "hangs": ["write"]}, more=more, umount="zarrfs umount --lazy")
    assert said[0].startswith("A/m: in use by python") and said[1] == "code 1"
    assert said[2:] == [NOT_ASKED, "code 0"]


@pytest.mark.full_length
@pytest.mark.fuse
@pytest.mark.parametrize("hangs", ["statfs", "open", "read"])
def test_a_mount_that_does_not_answer_is_detached_if_not_unmounted(hangs: str) -> None:
    more = 'code zarrfs umount "$A/m"'
    said = umounted({"config": '{"pid": PID, "result": null}', "hangs": [hangs]}, more=more, umount="zarrfs umount --lazy")
    waits = "A/m: in use, at least by programs that wait for its daemon, which does not answer: end them, or use --lazy"
    unmounted = "A/m: unmounted, but its daemon did not answer: its unstored data is lost if it is killed"
    said = [line.split("; `echo 1 > /sys/fs/fuse/connections/")[0] for line in said]
    # A process that waits for a page can be ended.
    nothing = "A/m: not mounted (see: findmnt -t fuse.zarrfs)"
    assert said == ([unmounted, "code 1", nothing, "code 5"] if hangs == "read" else [waits, "code 1", unmounted, "code 0"])


@pytest.mark.fuse
@pytest.mark.parametrize("options", ["", "--lazy"])
def test_root_unmounts_no_other_mount_that_the_way_leads_to_meanwhile(options: str) -> None:
    """The owner of a folder on the path to their mount replaces it by a link to one of root's while root's umount asks the mount."""
    plan = json.dumps({"config": "{}", "swaps": ["HOME/way", "HOME/../roots"]})
    said = run_as_users(f"""{STRANGE}
    mkdir -p "$W/roots/m" && mount -t tmpfs of-root "$W/roots/m"
    as 65534 mkdir -p "$A/way/m"
    strange {shlex.quote(plan)} "$A/way/m"
    code zarrfs umount {options} "$A/way/m"
    findmnt -no SOURCE "$W/roots/m"
    killed $daemon 2> /dev/null || [ ! -e /proc/$daemon ]  # it may end on its own
    umount -q -l "$A/way.aside/m"; umount -q "$W/roots/m"
    wait
    """)
    assert "of-root" in said.splitlines(), said


@pytest.mark.fuse
def test_root_is_led_to_no_mount_of_anybody_else() -> None:
    """Links in the home of a user lead to a mount of root's. Those of the mount's owner, and of root, are followed."""
    said = run_as_users("""
    mkdir -p "$W/roots/m" "$W/roots/s" "$W/65534/s" && chown 65534 "$W/65534/s"
    zarrfs mount --log-file "$W/log" "$W/roots/s" "$W/roots/m"
    as 65534 zarrfs mount --log-file "$W/65534/log" "$W/65534/s" "$W/65534/m"
    as 65534 ln -s "$W/roots/m" "$W/65534/link" && as 65534 ln -s "$W/roots" "$W/65534/way" && as 65534 ln -s m "$W/65534/own"
    ln -s roots/m "$W/link"
    code zarrfs umount "$W/65534/link"
    code zarrfs umount --lazy "$W/65534/way/m"
    findmnt -no FSTYPE "$W/roots/m"
    code zarrfs umount "$W/65534/own"
    code zarrfs umount "$W/link"
    """).splitlines()
    assert [line for line in said if not line.startswith("zarrfs: ")] == ["code 1", "code 1", "fuse.zarrfs", "code 0", "code 0"], (
        said
    )
    assert sum("a link on the path belongs to another user than the mount" in line for line in said) == 2
