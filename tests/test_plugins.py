"""One new file, or folder of files, is a new store, codec, dialect, container, view or chunk grid.

It is discovered and shown, and its conformance suite runs. Each file is written here, put on the path of its package (or offered as an
entry point of another distribution), and everything else happens in a new process, because plug-ins are discovered once.
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
    """A plug-in of ``package``; ``source`` is its one file, ``name``.py.

    ``suite`` is the module whose tests have to run for it, with ``called`` as its id, and ``test`` some of them; ``shown`` creates a
    mount tree and asserts that the plug-in is in use.
    """

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
        assert await names(tree) >= {"raw", "chunks", "zarr3", "npy", "pgm", "README.txt"}
        assert await names(tree, "pgm") == {"a.pgm", "b.unsupported.txt"}
        assert await read(tree, "pgm/a.pgm") == b"P5 3 2 255 " + bytes([1, 2, 3, 4, 5, 6])
        assert b"two dimensions of uint8" in await read(tree, "pgm/b.unsupported.txt")
        assert b"pgm/" in await read(tree, "README.txt")
    async with tree_over(store, view="pgm") as tree:
        assert "a.pgm" in await names(tree)
    """,
)

GROUP_CONTAINER = NewPlugin(
    "zarrfs.containers",
    "listing",
    "listing",
    '''
    """``.listing``: the paths of arrays, one on each line, then their elements as float64."""
    import numpy as np
    from zarrfs.containers.base import Elements, FileLayout, GroupContainer, Literal
    from zarrfs.model.metadata import ArrayNode

    class Listing(GroupContainer):
        """Arrays of numbers; others are left out."""

        name = "listing"
        suffix = ".listing"

        def layout(self, nodes):
            numbers = [node for node in nodes if isinstance(node, ArrayNode) and node.metadata.data_type.name in ("int16", "uint8")]
            text = "".join(f"{node.path}\\n" for node in numbers).encode()
            extents, offset = [Literal(0, text)], len(text)
            for node in numbers:
                nbytes = 8 * node.metadata.nbytes // node.metadata.data_type.itemsize
                if nbytes:
                    extents.append(Elements(offset, nbytes, path=node.path, dtype=np.dtype("<f8")))
                    offset += nbytes
            return FileLayout(tuple(extents))

    PLUGIN = Listing()
    ''',
    "tests/containers/test_conformance.py",
    "listing and TestGroupConformance",
    """
    import numpy as np
    from tests.support.arrays import Example, store_of

    one, other = Example((2, 3), (1, 2), "|u1"), Example((4,), (2,))
    async with tree_over(await store_of(one, other)) as tree:
        assert await names(tree, "listing") == {"array.listing"}
        expected = b"/a\\n/b\\n" + b"".join(each.elements.astype("<f8").tobytes() for each in (one, other))
        assert await read(tree, "listing/array.listing") == expected
        assert b"every group, with all below it, as one .listing file" in await read(tree, "README.txt")
    """,
)

LEDGER = NewPlugin(
    "zarrfs.stores",
    "ledger",
    "ledger",
    '''
    """A store that neither lists nor renames: keys are found by their names alone."""
    from zarrfs.stores.base import Store, StorePlugin
    from zarrfs.stores.capabilities import Capabilities
    from zarrfs.stores.values import KeyStat

    class LedgerStore(Store):
        url = "ledger:"

        def __init__(self, read_only=False):
            self.capabilities = Capabilities(write=not read_only, create_only=False, match=False, list=False)
            self.values = {}
            self.sets = 0

        async def get(self, key):
            return self.values[key][0] if key in self.values else None

        async def stat(self, key):
            return KeyStat(len(self.values[key][0]), None, self.values[key][1]) if key in self.values else None

        async def set(self, key, value, *, expect=None):
            self._require_writable(key)
            if expect is not None:
                raise self._unsupported("set conditionally")
            self.sets += 1
            self.values[key] = bytes(value), str(self.sets)
            return str(self.sets)

        async def erase(self, key):
            self._require_writable(key)
            self.values.pop(key, None)

        async def list_dir(self, prefix):
            raise self._unsupported("list")
            yield

    VALUES = LedgerStore()

    async def _open(location, read_only):
        return LedgerStore(read_only) if location else VALUES

    PLUGIN = StorePlugin("ledger", ("ledger",), _open, example=lambda folder: "ledger:new")
    ''',
    "tests/stores/test_conformance.py",
    "TestRegisteredStores and ledger and (what_was_set or each_value_has_a_generation)",
    """
    from zarrfs.stores.opening import open_store
    from zarrfs.keys import Key
    from zarrfs.vfs.node import OpenFlags
    from tests.support.arrays import Example

    store = await open_store("ledger:")
    for key, value in Example((4,), (2,)).values("a").items():
        await store.set(Key(key), value)
    async with tree_of("ledger:") as tree:
        assert (await load(tree, "npy/a.npy")).tolist() == [1, 2, 3, 4]
        assert await read(tree, "chunks/a/0") == await read(tree, "zarr3/a/c/0") == await read(tree, "raw/a/0") == b"\\1\\0\\2\\0"
        handle = await (await walk(tree, "chunks/a/1")).open(OpenFlags(write=True, truncate=True))
        await handle.write(0, bytes(4))
        await handle.flush()
        await handle.release()
        assert (await load(tree, "npy/a.npy")).tolist() == [1, 2, 0, 0]
    """,
)


def source_of(name: str) -> str:
    """Return the text of a module of ``tests/support`` that other tests use, too."""
    return (ROOT / "tests" / "support" / f"{name}.py").read_text()


ARRAY_BYTES_CODEC = NewPlugin(
    "zarrfs.codecs",
    "framed",
    "test.framed",
    source_of("framed_codec"),
    "tests/codecs/test_conformance.py",
    "test_round_trip and framed or test_what_was_cut_off_is_an_error and framed",
    """
    import numpy, io
    store = MemoryStore()
    async with tree_over(store, new_codecs="test.framed:level=2", new_dialect="v2") as tree:
        file = io.BytesIO()
        numpy.save(file, numpy.arange(6, dtype="u1"))
        await write(tree, "npy/a.npy", file.getvalue())
        assert (await load(tree, "npy/a.npy")).tolist() == [0, 1, 2, 3, 4, 5]
        assert b"test.framed" in await read(tree, "zarr3/a/zarr.json")
        assert b"test_framed" in await read(tree, "raw/a/.zarray") and (await read(tree, "raw/a/0")).startswith(b"FRMD")
    """,
)

BRICK_CODEC = NewPlugin(
    "zarrfs.codecs",
    "brick",
    "test.brick",
    source_of("brick_codec"),
    "tests/codecs/test_conformance.py",
    "test_round_trip and brick or test_what_was_cut_off_is_an_error and brick",
    "",
)

OWN_DIALECT = NewPlugin(
    "zarrfs.dialects",
    "bricks",
    "walls",
    source_of("bricks_dialect"),
    "tests/dialects/test_conformance.py",
    "walls and (examples or junk) or bricks and test_an_array_is_read_as_it_was_written",
    """
    from zarrfs.keys import Key
    from zarrfs.errors import NotPermitted
    from zarrfs.vfs.node import OpenFlags
    import json

    store = MemoryStore()
    await store.set(Key("a/walls.json"), json.dumps({"shape": [1, 3], "brick": [1, 2], "type": "uint8", "fill": 9}).encode())
    # The last coordinate comes first; the chunk says its shape, and is cut at the edge.
    await store.set(Key("a/1/0"), b"BRICK" + bytes([0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1]) + b"\\5")
    async with tree_over(store) as tree:
        assert (await load(tree, "npy/a.npy")).tolist() == [[9, 9, 5]]
        assert await read(tree, "chunks/a/0.1") == b"\\5\\t"
        try:
            await (await walk(tree, "npy/a.npy")).open(OpenFlags(write=True))
        except NotPermitted:
            return
        raise AssertionError("it is only read")
    """,
)

VIEW = NewPlugin(
    "zarrfs.views",
    "inventory",
    "inventory",
    '''
    """``inventory/``: one file that names every node that can be read."""
    from zarrfs.keys import ROOT
    from zarrfs.model.metadata import ArrayNode, GroupNode
    from zarrfs.views.base import Affected, View, ViewPlugin
    from zarrfs.vfs.generated import GeneratedFile
    from zarrfs.vfs.node import Attributes, Directory, no_such_entry

    NAME = "nodes.txt"

    class Inventory(View, Directory):
        def __init__(self, context):
            self._context = context

        def root(self):
            return self

        def affected(self, change, nodes):
            return [Affected((NAME,))] if any(node.coords is None for node in nodes) else []

        async def attributes(self):
            return Attributes(True, mtime_ns=self._context.mounted_ns, writable=False)

        async def lookup(self, name):
            if name != NAME:
                raise no_such_entry(name)
            return GeneratedFile(f"inventory/{NAME}", self._text)

        async def entries(self):
            yield NAME, False, len(await self._text()), None, False

        async def _text(self):
            return "".join([f"{path}\\n" async for path in self._below(ROOT)]).encode()

        async def _below(self, path):
            yield path
            async for _, node in self._context.hierarchy.children(path):
                if isinstance(node, GroupNode):
                    async for each in self._below(node.path):
                        yield each
                elif isinstance(node, ArrayNode):
                    yield node.path

    PLUGIN = ViewPlugin(
        "inventory", "the names of all nodes", Inventory, order=5, example=("cat inventory/nodes.txt", "which nodes there are"),
        notes=("In inventory/ nothing can be written.",), documents=(".inventory",),
    )
    ''',
    "tests/views/test_conformance.py",
    "inventory",
    """
    from tests.support.arrays import Example, store_of
    from zarrfs.daemon.view_plugins import document_names

    assert ".inventory" in document_names()
    async with tree_over(await store_of(Example((2,), (2,)))) as tree:
        assert await read(tree, "inventory/nodes.txt") == b"/\\n/a\\n"
        assert [entry[0] async for entry in tree.root.entries()][:3] == ["raw", "inventory", "chunks"]
        assert b"In inventory/ nothing" in await read(tree, "README.txt")
        assert b"cat inventory/nodes.txt" in await read(tree, "README.txt")
    """,
)

GRID = NewPlugin(
    "zarrfs.dialects.v3.grids",
    "unequal",
    "",
    source_of("unequal_chunks"),
    "",
    "",
    """
    from zarrfs.keys import Key
    from tests.support.unequal_chunks import UnequalExample

    store = MemoryStore()
    example = UnequalExample((5, 3), ((4, 1), (1, 2)))
    for key, value in example.values("a"):
        await store.set(Key(key), value)
    async with tree_over(store) as tree:
        assert (await load(tree, "npy/a.npy")).tolist() == example.elements.tolist()
    """,
)

PLUGINS = [STORE, LEDGER, CODEC, ARRAY_BYTES_CODEC, BRICK_CODEC, DIALECT, OWN_DIALECT, CONTAINER, GROUP_CONTAINER, VIEW, GRID]
WAYS = ["file", "package", "entry point"]


def offered(plugin: NewPlugin, folder: Path, way: str) -> str:
    """Put the plug-in into ``folder``; return the lines by which a new process finds it."""
    source = textwrap.dedent(plugin.source).strip() + "\n"
    folder = folder / plugin.package
    folder.mkdir(exist_ok=True)
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
    """Run a program in a new Python, which has to succeed; return its output."""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("way", WAYS)
def test_a_new_member_is_found_and_shown(way: str, tmp_path: Path) -> None:
    program = "".join(offered(plugin, tmp_path, way) for plugin in PLUGINS)
    program += "import trio\nfrom tests.support.trees import load, names, read, tree_of, tree_over, walk, write\n"
    program += "from zarrfs.stores.memory import MemoryStore\n"
    for plugin in [each for each in PLUGINS if each.shown]:
        body = textwrap.indent(textwrap.dedent(plugin.shown).strip(), "    ")
        program += f"async def show_{plugin.name}():\n{body}\ntrio.run(show_{plugin.name})\n"
    run(program)


@pytest.mark.full_length
def test_its_conformance_suite_starts_by_itself(tmp_path: Path) -> None:
    offers = "".join(offered(plugin, tmp_path, "file") for plugin in PLUGINS)
    tested = [plugin for plugin in PLUGINS if plugin.suite]
    suites = list(dict.fromkeys(plugin.suite for plugin in tested))
    chosen = " or ".join(f"({plugin.test})" for plugin in tested)
    arguments = ["-v", "-p", "no:cacheprovider", *suites, "-k", chosen]
    printed = run(f"{offers}import pytest\nraise SystemExit(pytest.main({arguments!r}))\n")
    for plugin in tested:
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
