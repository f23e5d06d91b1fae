"""Plug-ins: a module file in its package, or an entry point of another distribution.

A plug-in package (`zarrfs.stores`, `zarrfs.codecs`, `zarrfs.dialects`, `zarrfs.containers`, `zarrfs.views`) holds one file for each
member. A member module says what it offers in a module constant ``PLUGIN`` (one object, or a tuple of them); modules without it
(base classes, helpers) are no plug-ins. Another distribution joins with an entry point in the group named like the package, whose
object is what ``PLUGIN`` would be. Adding a member therefore edits no second module.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import pkgutil
from functools import cache
from typing import Any

log = logging.getLogger(__name__)


@cache
def plugins(package: str) -> tuple[Any, ...]:
    """Every plug-in object of ``package`` (for example ``"zarrfs.codecs"``), in the order of module names, entry points last.

    A member whose optional library is missing is left out with a debug line: it is the extra that was not installed. Any other
    failure to import a member of our own is a bug and propagates; a foreign entry point that fails is reported and left out.
    """
    found: list[Any] = []
    parent = importlib.import_module(package)
    for info in sorted(pkgutil.iter_modules(parent.__path__), key=lambda info: info.name):
        try:
            module = importlib.import_module(f"{package}.{info.name}")
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] == "zarrfs":
                raise
            log.debug("%s.%s is left out: %s is not installed", package, info.name, error.name)
            continue
        found.extend(_as_tuple(getattr(module, "PLUGIN", ())))
    for entry_point in sorted(importlib.metadata.entry_points(group=package), key=lambda entry_point: entry_point.name):
        try:
            found.extend(_as_tuple(entry_point.load()))
        except Exception:
            log.exception("the plug-in %r of group %s cannot be loaded", entry_point.name, package)
    return tuple(found)


def _as_tuple(offered: Any) -> tuple[Any, ...]:
    return offered if isinstance(offered, tuple) else (offered,)
