"""Arrays of elements without a fixed size, through the kernel: programs read and write chunks whose size is known only after decoding."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import threading
import zlib
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest

from tests.support.cases import CASES, Case
from tests.support.comparing import expected_objects, is_object
from tests.support.mounting import Mounted, mounted, run, shell, watchdog, zarrfs

pytestmark = [pytest.mark.fuse, pytest.mark.filterwarnings("ignore::UserWarning")]

MEMORY_MIB = 900
JSON = numcodecs.JSON()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A copy of a store written by zarr 2.18."""
    return Path(shutil.copytree(CASES / "v2" / "objects" / "store", tmp_path / "objects"))


def sizes(folder: Path) -> dict[str, int]:
    """Return the sizes that ``ls -l`` prints."""
    lines = run("ls", "-l", folder).stdout.decode().splitlines()[1:]
    return {line.split()[8]: int(line.split()[4]) for line in lines}


def stored(store: Path, name: str) -> bytes:
    return zlib.decompress((store / name).read_bytes())


def test_sizes_are_those_of_what_is_read(store: Path) -> None:
    with mounted(store) as mount:
        for array in ("vlen_utf8", "vlen_bytes", "json2", "categorize"):
            folder = mount.path / "chunks" / array
            listed = sizes(folder)
            assert len(listed) >= 2
            for name, size in listed.items():
                assert len((folder / name).read_bytes()) == size == os.stat(folder / name).st_size
                assert len(run("cat", folder / name).stdout) == size


def test_programs_write_text(store: Path, tmp_path: Path) -> None:
    with mounted(store, ends_with=0) as mount:
        chunks = mount.path / "chunks"
        file = chunks / "json2" / "0"
        assert file.read_text() == '[{"a":1},[1,2],"str","|O",[3]]'
        shell("""sed -i 's/"str"/"longer than it was"/' "$1" """, file)
        assert json.loads(stored(store, "json2/0"))[2] == "longer than it was"
        assert os.stat(file).st_size == len(file.read_bytes()) == len('[{"a":1},[1,2],"longer than it was","|O",[3]]')
        shell("""echo '["x", null, [], "|O", [3]]' > "$1" """, file)
        # The normal form is shorter than the written text.
        assert file.read_text() == '["x",null,[],"|O",[3]]'
        assert sizes(chunks / "json2")["0"] == len(file.read_text())
        run("cp", chunks / "vlen_utf8" / "1", tmp_path / "copy")
        run("cp", tmp_path / "copy", chunks / "vlen_utf8" / "0")
        run("cmp", tmp_path / "copy", chunks / "vlen_utf8" / "0")
        assert numcodecs.VLenUTF8().decode(stored(store, "vlen_utf8/0")).tolist() == ["b\u00e4r", "\u4e2d\u6587"]
        run("rm", chunks / "vlen_utf8" / "1")
        assert not (store / "vlen_utf8" / "1").exists()
        # Change one byte in the middle, in place.
        run("cp", chunks / "categorize" / "0", tmp_path / "c")
        data = (tmp_path / "c").read_bytes().replace(b"female", b"feMale", 1)
        (tmp_path / "c").write_bytes(data)
        assert subprocess.run(["cp", tmp_path / "c", chunks / "categorize" / "0"], capture_output=True, check=False).returncode == 1
        assert stored(store, "categorize/0") == b"\2\1\1"


def test_what_is_no_chunk_is_refused_by_close(store: Path) -> None:
    wrong = {
        "json2": [b'["x","|O",[1]]', b"[" * 100_000, b"", b'["x",null,[],"|O",[3]'],
        "vlen_utf8": [b"\2\0\0\0\1\0\0\0\xff\0\0\0\0", b"\1\0\0\0\1\0\0\0a", b"\2\0\0\0", b"\xff" * 8],
        "vlen_bytes": [b"\3\0\0\0\xff\xff\xff\xff"],
        "categorize": [bytes(numcodecs.VLenUTF8().encode(np.array(["male", "other", ""], object)))],
    }
    stopped = threading.Event()
    with mounted(store, ends_with=0) as mount:
        for array, values in wrong.items():
            before = (store / array / "0").read_bytes()
            shown = (mount.path / "chunks" / array / "0").read_bytes()
            for value in values:
                for name in ("0", "1"):
                    fd = os.open(mount.path / "chunks" / array / name, os.O_WRONLY | os.O_TRUNC)
                    os.write(fd, value)
                    # An empty file is published at fsync only.
                    for end in (os.close,) if value else (os.fsync, os.close):
                        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
                            end(fd)
            assert (store / array / "0").read_bytes() == before
            # Refused content is dropped at RELEASE, which comes after close(2) has returned.
            with watchdog(20, stopped.set):
                while mount.stats()["open_handles"] and not stopped.is_set():
                    os.sched_yield()
            assert (mount.path / "chunks" / array / "0").read_bytes() == shown
        assert {error["error"] for error in mount.errors()} == {"ContentInvalid"}


def test_a_change_behind_the_mount_has_another_size(store: Path) -> None:
    with mounted(store, "--metadata-ttl", "0") as mount:
        file = mount.path / "chunks" / "json2" / "0"
        assert os.stat(file).st_size == 30
        text = JSON.encode(np.array(["much longer than before" * 5, None, {}], object))
        (store / "json2" / "new").write_bytes(zlib.compress(text))
        os.rename(store / "json2" / "new", store / "json2" / "0")
        assert file.read_bytes() == text
        assert os.stat(file).st_size == sizes(file.parent)["0"] == len(text)


@pytest.mark.parametrize("dialect", ["v2", "v3"])
@pytest.mark.parametrize("view", ["chunks", "zarr3"])
def test_arrays_are_copied_from_store_to_store(dialect: str, view: str, store: Path, tmp_path: Path) -> None:
    """``cp -r`` in any order: chunks may come before the document that makes their folder an array."""
    zarr = pytest.importorskip("zarr")
    target = tmp_path / "target"
    zarr.open_group(target, mode="w", zarr_format=int(dialect[1]))
    with mounted(store, "--read-only") as source, mounted(target) as mount:
        for array in ("vlen_utf8", "vlen_bytes", "categorize"):
            run("cp", "-r", source.path / view / array, mount.path / view / array)
            # v3 has no undefined fill value.
            run("diff", "-r", "-x", ".zarray", source.path / "chunks" / array, mount.path / "chunks" / array)
        assert mount.errors() == []
    case = Case(CASES / "v2" / "objects")
    for said in case.nodes("array"):
        if said["path"] in ("/vlen_utf8", "/vlen_bytes", "/categorize"):
            elements = zarr.open_array(target, path=said["path"], mode="r")[...]
            assert np.asarray(elements).tolist() == expected_objects(case, said)


def zarray(filter_: dict[str, Any], **members: Any) -> str:
    document = {
        "zarr_format": 2,
        "shape": [6],
        "chunks": [3],
        "dtype": "|O",
        "fill_value": None,
        "order": "C",
        "filters": [filter_],
    }
    return json.dumps(document | {"compressor": {"id": "zlib", "level": 1}} | members)


def deflated(*pieces: tuple[bytes, int]) -> bytes:
    compressor = zlib.compressobj(1)
    return b"".join(compressor.compress(piece) for piece, count in pieces for _ in range(count)) + compressor.flush()


MIB = 1 << 20


def hostile(path: Path) -> dict[str, bytes]:
    """Write arrays of two chunks: a malicious one, and one of three elements. Return the bytes of the latter for variable lengths."""
    utf8, as_bytes, text, packed = {"id": "vlen-utf8"}, {"id": "vlen-bytes"}, {"id": "json2"}, {"id": "msgpack2"}
    three = number(3) + number(0) * 3
    cases: dict[str, tuple[dict[str, Any], bytes, bytes]] = {
        "count": (utf8, deflated((number(2**32 - 1) + bytes(100), 1)), three),
        "length": (as_bytes, deflated((number(3) + number(2**32 - 1), 1)), three),
        "text_bomb": (utf8, deflated((number(3) + number(2**31 - 1), 1), (bytes(MIB), 2048)), three),
        "deep": (text, deflated((b"[" * 100_000, 1)), b'[0,0,0,"|O",[3]]'),
        "list_bomb": (text, deflated((b"[", 1), (b"[]," * (MIB // 3), 200)), b'[0,0,0,"|O",[3]]'),
        "pack_bomb": (packed, deflated((b"\xdd\x0f\xff\xff\xff", 1), (b"\x90" * MIB, 250)), b"\x95\0\0\0\xa2|O\x91\3"),
        "pack_claims": (packed, deflated((b"\xdd\x00\xff\xff\xff" * (MIB // 5), 4)), b"\x95\0\0\0\xa2|O\x91\3"),
        "array": ({"id": "vlen-array", "dtype": "<f8"}, deflated((number(3) + number(7) + bytes(7) + number(0) * 2, 1)), three),
    }
    for name, (filter_, bad, good) in cases.items():
        folder = path / name
        folder.mkdir(parents=True)
        (folder / ".zarray").write_text(zarray(filter_))
        (folder / "0").write_bytes(bad)
        (folder / "1").write_bytes(zlib.compress(good))
    (path / ".zgroup").write_text('{"zarr_format": 2}')
    return {
        name: good if filter_["id"].startswith("vlen-") and name != "array" else b"" for name, (filter_, _, good) in cases.items()
    }


def number(value: int) -> bytes:
    return value.to_bytes(4, "little")


def resident_peak_mib(mount: Mounted) -> int:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{mount.pid}/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) // 1024


@pytest.mark.full_length
def test_what_lies_is_eio_for_that_chunk_alone_in_bounded_memory(tmp_path: Path) -> None:
    expected = hostile(tmp_path / "store")
    with mounted(tmp_path / "store", "--memory-limit", "192MiB") as mount, watchdog(120):
        for name, good in expected.items():
            folder = mount.path / "chunks" / name
            assert {".zarray", "0", "1"} == set(os.listdir(folder))
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                (folder / "0").read_bytes()
            assert (folder / "1").read_bytes() == good or not good
            assert json.loads((folder / ".zarray").read_text())["dtype"] == "|O"
        assert resident_peak_mib(mount) < MEMORY_MIB
        assert "Traceback" not in mount.log()
    done = zarrfs("check", str(tmp_path / "store"))
    assert done.returncode == 1
    for name in expected:
        assert f"/{name}" in done.stdout


def test_info_and_check_of_what_zarr_wrote(store: Path) -> None:
    done = zarrfs("info", str(store), "--json")
    assert done.returncode == 0, done.stderr
    case = Case(CASES / "v2" / "objects")
    nodes = {node["path"]: node for node in json.loads(done.stdout)["nodes"]}
    for said in case.nodes("array"):
        node = nodes[said["path"]]
        assert node["kind"] == "array" and node["nbytes"] is None and is_object(said)
        assert node["chunks_stored"] == node["chunks_possible"] - len(said["missing_chunks"])
        assert expected_objects(case, said)
    assert zarrfs("info", str(store)).returncode == 0
    done = zarrfs("check", str(store))
    assert done.returncode == 0 and "10 chunks" in done.stdout
