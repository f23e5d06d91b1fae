"""The test suites of other projects, at pinned versions, and the views in which they run."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Suite:
    """One suite.

    ``requirements``: what pip installs into an environment of its own. ``source``: the source distribution that has the tests; None if
    the installed package does. ``modules``: modules beside this one with tests of that package. ``arguments``: of pytest, in
    the folder of the source or module. ``places``: where the temporary folders are, as a view of a mount; each is compared with the same
    run on a local file system. ``inside``: the working directory of the tests is there, too. ``title``: the name in the table of
    results, where it is not the first of the requirements.
    """

    name: str
    requirements: tuple[str, ...]
    arguments: tuple[str, ...]
    places: tuple[str, ...]
    source: str | None = None
    modules: tuple[str, ...] = ()
    inside: bool = False
    title: str | None = None


_PYTEST = ("pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis")

_CPYTHON = """
    bufio bz2 compileall configparser csv dbm dbm_dumb fcntl file file_eintr filecmp fileinput fileio genericpath glob gzip io largefile
    linecache lzma mailbox mmap netrc os pathlib pkgutil plistlib posix posixpath py_compile runpy shelve shutil sqlite3 stat tarfile
    tempfile threadedtempfile unicode_file_functions univnewlines zipapp zipfile zipimport
"""
"""CPython's modules of tests of files and of what is stored in them."""

SUITES = (
    Suite(
        "xarray",
        ("xarray == 2026.9.*", "zarr == 3.1.6", "dask", *_PYTEST),
        ("--pyargs", "xarray.tests.test_backends", "-k", "TestZarr and not InMemory"),
        ("raw", "zarr3"),
    ),
    Suite(
        "zarr 3",
        ("zarr == 3.1.6", "pytest-benchmark", "numpydoc", *_PYTEST),
        ("tests", "--ignore=tests/benchmarks", "--ignore=tests/test_docs.py", "--ignore=tests/test_examples.py", "-m", "not gpu"),
        ("raw", "zarr3"),
        "zarr == 3.1.6",
    ),
    Suite(
        "zarr 2",
        ("zarr == 2.18.7", "numcodecs < 0.16", "numpy < 2.3", "fsspec", "lmdb", "msgpack", *_PYTEST),
        ("--pyargs", "zarr.tests.test_core", "zarr.tests.test_creation", "zarr.tests.test_hierarchy", "zarr.tests.test_storage"),
        # Nearly all of its arrays are compressed, which the documents in chunks/ cannot be.
        ("raw",),
    ),
    Suite(
        "fsspec",
        ("fsspec == 2026.9.*", "cloudpickle", *_PYTEST),
        ("fsspec_local.py",),
        ("raw",),
        modules=("fsspec_local.py",),
    ),
    Suite(
        "anndata", ("anndata[test] == 0.12.*", *_PYTEST), ("tests/test_readwrite.py", "-k", "zarr"), ("raw",), "anndata == 0.12.*"
    ),
    Suite("ome-zarr", ("ome-zarr == 0.12.*", *_PYTEST), ("tests",), ("raw",), "ome-zarr == 0.12.*"),
    Suite(
        "tensorstore",
        ("tensorstore == 0.1.86", "numpy", "ml_dtypes", *_PYTEST),
        ("tensorstore_roundtrips.py", "tensorstore_keys.py"),
        ("raw", "zarr3", "chunks"),
        modules=("tensorstore_roundtrips.py", "tensorstore_keys.py"),
    ),
    # Of the Python that runs this, which needs its package `test` (Debian: libpython3-testsuite). Its classes are unittest's: others that
    # pytest finds by their names are helpers.
    Suite(
        "cpython",
        _PYTEST,
        (
            "--pyargs",
            *(f"test.test_{name}" for name in _CPYTHON.split()),
            f"--rootdir={Path(sysconfig.get_path('stdlib'), 'test')}",
            *("-o", "python_classes=-", "-o", "python_functions=-"),
        ),
        ("raw",),
        inside=True,
        title="CPython 3.11.7",
    ),
)


@dataclass(frozen=True, slots=True)
class Lost:
    """Tests that pass on a local file system, but not in a view, by design.

    ``tests``: a regular expression that is found in their names.
    """

    suite: str
    place: str
    tests: str
    reason: str


_NAMES = "zarr3/ has documents and chunks of nodes; the test writes files of other names"
_V2 = "zarr3/ has documents of Zarr 3 only; the test writes those of Zarr 2"
_SHARDS = "arrays have no shards in zarr3/ (SEMANTICS.md): the document of a sharded array is refused"
_OVER = "the test stores an array over a group that holds nodes, which is refused"
_ANY_NAMES = "views of hierarchies have documents and chunks of nodes; the test writes files of other names"
_NODE_STAYS = "the test removes a document, but not its folder: the node stays, with its grid (SEMANTICS.md)"
_FORKSERVER = "forkserver binds a Unix socket in the temporary folder (SEMANTICS.md)"
_LINKS = "there are no links (SEMANTICS.md)"
_SPECIAL = "there are no FIFOs and no sockets (SEMANTICS.md)"
_MODES = "chmod and umask change nothing (SEMANTICS.md)"

LOST: tuple[Lost, ...] = (
    Lost("xarray", "zarr3", r"\[2\b", _V2),
    Lost("xarray", "zarr3", r"test_shard_encoding", _SHARDS),
    Lost(
        "xarray",
        "zarr3",
        r"test_roundtrip_None_variable",
        "the array is called `__values__`: in Zarr 3 names with `__` are reserved",
    ),
    Lost("zarr 3", "raw", r"test_multiprocessing\[.*forkserver", _FORKSERVER),
    Lost("zarr 3", "zarr3", r"test_multiprocessing\[.*forkserver", _FORKSERVER),
    Lost("zarr 3", "zarr3", r"^tests/test_store/|zip|test_no_overwrite_|test_group_members|\.txt", _NAMES),
    Lost(
        "zarr 3",
        "zarr3",
        r"test_v2\.py|zarr2|\b2-local|test_creation_from_other_zarr_format|test_v2_and_v3\w+\[local|unspecified_version\[2",
        _V2,
    ),
    Lost(
        "zarr 3",
        "zarr3",
        r"test_group_getitem_consolidated\[local",
        "a consolidated copy comes from the documents (SEMANTICS.md): a group in it has no copy of its own, not even an empty one",
    ),
    Lost("zarr 3", "zarr3", r"sharding|test_order\w*\[True|test_transpose\[local-True|shards", _SHARDS),
    Lost("zarr 3", "zarr3", r"test_from_array\[.*-local\]", _OVER),
    Lost("tensorstore", "zarr3", r"^tensorstore_keys", _ANY_NAMES),
    Lost("tensorstore", "zarr3", r"test_zarr[\[_]|[\[-]zarr\]", _V2),
    Lost("tensorstore", "zarr3", r"shard", _SHARDS),
    Lost("tensorstore", "zarr3", r"test_delete_existing", _NODE_STAYS),
    Lost("tensorstore", "chunks", r"^tensorstore_keys", _ANY_NAMES),
    Lost("tensorstore", "chunks", r"zarr3|shard", "chunks/ has documents of Zarr 2 only; the test writes those of Zarr 3"),
    Lost(
        "tensorstore",
        "chunks",
        r"TestCompressors|order_f|big_endian|test_zarr_separator\[/",
        "documents in chunks/ describe decoded chunks: in C order, little-endian, with dots between the indices (SEMANTICS.md)",
    ),
    Lost("tensorstore", "chunks", r"bfloat16", "Zarr 2 has no such type; tensorstore adds it"),
    Lost("tensorstore", "chunks", r"test_delete_existing", _NODE_STAYS),
    Lost(
        "cpython",
        "raw",
        r"test_(compileall|py_compile)\.py.*_(symlink_destination|symlink_loop|overwrite_symlinks|duplicated_levels|recompilation)$",
        _LINKS,
    ),
    Lost(
        "cpython",
        "raw",
        r"_on_(sym)?link$|walk_symlink|realpath_(?!curdir|pardir|invalid)|ismount_symlinks|GlobTests::test_(glob_|broken_|self)\w*link",
        _LINKS,
    ),
    Lost(
        "cpython",
        "raw",
        r"test_os\.py::(LinkTests|NonLocal|ReadlinkTests::test_(bytes|pathlike)|TestScandir::test_(attr|broken))",
        _LINKS,
    ),
    Lost(
        "cpython", "raw", r"PathTest::test_(complex_symlinks|iterdir_symlink|stat_no_follow_symlinks$|rglob_symlink_loop)", _LINKS
    ),
    Lost(
        "cpython",
        "raw",
        r"PathTest::test_((hard|sym)?link_to|lstat|readlink|resolve_(common|dot|loop)|glob_(long_symlink|permissions))$",
        _LINKS,
    ),
    Lost("cpython", "raw", r"test_shutil\.py.*(_symlink|_link_to_itself)|test_(tempfile|stat)\.py.*_(sym)?link", _LINKS),
    Lost("cpython", "raw", r"test_posix\.py.*(test_(read|sym)?link_dir_fd|spawnp$)", _LINKS),
    Lost("cpython", "raw", r"test_tarfile\.py.*(extract_hardlink|extractall_symlinks|link_size|HardlinkTest)", _LINKS),
    Lost("cpython", "raw", r"(is|test)_(fifo|socket)(_true|_dir_fd)?$|mkfifo|named_pipe|Filters::test_pipe$", _SPECIAL),
    Lost("cpython", "raw", r"PathTest::test_(chmod|stat$|mkdir_parents|open_mode|touch_mode)", _MODES),
    Lost("cpython", "raw", r"test_(stat|os|tempfile)\.py.*test_(directory|mode|file_mode|exist_ok_s_isgid_directory)$", _MODES),
    Lost("cpython", "raw", r"creation_mode|readonly_files|permissions_after_flush|NetrcTestCase::test_security", _MODES),
    Lost("cpython", "raw", r"shebang_is_executable|test_extract(_directory|all)$", _MODES),
    Lost("cpython", "raw", r"TestWhich\w*::test_(absolute|basic|relative|environ_path($|_cwd|_missing))", _MODES),
    Lost("cpython", "raw", r"(Chown|test_posix\.py::PosixTester::).*_[fl]?chown", "chown changes nothing (SEMANTICS.md)"),
    Lost("cpython", "raw", r"ExtendedAttribute|xattr", "keys have no extended attributes (SEMANTICS.md)"),
    Lost(
        "cpython",
        "raw",
        r"UtimeTests::test_utime(_by|_dir|_fd|_nofollow|$)|TestMaildir::test_clean$",
        "the access time equals the modification time (SEMANTICS.md)",
    ),
)
