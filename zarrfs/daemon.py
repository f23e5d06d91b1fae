"""The daemon: opens a store, mounts it, serves the kernel until it is unmounted, and leaves nothing unpublished behind."""

from __future__ import annotations

import errno
import logging
import os
import signal
from collections.abc import Callable

import pyfuse3
import trio

from zarrfs import last_words, threads
from zarrfs.config import MountConfig
from zarrfs.errors import FuseUnavailable, NotPublished
from zarrfs.fuse.notifier import Notifier
from zarrfs.fuse.operations import Operations
from zarrfs.redact import public_url
from zarrfs.stores.opening import open_store
from zarrfs.tree import MountTree

log = logging.getLogger(__name__)

# The kernel's readahead for this mount. Three times the speed of its default for sequential reads; more is not better.
READ_AHEAD_KB = 1024


async def serve(config: MountConfig, ready: Callable[[], None]) -> int:
    """Mount ``config.store`` and serve it until it is unmounted, or SIGTERM or SIGINT comes; then publish what is staged.

    ``ready()`` is called once the kernel gets answers. Raises what prevents mounting (`StoreNotFound`, `MountpointUnusable`,
    `FuseUnavailable`, `UsageError`, ...), and at the end `NotPublished` when something could not be stored; else gives 0.
    """
    store = await open_store(config.store, config.read_only)
    try:
        async with trio.open_nursery() as background:
            tree = MountTree(config, store, background)
            await _mounted(config, tree, background, ready)
            background.cancel_scope.cancel()
    finally:
        await store.aclose()
    if tree.failures:
        listed = "; ".join(f"{ident}: {reason}" for ident, reason in tree.failures[:20])
        more = f"; and {len(tree.failures) - 20} more" if len(tree.failures) > 20 else ""
        raise NotPublished(f"not stored: {listed}{more}")
    return 0


async def _mounted(config: MountConfig, tree: MountTree, background: trio.Nursery, ready: Callable[[], None]) -> None:
    notifier = Notifier()
    try:
        words = last_words.begin()
    except OSError as error:
        log.warning("umount will not learn how this mount ended: %s", error)
        words = None

    def about() -> dict[str, object]:
        return {
            "pid": os.getpid(),
            "result": None if words is None else str(words),
            "store": public_url(config.store),
            "mountpoint": config.mountpoint,
            "metadata_ttl": config.metadata_ttl,
            "memory_limit": config.memory_limit,
            "durable": config.durable,
        }

    operations = Operations(
        tree.root,
        notifier,
        hidden={
            ".zarrfs": tree.control(
                config=about, stats=lambda: {"open_handles": operations.open_handles, "inodes": len(operations.inodes)}
            )
        },
        timeout=config.metadata_ttl,
        writable=tree.store.writable,
        free_space=tree.store.free_space,
        report=tree.report,
    )
    tree.on_affected = operations.changed
    _mount(operations, config, tree.store.writable)
    notifier.start()
    try:
        background.start_soon(_terminate_on_signal, tree)
        background.start_soon(_announce, config.mountpoint, ready)
        await pyfuse3.main()
    finally:
        with trio.CancelScope(shield=True):
            notifier.stop()
            failures = await tree.publish_all()
            pyfuse3.close(unmount=True)
    if words is not None:
        if failures:
            listed = "\n".join(f"{ident}: {reason}" for ident, reason in failures)
            last_words.write(words, last_words.Outcome(7, f"not stored:\n{listed}"))
        else:
            last_words.end(words)


def _mount(operations: Operations, config: MountConfig, writable: bool) -> None:
    if not os.path.exists("/dev/fuse"):
        raise FuseUnavailable(
            "there is no /dev/fuse: load the kernel module with `modprobe fuse`, or give the container the device"
        )
    name = public_url(config.store).replace("\\", "\\\\").replace(",", "\\,")
    options = {f"fsname={name}", "subtype=zarrfs", "nosuid", "nodev", "default_permissions"}
    if not writable:
        options.add("ro")
    if config.allow_other:
        options.add("allow_other")
    try:
        pyfuse3.init(operations, config.mountpoint, options)
    except RuntimeError as error:
        raise FuseUnavailable(f"{config.mountpoint} could not be mounted: {_why(config)} ({error})") from error


def _why(config: MountConfig) -> str:
    """What libfuse wrote only to stderr, as far as it can be found out."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            return "/dev/fuse may not be opened: be root, or let users at it (mode 0666, the default of most distributions)"
        return f"/dev/fuse: {error.strerror}"
    if config.allow_other and os.geteuid():
        return "allow_other needs the line user_allow_other in /etc/fuse.conf"
    return "see the lines above"


async def _terminate_on_signal(tree: MountTree) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("%s: publishing what is staged and unmounting", signal.Signals(number).name)
            await tree.publish_all()
            pyfuse3.terminate()
            return


async def _announce(mountpoint: str, ready: Callable[[], None]) -> None:
    """Ask the kernel, which asks us: when the answer comes the mount works."""
    status = await threads.io(os.stat, mountpoint)
    await threads.io(_set_read_ahead, status.st_dev)
    ready()


def _set_read_ahead(device: int) -> None:
    path = f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb"
    try:
        with open(path, "w") as file:
            file.write(str(READ_AHEAD_KB))
    except OSError as error:
        log.debug("%s cannot be set, sequential reads will be slower: %s", path, error)
