"""Hostile stores without a kernel: nothing crashes, hangs, takes memory or leaves the store, and sound neighbours read exactly."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from trio.testing import trio_test

from tests.support import survey
from tests.support.cases import Case
from tests.support.hostile import BAD_SHARDS, CANARY, bad_shard_chunk, check, check_huge, folder_cases, write_huge
from tests.support.trees import read, tree_of
from zarrfs.errors import ChunkError
from zarrfs.fuse.errno import errno_of

MEMORY_MIB = 256
every_case = pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in folder_cases()])


@pytest.mark.logs("symbolic links and special files")
@every_case
@trio_test
async def test_bad_nodes_are_refused_and_sound_ones_read(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with tree_of(case.path) as tree:
        found = await survey.of_tree(tree)
    check(case, found)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", BAD_SHARDS)
@trio_test
async def test_a_chunk_of_a_bad_shard_is_an_error_and_never_missing(path: str) -> None:
    """Even where it is not listed: a program that gets ENOENT would use fill values."""
    (store,) = [case.path for case in folder_cases() if case.name == "hostile/v3_bad_shards"]
    async with tree_of(store) as tree:
        for index in range(2):
            name = f"chunks{path}/{index}"
            if index in BAD_SHARDS[path]:
                with pytest.raises(ChunkError) as caught:
                    await read(tree, name)
                assert errno_of(caught.value) == errno.EIO
            else:
                assert await read(tree, name) == bad_shard_chunk(index)


@pytest.mark.full_length
def test_all_of_it_within_little_memory(tmp_path: Path) -> None:
    """In a process of its own: Python's tracers do not see allocations of blosc and zlib."""
    huge = write_huge(tmp_path / "huge")
    stores = [case.path for case in folder_cases()] + [huge]
    empty = tmp_path / "empty"
    empty.mkdir()
    done = subprocess.run(
        [sys.executable, survey.__file__, str(MEMORY_MIB), *map(str, stores)],
        cwd=empty,
        # One arena: those of further threads would each reserve 64 MiB of the limited address space, whether or not they use it.
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "MALLOC_ARENA_MAX": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = survey.parse(done.stdout)
    for case in folder_cases():
        check(case, found[str(case.path)])
    check_huge(found[str(huge)])
    assert os.listdir(empty) == [], f"{CANARY}: something was run"
