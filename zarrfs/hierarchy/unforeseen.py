"""Unforeseen errors of document readers: each is confined to its node, and hides no other.

Documents are not trusted, and dialects raise `MetadataError` for everything that is wrong with one. Should another exception come out of
a dialect, or of another distribution's plug-in, the node is shown as unsupported, with one line in the log.
"""

from __future__ import annotations

import logging

from zarrfs.errors import UNSUPPORTED, NodeInDoubt, ZarrfsError
from zarrfs.keys import NodePath
from zarrfs.model.metadata import Node, UnsupportedNode

log = logging.getLogger(__name__)


def reason_of(where: str, error: Exception) -> str:
    """Return the text of ``error``. An error of another class than `ZarrfsError` is logged, with ``where`` it happened."""
    if isinstance(error, ZarrfsError):
        return str(error)
    reason = f"read failed: unforeseen error: {type(error).__name__}: {error}"
    log.warning("%s: %s", where, reason, extra={"kind": type(error).__name__, "key": where})
    log.debug("%s: traceback", where, exc_info=error)
    return reason


def unusable(path: NodePath, dialect: str, error: Exception) -> UnsupportedNode:
    """Return the node at ``path``, whose documents raised ``error``."""
    bad = not isinstance(error, UNSUPPORTED)
    return UnsupportedNode(path=path, dialect=dialect, reason=reason_of(path, error), bad=bad)


def require_readable(node: Node | None) -> None:
    """Raise `NodeInDoubt` if the documents of ``node`` are bad, as while another program writes them in place: of what kind it is, and
    whether it is the one that the caller means, is unknown."""
    if isinstance(node, UnsupportedNode) and node.bad:
        raise NodeInDoubt(f"{node.path}: its documents are unreadable: {node.reason}", key=node.path)
