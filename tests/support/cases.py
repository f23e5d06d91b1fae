"""Stores of ``tests/cases``, written by other software (see PROVENANCE.md there), as plain dicts, with their expected content."""

from __future__ import annotations

import dbm.dumb
import json
import os
import sqlite3
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

CASES = Path(__file__).parent.parent / "cases"


@dataclass(frozen=True)
class Case:
    """One store. ``folder`` holds MANIFEST.json, the store, and the expected elements."""

    folder: Path

    @property
    def name(self) -> str:
        """The name with its layout: ``v2/dtypes``."""
        return "/".join(self.folder.parts[-2:])

    @property
    def path(self) -> Path:
        """The path of the store: a folder or a file."""
        return self.folder / str(self.manifest["store"])

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The content of MANIFEST.json."""
        return dict(json.loads((self.folder / "MANIFEST.json").read_text()))

    @cached_property
    def values(self) -> dict[str, bytes]:
        """All keys and values, without symbolic links."""
        match self.manifest["store_format"]:
            case "directory":
                return {
                    file.relative_to(self.path).as_posix(): file.read_bytes()
                    for root, _, names in os.walk(self.path)
                    for file in (Path(root, name) for name in names)
                    if not file.is_symlink()
                }
            case "zip":
                with zipfile.ZipFile(self.path) as archive:
                    return {name: archive.read(name) for name in archive.namelist()}
            case "sqlite":
                with sqlite3.connect(self.path) as connection:
                    return dict(connection.execute("select k, v from zarr"))
            case "dbm":
                with dbm.dumb.open(str(self.path), "r") as opened:
                    return {key.decode(): opened[key] for key in opened.keys()}  # noqa: SIM118
            case "lmdb":
                library = pytest.importorskip("lmdb")
                with library.open(str(self.path), readonly=True, lock=False) as environment, environment.begin() as transaction:
                    return {key.decode(): value for key, value in transaction.cursor()}
        raise NotImplementedError(self.manifest["store_format"])

    def nodes(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the manifest's nodes, of one ``kind`` (array, group) or all."""
        return [node for node in self.manifest["nodes"] if kind in (None, node["kind"])]

    def expected(self, node: dict[str, Any]) -> np.ndarray[Any, Any]:
        """Return the elements of an array as its producer read them."""
        return np.asarray(np.load(self.folder / node["expected"]))


def cases(layout: str) -> list[Case]:
    """Return every case of a layout (``v2``, ``v3_final``, ``hostile``)."""
    return [Case(manifest.parent) for manifest in sorted((CASES / layout).glob("*/MANIFEST.json"))]


def below(prefix: str, keys: Any) -> tuple[set[str], set[str]]:
    """Return a listing of ``prefix``: names of keys, and names of prefixes."""
    rests = [key[len(prefix) :] for key in keys if key.startswith(prefix)]
    return {rest for rest in rests if "/" not in rest}, {rest.split("/")[0] for rest in rests if "/" in rest}
