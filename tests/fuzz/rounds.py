"""Rounds of mutants without a kernel: a few stores side by side in one tree, which is read completely and judged.

A round is named by the seed and its number, and can be repeated exactly.
"""

from __future__ import annotations

import errno
import logging
import os
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from tests.fuzz import corpus
from tests.fuzz.corpus import Mutant
from tests.fuzz.mutate import Mutator
from tests.support.survey import Found, places
from tests.support.trees import READ_ONLY, tree_of, tree_over
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import ZarrfsError
from zarrfs.fuse.errno import errno_of
from zarrfs.fuse.translation import name_of
from zarrfs.keys import Key
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory, File, OpenFlags

TOGETHER = 8
"""Mutants in a round."""

MEMORY_LIMIT = 32 << 20
CPU_S = 3.0
"""Limit for the processor time of one mutant of some kilobytes."""
PEAK = MEMORY_LIMIT + 150 * 10**6
"""Limit for resident memory beyond the initial one of the process."""

_LISTED = 300
_DEEP = 12


@dataclass(frozen=True)
class Finding:
    """A fault: the mutant, and its effect."""

    mutant: str
    what: str


class _Faults(logging.Handler):
    """Collects tracebacks that were logged instead of raised."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or "defect" in record.getMessage():
            self.found.append(self.format(record))


def play(seed: str, number: int) -> list[Finding]:
    """Return all faults of one round."""
    mutator = Mutator(f"{seed}/{number}", corpus.donors())
    faults = _Faults()
    logger = logging.getLogger("zarrfs")
    logger.addHandler(faults)
    try:
        match mutator.random.randrange(10):
            case 0 | 1:
                found = _archive_round(mutator, corpus.ARCHIVES)
            case 2 | 3:
                found = _write_round(mutator)
            case _:
                found = judge([corpus.mutant(mutator) for _ in range(TOGETHER)])
    finally:
        logger.removeHandler(faults)
    return found + [Finding("?", text) for text in faults.found]


def lmdb_round(seed: str, number: int) -> list[Finding]:
    """Return all faults of an LMDB round, which is separate because it depends on the extra ``lmdb``."""
    return _archive_round(Mutator(f"{seed}/lmdb/{number}", corpus.donors()), ["lmdb", "lmdb-file"])


# --- nodes ----------------------------------------------------------------------------------------------------------------------


def judge(mutants: Sequence[Mutant]) -> list[Finding]:
    """Return faults found in stores side by side; if together they cost too much, each is measured alone."""
    found, cost = _measured(mutants)
    if cost is None or len(mutants) == 1:
        return found + ([Finding(str(mutants[0]), cost)] if cost else [])
    alone = [judge([mutant]) for mutant in mutants]
    return found + [finding for findings in alone for finding in findings if finding not in found]


def _measured(mutants: Sequence[Mutant]) -> tuple[list[Finding], str | None]:
    """Return findings, and the excess in time or memory, if any. A round of several may cost as much as one."""
    begin, had = time.process_time(), _reset_peak()
    found = trio.run(_survey_all, mutants)
    cpu, peak = time.process_time() - begin, _peak() - had
    if cpu > CPU_S:
        return found, f"took {cpu:.1f} s of processor time"
    return found, f"took {peak >> 20} MiB" if peak > PEAK else None


async def _survey_all(mutants: Sequence[Mutant]) -> list[Finding]:
    findings = []
    async with _tree({f"m{number}": mutant.values for number, mutant in enumerate(mutants)}) as tree:
        for number, mutant in enumerate(mutants):
            try:
                found = await survey(tree, f"m{number}")
            except Exception:  # noqa: BLE001 - whatever it is, it is the fault that is looked for
                findings.append(Finding(str(mutant), traceback.format_exc()))
                continue
            if mutant.checked is not None:
                findings.extend(Finding(str(mutant), what) for what in await _wrong(mutant, found))
    return findings


@asynccontextmanager
async def _tree(stores: Mapping[str, Mapping[str, bytes]], **options: str) -> AsyncIterator[MountTree]:
    store = MemoryStore()
    for name, values in stores.items():
        for key, value in values.items():
            await store.set(Key(f"{name}/{key}"), value)
    async with tree_over(store, memory_limit=str(MEMORY_LIMIT), **options) as tree:
        yield tree


SOUND: dict[str, dict[str, Found]] = {}
"""Results of the original cases, by their names."""


async def _wrong(mutant: Mutant, found: dict[str, Found]) -> list[str]:
    """Return paths of bytes under a checksum that differ from those of the original store."""
    if mutant.case not in SOUND:
        async with _tree({"m0": corpus.stores()[mutant.case]}) as tree:
            SOUND[mutant.case] = await survey(tree, "m0")
    below = f"/{mutant.checked}" if mutant.checked else ""
    named = (f"chunks{below}/", f"npy{below}.npy")
    return [
        f"wrong bytes under a checksum: {path}"
        for path, each in found.items()
        if path.startswith(named)
        and each.error is None
        and (sound := SOUND[mutant.case].get(path)) is not None
        and each.data != sound.data
    ]


async def survey(tree: MountTree, name: str | None = None) -> dict[str, Found]:
    """Return everything readable of the store ``name`` in each view, by paths without that name; of the whole tree without a name.

    Raises exceptions that are not errors of zarrfs.
    """
    found: dict[str, Found] = {}
    views = [entry[0] async for entry in tree.root.entries() if entry[1]]
    for view in views:
        folder = await tree.root.lookup(view)
        assert isinstance(folder, Directory)
        if name is None:
            await _walk(folder, view, found, 0)
            continue
        # A store whose root is an array is a file in some views.
        for entry in [entry async for entry in folder.entries()]:
            if entry[0] == name or entry[0].startswith(f"{name}."):
                await _look(folder, entry[0], entry[1], view + entry[0].removeprefix(name), found, 0)
    return found


async def _walk(folder: Directory, path: str, found: dict[str, Found], depth: int) -> None:
    try:
        entries = []
        async for entry in folder.entries():
            entries.append(entry)
            if len(entries) == _LISTED:
                break
    except ZarrfsError as error:
        found[path] = Found(0, error=_name_of(error))
        return
    for name, is_directory, *_ in entries:
        await _look(folder, name, is_directory, f"{path}/{name}", found, depth + 1)


async def _look(folder: Directory, name: str, is_directory: bool, path: str, found: dict[str, Found], depth: int) -> None:
    name_of(name)
    try:
        node, attributes = await folder.lookup_with_attributes(name)
        more = await node.extended_attributes()
        if more is not None:
            # As the handler does.
            [os.fsencode(attribute) for attribute in more.listed]
        if isinstance(node, Directory):
            assert is_directory, f"{path} is listed as a file"
        elif isinstance(node, File):
            assert not is_directory, f"{path} is listed as a folder"
            found[path] = Found(attributes.size, await _read(node, attributes.size))
    except ZarrfsError as error:
        found[path] = Found(0, error=_name_of(error))
        return
    if isinstance(node, Directory) and depth < _DEEP:
        await _walk(node, path, found, depth)


async def _read(file: File, size: int) -> bytes:
    handle = await file.open(READ_ONLY)
    try:
        return b"".join([bytes(await handle.read(offset, length)) for offset, length in places(size)])
    finally:
        await handle.release()


def _name_of(error: ZarrfsError) -> str:
    return errno.errorcode[errno_of(error)]


# --- writes ---------------------------------------------------------------------------------------------------------------------


def _write_round(mutator: Mutator) -> list[Finding]:
    """Return faults of writing mutants at the paths of their originals: each write is accepted or refused."""
    return trio.run(_write, mutator)


async def _write(mutator: Mutator) -> list[Finding]:
    case = mutator.random.choice(list(corpus.stores()))
    findings = []
    async with _tree({"m0": corpus.stores()[case]}) as tree:
        found = await survey(tree, "m0")
        paths = [path for path, each in found.items() if each.error is None and not path.endswith(".unsupported.txt")]
        for path in mutator.random.sample(paths, min(len(paths), TOGETHER)):
            name = path.rpartition("/")[2]
            mutate = mutator.document if corpus.is_document(name) else mutator.chunk
            view, _, rest = path.partition("/")
            try:
                await _overwrite(tree, f"{view}/m0/{rest}" if rest else path, mutate(found[path].data))
            except ZarrfsError as error:
                errno_of(error)
            except Exception:  # noqa: BLE001 - whatever it is, it is the fault that is looked for
                findings.append(Finding(f"{case}: written to {path}", traceback.format_exc()))
        try:
            await survey(tree, "m0")
            await tree.publish_all()
        except Exception:  # noqa: BLE001 - as above
            findings.append(Finding(f"{case}: after writing", traceback.format_exc()))
    return findings


async def _overwrite(tree: MountTree, path: str, data: bytes) -> None:
    node: Directory = tree.root
    *folders, name = path.split("/")
    for each in folders:
        below = await node.lookup(each)
        assert isinstance(below, Directory)
        node = below
    file = await node.lookup(name)
    assert isinstance(file, File)
    handle = await file.open(OpenFlags(read=False, write=True, truncate=True))
    try:
        await handle.write(0, data)
        await handle.flush()
    finally:
        await handle.release()


# --- archives -------------------------------------------------------------------------------------------------------------------


def _archive_round(mutator: Mutator, kinds: Sequence[str]) -> list[Finding]:
    kind, case = mutator.random.choice(kinds), mutator.random.choice(list(corpus.stores()))
    files = dict(corpus.archive(kind, case))
    opened, name = next(iter(files)), mutator.random.choice([name for name, data in files.items() if data])
    data = files[name]
    files[name] = mutator.zip(data) if kind.startswith("zip") else mutator.anything(data)
    with tempfile.TemporaryDirectory() as folder:
        for each, content in files.items():
            if content:
                path = Path(folder, each)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        begin, had = time.process_time(), _reset_peak()
        try:
            found = trio.run(_survey_archive, f"{kind.partition('-')[0]}:{folder}/{opened}")
        except Exception:  # noqa: BLE001 - whatever it is, it is the fault that is looked for
            return [Finding(f"{kind} of {case}: {name}", traceback.format_exc())]
        cpu, peak = time.process_time() - begin, _peak() - had
    findings = [f"took {cpu:.1f} s of processor time"] if cpu > CPU_S else []
    findings += [f"took {peak >> 20} MiB"] if peak > PEAK else []
    if (
        kind.startswith("zip")
        and data[: data.find(b"PK\1\2")] != files[name][: data.find(b"PK\1\2")]
        and files[name].endswith(data[data.find(b"PK\1\2") :])
    ):
        # The directory, which has the checksums, is unchanged.
        sound = corpus.stores()[case]
        findings += [
            f"wrong bytes under a checksum: {path}"
            for path, each in found.items()
            if path.startswith("raw/") and each.error is None and each.data != sound.get(path[4:], each.data)
        ]
    return [Finding(f"{kind} of {case}: {name}", what) for what in findings]


async def _survey_archive(url: str) -> dict[str, Found]:
    try:
        async with tree_of(url, memory_limit=str(MEMORY_LIMIT)) as tree:
            return await survey(tree)
    except ZarrfsError as error:
        return {"": Found(0, error=_name_of(error))}


# --- memory ---------------------------------------------------------------------------------------------------------------------


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) << 10
    return 0


def _reset_peak() -> int:
    """Return the current memory of the process, and restart the measurement of its peak."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS:")


def _peak() -> int:
    return _status("VmHWM:")
