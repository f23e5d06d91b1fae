"""What becomes of an error that nobody foresaw, raised by whatever reads a document: it is that node's, and hides no other.

Documents are not trusted, and dialects raise `MetadataError` for everything that is wrong with one. Should something else come out of
one of them, or of another distribution's plug-in, the node is shown as one that cannot be used, with one line in the log.
"""

from __future__ import annotations

import logging

from zarrfs.errors import MetadataUnsupported, ZarrfsError
from zarrfs.keys import NodePath
from zarrfs.model.metadata import UnsupportedNode

log = logging.getLogger(__name__)


def reason_of(where: str, error: Exception) -> str:
    """The text of ``error``. One that is none of ours is logged, with ``where`` it happened."""
    if isinstance(error, ZarrfsError):
        return str(error)
    reason = f"it cannot be read, for an unforeseen reason: {type(error).__name__}: {error}"
    log.warning("%s: %s", where, reason, extra={"kind": type(error).__name__, "key": where})
    log.debug("%s: how it came about", where, exc_info=error)
    return reason


def unusable(path: NodePath, dialect: str, error: Exception) -> UnsupportedNode:
    """The node at ``path``, whose documents led to ``error``."""
    bad = not isinstance(error, MetadataUnsupported)
    return UnsupportedNode(path=path, dialect=dialect, reason=reason_of(path, error), bad=bad)
