"""A folder of a store that is known wherever it is."""

from __future__ import annotations

import abc

from zarrfs.keys import Prefix


class Anchor(abc.ABC):
    """A folder as it was when `Store.anchor` was asked for it, wherever it is. What it holds of the backend is given up with it."""

    @property
    @abc.abstractmethod
    def holds(self) -> bool:
        """Whether it can tell: a backend may give it up for others."""

    @abc.abstractmethod
    def is_at(self, prefix: Prefix) -> bool:
        """Whether it is what lies there; True where it can no longer tell. Does not wait."""

    @abc.abstractmethod
    def generation(self, name: str) -> str | None:
        """That of the value ``name`` in it; None where there is none, or it can no longer tell. Does not wait."""

    @property
    @abc.abstractmethod
    def is_erased(self) -> bool:
        """Whether it is known that it is nowhere any more."""

    @abc.abstractmethod
    def place(self) -> Prefix | None:
        """Where in the store it is by now; None where that is not known, or it is elsewhere. Does not wait."""


class Nowhere(Anchor):
    """A folder that was not there."""

    @property
    def holds(self) -> bool:
        return True

    def is_at(self, prefix: Prefix) -> bool:
        return False

    def generation(self, name: str) -> str | None:
        return None

    @property
    def is_erased(self) -> bool:
        return True

    def place(self) -> Prefix | None:
        return None
