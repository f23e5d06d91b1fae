"""Broken or nonsensical plug-ins of other distributions, and plug-ins that raise on any call: everything else works as without them.

Each is a real distribution beside ours, and each test uses a new process, because plug-ins are discovered once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.mounting import ROOT, mountpoint

GROUPS = ("stores", "codecs", "dialects", "containers", "views")
# The source of each module: a failing import, or a useless plug-in.
NONSENSE = {
    "raises": "raise RuntimeError('not \x1b[31mtoday')",
    "exits": "raise SystemExit(3)",
    "lacks": "import a_library_that_nobody_has",
    "recurses": "def f(): f()\nf()",
    "nothing": "PLUGIN = None",
    "number": "PLUGIN = 7",
    "text": "PLUGIN = 'plugin'",
    "several": "PLUGIN = (None, 1.5, object())",
    "a_class": "class PLUGIN: pass",
    "an_exception": "PLUGIN = KeyError('x')",
}
HALF = {
    "stores": "from zarrfs.stores.base import StorePlugin\nPLUGIN = StorePlugin(None, (1,), None, priority='first')",
    "codecs": "from zarrfs.codecs.base import BytesBytesCodec\nclass PLUGIN(BytesBytesCodec):\n    names = None",
    "dialects": "from zarrfs.dialects.v2.dialect import V2\nclass Half(V2):\n    name = None\nPLUGIN = Half()",
    "containers": "from zarrfs.containers.npy import Npy\nclass Half(Npy):\n    suffix = 7\nPLUGIN = Half()",
    "views": "from zarrfs.views.base import ViewPlugin\nPLUGIN = ViewPlugin('a/b', None, None)",
}
RAISING = '''
"""A dialect whose documents say what it raises, and when."""
import builtins, json
from zarrfs.dialects.v2.dialect import V2, V2Layout

class Layout(V2Layout):
    def document_keys(self, path):
        return (self.prefix.key(path.prefix + "their.json"),)

    def parse(self, path, documents):
        for value in documents.values():
            raise getattr(builtins, json.loads(value)["parse"])("their \\x1b[31mdocument")
        return None

class Their(V2):
    name = "their"
    priority = 1
    per_node = False

    def root_keys(self, prefix):
        return (prefix.key("entry.json"), prefix.key("further.json"))

    def further_keys(self, prefix, documents):
        for key, value in documents.items():
            if key.endswith("further.json"):
                raise getattr(builtins, json.loads(value)["open"])("their entry")
        return ()

    def open(self, prefix, documents):
        for key, value in documents.items():
            if key.endswith("entry.json"):
                raise getattr(builtins, json.loads(value)["open"])("their entry")
        return None

class Nodes(V2):
    name = "their_nodes"
    priority = 2

    def create(self, prefix):
        return Layout(prefix, dialect=self)

    def root_keys(self, prefix):
        return ()

    def open(self, prefix, documents):
        return None

PLUGIN = (Their(), Nodes())
'''
ERRORS = (
    "RecursionError",
    "MemoryError",
    "OverflowError",
    "UnicodeError",
    "KeyError",
    "AssertionError",
    "DeprecationWarning",
    "OSError",
)


def offer(folder: Path, group: str, name: str, source: str) -> None:
    """Install a distribution ``their-NAME`` whose plug-in is the object PLUGIN in ``source``."""
    (folder / f"their_{name}.py").write_text(textwrap.dedent(source))
    info = folder / f"their_{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: their-{name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[zarrfs.{group}]\n{name} = their_{name}:PLUGIN\n")


def zarrfs(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command with the distributions in ``folder`` installed; return its output and exit code."""
    command = [sys.executable, "-P", "-m", "zarrfs", *map(str, arguments)]
    env = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    return subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two sound arrays, one in a group."""
    store = tmp_path / "store"
    array = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "compressor": None, "filters": None, "order": "C"}
    for place in ("a", "g/b"):
        (store / place).mkdir(parents=True)
        (store / place / ".zarray").write_text(json.dumps(array | {"fill_value": 0}))
        (store / place / "0").write_bytes(b"\1\2")
    (store / "g" / ".zgroup").write_text('{"zarr_format": 2}')
    return store


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Every kind of broken plug-in, in each group."""
    folder = tmp_path / "site"
    folder.mkdir()
    for group in GROUPS:
        for name, source in (NONSENSE | {"half": HALF[group]}).items():
            offer(folder, group, f"{group}_{name}", source)
    return folder


def test_info_and_check_do_without_and_name_the_distributions(store: Path, broken: Path) -> None:
    done = zarrfs(broken, "info", "--json", store)
    assert done.returncode == 0, done.stderr
    assert [node["path"] for node in json.loads(done.stdout)["nodes"]] == ["/", "/a", "/g", "/g/b"]
    lines = done.stderr.splitlines()
    for group in ("stores", "codecs", "dialects"):
        for name in (*NONSENSE, "half"):
            named = [line for line in lines if f" of their-{group}_{name} " in line]
            assert len(named) == 1 and "ignored" in named[0], (group, name, done.stderr)
    assert "Traceback" not in done.stderr and "\x1b" not in done.stderr
    assert zarrfs(broken, "check", store).returncode == 0


@pytest.mark.full_length
@pytest.mark.fuse
def test_a_mount_does_without(store: Path, broken: Path) -> None:
    with mountpoint() as path:
        log = path.with_name("log")
        done = zarrfs(broken, "mount", store, path, "--log-file", log)
        assert done.returncode == 0, done.stderr
        try:
            assert sorted(os.listdir(path)) == ["README.txt", "chunks", "npy", "raw", "zarr3"]
            assert sorted(os.listdir(path / "chunks")) == [".zgroup", "a", "g"]
            assert (path / "chunks/g/b/0").read_bytes() == b"\1\2"
        finally:
            assert zarrfs(broken, "umount", path).returncode == 0
        text = log.read_text()
        assert "Traceback" not in text and "\x1b" not in text
        for group in GROUPS:
            assert text.count(f"(zarrfs.{group}) of their-{group}_raises ignored: RuntimeError: not \\x1b[31mtoday") == 1


@pytest.mark.full_length
@pytest.mark.fuse
def test_a_view_that_cannot_be_made_is_left_out_of_the_mount(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    making = "def make(context):\n    return context.nothing\nPLUGIN = ViewPlugin('odd', 'odd', make)"
    offer(folder, "views", "odd", f"from zarrfs.views.base import ViewPlugin\n{making}")
    with mountpoint() as path:
        log = path.with_name("log")
        assert zarrfs(folder, "mount", store, path, "--log-file", log).returncode == 0
        try:
            assert "odd" not in os.listdir(path) and "odd" not in (path / "README.txt").read_text()
        finally:
            assert zarrfs(folder, "umount", path).returncode == 0
        assert "view odd/ (of their_odd) skipped: AttributeError" in log.read_text()
        assert zarrfs(folder, "mount", store, path, "--view", "odd", "--log-file", log).returncode == 2


@pytest.mark.full_length
def test_what_a_dialect_raises_is_that_nodes_misfortune(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    offer(folder, "dialects", "raising", RAISING)
    for name in ERRORS:
        for kind, document in (("parse", "their.json"), ("open", "entry.json"), ("open", "further.json")):
            place = store / "g" / f"{document[0]}{name}"
            place.mkdir()
            (place / document).write_text(json.dumps({kind: name}))
    done = zarrfs(folder, "info", "--json", store)
    assert done.returncode == 0, done.stderr
    nodes = {node["path"]: node for node in json.loads(done.stdout)["nodes"]}
    assert {"/", "/a", "/g", "/g/b"} <= set(nodes)
    for name in ERRORS:
        assert nodes[f"/g/t{name}"]["kind"] == "unsupported" and name in nodes[f"/g/t{name}"]["reason"]
        assert nodes[f"/g/e{name}"]["kind"] == nodes[f"/g/f{name}"]["kind"] == "group"
    assert "Traceback" not in done.stderr and "defect" not in done.stderr and "\x1b" not in done.stderr
    told = [line for line in done.stderr.splitlines() if "/g/tKeyError" in line]
    assert len(told) == 1

    checked = zarrfs(folder, "check", "--json", store)
    assert checked.returncode == 1
    report = json.loads(checked.stdout)
    assert report["chunks"] == 2 and report["complete"]
    assert {finding["path"] for finding in report["bad"]} >= {f"/g/t{name}" for name in ERRORS}

    listing = f"""
    import json, sys, trio
    from tests.support.trees import listing, read, tree_of
    async def main():
        async with tree_of({str(store)!r}) as tree:
            found = {{view: sorted(await listing(tree, view + "/g")) for view in ("chunks", "zarr3", "npy")}}
            print(json.dumps([found, (await read(tree, "npy/g/tKeyError.unsupported.txt")).decode()]))
    trio.run(main)
    """
    command = [sys.executable, "-c", textwrap.dedent(listing)]
    env = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    shown = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert shown.returncode == 0, shown.stderr
    found, reason = json.loads(shown.stdout)
    for names in found.values():
        assert {f"t{name}.unsupported.txt" for name in ERRORS} <= set(names)
        assert {"b", "b.npy"} & set(names)
    assert r"KeyError: 'their \x1b[31mdocument'" in reason
