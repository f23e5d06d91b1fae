"""How a folder is recognised and opened as a store."""

from __future__ import annotations

import os
import tempfile

from zarrfs import threads
from zarrfs.errors import StoreAccessDenied, StoreError, StoreNotFound
from zarrfs.stores.base import Store, StorePlugin
from zarrfs.stores.folder.store import FolderStore


async def _open(path: str, read_only: bool) -> Store:
    try:
        return await threads.io(lambda: FolderStore(path, read_only=read_only), abandon_on_cancel=True)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreNotFound(f"there is no folder {path}", key=path) from error
    except PermissionError as error:
        raise StoreAccessDenied(f"the folder {path} may not be read", key=path) from error
    except OSError as error:
        # Such as ENOTCONN within a mount whose daemon was killed: the kernel may know its folders still.
        raise StoreError(f"the folder {path} cannot be opened: {error.strerror}", key=path) from error


def _example(below: str) -> str:
    return tempfile.mkdtemp(prefix="folder-", dir=below)


PLUGIN = StorePlugin("folder", ("file",), _open, claims=os.path.isdir, priority=1000, example=_example, suffixes=("zarr", "n5"))
