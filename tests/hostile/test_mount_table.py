"""The mount table contains names chosen by users: none can be taken for another mount, or prevent other mounts."""

from __future__ import annotations

import sys

import pytest

from tests.support.namespace import run_in_namespace
from tests.support.users import REPOSITORY

ASKS = f"""
import os, sys
sys.path.insert(0, {str(REPOSITORY)!r})
from zarrfs.lifecycle.mount_table import mount_at
from zarrfs.stores.folder.file_systems import is_local
there = mount_at(sys.argv[1])
print(there and there.fstype, is_local(os.open(sys.argv[1], os.O_RDONLY)))
"""


@pytest.mark.parametrize("name", [r"\x9b", r"a\rb", r"\u2028", r"a\x85b", r"a\x1cb", r"\x0b"])
def test_names_that_are_no_text_or_several_lines(name: str) -> None:
    script = f"""
    mkdir "$NAMESPACE/w" && mount -t tmpfs w "$NAMESPACE/w"
    cd "$NAMESPACE/w" && mkdir m $'{name}'
    asks() {{ {sys.executable} -P -c "$ASKS" "$NAMESPACE/w/m"; }}
    # As the source of a mount can be: after a carriage return it would be where mountpoints stand.
    mount -t ramfs "$NAMESPACE/w/m" $'{name}'
    asks
    mount -t proc none m
    asks
    umount m $'{name}'
    cd / && umount "$NAMESPACE/w"
    """
    done = run_in_namespace(script, env={"ASKS": ASKS})
    assert (done.returncode, done.stdout.splitlines()) == (0, ["None True", "proc False"]), done.stderr
