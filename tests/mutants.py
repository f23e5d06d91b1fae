"""Twelve small faults, one in each layer, and three for the random model: a suite that misses one of them has lost its sharpness.

    make mutants                       # all, each by the tests that should detect it first, then by all others
    make mutants ARGS="index errno"    # some

Each is inserted into a copy of the checkout, in which the tests then have to fail. Prints for each the test that detected it, and exits
with 1 if none did.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Mutant:
    """A fault: ``right``, which occurs once in ``path`` below zarrfs/, becomes ``wrong``. ``near``: the tests that should detect it."""

    name: str
    path: str
    right: str
    wrong: str
    near: str


MUTANTS = [
    Mutant(
        "padding: of a chunk at the edge of its array not filled",
        "arrays/array.py",
        "            fill(metadata, padded)\n            padded[inside] = elements[inside]\n            elements = padded\n",
        "            padded[inside] = elements[inside]\n            elements = padded\n",
        "tests/arrays",
    ),
    Mutant(
        "index: of a shard, off by one",
        "model/shards.py",
        "        return offset, nbytes\n",
        "        return offset + 1, nbytes\n",
        "tests/model",
    ),
    Mutant(
        "notice: a chunk that was changed in one view stays as it was in the others",
        "daemon/changes.py",
        "        if not change.external:\n            self.report(self._affected(change, nodes))\n",
        "        if not change.external:\n",
        "tests/fuse",
    ),
    Mutant(
        "fsync: not called",
        "stores/folder/unsynced.py",
        "        try:\n            os.fsync(fd)\n",
        "        try:\n            pass\n",
        "tests/stores tests/mount/test_strace.py",
    ),
    Mutant(
        "errno: of a folder that is not empty, swapped",
        "fuse/errno.py",
        "errors.DirectoryNotEmpty: errno.ENOTEMPTY",
        "errors.DirectoryNotEmpty: errno.EBUSY",
        "tests/fuse",
    ),
    Mutant(
        "attributes: dropped from the consolidated copy when they change",
        "dialects/v2/dialect.py",
        "            members[(ZATTRS,)] = dict(edit.attributes)\n",
        "            members[(ZATTRS,)] = {}\n",
        "tests/dialects",
    ),
    Mutant(
        "range: the last element of one that ends within a row is not read",
        "model/chunk_plan.py",
        "    if within_last:\n",
        "    if within_last > 1:\n",
        "tests/model",
    ),
    Mutant(
        "zeros: a file that grows shows bytes that nobody wrote",
        "vfs/spill_buffer.py",
        "self._memory.extend(bytes(size - len(self._memory)))",
        'self._memory.extend(b"?" * (size - len(self._memory)))',
        "tests/vfs",
    ),
    Mutant(
        "exit: umount succeeds although something could not be stored",
        "command/exit_codes.py",
        "    NotPublished: 7,\n",
        "    NotPublished: 0,\n",
        "tests/command tests/mount/test_unmount.py",
    ),
    Mutant(
        "fill: a chunk of an array without a fill value is taken for one that need not be stored",
        "arrays/filling.py",
        "    if metadata.fill_value is None:\n        return False\n",
        "    if metadata.fill_value is None:\n        return True\n",
        "tests/arrays tests/views",
    ),
    Mutant(
        "checksum: not compared",
        "codecs/checksum.py",
        '        if int.from_bytes(stored, "little") != computed:\n',
        "        if False:\n",
        "tests/codecs",
    ),
    Mutant(
        "order: a write overtakes one to the same key that was given up and goes on",
        "transformers/deadline.py",
        "if write.touches(targets)), None):\n",
        "if False), None):\n",
        "tests/transformers",
    ),
    Mutant(
        "model: chunks are read on where another array has come",
        "arrays/bound_chunks.py",
        "            is_doubtful = lacks(found) or self.node.is_unread or self._has_changes() or not self.node.are_chunks_in_place()\n",
        "            is_doubtful = False\n",
        "tests/mount/test_random_model.py",
    ),
    Mutant(
        "model: what is bound to an array does not follow it when it is renamed",
        "hierarchy/live_nodes.py",
        "            node.move(path, Prefix(new + node.chunk_prefix[len(old) :]))\n",
        "            pass\n",
        "tests/mount/test_random_model.py",
    ),
    Mutant(
        "model: what is published goes to the path, whatever lies there by then",
        "arrays/live_node.py",
        "            if not nested:\n                await self.confirmed()\n                self.expects_sets()\n"
        "            with presupposing(*self.place_of_chunks):\n    ",
        "",
        "tests/mount/test_random_model.py",
    ),
]


def mutate(checkout: Path, mutant: Mutant) -> None:
    """Insert the fault into ``checkout``."""
    path = checkout / "zarrfs" / mutant.path
    text = path.read_text()
    if text.count(mutant.right) != 1:
        raise SystemExit(f"{mutant.name}: what it changes stands {text.count(mutant.right)} times in {mutant.path}")
    path.write_text(text.replace(mutant.right, mutant.wrong))


def noticed(checkout: Path, tests: str) -> str | None:
    """Return the first of ``tests`` that fails in ``checkout``; None if all pass."""
    command = [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-n", "auto", "--dist", "loadfile", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *tests.split()], cwd=checkout, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    # With -x the exit code is that of an interruption.
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if found is None:
        raise SystemExit(f"the tests did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return found[1]


def main(names: list[str]) -> int:
    """Try the mutants whose name begins with one of ``names``, or all; return the number that was not detected."""
    missed = 0
    for mutant in MUTANTS:
        if names and not mutant.name.startswith(tuple(names)):
            continue
        with tempfile.TemporaryDirectory(prefix="zarrfs-mutant-") as folder:
            checkout = Path(folder, "checkout")
            left_out = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis")
            shutil.copytree(ROOT, checkout, symlinks=True, ignore=left_out)
            (checkout / ".venv").symlink_to(Path(sys.prefix))
            mutate(checkout, mutant)
            begun = time.monotonic()
            test = noticed(checkout, mutant.near) or noticed(checkout, "tests")
        missed += test is None
        print(f"{mutant.name}: {test or 'NOT NOTICED'} ({time.monotonic() - begun:.0f} s)", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
