"""Creation of the views of a mount from the plug-ins that its options choose."""

from __future__ import annotations

import logging

from zarrfs import registry
from zarrfs.errors import UsageError
from zarrfs.options.config import MountConfig
from zarrfs.vfs.node import Directory
from zarrfs.views.base import View, ViewContext, ViewPlugin

log = logging.getLogger(__name__)


def chosen(config: MountConfig) -> list[ViewPlugin]:
    """Return the views of the mount in the order of its folders. Raises `UsageError` for an unknown name."""
    known: dict[str, ViewPlugin] = {plugin.name: plugin for plugin in registry.plugins("zarrfs.views")}
    names = [config.view] if config.view is not None else list(config.views) or [p.name for p in known.values() if p.by_default]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"unknown view {unknown[0]!r}; the views are {', '.join(sorted(known))}")
    return sorted((known[name] for name in set(names)), key=lambda plugin: (plugin.order, plugin.name))


def built(plugin: ViewPlugin, context: ViewContext) -> tuple[View, Directory] | None:
    """Return a view and its top folder; None if a view of another distribution fails, which must not prevent the mount."""
    try:
        view = plugin.make(context)
        return view, view.root()
    except Exception as error:
        module = getattr(plugin.make, "__module__", "")
        if module.partition(".")[0] == "zarrfs":
            raise
        log.warning("view %s/ (of %s) skipped: %s: %s", plugin.name, module, type(error).__name__, error)
        return None


def document_names() -> set[str]:
    """Return the names of metadata documents in every view, mounted or not."""
    return {name for plugin in registry.plugins("zarrfs.views") for name in plugin.documents}
