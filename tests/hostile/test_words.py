"""One hostile name, in every position that a store or another user controls, and every output of zarrfs that contains it.

Nothing that is printed, logged, or shown as text contains a control character, an invalid byte, or a character that reorders or hides
others. Data is unchanged: names of files in the mount, and the values in JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support import forge
from tests.support.mounting import ROOT, killed_at_last, mountpoint
from tests.support.notifications import notified
from zarrfs.lifecycle import exit_report
from zarrfs.reports import progress

# A window's title, a clear screen, a colour by C1 as a character and as a byte, DEL, bidi, zero width, separators, rich's markup.
HOSTILE = (
    "\x1b]0;pwned\x07\x1b[2J\x9b31m\udc9b\x7f\u202e\u2066\u2069\u200e\u061c\u200b\ufeff\u2028\x85\r\n[bold red]x[.red]\U000e0041"
)
# Short enough for a name of 255 bytes.
NAME = f"n{HOSTILE}"
# JSON cannot represent bytes.
WORD = HOSTILE.replace("\udc9b", "\udc9b\ud800")
_CLONE_NEWNS = 0x20000
UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def assert_clean(said: bytes, where: str) -> str:
    """Return ``said`` as text; it has to be valid, with every character visible as what it is."""
    text = said.decode("utf-8")
    odd = sorted({hex(ord(character)) for character in text if unicodedata.category(character) in UNSEEN and character != "\n"})
    assert not odd, f"{where} shows {odd}: {text!r}"
    return text


def zarrfs(*arguments: str | Path, module: str = "zarrfs", **env: str) -> tuple[int, str]:
    """Run a command; return its exit code and its output, which has to be clean."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | env
    command = [sys.executable, "-P", "-m", module, *map(str, arguments)]
    if forge.in_use and module == "zarrfs" and not env:
        done = forge.run(command[4:], cwd="/", env=environment, timeout=100)
    else:
        done = subprocess.run(command, cwd="/", env=environment, capture_output=True, timeout=100, check=False)
    where = f"{module} {arguments[0]!r}"
    text = assert_clean(done.stdout, f"stdout of {where}") + assert_clean(done.stderr, f"stderr of {where}")
    assert "Traceback" not in text and "defect" not in text, text
    return done.returncode, text


def array(**changes: Any) -> str:
    """Return a ``.zarray``."""
    said = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "fill_value": 0, "order": "C"}
    return json.dumps(said | {"compressor": None, "filters": None} | changes)


def documents() -> Iterator[tuple[str, str]]:
    """Yield documents whose every string is hostile, as paths and texts."""
    for n, changes in enumerate(
        (
            {"dtype": WORD},
            {"dtype": [[WORD, "<i4"]]},
            {"dtype": [[WORD, WORD]]},
            {"compressor": {"id": WORD}},
            {"compressor": {"id": "blosc", "cname": WORD}},
            {"filters": [{"id": WORD}]},
            {"filters": [{"id": "quantize", "digits": 2, "dtype": WORD}]},
            {"fill_value": WORD},
            {"dtype": "<U40", "fill_value": WORD},
            {"order": WORD},
            {"zarr_format": WORD},
            {"shape": WORD},
            {"chunks": [WORD]},
            {"dimension_separator": WORD},
            {WORD: 1, "dtype": "|u1"},
        )
    ):
        yield f"v2.{n}/.zarray", array(**changes)
        yield f"v2.{n}/.zattrs", json.dumps({WORD: [WORD], "_ARRAY_DIMENSIONS": [WORD]})
    yield "twice/.zarray", f'{{"{json.dumps(WORD)[1:-1]}": 1, "{json.dumps(WORD)[1:-1]}": 2}}'
    yield "torn/.zgroup", f"{{{WORD.encode('ascii', 'backslashreplace').decode()}"
    yield "bytes/.zgroup", f'{{"{HOSTILE.replace(chr(0xDC9B), "")}": 1}}'
    v3 = {"zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "uint8", "fill_value": 0}
    v3 |= {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}}, "chunk_key_encoding": {"name": "default"}}
    v3 |= {"codecs": [{"name": "bytes"}]}
    for n, changed in enumerate(
        (
            {"data_type": WORD},
            {"data_type": {"name": WORD, "configuration": {WORD: WORD}}},
            {"node_type": WORD},
            {"fill_value": WORD},
            {"codecs": [{"name": WORD}]},
            {"codecs": [{"name": "bytes", "configuration": {WORD: WORD}}]},
            {"chunk_grid": {"name": WORD}},
            {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": WORD}}},
            {"storage_transformers": [{"name": WORD}]},
            {"dimension_names": [WORD]},
            {"attributes": {WORD: WORD}},
            {WORD: {"must_understand": True}},
            {WORD: {"must_understand": False}},
        )
    ):
        yield f"v3.{n}/zarr.json", json.dumps(v3 | changed)
    core = "https://purl.org/zarr/spec/core/3.0"
    yield "entry1/zarr.json", json.dumps({"zarr_format": core, "metadata_encoding": {"type": WORD}, "extensions": []})
    yield "entry2/zarr.json", json.dumps({"zarr_format": core, "metadata_encoding": core, "extensions": [WORD], WORD: 1})
    suffix = {"type": "json", "metadata_key_suffix": WORD}
    yield "entry3/zarr.json", json.dumps({"zarr_format": core, "metadata_encoding": suffix, "extensions": []})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a hostile name and nodes with hostile names and documents; one has a chunk that cannot be decoded."""
    store = tmp_path / NAME / "s.zarr"
    for place, text in documents():
        for name in (place, f"{NAME}/{place}"):
            (store / name).parent.mkdir(parents=True, exist_ok=True)
            (store / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    for name in (NAME, "bad"):
        (store / "arrays" / name).mkdir(parents=True)
        (store / "arrays" / name / ".zarray").write_text(array(compressor={"id": "zlib", "level": 1}))
        (store / "arrays" / name / "0").write_bytes(WORD.encode("utf-8", "surrogatepass"))
        (store / "arrays" / name / "1").symlink_to("0")
    (store / "shadowed").mkdir()
    os.symlink(NAME, store / f"link{NAME}")
    return store


def test_what_info_and_check_print(store: Path) -> None:
    for arguments in (("info",), ("info", "--json"), ("check",), ("check", "--json")):
        code, text = zarrfs(*arguments, store)
        assert code == (arguments[0] == "check"), text
        assert "arrays" in text and "pwned" in text
    for node in ("v2.8", "v3.10", f"arrays/{NAME}", NAME):
        zarrfs("info", store, node)
        zarrfs("check", store, node)


def test_info_as_json_is_exact(store: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "zarrfs", "info", "--json", store], capture_output=True, cwd=ROOT, check=True
    )
    nodes = {node["path"]: node for node in json.loads(done.stdout)["nodes"]}
    assert f"/arrays/{NAME}" in nodes
    assert nodes["/v3.10"]["attributes"] == {WORD: WORD}


@pytest.mark.full_length
def test_an_output_with_few_letters_is_written_to_all_the_same(store: Path) -> None:
    for encoding in ("ascii", "latin-1"):
        code, text = zarrfs("info", store, PYTHONIOENCODING=encoding)
        assert code == 0 and "arrays" in text
        assert zarrfs("check", store, PYTHONIOENCODING=encoding)[0] == 1


def test_arguments_that_cannot_be_right(store: Path, tmp_path: Path) -> None:
    config = tmp_path / "zarrfs.toml"
    config.write_text(f"{json.dumps(HOSTILE.replace(chr(0xDC9B), ''))} = 1\n")
    lacking = tmp_path / f"lacking{NAME}"
    for arguments in (
        (HOSTILE,),
        (f"--{HOSTILE}",),
        ("mount",),
        ("mount", lacking, lacking),
        ("mount", store, lacking),
        ("mount", store, store),
        ("mount", f"s3://{HOSTILE}/x", lacking),
        ("mount", f"{HOSTILE}:x", lacking),
        ("mount", f"{store}|zip:{HOSTILE}|zip:", lacking),
        ("mount", store, tmp_path, f"--{HOSTILE}=1"),
        ("mount", store, tmp_path, "-o", HOSTILE),
        ("mount", store, tmp_path, "-o", f"{HOSTILE}={HOSTILE}"),
        ("mount", store, tmp_path, "--timeout", HOSTILE),
        ("mount", store, tmp_path, "--view", HOSTILE),
        ("mount", store, tmp_path, "--new-codecs", HOSTILE),
        ("mount", store, tmp_path, "--log-level", HOSTILE),
        ("mount", store, tmp_path, "--log-file", f"/proc/{HOSTILE}/x"),
        ("mount", store, tmp_path, "--config", config),
        ("mount", store, tmp_path, "--config", lacking),
        ("umount", lacking),
        ("umount", "--config", lacking),
        ("info", lacking),
        ("info", store, HOSTILE),
        ("info", store, "-o", HOSTILE),
        ("info", store, "-o", f"dialect_choices={HOSTILE}"),
        ("check", store, HOSTILE),
        ("install", HOSTILE),
    ):
        code, text = zarrfs(*arguments)
        assert code not in (0, -signal.SIGABRT) and text, arguments
    for arguments in (
        ("mount.zarrfs", HOSTILE, HOSTILE),
        ("mount.zarrfs", lacking, lacking, "-o", HOSTILE),
        ("mount.zarrfs", store, tmp_path, "-sfv", "-o", HOSTILE),
        ("mount.zarrfs", store, lacking, "-v"),
        ("mount.zarrfs", f"-{HOSTILE}"),
        ("mount.zarrfs", store, tmp_path, "-t", HOSTILE),
        ("mount.zarrfs", store, tmp_path, "-N", HOSTILE),
        ("umount.zarrfs", lacking, "-v"),
    ):
        code, text = zarrfs(*arguments, module="zarrfs.command.mount_helper")
        assert code != 0 and text, arguments


@pytest.mark.fuse
def test_what_a_mount_says_from_beginning_to_end(store: Path, tmp_path: Path) -> None:
    with hostile_mountpoint() as path:
        log = tmp_path / "log"
        code, text = zarrfs("mount", store, path, "--log-file", log)
        assert code == 0, text
        pid = int(json.loads((path / ".zarrfs" / "config.json").read_bytes())["pid"])
        with killed_at_last(pid, path):
            for line in Path("/proc/self/mountinfo").read_bytes().split(b"\n"):
                if b" fuse.zarrfs " in line and b"pwned" in line:
                    # The kernel chooses the form of the mountpoint.
                    assert_clean(line.rpartition(b" - ")[2], "the source in the list of mounts")
            read_everything(path)
            assert_clean((path / "README.txt").read_bytes(), "README.txt")
            for control in (path / ".zarrfs" / name for name in ("config.json", "stats.json", "errors.jsonl", "version")):
                assert_clean(control.read_bytes(), control.name)
            errors = [json.loads(line) for line in (path / ".zarrfs" / "errors.jsonl").read_text().splitlines()]
            assert any(NAME in (error["key"] or "") for error in errors)
            for error in errors:
                assert_clean(error["message"].encode(), "a message in errors.jsonl")
            refused_writes(path)
            program = tmp_path / f"p{HOSTILE}"
            shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
            with subprocess.Popen([program, "100"], cwd=path / "raw" / NAME) as user:
                code, text = zarrfs("umount", path)
                assert code == 1 and f"({user.pid}: raw/n" in text, text
                code, text = zarrfs("mount", store, path)
                assert code == 5, text
                user.kill()
            code, text = zarrfs("umount", path)
            assert code in (0, 7) and "pwned" in text, text
        text = assert_clean(log.read_bytes(), "the log")
        assert "pwned" in text and "Traceback" not in text
        assert all(line[:2] in ("20", "  ") for line in text.splitlines()), "a line that nobody logged"


@pytest.mark.fuse
def test_the_helper_of_mount_says_it_as_cleanly(store: Path, tmp_path: Path) -> None:
    with hostile_mountpoint() as path:
        code, text = zarrfs(
            "mount.zarrfs", store, path, "-v", "-o", f"log_file={tmp_path / 'log'}", module="zarrfs.command.mount_helper"
        )
        assert code == 0 and "pwned" in text, text
        code, text = zarrfs("umount.zarrfs", path, "-v", module="zarrfs.command.mount_helper")
        assert code == 0, text


@pytest.mark.fuse
def test_a_mount_in_the_foreground_says_it_on_stderr(store: Path, tmp_path: Path) -> None:
    with hostile_mountpoint() as path, notified(tmp_path) as manager:
        command = [sys.executable, "-P", "-m", "zarrfs", "mount", "-f", store, path]
        env = os.environ | {"PYTHONPATH": str(ROOT), "NOTIFY_SOCKET": manager.name}
        with subprocess.Popen(command, cwd="/", env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as daemon:
            with killed_at_last(daemon.pid, path):
                messages = [manager.next()]
                assert messages[0][0] == "READY=1"
                read_everything(path)
                daemon.terminate()
                stdout, stderr = daemon.communicate(timeout=60)
        assert stdout == b"" and "pwned" in assert_clean(stderr, "stderr of a daemon")
        for message in (*messages, *manager.rest()):
            assert_clean("".join(message).encode(), "the status for the service manager")


@pytest.mark.fuse
def test_what_could_not_be_stored_is_named(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    log = tmp_path / "log"
    with hostile_mountpoint() as path:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "small", small], check=True)
        assert zarrfs("mount", small, path, "--log-file", log)[0] == 0
        with contextlib.suppress(OSError):
            (path / "raw" / NAME).write_bytes(bytes(1 << 20))
        code, text = zarrfs("umount", path)
        assert code == 7 and "pwned" in text, text
        assert "pwned" in assert_clean(log.read_bytes(), "the log")


def test_the_last_words_of_another_users_daemon() -> None:
    said = exit_report.outcome_in(json.dumps({"exit_code": 7, "message": WORD}).encode())
    assert said is not None
    assert_clean(said.message.encode(), "last words")
    assert "\n" not in said.message


def test_a_progress_bar_shows_no_sequence_of_a_name() -> None:
    shown = io.StringIO()
    with progress.Bar(Console(file=shown, force_terminal=True, width=400)) as bar:
        bar.show(f"chunks of {NAME}", 1, 2)
    text = shown.getvalue()
    assert r"\x1b]0;pwned" in text and "[bold red]x[.red]" in text
    assert "\x1b]0" not in text and not {"\x9b", "\udc9b", "\u202e", "\u200b"} & set(text)


@contextlib.contextmanager
def hostile_mountpoint() -> Iterator[Path]:
    """Yield it in a mount namespace of this test: other programs may be unable to read a mount table with such a name."""
    if os.geteuid() != 0:
        pytest.skip("needs root, for a mount namespace")
    libc = ctypes.CDLL(None, use_errno=True)
    with mountpoint() as path, open("/proc/thread-self/ns/mnt", "rb") as before:
        hostile = path / f"m{HOSTILE}"
        hostile.mkdir()
        assert libc.unshare(_CLONE_NEWNS) == 0, os.strerror(ctypes.get_errno())
        try:
            subprocess.run(["mount", "--make-rprivate", "/"], check=True)
            yield hostile
        finally:
            assert libc.setns(before.fileno(), _CLONE_NEWNS) == 0, os.strerror(ctypes.get_errno())


def read_everything(path: Path) -> None:
    """Read every file, and check texts of zarrfs itself."""
    seen = 0
    for root, _, names in os.walk(path):
        for name in names:
            file = Path(root, name)
            with contextlib.suppress(OSError):
                data = file.read_bytes()
                if name.endswith(".unsupported.txt"):
                    seen += "pwned" in assert_clean(data, name)
    assert seen > 20


def refused_writes(path: Path) -> None:
    """Attempt writes that are refused, so that the name and the reason are logged."""
    for place, data in (
        (f"chunks/arrays/{NAME}/0", b"x"),
        (f"chunks/arrays/{NAME}/.zattrs", WORD.encode("utf-8", "surrogatepass")),
        (f"chunks/arrays/{NAME}/.zarray", array(dtype=WORD).encode()),
        (f"chunks/arrays/{NAME}/{NAME}", b"x"),
        (f"npy/{NAME}.npy", WORD.encode("utf-8", "surrogatepass")),
        (f"zarr3/{NAME}/zarr.json", json.dumps({"zarr_format": 3, "node_type": WORD}).encode()),
        (f"raw/..{HOSTILE}", b"x"),
    ):
        with contextlib.suppress(OSError):
            (path / place).write_bytes(data)
    with contextlib.suppress(OSError):
        os.rename(path / "raw" / NAME, path / "chunks" / NAME)
    with contextlib.suppress(OSError):
        shutil.rmtree(path / "chunks" / "arrays" / NAME)
    # Of what was refused in a folder that was removed umount says nothing.
    with pytest.raises(OSError, match="Invalid"):
        (path / "chunks/arrays/bad/.zarray").write_text(array(dtype=WORD))


@pytest.mark.fuse
def test_the_demo_shows_no_control_characters_of_a_store(tmp_path: Path) -> None:
    store, title = tmp_path / "s", "\x1b]0;pwned\x07\x9b31m"
    (store / f"a{title}").mkdir(parents=True)
    for name in ".", f"a{title}":
        (store / name / ".zgroup").write_text(f'{{"zarr_format":2}}{title}')
    env = os.environ | {"STORE": str(store), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([ROOT / "demo/run.sh"], env=env, capture_output=True, timeout=100, check=True)
    # Its own headings are bold.
    said = done.stdout.decode().replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert not [character for character in said if unicodedata.category(character) == "Cc" and character != "\n"]
    assert "]0;pwned" in said
