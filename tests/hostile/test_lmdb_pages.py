"""The pages of an LMDB are not trusted: whatever they hold, each answer is right or an error, and no process ends."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support import archives
from tests.support.mounting import mounted
from zarrfs.buffers import Buffer
from zarrfs.errors import StoreError, StoreUnsupported
from zarrfs.keys import ByteRange
from zarrfs.stores.archive_file import ArchiveFile
from zarrfs.stores.lmdb import LmdbArchive

lmdb = pytest.importorskip("lmdb")

VALUES = {f"d/{number:04}": bytes([number % 251]) * (number * 97 % (1500 if number % 20 else 9000)) for number in range(300)}


def whole(archive: LmdbArchive) -> dict[str, bytes]:
    """Return all values, found by listing."""
    found = {}
    for name, size, _ in archive.entries(b""):
        answer = archive.read(name, [ByteRange()])
        assert answer is not None and answer[0].size == size == len(answer[1][0])
        found[name.decode()] = bytes(answer[1][0])
    return found


@pytest.mark.parametrize("lock", [True, False])
def test_trees_of_every_form_hold_what_the_library_finds(tmp_path: Path, lock: bool) -> None:
    chosen = random.Random(7)
    path = tmp_path / "x.lmdb"
    expected: dict[str, bytes] = {}
    with lmdb.open(str(path), map_size=1 << 30, sync=False) as environment:
        for _ in range(8):
            with environment.begin(write=True) as transaction:
                for _ in range(700):
                    key = "/".join(str(chosen.randrange(20)) for _ in range(3)) + "x" * chosen.choice([0, 0, 300])
                    if chosen.random() < 0.4:
                        transaction.delete(key.encode())
                        expected.pop(key, None)
                    else:
                        expected[key] = chosen.randbytes(chosen.choice([0, 1, 2030, 2050, 4080, 4081, 9000]))
                        transaction.put(key.encode(), expected[key])
    if not lock:
        (path / "lock.mdb").unlink()
    with closing(LmdbArchive(str(path))) as archive:
        assert archive._locked == lock and whole(archive) == expected
        names = sorted(name.encode() for name in expected)
        for name in names[::50]:
            assert [found for found, *_ in archive.entries(name + b"\0")] == names[names.index(name) + 1 :]
            assert archive.find(name + b"!") is None


def damaged(content: bytes) -> Iterator[bytes]:
    """Yield copies with wrong bytes: anywhere, in the headers of pages, and with pages in the place of others."""
    chosen = random.Random(11)
    pages = len(content) // 4096
    for number in range(80):
        changed = bytearray(content)
        page = chosen.randrange(pages) * 4096
        match number % 4:
            case 0:
                for _ in range(20):
                    changed[chosen.randrange(len(changed))] = chosen.randrange(256)
            case 1:
                changed[page + chosen.randrange(200)] ^= 1 << chosen.randrange(8)
            case 2:
                struct.pack_into("=H", changed, page + 2 * chosen.randrange(8, 200), chosen.randrange(1 << 16))
            case _:
                other = chosen.randrange(pages) * 4096
                changed[page + 8 : page + 4096] = content[other + 8 : other + 4096]
        yield bytes(changed)


def test_wrong_pages_are_errors_and_end_nothing(tmp_path: Path) -> None:
    path = archives.lmdb_file(tmp_path, VALUES)
    errors = 0
    for content in damaged(path.read_bytes()):
        path.write_bytes(content)
        try:
            with closing(LmdbArchive(str(path))) as archive:
                assert len(whole(archive)) <= 2 * len(VALUES)
                for name in [*VALUES][::50]:
                    archive.read(name.encode(), [ByteRange()])
        except StoreError:
            errors += 1
    assert errors > 20


@pytest.mark.parametrize("page_nbytes", [0, 4095, 4097, 5000, 65535, 1 << 17])
def test_pages_of_a_size_that_no_machine_has_are_an_error(tmp_path: Path, page_nbytes: int) -> None:
    path = archives.lmdb_file(tmp_path, VALUES)
    content, pages = path.read_bytes(), len(path.read_bytes()) // 4096
    padded = b"".join(content[page * 4096 :][:4096].ljust(page_nbytes, b"\0")[:page_nbytes] for page in range(pages))
    changed = bytearray(padded or content)
    for head in (0, page_nbytes):
        struct.pack_into("=I", changed, head + 40, page_nbytes)
    path.write_bytes(changed)
    with pytest.raises(StoreError, match="page 0 is not what it should be"):
        LmdbArchive(str(path))


def test_a_leaf_in_the_place_of_another_hides_no_names(tmp_path: Path) -> None:
    """Names that seem absent would be fill values."""
    path = archives.lmdb_file(tmp_path, VALUES)
    content = bytearray(path.read_bytes())
    leaves = [at for at in range(8192, len(content), 4096) if content[at + 10 : at + 12] == b"\2\0"]
    first, last = leaves[1], leaves[-2]
    content[first + 8 : first + 4096] = content[last + 8 : last + 4096]
    path.write_bytes(content)
    errors: dict[str, StoreError] = {}
    with closing(LmdbArchive(str(path))) as archive:
        for name in VALUES:
            try:
                found = archive.find(name.encode())
            except StoreError as error:
                errors[name] = error
            else:
                assert found is not None
        assert errors
        assert all(error.key == name and f"reading '{name}'" in str(error) for name, error in errors.items())
        with pytest.raises(StoreError, match="is not where it belongs"):
            whole(archive)


@pytest.mark.parametrize("size", [0, 100, 4096, 8192])
def test_one_that_is_cut_in_a_mount_leaves_the_mount(tmp_path: Path, size: int) -> None:
    path = archives.lmdb(tmp_path, VALUES)
    with mounted(path) as mount:
        assert (mount.path / "raw/d/0001").read_bytes() == VALUES["d/0001"]
        os.truncate(path / "data.mdb", size)
        for name in ("0200", "0250"):
            with pytest.raises(OSError, match="Input/output error"):
                (mount.path / "raw/d" / name).read_bytes()
        assert (mount.path / "README.txt").read_text()


def test_another_one_copied_over_it_is_not_taken_for_the_same(tmp_path: Path) -> None:
    """Both were written by one transaction, and so have the same number."""
    (tmp_path / "other").mkdir()
    path = archives.lmdb(tmp_path, {"k": b"1" * 50_000}) / "data.mdb"
    other = archives.lmdb(tmp_path / "other", {"k": b"2" * 50_000}) / "data.mdb"
    with closing(LmdbArchive(str(path.parent))) as archive:
        before = archive.read(b"k", [ByteRange(0, 30_000)])
        path.write_bytes(other.read_bytes())
        after = archive.read(b"k", [ByteRange()])
        assert before is not None and after is not None and before[0].generation != after[0].generation
        assert bytes(after[1][0]) == b"2" * 50_000


@pytest.mark.parametrize("lock", [True, False], ids=["locks", "no locks"])
def test_several_values_are_read_as_each_alone(lock: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archives.lmdb(tmp_path, VALUES)
    if lock:
        # Creates the lock file.
        lmdb.open(str(path)).close()
    reads = 0
    read_now = ArchiveFile.read_now

    def counted(self: ArchiveFile, start: int, stop: int, key: str) -> object:
        nonlocal reads
        reads += 1
        return read_now(self, start, stop, key)

    monkeypatch.setattr(ArchiveFile, "read_now", counted)
    names = [*VALUES, "absent", "d", "", "x" * 600]
    random.Random(0).shuffle(names)
    wanted = [(name.encode(), [ByteRange(), ByteRange(1, 3)]) for name in names]
    with closing(LmdbArchive(str(path))) as archive:
        alone = [archive.read(*each) for each in wanted]
        before, reads = reads, 0
        together = archive.read_several(wanted, bytes)
        assert [each and (each[0], [*map(bytes, each[1])]) for each in alone] == together
        assert together[names.index("d/0007")] is not None and together[names.index("absent")] is None
        if lock:
            assert reads < len(VALUES) / 2 < before, "the head once, and each page once"


def test_another_one_copied_over_it_while_several_values_are_read(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    values = {f"k{number}": 50_000 for number in range(20)}
    path = archives.lmdb(tmp_path, {name: b"1" * size for name, size in values.items()}) / "data.mdb"
    other = archives.lmdb(tmp_path / "other", {name: b"2" * size for name, size in reversed(values.items())}) / "data.mdb"
    lmdb.open(str(path.parent)).close()
    kept = 0

    def keep(part: Buffer) -> bytes:
        nonlocal kept
        kept += 1
        if kept == 5:
            path.write_bytes(other.read_bytes())
        return bytes(part)

    with closing(LmdbArchive(str(path.parent))) as archive:
        found = archive.read_several([(name.encode(), [ByteRange()]) for name in values], keep)
        assert {bytes(each[1][0]) for each in found if each} == {b"2" * 50_000}, "each was read again"


def test_the_value_that_cannot_be_read_is_named_among_several(tmp_path: Path) -> None:
    path = archives.lmdb(tmp_path, VALUES)
    lmdb.open(str(path)).close()
    data = path / "data.mdb"
    with closing(LmdbArchive(str(path))) as archive:
        content = bytearray(data.read_bytes())
        leaf = max(at for at in range(8192, len(content), 4096) if content[at + 10 : at + 12] == b"\2\0")
        content[leaf + 8 : leaf + 4096] = bytes(4088)
        data.write_bytes(content)
        with pytest.raises(StoreError, match=r"reading 'd/\d{4}'") as raised:
            archive.read_several([(name.encode(), [ByteRange()]) for name in VALUES], bytes)
        assert raised.value.key in VALUES


def test_sizes_need_no_read_of_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archives.lmdb(tmp_path, {"k": bytes(40 << 20), "l": b"small"})
    nbytes = 0
    read_now = ArchiveFile.read_now

    def counted(self: ArchiveFile, start: int, stop: int, key: str) -> object:
        nonlocal nbytes
        nbytes += stop - start
        return read_now(self, start, stop, key)

    with closing(LmdbArchive(str(path))) as archive:
        monkeypatch.setattr(ArchiveFile, "read_now", counted)
        assert [(name, size) for name, size, _ in archive.entries(b"")] == [(b"k", 40 << 20), (b"l", 5)]
        found = archive.find(b"k")
        assert found is not None and found.size == 40 << 20 and nbytes < 1 << 16
        part = archive.read(b"k", [ByteRange(1000, 10)])
        assert part is not None and bytes(part[1][0]) == bytes(10) and nbytes < 1 << 16


def test_a_lock_file_without_room_for_readers_prevents_no_read(tmp_path: Path) -> None:
    path = tmp_path / "x.lmdb"
    program = (
        "import sys; from zarrfs.stores.lmdb import LmdbArchive; from zarrfs.keys import ByteRange\n"
        "archive = LmdbArchive(sys.argv[1])\n"
        "listing = archive.entries(b''); next(listing)\n"
        "print(archive._locked, bytes(archive.read(b'k', [ByteRange()])[1][0]), len(list(listing)))"
    )
    with lmdb.open(str(path), map_size=1 << 24, max_readers=2) as environment:
        with environment.begin(write=True) as transaction:
            transaction.put(b"k", b"v")
        # In another process: one must not open an environment twice.
        with environment.begin():
            done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "True b'v' 0\n"


@pytest.mark.parametrize("flag", [2, 4, 8], ids=["reversed", "several values", "numbers"])
def test_other_orders_of_keys_are_refused(tmp_path: Path, flag: int) -> None:
    """Names would be looked for where they are not, and seem absent."""
    path = archives.lmdb_file(tmp_path, VALUES)
    content = bytearray(path.read_bytes())
    for head in (0, 4096):
        content[head + 92] |= flag
    path.write_bytes(content)
    with pytest.raises(StoreUnsupported, match="another order, or several values"):
        LmdbArchive(str(path))
