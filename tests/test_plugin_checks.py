"""An unusable plug-in of another distribution is left out, with a log line that names its distribution and its defect."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from zarrfs import registry

STORE = "from zarrfs.stores.base import StorePlugin\n"
VIEW = "from zarrfs.views.base import ViewPlugin\n"
CONTAINER = "from zarrfs.containers.base import Container\n"
CODEC = "from zarrfs.codecs.base import BytesBytesCodec\n"

UNUSABLE = {
    "view of no kind": ("zarrfs.views", "PLUGIN = 'raw'", "a str is no ViewPlugin"),
    "view in a folder of a folder": ("zarrfs.views", f"{VIEW}PLUGIN = ViewPlugin('a/b', 'about', print)", "a file name"),
    "view above the mount": ("zarrfs.views", f"{VIEW}PLUGIN = ViewPlugin('..', 'about', print)", "a file name"),
    "view without a name": ("zarrfs.views", f"{VIEW}PLUGIN = ViewPlugin('', 'about', print)", "a file name"),
    "view that says nothing": ("zarrfs.views", f"{VIEW}PLUGIN = ViewPlugin('a', None, print)", "its about must be a string"),
    "view with one document": ("zarrfs.views", f"{VIEW}PLUGIN = ViewPlugin('a', 'about', print, documents=(3,))", "strings"),
    "view that makes nothing": ("zarrfs.views", f"{VIEW}PLUGIN = ViewPlugin('a', 'about', None)", "callable"),
    "store of no kind": ("zarrfs.stores", "PLUGIN = object()", "a object is no StorePlugin"),
    "store with a number for a scheme": ("zarrfs.stores", f"{STORE}PLUGIN = StorePlugin('a', (1,), print)", "have to be strings"),
    "store that nothing opens": ("zarrfs.stores", f"{STORE}PLUGIN = StorePlugin('a', ('a',), 'open')", "have to be callable"),
    "store whose claim is no function": (
        "zarrfs.stores",
        f"{STORE}PLUGIN = StorePlugin('a', ('a',), print, claims='.a')",
        "have to be callable",
    ),
    "container of no kind": ("zarrfs.containers", "PLUGIN = object", "a type is no Container and no GroupContainer"),
    "container without a suffix": (
        "zarrfs.containers",
        f"{CONTAINER}class A(Container):\n    name = 'a'\n    layout = None\nPLUGIN = A()",
        "must be parts of file names",
    ),
    "dialect of no kind": ("zarrfs.dialects", "PLUGIN = 2", "a int is no Dialect"),
    "codec of no kind": ("zarrfs.codecs", "PLUGIN = int", "no subclass of one of the three kinds of Codec"),
    "codec that does nothing": ("zarrfs.codecs", f"{CODEC}class A(BytesBytesCodec): pass\nPLUGIN = A", "A lacks decode"),
    "dialect whose choices are a list": (
        "zarrfs.dialects",
        "from zarrfs.dialects.base import Dialect\n"
        "class A(Dialect):\n    name = 'a'\n    choices = []\n"
        "A.__abstractmethods__ = frozenset()\nPLUGIN = A()",
        "a mapping",
    ),
}


@pytest.mark.parametrize(("package", "source", "reason"), UNUSABLE.values(), ids=UNUSABLE)
def test_one_that_cannot_be_used_is_left_out_and_told_of(
    package: str,
    source: str,
    reason: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    expect_logs: Callable[[str], None],
) -> None:
    module = "theirs_" + re.sub("[^a-z]", "_", request.node.callspec.id)
    (tmp_path / f"{module}.py").write_text(source + "\n")
    info = tmp_path / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{package}]\noffered = {module}:PLUGIN\n")
    before = registry.plugins(package)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    expect_logs("ignored")
    assert registry.plugins.__wrapped__(package) == before
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told.startswith(f"plug-in offered ({package}) of {module} ignored: TypeError: ") and reason in told
