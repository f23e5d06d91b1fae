"""The identity of a folder of a store, independent of its name."""

from __future__ import annotations

import abc

from zarrfs.keys import Prefix


class Anchor(abc.ABC):
    """The folder that `Store.anchor` found, wherever it is now. Backend resources it holds are released with it."""

    @property
    @abc.abstractmethod
    def holds(self) -> bool:
        """True if the identity is still known: a backend may release it in favour of others."""

    @abc.abstractmethod
    def is_at(self, prefix: Prefix) -> bool:
        """Return True if ``prefix`` is this folder, or the identity is no longer known. Does not wait."""

    @abc.abstractmethod
    def generation(self, name: str) -> str | None:
        """Return the generation of the value ``name`` in it; None if absent or no longer known. Does not wait."""

    @property
    @abc.abstractmethod
    def is_erased(self) -> bool:
        """True if the folder is known to exist nowhere any more."""

    @abc.abstractmethod
    def prefix(self) -> Prefix | None:
        """Return its present prefix in the store; None if unknown, or outside the store. Does not wait."""


class AbsentFolder(Anchor):
    """The anchor of a folder that did not exist. Where it was before, and whether it still exists there, is unknown."""

    @property
    def holds(self) -> bool:
        return True

    def is_at(self, prefix: Prefix) -> bool:
        return False

    def generation(self, name: str) -> str | None:
        return None

    @property
    def is_erased(self) -> bool:
        return False

    def prefix(self) -> Prefix | None:
        return None
