"""A program that stands in a folder of a view finds its working directory again, whatever it or another program creates there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.mounting import Mounted, mounted

pytestmark = pytest.mark.fuse

_ARRAY_V2 = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "<i4", "fill_value": 0, "order": "C"}
_ARRAY_V3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4],
    "data_type": "int32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
    "chunk_key_encoding": {"name": "default"},
    "fill_value": 0,
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
}
DOCUMENTS = {
    "chunks": {"a/.zarray": {**_ARRAY_V2, "compressor": None, "filters": None}, ".zattrs": {"of": "the group"}},
    "zarr3": {"a/zarr.json": _ARRAY_V3, "zarr.json": {"zarr_format": 3, "node_type": "group", "attributes": {"of": "the group"}}},
}

# The program uses relative paths alone: a path through the folder would be a new lookup of its name.
_PROGRAM = """
import json, os, shutil, sys
documents = json.loads(sys.argv[1])
for name in documents:
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    with open(name, "w") as file:
        json.dump(documents[name], file)
    print(name, os.getcwd())
os.rename("a", "b")
print("renamed", os.getcwd())
shutil.rmtree("b")
print("removed", os.getcwd())
"""


def has_expiring_notices() -> bool:
    return tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 2)


needs_expiring_notices = pytest.mark.skipif(
    not has_expiring_notices(), reason="Linux before 6.2 has no notice that leaves a name in place"
)


@pytest.fixture(params=["v2", "v3", "v3_2022"])
def mount(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Mounted]:
    (tmp_path / "store").mkdir()
    with mounted(tmp_path / "store", "--new-dialect", request.param) as mount:
        yield mount


@needs_expiring_notices
@pytest.mark.parametrize("where", ["", "group"])
@pytest.mark.parametrize("view", [*DOCUMENTS])
def test_a_program_that_creates_nodes_in_its_working_directory(view: str, where: str, mount: Mounted) -> None:
    folder = mount.path / view / where
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-P", "-c", _PROGRAM, json.dumps(DOCUMENTS[view])]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines()] == [str(folder)] * 4


@needs_expiring_notices
def test_a_change_in_another_view(mount: Mounted) -> None:
    (mount.path / "npy/group").mkdir()
    with subprocess.Popen(
        [sys.executable, "-P", "-c", "import os\nfor _ in range(2): input(); print(os.getcwd(), os.listdir(), flush=True)"],
        cwd=mount.path / "chunks/group",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdin is not None and program.stdout is not None
        for name, expected in (("a", "'a'"), ("b", "'b'")):
            np.save(mount.path / f"npy/group/{name}.npy", np.arange(3))
            print(file=program.stdin, flush=True)
            said = program.stdout.readline()
            assert said.startswith(f"{mount.path}/chunks/group ") and expected in said


@needs_expiring_notices
def test_a_group_that_is_removed_is_gone_by_its_name(mount: Mounted) -> None:
    np.save(mount.path / "npy/a.npy", np.arange(3))
    (mount.path / "npy/group").mkdir()
    np.save(mount.path / "npy/group/b.npy", np.arange(3))
    assert os.listdir(mount.path / "chunks/group/b")
    os.remove(mount.path / "npy/group/b.npy")
    assert not (mount.path / "chunks/group/b").exists()
    os.rmdir(mount.path / "npy/group")
    for view in ("chunks", "zarr3"):
        assert not (mount.path / view / "group").exists()
