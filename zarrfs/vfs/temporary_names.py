"""Names of temporary files, for views that cannot hold arbitrary names.

Programs write a value under another name and rename it. Each of these patterns is used by programs that were observed:

    .*                  editors (vim ``.x.swp``, emacs ``.#x``), rsync ``.x.Ab12Cd``, GLib ``.goutputstream-...``
    *~                  backups of vim, nano, emacs and ``cp --backup``
    *.partial           zarr-python 2 and 3: ``<stem>.<32 hex digits>.partial``
    *.part, *.tmp       downloads, atomic writers
    tmp*                Python's ``tempfile``
    sed??????           ``sed -i``
    XX??????            ``perl -i``
    *.gawk.??????       ``gawk -i inplace``
    #*#                 emacs, auto-save
    *.__lock            tensorstore
    32 hex digits       ``uuid4().hex``
    *UUID               cpp-zarr: ``<chunk><UUID>``, with the dashes of a UUID
    digits alone        vim's ``4913``, its test for a writable folder

patch(1) writes ``NAME.o??????`` beside the file NAME that it edits: such a name is temporary only if there is such a file (`edited`).

A name that the view can represent (a chunk, a document, an array's file) is never temporary; the view checks that first. The documents of
another view are not temporary either, although some begin with a dot: mv(1) of an array from that view would succeed, and lose the array.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

_OF_PROGRAMS = re.compile(
    r"\..*|.*~|.*\.(?:partial|part|tmp|__lock)|tmp.*|(?:sed|XX|.*\.gawk\.).{6}|#.*#|[0-9a-f]{32}|[0-9]+"
    r"|.*[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    re.DOTALL,
)


_OF_PATCH = re.compile(r"(.+)\.o[0-9A-Za-z]{6}", re.DOTALL)


def edited(name: str) -> str | None:
    """Return the name of the file that patch(1) edits if it creates ``name``; None if it would not create such a name."""
    match = _OF_PATCH.fullmatch(name)
    return match[1] if match is not None else None


class TemporaryNames:
    """The table above without ``documents``, and ``more``: patterns as in fnmatch(3), case-sensitive."""

    def __init__(self, more: Iterable[str] = (), documents: Iterable[str] = ()) -> None:
        self._documents = frozenset(documents)
        self._more = [re.compile(fnmatch.translate(pattern)) for pattern in more]

    def __contains__(self, name: str) -> bool:
        is_of_program = name not in self._documents and _OF_PROGRAMS.fullmatch(name) is not None
        return is_of_program or any(each.match(name) for each in self._more)
