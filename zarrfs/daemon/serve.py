"""The daemon: opens a store, mounts it, serves the kernel until unmounted, and publishes everything before it ends."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import trio

from zarrfs import registry, threads
from zarrfs.daemon import waiting_for
from zarrfs.daemon.descriptors import raise_limit
from zarrfs.daemon.detached import Detached
from zarrfs.daemon.garbage import collect_in_portions
from zarrfs.daemon.losses import Losses
from zarrfs.daemon.malloc import keep_freed_memory
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.daemon.shutdown import EVERY, PrintLine, Shutdown
from zarrfs.daemon.systemd import NOBODY, ServiceManager
from zarrfs.daemon.tasks import Tasks
from zarrfs.errors import FuseUnavailable, IntentTooNew, MountBusy, NotPublished, ZarrfsError
from zarrfs.fuse import kernel, requests
from zarrfs.fuse.connection import Connection
from zarrfs.fuse.notifier import Notifier
from zarrfs.fuse.operations import Operations
from zarrfs.fuse.session import Session
from zarrfs.fuse.translation import Ownership
from zarrfs.hierarchy.intents import Intents
from zarrfs.hierarchy.recovery import require_known
from zarrfs.hierarchy.roots import dialects
from zarrfs.hierarchy.sharded_arrays import ShardedArrays
from zarrfs.lifecycle import exit_report, mountpoint, openers
from zarrfs.lifecycle.detaching import detach
from zarrfs.lifecycle.mount_table import Mount, mount_at, mount_of
from zarrfs.lifecycle.watcher import Watcher
from zarrfs.memory import indexes
from zarrfs.options import log_lines
from zarrfs.options.config import MountConfig, options
from zarrfs.options.redact import public_url, redact
from zarrfs.printable import printable
from zarrfs.stores.base import Store
from zarrfs.stores.opening import in_time, is_unsharded, open_store
from zarrfs.transformers.deadline import DeadlineStore
from zarrfs.transformers.unsharded import UnshardedStore

log = logging.getLogger(__name__)

# The kernel's readahead for this mount: two requests of the kernel's maximum size, so that one is answered while the other is
# read. Triples sequential reads compared to the default; more does not help.
READ_AHEAD_KB = 2048
# Seconds after which a thread computing in Python yields to the one that answers the kernel; a tenth of the default.
SWITCH_INTERVAL = 0.0005
_NAMED = 20
_FAILED = "not stored"
_REFUSED = "refused, with an error to the writing program"
_WAITED = "chunks without an array"
# One READ may fetch several chunks in sequence, each within the deadline of a store operation.
_READ_DEADLINES = 2
# Seconds allowed for requests in progress when a signal ends the mount.
_MOMENT = 1.0


async def serve(
    config: MountConfig,
    ready: Callable[[], None],
    print_line: PrintLine = log.info,
    every: float = EVERY,
    manager: ServiceManager = NOBODY,
) -> int:
    """Mount ``config.store`` and serve it until unmounted, or SIGTERM or SIGINT; then publish staged data.

    ``ready()`` is called once the kernel gets answers, and ``print_line`` every ``every`` seconds while the end takes long; ``manager``
    is notified of both. Raises what prevents mounting (`StoreNotFound`, `MountpointUnusable`, `FuseUnavailable`, `UsageError`, ...), and
    at the end `NotPublished` if data could not be stored; else returns 0.
    """
    keep_freed_memory()
    raise_limit()
    sys.setswitchinterval(SWITCH_INTERVAL)
    indexes.configure(config.memory_limit)
    store = await in_time(config.timeout, config.store, lambda: open_store(config.store, config.read_only))
    try:
        if await in_time(config.timeout, config.store, lambda: is_unsharded(config.store)):
            layouts = dialects(config.dialect_choices)
            store = UnshardedStore(store, ShardedArrays(store, ttl=config.metadata_ttl, dialects=layouts))
        store.set_owner(config.uid, config.gid)
        async with trio.open_nursery() as background:
            Tasks(background).keep(_log_dropped)
            tree = await _tree(config, store, background)
            Tasks(background).keep(tree.relieve)
            # Unusable plug-ins are logged at the start, not at the first read.
            registry.plugins("zarrfs.codecs")
            collect_in_portions()
            ending = await _mounted(config, tree, background, ready, print_line, every, manager)
            ending.doing = "background tasks"
            background.cancel_scope.cancel()
        ending.doing = "the close of the store"
    finally:
        await store.aclose()
    ending.is_over()
    if tree.losses.failures:
        raise NotPublished(_unstored(tree.losses))
    if notes := _unstored(tree.losses):
        print_line(notes)
    return 0


async def _tree(config: MountConfig, store: Store, background: trio.Nursery) -> MountTree:
    """Return the tree, after recovery of interrupted operations; read-only if only a later zarrfs can recover them."""
    try:
        if store.capabilities.write and not config.read_only:
            await require_known(Intents(DeadlineStore(store, config.timeout, background)))
    except IntentTooNew as error:
        log.warning("%s: mounted read-only, interrupted operation of a later zarrfs: %s", store.url, error)
        config = dataclasses.replace(config, read_only=True)
    tree = MountTree(config, store, background)
    if tree.store.capabilities.write:
        try:
            await tree.recover()
        except ZarrfsError as error:
            log.warning("%s: recovery of interrupted operations failed: %s", store.url, error)
    return tree


async def _mounted(
    config: MountConfig,
    tree: MountTree,
    background: trio.Nursery,
    ready: Callable[[], None],
    print_line: PrintLine,
    every: float,
    manager: ServiceManager,
) -> Shutdown:
    notices = kernel.Notices()
    notifier = Notifier(notices)
    try:
        report = exit_report.begin()
    except OSError as error:
        log.warning("no exit report for umount: %s", error)
        report = None
    session, operations = _session(config, tree, notifier, report)
    # Before the mount: afterwards a look at the mountpoint is a request to this very thread.
    resolved = os.path.realpath(config.mountpoint)  # noqa: ASYNC240
    # Also before: an unhandled signal would leave a dead mount.
    ending = Shutdown(
        tree,
        config.mountpoint,
        report=report,
        print_line=print_line,
        every=every,
        patience=config.timeout,
        manager=manager,
        waiting_for=lambda: waiting_for.report(requests.under_way(session), tree.store_operations),
        # No others have a mapping that can be written to, and a reader may wait for a store that hangs.
        written_back=lambda seconds: notifier.written_back(
            {each.inode.ino for each in session.files.values() if each.writes}, seconds
        ),
    )
    serving = trio.CancelScope()

    def finish() -> None:
        """Take no more requests, and allow those in progress a moment."""
        if ending.is_serving:
            serving.deadline = min(serving.deadline, trio.current_time() + _MOMENT)
            kernel.stop()

    await background.start(ending.on_signal, finish)
    try:
        mountpoint.prepare(config.mountpoint, print_line)
        with mountpoint.held(config.mountpoint) as name:
            connection = notices.connection = _mount(operations, config, name, tree.store.capabilities.write)
    except BaseException:
        if report is not None:
            exit_report.end(report)
        raise
    ours = mount_at(resolved)
    try:
        ending.mounted()
        watcher = Watcher(ours.device) if ours is not None else None
        notifier.start()
        ending.is_bounded(lambda: ending.has_begun or (connection is not None and connection.is_gone))
    except BaseException:
        # No request was taken, and without threads or memory none can be: the mount must not stay, dead.
        kernel.close(unmount=False)
        if ours is not None:
            detach(ours, lazy=True, patience=config.timeout)
        if report is not None:
            exit_report.end(report)
        raise

    def ended() -> None:
        """Stop serving: no process waits for the answers in progress."""
        session.reads.end()
        serving.cancel()

    try:
        tasks = Tasks(background)
        tasks.keep(ending.watch)
        tasks.keep(session.reads.watch)
        background.start_soon(_announce, config, ours, ready, manager, ending)
        if connection is not None:
            tasks.keep(_ended_by, connection.gone, ended)
        if ours is not None:
            detached = Detached(
                ours.device, in_use=lambda: session.in_use, asked=lambda: session.requests.begun, announce=ending.announce
            )
            tasks.keep(_ended_by, partial(detached.unused, every), ended)
        with serving:
            await kernel.serve(lambda: connection is not None and connection.is_gone, connection, tree.observed.has_changes_now)
    finally:
        with trio.CancelScope(shield=True):
            # From here on no notices are sent, and no process waits for an answer.
            notifier.stop()
            tree.changes.ended()
            await ending.begun()
            failures = await tree.publish_all()
            ending.doing = "the release of staged data"
            await tree.staging.give_up()
            await ending.ended(redact(_listed(failures), config.store) if failures else "")
            ending.doing = "the kernel to release the mount"
            left = await _release(config, notifier, watcher, connection, ours, resolved)
    if report is not None:
        if unstored := _unstored(tree.losses):
            exit_report.write(report, exit_report.Outcome(7 if failures else 0, unstored))
        else:
            exit_report.end(report)
    if left:
        # What is lost matters more.
        if not tree.losses.failures:
            raise ZarrfsError(left, key=config.mountpoint)
        log.error("%s", left)
    return ending


def _session(config: MountConfig, tree: MountTree, notifier: Notifier, report: Path | None) -> tuple[Session, Operations]:
    """Return what answers requests on ``tree``. ``report``: see `exit_report.begin`."""

    def about() -> dict[str, object]:
        return {
            "pid": os.getpid(),
            "result": None if report is None else str(report),
            "store": public_url(config.store),
            "mountpoint": config.mountpoint,
            **{name: getattr(config, name) for name in options() if name not in ("views", "read_only")},
            "umask": f"{config.umask:03o}",
        }

    def stats() -> dict[str, object]:
        return {
            "open_handles": session.open_handles,
            "inodes": len(session.inodes),
            "read_requests": session.read_requests,
            "xattr_requests": operations.xattrs.requests,
        }

    session = Session(
        tree.root,
        notifier,
        hidden={".zarrfs": tree.control(config=about, stats=stats)},
        timeout=config.metadata_ttl,
        is_watched=lambda: tree.watched,
        changes_reported=tree.changes.slices.done,
        writable=tree.store.capabilities.write,
        free_space=tree.store.free_space,
        on_error=tree.report,
        patience=_READ_DEADLINES * config.timeout,
        is_abandoned=lambda opener, path: threads.io(openers.is_abandoned, opener, path),
        on_lost=partial(tree.losses.add, where="release"),
        is_mapped=lambda opener, path: threads.io(openers.has_mapped, opener, path, abandon_on_cancel=True),
    )
    operations = Operations(
        session, ownership=Ownership.of_this_process(config.uid, config.gid, config.umask), xattrs=config.xattrs
    )
    tree.changes.on_affected, tree.changes.on_forgotten = session.kernel_cache.changed, session.kernel_cache.forgotten
    tree.changes.on_moved = session.kernel_cache.moved
    tree.changes.slices.room = notifier.room
    return session, operations


async def _release(
    config: MountConfig, notifier: Notifier, watcher: Watcher | None, connection: Connection | None, ours: Mount | None, place: str
) -> str:
    """End the mount ``ours``, which was at ``place``, wherever it is now, and the connection to the kernel.

    Returns the reason if the mount stays, dead.
    """
    is_connected = connection is not None and not connection.is_gone
    if connection is not None:
        connection.close()
    await _let_go(notifier, watcher)
    # After a lazy umount another mount may be there.
    is_at_place = ours is not None and mount_at(place) == ours
    mounted = ours if is_at_place else None
    if not is_at_place and ours is not None and is_connected:
        # A folder above may have been renamed. (Once unmounted, another mount may have its device number.)
        mounted = mount_of(ours.device)
    # Root did not mount on a name that is still valid (`mountpoint.held`).
    by_name = is_at_place and os.geteuid() != 0
    kernel.close(unmount=by_name)
    left = ""
    if mounted is not None and not by_name:
        try:
            if mount_at(mounted.mountpoint) != mounted:
                raise MountBusy(f"{mounted.mountpoint}: unmount failed: another mount covers it", key=mounted.mountpoint)
            await threads.io(partial(detach, mounted, lazy=True, patience=config.timeout))
        except (ZarrfsError, OSError) as error:
            left = str(error)
    if watcher is not None:
        watcher.end()
    return left


async def _ended_by(event: Callable[[], Awaitable[None]], ended: Callable[[], None]) -> None:
    await event()
    ended()


async def _let_go(notifier: Notifier, watcher: Watcher | None) -> None:
    """Abort the connection if a thread waits in the kernel for an answer, which would keep this process beyond SIGKILL."""
    if not notifier.has_stopped(0) and not await threads.io(notifier.has_stopped, _MOMENT) and watcher is not None:
        log.warning("the kernel does not take a change notice: aborting the connection")
        watcher.abort()


def _mount(operations: Operations, config: MountConfig, folder: str, writable: bool) -> Connection | None:
    # Escaped for lists of mounts: the kernel escapes white space and backslashes only.
    options = {"fsname": printable(public_url(config.source or config.store)), "subtype": "zarrfs"}
    asked = {"ro": not writable, "allow_other": config.allow_other, "noexec": config.noexec}
    flags = ["nosuid", "nodev", "noatime", "default_permissions", *(flag for flag, so in asked.items() if so)]
    try:
        return kernel.mount(operations, folder, options, flags)
    except FuseUnavailable as error:
        # Foreseeable errors were checked by `zarrfs.lifecycle.mountpoint`; libfuse prints others on stderr, which the parent relays.
        raise FuseUnavailable(f"{config.mountpoint}: mount failed: {error}{mountpoint.hindrance()}") from error


def _unstored(losses: Losses) -> str:
    """Return one line about all unstored data: failures, then what is no failure; empty if there is none."""
    listed = (losses.failures, _FAILED), (losses.refused, _REFUSED), (losses.waited, _WAITED)
    return "; ".join(_listed(those, what) for those, what in listed if those)


def _listed(failures: list[tuple[str, str]], what: str = _FAILED) -> str:
    """Return one line with names and reasons of unstored data."""
    listed = "; ".join(f"{ident}: {reason}" for ident, reason in failures[:_NAMED])
    return printable(f"{what}: {listed}") + (f"; and {len(failures) - _NAMED} more" if len(failures) > _NAMED else "")


async def _announce(
    config: MountConfig, ours: Mount | None, ready: Callable[[], None], manager: ServiceManager, ending: Shutdown
) -> None:
    """Announce the mount once it has answered a request."""
    try:
        await threads.io(os.stat, config.mountpoint, abandon_on_cancel=True)
    except OSError:
        if ending.has_begun:
            # No announcement: processes that wait for it see this process end.
            return
        raise
    if ours is not None:
        # Not the device found at the path: the owner of a folder above can put another folder there, on a disk.
        await threads.io(_set_read_ahead, ours.device)
    await manager.ready(f"{public_url(config.store)} is mounted on {config.mountpoint}")
    ready()


async def _log_dropped() -> None:
    """Log periodically the numbers of suppressed log lines, also while nothing else is logged."""
    while True:
        await trio.sleep(log_lines.WINDOW)
        log_lines.log_dropped(over=log_lines.WINDOW)


def _set_read_ahead(device: str) -> None:
    path = f"/sys/class/bdi/{device}/read_ahead_kb"
    try:
        with open(path, "w") as file:
            file.write(str(READ_AHEAD_KB))
    except OSError as error:
        log.debug("%s: not set, sequential reads are slower: %s", path, error)
