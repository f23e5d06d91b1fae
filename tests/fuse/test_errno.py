"""The table of errno, over the whole tree of errors."""

from __future__ import annotations

import errno
import inspect

import pytest

from zarrfs import errors
from zarrfs.fuse.errno import ERRNO, QUIET, errno_of

ALL = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, Exception)]


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_every_error_has_an_errno_of_its_own(error: type[errors.ZarrfsError]) -> None:
    assert issubclass(error, errors.ZarrfsError)
    assert error in ERRNO, "say in the table what the kernel is told"
    assert ERRNO[error] in errno.errorcode
    assert errno_of(error("message", key="k")) == ERRNO[error]


def test_the_table_names_nothing_else() -> None:
    assert set(ERRNO) == set(ALL)


def test_a_class_that_is_not_in_the_table_is_told_as_its_nearest_ancestor() -> None:
    class Special(errors.StoreFull):
        pass

    assert errno_of(Special("message")) == errno.ENOSPC


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (errors.ChunkDecodeError, errno.EIO),
        (errors.ChecksumMismatch, errno.EIO),
        (errors.ChunkSizeMismatch, errno.EINVAL),
        (errors.ContentInvalid, errno.EINVAL),
        (errors.MetadataError, errno.EINVAL),
        (errors.FileTooLarge, errno.EFBIG),
        (errors.StoreFull, errno.ENOSPC),
        (errors.ValueTooLong, errno.EFBIG),
        (errors.StoreReadOnly, errno.EROFS),
        (errors.StoreTimeout, errno.ETIMEDOUT),
        (errors.StaleEntry, errno.ESTALE),
        (errors.AcrossViews, errno.EXDEV),
    ],
)
def test_what_users_rely_on(error: type[errors.ZarrfsError], number: int) -> None:
    assert errno_of(error("message")) == number


def test_what_may_mean_a_loss_is_logged() -> None:
    for error in ALL:
        if issubclass(error, errors.ChunkError | errors.MetadataError) or ERRNO[error] in (errno.EIO, errno.ENOSPC, errno.ESTALE):
            assert ERRNO[error] not in QUIET
