"""One new file, or folder of files, is a new store, codec, dialect or container: it is found, it is shown, and its conformance suite
runs.

Each file is written here, put on the path of its package (or offered as an entry point of another distribution), and everything else
happens in a new process, because plug-ins are looked for once.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class NewPlugin:
    """A plug-in of ``package``; ``source`` is its one file, ``name``.py. ``suite`` is the module whose tests have to run for it, where it
    is ``called`` something, and ``test`` some of them; ``shown`` makes a mount tree and asserts that the plug-in is at work."""

    package: str
    name: str
    called: str
    source: str
    suite: str
    test: str
    shown: str


STORE = NewPlugin(
    "zarrfs.stores",
    "attic",
    "attic",
    '''
    """A store in a dictionary, which all that are opened share."""
    from zarrfs.stores.base import StorePlugin
    from zarrfs.stores.memory import MemoryStore

    VALUES = MemoryStore()

    async def _open(location, read_only):
        return MemoryStore(read_only=read_only) if location else VALUES

    PLUGIN = StorePlugin("attic", ("attic",), _open, example=lambda folder: "attic:")
    ''',
    "tests/stores/test_conformance.py",
    "TestRegisteredStores and attic and empty",
    """
    from zarrfs.stores.opening import open_store
    from zarrfs.keys import Key

    store = await open_store("attic:")
    await store.set(Key("k"), b"from the attic")
    async with tree_of("attic:") as tree:
        assert await read(tree, "raw/k") == b"from the attic"
    """,
)

CODEC = NewPlugin(
    "zarrfs.codecs",
    "inverted",
    "inverted",
    '''
    """``inverted``: every bit the other way round."""
    from dataclasses import dataclass

    from zarrfs.codecs.base import BytesBytesCodec
    from zarrfs.codecs.configuration import only
    from zarrfs.errors import ChunkDecodeError
    from zarrfs.model.codec_spec import CodecSpec

    @dataclass(frozen=True)
    class Inverted(BytesBytesCodec):
        """No configuration; a last byte tells where the value ends."""

        names = ("test.inverted",)
        examples = (CodecSpec("test.inverted"),)

        @classmethod
        def from_spec(cls, spec):
            only(spec)
            return cls()

        def encode(self, data):
            return bytes(byte ^ 255 for byte in memoryview(data).cast("B")) + b"."

        def decode(self, data, limit, out=None):
            if len(data) > limit + 1 or bytes(data[-1:]) != b".":
                raise ChunkDecodeError("inverted: not a value, or a longer one")
            return bytes(byte ^ 255 for byte in memoryview(data)[:-1].cast("B"))

    PLUGIN = Inverted
    ''',
    "tests/codecs/test_conformance.py",
    "test_round_trip and inverted or test_what_was_cut_off_is_an_error and inverted",
    """
    from zarrfs.keys import Key
    import json

    store = MemoryStore()
    document = {"zarr_format": 3, "node_type": "array", "shape": [2], "data_type": "uint8", "fill_value": 0,
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
                "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes"}, {"name": "test.inverted"}]}
    await store.set(Key("a/zarr.json"), json.dumps(document).encode())
    await store.set(Key("a/c/0"), bytes([255, 254]) + b".")
    async with tree_over(store) as tree:
        assert (await load(tree, "npy/a.npy")).tolist() == [0, 1]
        await write(tree, "chunks/a/0", b"\\2\\3")
    assert await store.get(Key("a/c/0")) == bytes([253, 252]) + b"."
    """,
)

DIALECT = NewPlugin(
    "zarrfs.dialects",
    "v2_renamed",
    "v2_renamed",
    '''
    """Zarr v2 with other names for its documents: what a dialect of one's own needs at least."""
    from zarrfs.dialects.base import Dialect, Layout
    from zarrfs.dialects.v2.dialect import PLUGIN as V2
    from zarrfs.keys import Key

    def _theirs(key):
        head, slash, name = key.rpartition("/")
        return Key(f"{head}{slash}{'.' + name[3:] if name.startswith('my_') else name}")

    def _mine(key):
        head, slash, name = key.rpartition("/")
        return Key(f"{head}{slash}{'my_' + name[1:] if name.startswith('.z') else name}")

    def _translated(documents, name):
        return {name(key): value for key, value in documents.items()}

    class Renamed(Dialect):
        """``my_zarray`` instead of ``.zarray``."""

        name = "v2_renamed"
        priority = 200
        chunk_key_encoding = V2.chunk_key_encoding

        def root_keys(self, prefix):
            return tuple(map(_mine, V2.root_keys(prefix)))

        def open(self, prefix, documents):
            layout = V2.open(prefix, _translated(documents, _theirs))
            return RenamedLayout(layout) if layout is not None else None

        def create(self, prefix):
            return RenamedLayout(V2.create(prefix))

    class RenamedLayout(Layout):
        def __init__(self, inner):
            self._inner = inner
            self.dialect = PLUGIN
            self.prefix = inner.prefix

        def document_keys(self, path):
            return tuple(map(_mine, self._inner.document_keys(path)))

        def parse(self, path, documents):
            node = self._inner.parse(path, _translated(documents, _theirs))
            return node and _called(node, self.dialect.name)

        def listing_prefix(self, path):
            return self._inner.listing_prefix(path)

        def child_names(self, path, keys, prefixes):
            return self._inner.child_names(path, map(_theirs, keys), prefixes)

        def consolidated_names(self, path):
            return self._inner.consolidated_names(path)

        def chunk_prefix(self, path):
            return self._inner.chunk_prefix(path)

        def node_of_document(self, key):
            return self._inner.node_of_document(_theirs(key)) if _theirs(key) != key else None

        def format(self, node):
            return _translated(self._inner.format(_called(node, "v2")), _mine)

        def required_groups(self, path):
            return self._inner.required_groups(path)

        def consolidated_keys(self, path):
            return tuple(map(_mine, self._inner.consolidated_keys(path)))

        def amend(self, path, documents, edit):
            return _translated(self._inner.amend(path, _translated(documents, _theirs), edit), _mine)

        def copies_with(self, paths, documents):
            return _translated(self._inner.copies_with(paths, _translated(documents, _theirs)), _mine)

        def copies_without(self, path, documents):
            return _translated(self._inner.copies_without(path, _translated(documents, _theirs)), _mine)

        def check_name(self, name):
            self._inner.check_name(name)

    def _called(node, name):
        from dataclasses import replace
        return replace(node, dialect=name)

    PLUGIN = Renamed()
    ''',
    "tests/dialects/test_conformance.py",
    "v2_renamed and (test_a_group_is_read_as_it_was_written or test_an_array_is_read_as_it_was_written)",
    """
    from zarrfs.keys import Key
    from tests.support.arrays import Example

    store = MemoryStore()
    await store.set(Key("my_zgroup"), b'{"zarr_format": 2}')
    for key, value in Example((4,), (2,)).values("a").items():
        await store.set(Key(key.replace(".zarray", "my_zarray")), value)
    async with tree_over(store) as tree:
        assert (await load(tree, "npy/a.npy")).tolist() == [1, 2, 3, 4]
        assert ".zarray" in await names(tree, "chunks/a")
    """,
)

CONTAINER = NewPlugin(
    "zarrfs.containers",
    "netpbm",
    "pgm",
    '''
    """``.pgm``: Netpbm grey maps, the simplest picture there is."""
    from zarrfs.containers.base import Container, Elements, FileLayout, Literal
    from zarrfs.errors import NotRepresentable

    class Pgm(Container):
        """Two dimensions of bytes."""

        name = "pgm"
        suffix = ".pgm"

        def layout(self, metadata):
            if metadata.data_type.name != "uint8" or metadata.ndim != 2 or 0 in metadata.shape:
                raise NotRepresentable("a .pgm file holds two dimensions of uint8")
            header = f"P5 {metadata.shape[1]} {metadata.shape[0]} 255 ".encode()
            return FileLayout((Literal(0, header), Elements(len(header), metadata.nbytes)))

    PLUGIN = Pgm()
    ''',
    "tests/containers/test_conformance.py",
    "pgm and TestConformance",
    """
    from tests.support.arrays import Example, store_of

    store = await store_of(Example((2, 3), (1, 2), "|u1"), Example((4,), (2,)))
    async with tree_over(store) as tree:
        assert await names(tree) == {"raw", "chunks", "zarr3", "npy", "pgm", "README.txt"}
        assert await names(tree, "pgm") == {"a.pgm", "b.unsupported.txt"}
        assert await read(tree, "pgm/a.pgm") == b"P5 3 2 255 " + bytes([1, 2, 3, 4, 5, 6])
        assert b"two dimensions of uint8" in await read(tree, "pgm/b.unsupported.txt")
        assert b"pgm/" in await read(tree, "README.txt")
    async with tree_over(store, view="pgm") as tree:
        assert "a.pgm" in await names(tree)
    """,
)

PLUGINS = [STORE, CODEC, DIALECT, CONTAINER]
WAYS = ["file", "package", "entry point"]


def offered(plugin: NewPlugin, folder: Path, way: str) -> str:
    """Put the plug-in into ``folder``; the lines by which a new process finds it."""
    source = textwrap.dedent(plugin.source).strip() + "\n"
    folder = folder / plugin.package
    folder.mkdir()
    if way != "entry point":
        if way == "file":
            (folder / f"{plugin.name}.py").write_text(source)
        else:
            (folder / plugin.name).mkdir()
            (folder / plugin.name / "whole.py").write_text(source)
            (folder / plugin.name / "__init__.py").write_text(f"from {plugin.package}.{plugin.name}.whole import PLUGIN\n")
        return f"import {plugin.package}\n{plugin.package}.__path__.append({str(folder)!r})\n"
    (folder / f"their_{plugin.name}.py").write_text(source)
    info = folder / f"their_{plugin.name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: their-{plugin.name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{plugin.package}]\n{plugin.name} = their_{plugin.name}:PLUGIN\n")
    return f"import sys\nsys.path.append({str(folder)!r})\n"


def run(program: str) -> str:
    """What a new Python prints; it must succeed."""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("way", WAYS)
def test_a_new_member_is_found_and_shown(way: str, tmp_path: Path) -> None:
    program = "".join(offered(plugin, tmp_path, way) for plugin in PLUGINS)
    program += "import trio\nfrom tests.support.trees import load, names, read, tree_of, tree_over, write\n"
    program += "from zarrfs.stores.memory import MemoryStore\n"
    for plugin in PLUGINS:
        body = textwrap.indent(textwrap.dedent(plugin.shown).strip(), "    ")
        program += f"async def show_{plugin.name}():\n{body}\ntrio.run(show_{plugin.name})\n"
    run(program)


@pytest.mark.full_length
def test_its_conformance_suite_starts_by_itself(tmp_path: Path) -> None:
    offers = "".join(offered(plugin, tmp_path, "file") for plugin in PLUGINS)
    suites = [plugin.suite for plugin in PLUGINS]
    chosen = " or ".join(f"({plugin.test})" for plugin in PLUGINS)
    arguments = ["-v", "-p", "no:cacheprovider", *suites, "-k", chosen]
    printed = run(f"{offers}import pytest\nraise SystemExit(pytest.main({arguments!r}))\n")
    for plugin in PLUGINS:
        ran = [
            line for line in printed.splitlines() if line.startswith(plugin.suite) and plugin.called in line and "PASSED" in line
        ]
        assert ran, f"the suite of {plugin.package} did not run over the new one:\n{printed}"


def test_a_file_without_a_plugin_is_none_and_one_whose_library_is_missing_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text('"""Shared by others."""\n')
    (tmp_path / "extra.py").write_text('"""Needs a library that is not there."""\nimport a_library_that_nobody_has\n')
    printed = run(
        f"import zarrfs.containers\nzarrfs.containers.__path__.append({str(tmp_path)!r})\n"
        "from zarrfs import registry\nprint([each.name for each in registry.plugins('zarrfs.containers')])\n"
    )
    assert printed.strip() == "['npy']"


def test_a_member_of_our_own_that_is_broken_is_a_bug_and_tells(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text('"""Broken."""\nfrom zarrfs.nowhere import nothing\n')
    with pytest.raises(AssertionError, match=r"zarrfs\.nowhere"):
        run(
            f"import zarrfs.containers\nzarrfs.containers.__path__.append({str(tmp_path)!r})\n"
            "from zarrfs import registry\nregistry.plugins('zarrfs.containers')\n"
        )


def test_a_foreign_entry_point_that_fails_is_reported_and_left_out(tmp_path: Path) -> None:
    plugin = NewPlugin("zarrfs.containers", "broken", "", "raise RuntimeError('not today')", "", "", "")
    printed = run(
        f"{offered(plugin, tmp_path, 'entry point')}import logging\nlogging.basicConfig(stream=sys.stdout)\n"
        "from zarrfs import registry\nprint([each.name for each in registry.plugins('zarrfs.containers')])\n"
    )
    assert "broken" in printed and "not today" in printed
    assert printed.strip().endswith("['npy']")
