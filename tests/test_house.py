"""The architecture: imports point down, each library has one home, files stay small.

Every import counts: inside functions, and for the type checker alone, too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.mutants import MUTANTS, Mutant
from zarrfs import registry
from zarrfs.codecs.base import Codec

ROOT = Path(__file__).parents[1] / "zarrfs"

# The house from the roof down: the imports permitted to each package or top-level module, besides itself and `EVERYWHERE`.
HOUSE = """
    __main__        command lifecycle
    command         daemon lifecycle reports options stores.opening stores.urls
    reports         hierarchy arrays transformers stores model options memory
    daemon          everything below
    lifecycle       options stores.own_files
    options         memory stores.own_files
    fuse            vfs in_flight memory
    views           vfs hierarchy arrays containers dialects model stores.base memory threads durability registry
    vfs             memory threads durability
    hierarchy       arrays dialects codecs model stores.base stores.locks stores.moving threads durability fences registry
    transformers    arrays model stores.base stores.locks stores.moving memory threads fences in_flight
    arrays          codecs model stores.base stores.locks memory threads
    stores          memory threads durability registry
    containers      model
    dialects        codecs model registry
    codecs          model memory threads registry
    model           -
    memory          threads
    registry        -
    threads         -
    durability      -
    in_flight       -
    fences          -
"""
# Users of the store interface may also use the types of its parameters and results.
STORE_INTERFACE = {
    "stores.anchor",
    "stores.answers_now",
    "stores.capabilities",
    "stores.change",
    "stores.expecting",
    "stores.presupposing",
    "stores.values",
}
EVERYWHERE = {"", "buffers", "errors", "keys", "printable"}
# Packages of plug-ins, each of which is one module or one package in them.
PLUGGED = ("codecs", "containers", "dialects", "stores", "views")


def layers(text: str) -> dict[str, set[str]]:
    """Return the permitted imports of each row of a house, and of modules for everywhere."""
    rows = [line.split() for line in text.strip().splitlines()]
    units = [unit for unit, *_ in rows]
    house = {unit: set(below) - {"-"} for unit, *below in rows}
    for unit, *below in rows:
        if below == ["everything", "below"]:
            house[unit] = set(units[units.index(unit) + 1 :])
    for below in house.values():
        if "stores.base" in below:
            below |= STORE_INTERFACE
    return house | {unit: set() for unit in EVERYWHERE}


LAYERS = layers(HOUSE)

# Libraries of which a mount may need none: they are imported in the functions that use them.
LATE = {
    "numcodecs",
    "google_crc32c",
    "zstandard",
    "isal",
    "msgpack",
    "imagecodecs",
    "inotify_simple",
    "lmdb",
    "ml_dtypes",
    "sdnotify",
}

# The layer between pyfuse3 and the rest of fuse/, which does not depend on pyfuse3.
ADAPTER = {"fuse.kernel", "fuse.operations", "fuse.listings", "fuse.xattrs", "fuse.translation", "fuse.guard", "fuse.workers"}

# Modules of other distributions, and of the standard library, that have one home.
HOMES = {
    "pyfuse3": ADAPTER,
    "click": {"command"},
    "rich": {"command", "reports"},
    "numcodecs": {"codecs"},
    "google_crc32c": {"codecs"},
    "zstandard": {"codecs"},
    "isal": {"codecs"},
    "msgpack": {"codecs"},
    "imagecodecs": {"codecs"},
    "inotify_simple": {"stores.folder.watch"},
    "lmdb": {"stores.lmdb"},
    "sqlite3": {"stores.sqlite"},
    "dbm": set(),  # its libraries trust the files that they open
    "ml_dtypes": {"model"},
    "sdnotify": {"daemon.systemd"},
    # Only fuse/ chooses errnos; the others translate errors of the operating system.
    "errno": {
        "fuse",
        "stores",
        "daemon.serve",
        "lifecycle",
        "command.mount_helper",
        "vfs.spill_buffer",
        "memory.spill",
        "memory.written_out",
    },
    "ctypes": {
        "memory.written_out",
        "daemon.malloc",
        "codecs",
        "stores",
        "lifecycle.umount2",
        "lifecycle.as_owner",
        "lifecycle.watcher",
    },
    "mmap": {"memory", "arrays.slab_pool", "arrays.spill_file", "arrays.dirty_chunks"},
    "threading": {
        "memory.written_out",
        "memory.disposal",
        "fuse.notice_queue",
        "daemon.overdue",
        "daemon.malloc",
        "codecs",
        "stores",
        "lifecycle.unmounting",
        "lifecycle.background",
    },
    "subprocess": {"lifecycle", "command", "daemon.shutdown"},
    "importlib": {"registry", "codecs"},
    "pickle": set(),
    "marshal": set(),
    "shelve": set(),
    "asyncio": set(),
    "zarr": set(),  # independent judge in tests
    "yaml": set(),
}

PURE = {"buffers", "model", "codecs", "dialects", "containers", "keys", "errors"}
IMPURE = {"trio", "os", "io.open", "pathlib", "socket", "time", "tempfile", "shutil", "logging.handlers"}

MAX_LINES = 450


@dataclass(frozen=True)
class Module:
    """A module of zarrfs. ``name`` without the leading ``zarrfs.``, empty for the package itself."""

    name: str
    path: Path

    @property
    def unit(self) -> str:
        """The package, or the module of the top level, that it belongs to."""
        return self.name.partition(".")[0]

    @property
    def tree(self) -> ast.Module:
        return parsed(self.path)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def name_of(path: Path) -> str:
    return ".".join(part for part in path.relative_to(ROOT).with_suffix("").parts if part != "__init__")


MODULES = {name_of(path): Module(name_of(path), path) for path in sorted(ROOT.rglob("*.py"))}
every_module = pytest.mark.parametrize("module", [pytest.param(each, id=each.name or "zarrfs") for each in MODULES.values()])


def imported(module: Module) -> Iterator[str]:
    """Yield absolute names of everything that a module imports: modules, and names imported from them."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.name} imports relatively: {ast.unparse(node)}"
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def inner(module: Module) -> set[str]:
    """Return the modules of zarrfs that a module imports."""
    found = set()
    for name in imported(module):
        if name == "zarrfs" or name.startswith("zarrfs."):
            name = name.removeprefix("zarrfs").removeprefix(".")
            while name and name not in MODULES:
                name = name.rpartition(".")[0]
            found.add(name)
    return found


def under(name: str, prefixes: set[str]) -> bool:
    """Return True if ``name`` is one of ``prefixes`` or below one."""
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes if prefix) or name in prefixes


def test_every_module_has_its_place() -> None:
    assert {module.unit for module in MODULES.values()} == set(LAYERS), "a new package or module needs a row in HOUSE"


def test_few_modules_are_loose() -> None:
    loose = [name for name, module in MODULES.items() if "." not in name and module.path.name != "__init__.py"]
    assert len(loose) <= 10, loose


def test_a_plug_in_package_offers_its_plug_in_alone() -> None:
    for name, module in MODULES.items():
        package, _, member = name.partition(".")
        if package in PLUGGED and member and "." not in member and module.path.name == "__init__.py":
            assert all(under(each, {name}) for each in inner(module)), name


@every_module
def test_imports_point_down(module: Module) -> None:
    allowed = LAYERS[module.unit] | EVERYWHERE | {module.unit}
    up = sorted(name for name in inner(module) if not under(name, allowed))
    assert not up, f"{module.name} imports {up}, which lies above it"


def test_layers_are_layers() -> None:
    """The table itself contains no cycle."""
    seen: set[str] = set()

    def visit(unit: str, path: tuple[str, ...]) -> None:
        assert unit not in path, " -> ".join((*path, unit))
        if unit not in seen:
            for below in {each.partition(".")[0] for each in LAYERS[unit]}:
                visit(below, (*path, unit))
            seen.add(unit)

    for unit in LAYERS:
        visit(unit, ())


def test_no_two_modules_need_each_other() -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, "a circle: " + " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for below in inner(MODULES[name]) - {name}:
                visit(below, (*path, name))
            done.add(name)

    for name in MODULES:
        visit(name, ())


def test_each_library_has_one_home() -> None:
    for module in MODULES.values():
        for name in imported(module):
            home = HOMES.get(name.partition(".")[0])
            assert home is None or under(module.name, home), f"{module.name} imports {name}"


def at_import(tree: ast.AST) -> Iterator[ast.stmt]:
    """The import statements that run with the module: those outside functions, and not for the type checker alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_for_the_type_checker(node):
            yield from at_import(node)


def is_for_the_type_checker(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def test_libraries_of_plug_ins_are_imported_where_they_are_used() -> None:
    for module in MODULES.values():
        for node in at_import(module.tree):
            names = (
                [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in getattr(node, "names", ())]
            )
            assert not {name.partition(".")[0] for name in names} & LATE, f"{module.name}, line {node.lineno}"


def test_submodules_are_imported_by_from() -> None:
    # `import a.b` reads the attribute b of a, which is set a moment after another thread may find a.b: `from a import b` is sure.
    for module in MODULES.values():
        for node in ast.walk(module.tree):
            for alias in node.names if isinstance(node, ast.Import) and node not in module.tree.body else ():
                assert "." not in alias.name or alias.asname, f"{module.name}, line {node.lineno}"


def test_a_codec_names_the_libraries_that_its_module_imports() -> None:
    # Where blosc and the deflate codecs do without one, they say so themselves.
    optional = {"imagecodecs", "isal"}
    for codec in registry.plugins("zarrfs.codecs"):
        module = MODULES.get(codec.__module__.removeprefix("zarrfs."))
        if module is not None:
            imports = {name.partition(".")[0] for name in imported(module)} & LATE - optional
            named = {name.partition(".")[0] for each in vars(sys.modules[codec.__module__]).values() for name in libraries_of(each)}
            assert imports == named, module.name


def libraries_of(each: object) -> tuple[str, ...]:
    return each.libraries if isinstance(each, type) and issubclass(each, Codec) else ()


def test_what_the_kernel_knows_is_apart_from_pyfuse3() -> None:
    for module in MODULES.values():
        if module.unit == "fuse" and module.name not in ADAPTER:
            assert not inner(module) & ADAPTER, f"{module.name} is not apart"


def test_the_core_is_pure() -> None:
    for module in MODULES.values():
        if module.unit in PURE:
            assert not {name for name in imported(module) if under(name, IMPURE)}
            waits = [node for node in ast.walk(module.tree) if isinstance(node, ast.AsyncFunctionDef | ast.Await)]
            assert not waits, f"{module.name} waits in line {waits[0].lineno}"


def test_threads_are_entered_in_one_module() -> None:
    for module in MODULES.values():
        text = module.path.read_text()
        if module.name != "threads":
            for way in ("to_thread", "from_thread", "CapacityLimiter"):
                assert way not in text, f"{module.name} uses {way}"


def test_nothing_is_evaluated() -> None:
    for module in MODULES.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec", "compile", "__import__"}, f"{module.name}, line {node.lineno}"
            for keyword in node.keywords if isinstance(node, ast.Call) else ():
                assert keyword.arg != "allow_pickle" or (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)


def test_files_are_small() -> None:
    for module in MODULES.values():
        lines = len(module.path.read_text().splitlines())
        assert lines <= MAX_LINES, f"{module.name} has {lines} lines"


def test_real_mounts_are_tried_only_where_there_can_be_one() -> None:
    for path in (ROOT.parent / "tests" / "mount").glob("test_*.py"):
        assert "mark.fuse" in path.read_text(), path.name


def test_the_page_where_do_i_change_names_what_is_there() -> None:
    page = (ROOT.parent / "docs" / "ARCHITECTURE.md").read_text()
    rows = re.search(r"## Where do I change …\?\n\n.*?\n((?:\|.*\n)+)", page)
    assert rows is not None
    places = re.findall(r"`([\w/]+\.py)(?:: (\w+))?`", rows[1])
    assert len(places) > 30
    for path, name in places:
        assert "NAME" in path or re.search(rf"(\b(class|def) {name}\b|^ *{name}\b.*=)", (ROOT / path).read_text(), re.M), (
            path,
            name,
        )


def test_every_module_says_what_it_is_for() -> None:
    for module in MODULES.values():
        assert ast.get_docstring(module.tree), module.name


def test_the_test_sees_imports_wherever_they_are(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from zarrfs.fuse import operations\n"
        "def f():\n    import zarrfs.views.raw.view\n    from zarrfs.vfs.staging import StagedFile\n"
    )
    assert inner(Module("model.x", path)) == {"fuse.operations", "views.raw.view", "vfs.staging"}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.partition(":")[0])
def test_each_fault_of_the_mutants_can_be_inserted(mutant: Mutant) -> None:
    """`tests.mutants` takes hours and runs rarely: what it replaces may move meanwhile."""
    if not (ROOT.parent / ".git").exists():
        pytest.skip("a copy of the checkout, which may have one of them")
    assert (ROOT / mutant.path).read_text().count(mutant.right) == 1
