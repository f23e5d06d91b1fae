"""The test suites of other projects, at pinned versions, and the views in which they run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Suite:
    """One suite.

    ``requirements``: what pip installs into an environment of its own. ``source``: the source distribution that has the tests; None if
    the installed package does. ``module``: a module beside this one with classes of tests of that package. ``arguments``: of pytest, in
    the folder of the source or module. ``places``: where the temporary folders are, as a view of a mount; each is compared with the same
    run on a local file system.
    """

    name: str
    requirements: tuple[str, ...]
    arguments: tuple[str, ...]
    places: tuple[str, ...]
    source: str | None = None
    module: str | None = None


_PYTEST = ("pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis")

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
        module="fsspec_local.py",
    ),
    Suite(
        "anndata", ("anndata[test] == 0.12.*", *_PYTEST), ("tests/test_readwrite.py", "-k", "zarr"), ("raw",), "anndata == 0.12.*"
    ),
    Suite("ome-zarr", ("ome-zarr == 0.12.*", *_PYTEST), ("tests",), ("raw",), "ome-zarr == 0.12.*"),
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

LOST: tuple[Lost, ...] = (
    Lost("xarray", "zarr3", r"\[2\b", _V2),
    Lost("xarray", "zarr3", r"test_shard_encoding", _SHARDS),
    Lost(
        "xarray",
        "zarr3",
        r"test_roundtrip_None_variable",
        "the array is called `__values__`: in Zarr 3 names with `__` are reserved",
    ),
    Lost(
        "zarr 3",
        "raw",
        r"test_multiprocessing\[.*forkserver",
        "forkserver binds a Unix socket in the temporary folder (SEMANTICS.md)",
    ),
    Lost("zarr 3", "zarr3", r"^tests/test_store/|zip|test_no_overwrite_|test_group_members|\.txt", _NAMES),
    Lost("zarr 3", "zarr3", r"test_v2\.py|zarr2|\b2-local|test_creation_from_other_zarr_format", _V2),
    Lost("zarr 3", "zarr3", r"sharding|test_order\w*\[True|test_transpose\[local-True|shards", _SHARDS),
    Lost("zarr 3", "zarr3", r"test_from_array\[.*-local\]", _OVER),
)
