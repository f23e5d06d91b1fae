"""Small mounts for the views of nodes, and programs that copy hierarchies into them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.mounting import Mounted, mounted, run, shell
from tests.support.small_stores import write
from tests.support.zarr_python import everything, written


def example(root: Any) -> None:
    """Write two arrays and two groups."""
    root.attrs["title"] = "example"
    array = root.create_array("g/a", shape=(4, 6), chunks=(2, 3), dtype="i4", fill_value=7, attributes={"units": "m"})
    array[...] = np.arange(24).reshape(4, 6)
    root.create_group("g/h")
    root.create_array("b", shape=(3,), chunks=(2,), dtype="f8", fill_value=0)[...] = 1.5


@contextmanager
def scene(
    dialect: int, folder: Path, *options: str, make: Any = example, consolidated: bool = False, ends_with: int | None = 0
) -> Iterator[Mounted]:
    """Mount a store of ``dialect`` whose root group ``make`` fills."""
    store = write(folder / "store.zarr", written(dialect, make, consolidated=consolidated))
    with mounted(store, *options, ends_with=ends_with) as mount:
        yield mount


def nodes(mount: Mounted) -> dict[str, Any]:
    """Return the nodes that zarr-python reads from the store, with and without its consolidated copy."""
    found = everything(mount.store, use_consolidated=False)
    assert everything(mount.store) == found
    return found


def as_written(found: dict[str, Any]) -> dict[str, Any]:
    """Return the same nodes without additions of `chunks/` to arrays of final v3.

    These are ``_FillValue``, the fill value of ``.zarray``, and an empty list of names for no dimensions.
    """
    return {
        path: (kind, {name: value for name, value in attributes.items() if name != "_FillValue" and value != []}, *more)
        for path, (kind, attributes, *more) in found.items()
    }


def only_stored_names(mount: Mounted) -> None:
    """Assert that the store holds documents and chunks, and no temporary name."""
    for path in mount.store.rglob("*"):
        if path.is_file():
            is_chunk = path.name == "c" or all(part.isdecimal() for part in path.name.split("."))
            assert is_chunk or path.name in (".zgroup", ".zarray", ".zattrs", ".zmetadata", "zarr.json"), path


def copy_with(tool: str, source: Path, target: Path) -> list[str]:
    """Copy the content of a folder; return the files that rsync would then copy again."""
    match tool:
        case "tar":
            shell("""tar -C "$1" -c . | tar -C "$2" -x""", source, target)
        case "tar, the other way round":
            # Documents after the chunks; folders have no entries of their own.
            shell("""cd "$1" && find . -type f | sort | tac | tar -c --no-recursion -T - | tar -C "$2" -x""", source, target)
        case "rsync -a" | "rsync -a --delete":
            if shutil.which("rsync") is None:
                pytest.skip("rsync is not installed")
            run(*tool.split(), f"{source}/", target)
            again = run("rsync", "-a", "-i", f"{source}/", target).stdout.decode().splitlines()
            return [line for line in again if line[:1] in "<>c"]
        case _:
            run(*tool.split(), f"{source}/.", target)
    return []


def check_copying_into_an_empty_store(view: str, source: Path, folder: Path, new_dialect: str) -> None:
    """Check ``cp -r`` of a whole hierarchy onto the root of ``view``."""
    (folder / "empty").mkdir()
    with mounted(folder / "empty", "-o", f"new_dialect={new_dialect}") as mount:
        run("cp", "-r", f"{source}/.", mount.path / view)
        assert as_written(nodes(mount)) == everything(source)
        assert (mount.store / "zarr.json").exists() == (new_dialect == "v3")


def check_erasing(view: Path, mount: Mounted) -> None:
    """Check that programs can remove `example`, node by node, down to the root."""
    before = nodes(mount)
    run("rm", "-r", view / "g/a")
    assert nodes(mount) == {path: node for path, node in before.items() if path != "g/a"}
    assert not (mount.store / "g/a").exists()
    assert not (mount.path / "npy/g/a.npy").exists()
    shutil.rmtree(view / "g")
    assert nodes(mount) == {"": before[""], "b": before["b"]}
    run("find", view / "b", "-depth", "-delete")
    assert set(nodes(mount)) == {""}
