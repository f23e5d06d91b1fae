"""The view of `tests.support.bundle_container.Bundle`."""

from __future__ import annotations

from tests.support.bundle_container import Bundle
from zarrfs.views.group_file.view import plugin_of

PLUGIN = plugin_of(Bundle())
