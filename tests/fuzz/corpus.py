"""The originals of mutants: the stores of ``tests/cases`` as dicts of keys, and archives of them as dicts of files."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz.mutate import Mutator
from tests.support.archives import MAKERS
from tests.support.cases import CASES, cases

_DOCUMENTS = {".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json", "meta", "attrs", "__zmeta__", "__zattr__"}
_CHECKSUMS = {"crc32", "crc32c", "adler32", "jenkins_lookup3", "gzip", "zlib", "bz2"}
"""Codecs that detect changes of their encoded data. Not fletcher32, which does not distinguish 0x0000 and 0xFFFF."""

ARCHIVES = [name for name in MAKERS if not name.startswith("lmdb")]
"""Kinds of archives that need no extra."""


@dataclass(frozen=True)
class Mutant:
    """A store with one changed value. ``checked``: the path of an array whose bytes have to be either an error or the original ones."""

    case: str
    key: str
    values: Mapping[str, bytes]
    checked: str | None = None

    def __str__(self) -> str:
        return f"{self.case}: {self.key}"


@cache
def stores() -> dict[str, dict[str, bytes]]:
    """Return keys and values of every case that is a folder."""
    layouts = sorted(folder.name for folder in CASES.iterdir() if folder.is_dir())
    found = [case for layout in layouts for case in cases(layout) if case.manifest["store_format"] == "directory"]
    return {case.name: case.values for case in found}


@cache
def donors() -> list[bytes]:
    """Return values to splice from."""
    return sorted({value for values in stores().values() for value in values.values() if value})


@cache
def archive(kind: str, case: str) -> dict[str, bytes]:
    """Return the files of an archive, by their names below its folder; the first one is opened."""
    with tempfile.TemporaryDirectory() as folder:
        path = MAKERS[kind](Path(folder), stores()[case])
        files = {
            file.relative_to(folder).as_posix(): file.read_bytes() for file in sorted(Path(folder).rglob("*")) if file.is_file()
        }
        return {path.name: b""} | files if path.name not in files else {path.name: files.pop(path.name)} | files


def mutant(mutator: Mutator) -> Mutant:
    """Return a case in which one value is mutated, removed, or replaced by that of another key."""
    name = mutator.random.choice(list(stores()))
    key = mutator.random.choice(list(stores()[name]))
    values = _near(key, stores()[name])
    chance = mutator.random.random()
    if chance < 0.03:
        del values[key]
        return Mutant(name, key, values)
    if chance < 0.06:
        values[key] = values[mutator.random.choice(list(values))]
        return Mutant(name, key, values)
    if is_document(key):
        return Mutant(name, key, values | {key: mutator.document(values[key])})
    node, document = _document_of(key, values)
    index = _index_of(document, values[key])
    if index is not None and chance < 0.5:
        begin, end, checked = index
        return Mutant(name, key, values | {key: mutator.index(values[key], begin, end)}, node if checked else None)
    return Mutant(name, key, values | {key: mutator.chunk(values[key])}, node if _is_checked(document) else None)


def _near(key: str, values: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return ``key`` and related ones: the root's documents, and the node below the root. The others would only be read again."""
    if any(each.startswith(("meta/", "data/")) for each in values):
        return dict(values)
    top = key.partition("/")[0]
    return {each: value for each, value in values.items() if "/" not in each or each.partition("/")[0] == top}


def is_document(key: str) -> bool:
    """Return True if a key is a document's in some layout."""
    name = key.rpartition("/")[2]
    return (
        name in _DOCUMENTS or name.endswith((".array.json", ".group.json", ".array", ".group")) or key == "meta/root/consolidated"
    )


def _document_of(key: str, values: Mapping[str, bytes]) -> tuple[str, dict[str, Any]]:
    """Return the array that a chunk belongs to, and its document; for v2 and the final v3 only."""
    for folder in _above(key):
        for name in ("zarr.json", ".zarray"):
            try:
                document = json.loads(values[folder + name])
            except (KeyError, ValueError, RecursionError):
                continue
            return folder.rstrip("/"), document if isinstance(document, dict) else {}
    return "", {}


def _above(key: str) -> Iterator[str]:
    parts = key.split("/")[:-1]
    for count in range(len(parts), -1, -1):
        yield "".join(f"{part}/" for part in parts[:count])


def _is_checked(document: dict[str, Any]) -> bool:
    """Return True if every byte of a chunk's value is under a checksum; for a shard, of each inner chunk and the index."""
    if document.get("zarr_format") == 2:
        codecs = [*(document.get("filters") or []), document.get("compressor")]
        return any(_notices(codec) for codec in codecs if isinstance(codec, dict))
    codecs = [codec for codec in document.get("codecs") or [] if isinstance(codec, dict)]
    if any(_notices(codec) for codec in codecs):
        return True
    inner = [codec.get("configuration") or {} for codec in codecs if codec.get("name") == "sharding_indexed"]
    return bool(inner) and _ends_in_crc32c(inner[0]) and any(_notices(codec) for codec in inner[0].get("codecs") or [])


def _notices(codec: Any) -> bool:
    if not isinstance(codec, dict):
        return False
    name = str(codec.get("id") or codec.get("name")).removeprefix("numcodecs.")
    # zstd: the frame itself declares whether it has a checksum, and a mutant may declare none.
    return name in _CHECKSUMS


def _ends_in_crc32c(sharding: dict[str, Any]) -> bool:
    codecs = sharding.get("index_codecs") or [None]
    return isinstance(codecs[-1], dict) and codecs[-1].get("name") == "crc32c"


def _index_of(document: dict[str, Any], shard: bytes) -> tuple[int, int, bool] | None:
    """Return begin and end of a shard's index, and whether it has a checksum; for final v3 shards without further codecs only."""
    try:
        (codec,) = document["codecs"]
        configuration = codec["configuration"]
        entries = 1
        outer, inner = document["chunk_grid"]["configuration"]["chunk_shape"], configuration["chunk_shape"]
        for whole, part in zip(outer, inner, strict=True):
            entries *= whole // part
        checked = _ends_in_crc32c(configuration)
        nbytes = 16 * entries + 4 * checked
        if not 0 < nbytes <= len(shard) or "index_codecs" not in configuration:
            return None
        return (
            (0, nbytes, checked) if configuration.get("index_location") == "start" else (len(shard) - nbytes, len(shard), checked)
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
