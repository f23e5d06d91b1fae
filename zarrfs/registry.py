"""Plug-ins: a module or a package in the package of its kind, or an entry point of another distribution.

The packages `zarrfs.stores`, `zarrfs.codecs`, `zarrfs.dialects`, `zarrfs.dialects.v3.grids`, `zarrfs.containers` and `zarrfs.views` have
one file, or one folder, for each member. A member, module or package, has a constant ``PLUGIN`` (one object, or a tuple of them); modules
and packages without it (base classes, helpers) are not plug-ins. Another distribution joins with an entry point in the group named like
the package, whose object is that of ``PLUGIN``. A new member therefore requires no edit of another module.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

log = logging.getLogger(__name__)


@cache
def plugins(package: str) -> tuple[Any, ...]:
    """Return every plug-in object of ``package`` (for example ``"zarrfs.codecs"``), in the order of module names, entry points last.

    A member whose optional library is missing is ignored with a debug line, as its extra was not installed; one whose library is present
    and broken, with a warning. Any other import failure of a built-in member is a bug and propagates. An entry point that fails, or whose
    object is refused by ``check_plugin`` of the package's module ``base``, is ignored with a warning that names its distribution.
    """
    found: list[Any] = []
    parent = importlib.import_module(package)
    for info in sorted(pkgutil.iter_modules(parent.__path__), key=lambda info: info.name):
        try:
            module = importlib.import_module(f"{package}.{info.name}")
        except ImportError as error:
            if error.name is None or error.name.split(".")[0] == "zarrfs":
                raise
            level, what = (
                (logging.DEBUG, "is not installed") if isinstance(error, ModuleNotFoundError) else (logging.WARNING, error)
            )
            log.log(level, "%s.%s ignored: %s %s", package, info.name, error.name, what)
            continue
        found.extend(_as_tuple(getattr(module, "PLUGIN", ())))
    check = importlib.import_module(f"{package}.base").check_plugin
    for entry_point in sorted(_entry_points(tuple(sys.path)).select(group=package), key=lambda entry_point: entry_point.name):
        found.extend(_loaded(entry_point, check))
    return tuple(found)


@cache
def _entry_points(path: tuple[str, ...]) -> EntryPoints:
    """Return the entry points of all distributions in ``path``, each of which has a file to read."""
    from importlib.metadata import entry_points

    # Before Python 3.12 it is another class with the same method.
    return entry_points()  # type: ignore[return-value]


def _loaded(entry_point: EntryPoint, check: Callable[[Any], None]) -> tuple[Any, ...]:
    """Return the objects of another distribution's entry point; none if it is unusable, whatever its import raises."""
    try:
        offered = _as_tuple(entry_point.load())
        for each in offered:
            check(each)
    except (Exception, SystemExit) as error:
        name = entry_point.dist.name if entry_point.dist is not None else "an unknown distribution"
        log.warning(
            "plug-in %s (%s) of %s ignored: %s: %s",
            entry_point.name,
            entry_point.group,
            name,
            type(error).__name__,
            error,
            # One line for each, however many are broken.
            extra={"kind": entry_point.value},
        )
        log.debug("traceback:", exc_info=error)
        return ()
    return offered


def _as_tuple(offered: Any) -> tuple[Any, ...]:
    return offered if isinstance(offered, tuple) else (offered,)
