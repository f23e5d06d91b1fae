"""The daemon: opens a store, mounts it, serves the kernel until it is unmounted, and leaves nothing unpublished behind."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from zarrfs import registry, threads
from zarrfs.daemon import waiting_for
from zarrfs.daemon.detached import Detached
from zarrfs.daemon.garbage import collect_in_portions
from zarrfs.daemon.losses import Losses
from zarrfs.daemon.malloc import keep_freed_memory
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.daemon.shutdown import EVERY, Say, Shutdown
from zarrfs.daemon.systemd import NOBODY, ServiceManager
from zarrfs.daemon.tasks import Tasks
from zarrfs.errors import FuseUnavailable, IntentTooNew, NotPublished, ZarrfsError
from zarrfs.fuse import kernel, requests
from zarrfs.fuse.connection import Connection
from zarrfs.fuse.notifier import Notifier
from zarrfs.fuse.operations import Operations
from zarrfs.fuse.session import Session
from zarrfs.fuse.translation import Ownership
from zarrfs.hierarchy.intents import Intents
from zarrfs.hierarchy.recovery import demand_known
from zarrfs.hierarchy.roots import dialects
from zarrfs.hierarchy.sharded_arrays import ShardedArrays
from zarrfs.lifecycle import exit_report, mountpoint, openers
from zarrfs.lifecycle.detaching import detach
from zarrfs.lifecycle.mount_table import mount_at
from zarrfs.lifecycle.watcher import Watcher
from zarrfs.options import log_lines
from zarrfs.options.config import MountConfig
from zarrfs.options.redact import public_url, redact
from zarrfs.printable import printable
from zarrfs.stores.base import Store
from zarrfs.stores.opening import open_store
from zarrfs.stores.urls import parse
from zarrfs.transformers.unsharded import UnshardedStore

log = logging.getLogger(__name__)

# The kernel's readahead for this mount: two requests of the largest size that the kernel sends, so that one is answered while the
# other is read. Three times the speed of its default for sequential reads; more is not better.
READ_AHEAD_KB = 2048
# Seconds after which a thread that computes in Python gives way to the one that answers the kernel; ten times sooner than by default.
SWITCH_INTERVAL = 0.0005
_NAMED = 20
_REFUSED = "refused, as the programs that wrote it were told"
_WAITED = "chunks without an array"
# In one READ several chunks may be got one after the other, each within the deadline of a store operation.
_READ_DEADLINES = 2
# Seconds for what is nearly done, when a signal ends the mount.
_MOMENT = 1.0


async def serve(
    config: MountConfig,
    ready: Callable[[], None],
    say: Say = log.info,
    every: float = EVERY,
    manager: ServiceManager = NOBODY,
) -> int:
    """Mount ``config.store`` and serve it until it is unmounted, or SIGTERM or SIGINT comes; then publish what is staged.

    ``ready()`` is called once the kernel gets answers, and ``say`` every so many seconds while the end takes long; ``manager`` is told of
    both. Raises what prevents mounting (`StoreNotFound`, `MountpointUnusable`, `FuseUnavailable`, `UsageError`, ...), and at the end
    `NotPublished` when something could not be stored; else gives 0.
    """
    keep_freed_memory()
    sys.setswitchinterval(SWITCH_INTERVAL)
    store = await open_store(config.store, config.read_only)
    try:
        if parse(config.store).unsharded:
            layouts = dialects(config.dialect_choices)
            store = UnshardedStore(store, ShardedArrays(store, ttl=config.metadata_ttl, dialects=layouts))
        store.set_owner(config.uid, config.gid)
        async with trio.open_nursery() as background:
            Tasks(background).keep(_tell_left_out)
            tree = await _tree(config, store, background)
            # Codec libraries are loaded by now, rather than by the first reader.
            registry.plugins("zarrfs.codecs")
            collect_in_portions()
            ending = await _mounted(config, tree, background, ready, say, every, manager)
            ending.doing = "what goes on in the background"
            background.cancel_scope.cancel()
        ending.doing = "the store to be closed"
    finally:
        await store.aclose()
    ending.is_over()
    if tree.losses.failures:
        raise NotPublished(_listed(tree.losses.failures))
    if notes := _notes(tree.losses):
        say(notes)
    return 0


async def _tree(config: MountConfig, store: Store, background: trio.Nursery) -> MountTree:
    """The tree, when what a kill has left is cleared up; read-only where only a later zarrfs could."""
    try:
        if store.capabilities.write and not config.read_only:
            await demand_known(Intents(store))
    except IntentTooNew as error:
        log.warning("%s is mounted read-only: a later zarrfs has left an operation half done: %s", store.url, error)
        config = dataclasses.replace(config, read_only=True)
    tree = MountTree(config, store, background)
    if tree.store.capabilities.write:
        try:
            await tree.recover()
        except ZarrfsError as error:
            log.warning("%s: what an earlier mount may have left half done could not be looked at: %s", store.url, error)
    return tree


async def _mounted(
    config: MountConfig,
    tree: MountTree,
    background: trio.Nursery,
    ready: Callable[[], None],
    say: Say,
    every: float,
    manager: ServiceManager,
) -> Shutdown:
    notifier = Notifier(kernel.Notices())
    try:
        words = exit_report.begin()
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
            "timeout": config.timeout,
            "memory_limit": config.memory_limit,
            "durable": config.durable,
        }

    session = Session(
        tree.root,
        notifier,
        hidden={
            ".zarrfs": tree.control(
                config=about,
                stats=lambda: {
                    "open_handles": session.open_handles,
                    "inodes": len(session.inodes),
                    "xattr_requests": operations.xattrs.requests,
                },
            )
        },
        timeout=config.metadata_ttl,
        told=lambda: tree.watched,
        settled=tree.slices.done,
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
    tree.on_affected, tree.on_forgotten = session.kernel_cache.changed, session.kernel_cache.forgotten
    tree.on_moved = session.kernel_cache.moved
    tree.slices.room = notifier.room
    # Before it is mounted: afterwards whoever looks at the mountpoint asks this very thread.
    place = os.path.realpath(config.mountpoint)  # noqa: ASYNC240
    # Before, too: a signal that nobody waits for would leave a dead mount.
    ending = Shutdown(
        tree,
        config.mountpoint,
        words=words,
        say=say,
        every=every,
        patience=config.timeout,
        manager=manager,
        waiting_for=lambda: waiting_for.report(requests.under_way(session), tree.store_operations),
    )
    serving = trio.CancelScope()

    def finish() -> None:
        """Take no more requests, and give those that are being answered a moment."""
        if ending.is_serving:
            serving.deadline = min(serving.deadline, trio.current_time() + _MOMENT)
            kernel.stop()

    await background.start(ending.on_signal, finish)
    try:
        mountpoint.prepare(config.mountpoint)
        with mountpoint.held(config.mountpoint) as name:
            connection = _mount(operations, config, name, tree.store.capabilities.write)
    except BaseException:
        if words is not None:
            exit_report.end(words)
        raise
    ending.mounted()
    ours = mount_at(place)
    watcher = Watcher(ours.device) if ours is not None else None
    notifier.start()
    ending.is_bounded(lambda: ending.has_begun or (connection is not None and connection.is_gone))

    def ended() -> None:
        """Serve no longer: nobody waits for the answers that are still being made."""
        session.reads.end()
        serving.cancel()

    try:
        tasks = Tasks(background)
        tasks.keep(ending.watch)
        tasks.keep(session.reads.watch)
        background.start_soon(_announce, config, ready, manager, ending)
        if connection is not None:
            tasks.keep(_ended_by, connection.gone, ended)
        if ours is not None:
            detached = Detached(
                ours.device, in_use=lambda: session.in_use, asked=lambda: session.requests.begun, say=ending.announce
            )
            tasks.keep(_ended_by, partial(detached.unused, every), ended)
        with serving:
            await kernel.serve(lambda: connection is not None and connection.is_gone)
    finally:
        with trio.CancelScope(shield=True):
            # From here on nobody is told, and nobody waits for an answer.
            notifier.stop()
            tree.ended()
            await ending.begun()
            failures = await tree.publish_all()
            ending.doing = "what could not be stored to be taken back"
            await tree.staging.give_up()
            await ending.ended(redact(_listed(failures), config.store) if failures else "")
            ending.doing = "the kernel to let go of the mount"
            if connection is not None:
                connection.close()
            await _let_go(notifier, watcher)
            # After a lazy umount something else may be mounted there by now.
            mounted = ours if ours is not None and mount_at(place) == ours else None
            # Root did not mount on a name that is still good (`mountpoint.held`).
            kernel.close(unmount=mounted is not None and os.geteuid() != 0)
            if mounted is not None and os.geteuid() == 0:
                await threads.io(partial(detach, mounted, lazy=True, patience=config.timeout))
            if watcher is not None:
                watcher.end()
    if words is not None:
        if failures:
            exit_report.write(words, exit_report.Outcome(7, _listed(failures)))
        elif notes := _notes(tree.losses):
            exit_report.write(words, exit_report.Outcome(0, notes))
        else:
            exit_report.end(words)
    return ending


async def _ended_by(event: Callable[[], Awaitable[None]], ended: Callable[[], None]) -> None:
    await event()
    ended()


async def _let_go(notifier: Notifier, watcher: Watcher | None) -> None:
    """A thread that waits in the kernel for an answer of ours keeps the connection, and this process beyond SIGKILL."""
    if not notifier.has_stopped(0) and not await threads.io(notifier.has_stopped, _MOMENT) and watcher is not None:
        log.warning("the kernel does not take a change notice: the connection is aborted")
        watcher.abort()


def _mount(operations: Operations, config: MountConfig, place: str, writable: bool) -> Connection | None:
    # Whoever lists mounts sees it as it is; the kernel escapes white space and backslashes alone.
    options = {"fsname": printable(public_url(config.source or config.store)), "subtype": "zarrfs"}
    asked = {"ro": not writable, "allow_other": config.allow_other, "noexec": config.noexec}
    flags = ["nosuid", "nodev", "noatime", "default_permissions", *(flag for flag, so in asked.items() if so)]
    try:
        return kernel.mount(operations, place, options, flags)
    except FuseUnavailable as error:
        # What can be foreseen was checked by `zarrfs.lifecycle.mountpoint`; libfuse tells the rest on stderr, which the parent relays.
        raise FuseUnavailable(f"{config.mountpoint} could not be mounted: {error}") from error


def _notes(losses: Losses) -> str:
    """One line for what was not stored and is no failure; empty where there is none."""
    listed = (losses.refused, _REFUSED), (losses.waited, _WAITED)
    return "; ".join(_listed(those, what) for those, what in listed if those)


def _listed(failures: list[tuple[str, str]], what: str = "not stored") -> str:
    """One line that names what was not stored, and why."""
    # A file that failed several times is named once, with its last reason.
    last = dict(failures)
    listed = "; ".join(f"{ident}: {reason}" for ident, reason in list(last.items())[:_NAMED])
    return printable(f"{what}: {listed}") + (f"; and {len(last) - _NAMED} more" if len(last) > _NAMED else "")


async def _announce(config: MountConfig, ready: Callable[[], None], manager: ServiceManager, ending: Shutdown) -> None:
    """Ask the kernel, which asks us: when the answer comes the mount works."""
    try:
        status = await threads.io(os.stat, config.mountpoint, abandon_on_cancel=True)
    except OSError:
        if ending.has_begun:
            # There will be no answer, and whoever waits for one sees this process end.
            return
        raise
    await threads.io(_set_read_ahead, status.st_dev)
    await manager.ready(f"{public_url(config.store)} is mounted on {config.mountpoint}")
    ready()


async def _tell_left_out() -> None:
    """Tell which lines the log was spared, also while nothing else is logged."""
    while True:
        await trio.sleep(log_lines.WINDOW)
        log_lines.log_dropped(over=log_lines.WINDOW)


def _set_read_ahead(device: int) -> None:
    path = f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb"
    try:
        with open(path, "w") as file:
            file.write(str(READ_AHEAD_KB))
    except OSError as error:
        log.debug("%s cannot be set, sequential reads will be slower: %s", path, error)
