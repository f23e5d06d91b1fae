"""Command line: mount, umount, info, check, install, uninstall.

Nothing heavy is imported until a command runs, so that ``--help`` and ``--version`` answer at once. An error is one line on stderr, with
advice, and an exit code from one table; ``--log-level debug`` adds a traceback.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from zarrfs import __version__
from zarrfs.command.answering import check_before, located, may_hang, start
from zarrfs.command.exit_codes import EXIT_CODES, INTERRUPTED, end, ended, log_cause, outcome_of, print_line
from zarrfs.command.parser import Argument, Option, Program
from zarrfs.errors import UsageError
from zarrfs.options.config import MountConfig, mountpoint_of, options, resolve
from zarrfs.printable import printable

if TYPE_CHECKING:
    from zarrfs.command.install import Step
    from zarrfs.reports.findings import Report

log = logging.getLogger("zarrfs")

F = TypeVar("F", bound=Callable[..., Any])

_EPILOG = """
Exit codes: 0 ok, 1 failure, 2 usage, 3 no such store, 4 not allowed, 5 mountpoint unusable, 6 FUSE unavailable, 7 data not stored at
unmount.
"""
_MOUNT_EPILOG = """
Values: DIALECT is v3, v2, v1, v0, v3_2022[:text] or v3_2019. CHUNKS is auto (as zarr-python chooses), none (one chunk) or a shape. CODECS
is auto (by dialect), none or a chain such as blosc:cname=lz4:clevel=5+crc32c. SEPARATOR auto is by dialect. SHARDS is none or chunks
along each dimension (v3 and v3_2022 only). PATTERN applies in chunks/, zarr3/ and npy/. D.C=V: see docs/SEMANTICS.md. --shard-delay 0
stores shards at every close. Lists are separated by ',', in -o by ':'.

Default log file: stderr in the foreground, else one file for each mountpoint in /var/log/zarrfs (root) or $XDG_STATE_HOME/zarrfs.

Every option is also an option of -o (`-o metadata_ttl=5`), an environment variable (ZARRFS_METADATA_TTL) and a key of the --config file;
the first of these that has a value wins.
"""


def run(arguments: Sequence[str]) -> int:
    """Run one command line (without the program's name) and return its exit code. Errors are printed here only."""
    code = ended(lambda: _parsed(arguments), arguments)
    return code if arguments else EXIT_CODES[UsageError]


def _parsed(arguments: Sequence[str]) -> object:
    try:
        return program.main(list(arguments) or ["--help"], prog_name="zarrfs", standalone_mode=False)
    except click.Abort as error:
        raise KeyboardInterrupt from error
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "zarrfs"
        raise UsageError(f"{' '.join(error.format_message().split()).rstrip('.')}; see `{command} --help`") from error


# --- commands -------------------------------------------------------------------------------------------------------------------


@click.group(cls=Program, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="zarrfs %(version)s", help="Print the version and exit")
def program() -> None:
    """Mount a Zarr store as a directory."""


_mount_options = click.option(
    "-o", "mount_options", metavar="OPT[,OPT]...", multiple=True, help=r"Options as for mount(8); '\,' is a comma in a value"
)
_config_file = click.option("--config", "config_file", metavar="FILE", help="TOML file of options")
_store = click.argument("store", cls=Argument, metavar="STORE", about="Path or URL of the store")
_json = click.option("--json", "as_json", is_flag=True, help="Print a JSON document")


def _shown(default: Any, octal: bool) -> str | None:
    """Return a default as help shows it; None for an option without a value."""
    match default:
        case None | False | ():
            return None
        case True:
            return "on"
        case int() if octal:
            return f"{default:03o}"
        case int() if default >= 1 << 20:
            return f"{default >> 20}MiB"
        case float():
            return f"{default:g}"
        case _:
            return str(default)


def _check_given(mountpoint: str) -> None:
    """Raise `UsageError` for an empty argument: in a script, an unset variable, and not the working directory."""
    if not mountpoint:
        raise UsageError("no mountpoint given: expected a path")


def _each_option(command: F) -> F:
    """Add an option for each row of the option table; click lists what is added last first."""
    defaults = MountConfig(store="")
    for name, option in reversed(options().items()):
        dashed = name.replace("_", "-")
        shown = None if option.computed else _shown(getattr(defaults, name), option.octal)
        declarations = [name, f"--{dashed}/--no-{dashed}" if option.flag else f"--{dashed}", *filter(None, [option.short])]
        # An absent option is None, for any default: lesser sources are then consulted.
        command = click.option(
            *declarations,
            cls=Option,
            group=option.group,
            is_flag=option.flag,
            default=None,
            metavar=option.metavar or None,
            help=option.help if shown is None else f"{option.help} [default: {shown}]",
        )(command)
    return command


@program.command(epilog=_MOUNT_EPILOG)
# Optional, because the TOML file may name them.
@click.argument("store", cls=Argument, metavar="STORE", required=False, about="Path or URL of the store")
@click.argument("mountpoint", cls=Argument, metavar="MOUNTPOINT", required=False, about="Empty folder")
@_mount_options
@_config_file
@_each_option
def mount(
    store: str | None, mountpoint: str | None, mount_options: Sequence[str], config_file: str | None, **flags: bool | str | None
) -> int:
    """Mount STORE on MOUNTPOINT; return once it is usable.

    Missing arguments are read from the --config file (store = "...", mountpoint = "...").
    """
    if mountpoint is not None:
        _check_given(mountpoint)
    config = resolve(store, mountpoint, flags=flags, mount_options=mount_options, config_file=config_file)
    try:
        return _mount(config)
    except Exception as error:  # noqa: BLE001 (each has a line and an exit code)
        # `run` hides the secrets of the arguments only, and a store named by a file is in none of them.
        log_cause(logging.DEBUG, error, [config.store])
        return end(outcome_of(error, [config.store]))


@program.command()
@click.argument("mountpoint", cls=Argument, metavar="MOUNTPOINT", required=False, about="Mountpoint of a zarrfs mount")
@click.option("--lazy", is_flag=True, help="Detach even if in use; open files are stored at close")
@click.option("--config", "config_file", metavar="FILE", help="TOML file that names the mountpoint")
def umount(mountpoint: str | None, lazy: bool, config_file: str | None) -> int:
    """Unmount MOUNTPOINT; return once everything is stored.

    Progress is printed while storing takes long; if the mount is in use, the programs that use it are listed.
    """
    from zarrfs.lifecycle import unmounting

    path = mountpoint_of(config_file) if mountpoint is None else mountpoint
    _check_given(path)
    return end(unmounting.unmount(path, lazy=lazy, print_line=print_line))


@program.command()
@_store
@click.argument(
    "node", cls=Argument, metavar="NODE", required=False, about="Describe this node and those below; reads shard indexes"
)
@_json
@_mount_options
@_config_file
def info(store: str, node: str | None, as_json: bool, mount_options: Sequence[str], config_file: str | None) -> int:
    """Describe the nodes of STORE.

    One line for each node: layout, shape, data type, chunks, shards, codecs, stored and raw bytes, and the numbers of its attributes and
    quirks (deviations of its producer from the specification). These are shown in full for NODE, and for a store of one node. --json
    gives everything of all nodes, with null for what is unknown.
    """
    config = located(resolve(store, mount_options=mount_options, config_file=config_file))
    return may_hang(config, lambda: _info(config, node, as_json))


def _info(config: MountConfig, node: str | None, as_json: bool) -> int:
    from zarrfs.daemon import garbage

    garbage.collect_nothing()
    import json

    from zarrfs.lifecycle import interrupts
    from zarrfs.options import log_file
    from zarrfs.options.redact import public_url
    from zarrfs.reports import progress
    from zarrfs.reports.info import describe, describe_each
    from zarrfs.reports.info_text import InfoTree

    log_file.configure(config.log_level, config.log_file)

    async def in_json() -> None:
        with progress.Bar() as bar:
            # Only for a node named by the caller: a shard index costs one request.
            description = await describe(config, node or "/", indexes=node is not None, on_progress=bar.show)
        print(json.dumps(description, indent=2, allow_nan=False))

    async def as_tree() -> None:
        console = progress.console_of(sys.stdout)
        tree = InfoTree(console, public_url(config.store), whole=node is not None)
        # Lines are printed above the bar if both are on one terminal.
        with progress.Bar(console if console.is_terminal else None) as bar:
            await describe_each(config, node or "/", tree.add, indexes=node is not None, on_progress=bar.show)

    garbage.collect_in_portions()
    interrupts.run(in_json if as_json else as_tree)
    return 0


@program.command()
@_store
@click.argument("node", cls=Argument, metavar="NODE", default="/", about="Check this node and those below")
@_json
@click.option("--repair", is_flag=True, help="First complete or undo operations interrupted by a kill")
@_mount_options
@_config_file
def check(store: str, node: str, as_json: bool, repair: bool, mount_options: Sequence[str], config_file: str | None) -> int:
    """Read and decode every chunk of STORE; list the bad ones.

    Exit code 0: every chunk was decoded. 1: a chunk is bad or could not be checked, or an operation is incomplete.
    """
    # Unsupported chunks count as not checked: `zarrfs check a && rm -r b` relies on the whole of a, and programs that test archives
    # (unzip -t, 7z t) fail for unknown methods. The two kinds are listed apart.
    config = located(resolve(store, mount_options=mount_options, config_file=config_file))
    return may_hang(config, lambda: _check(config, node, as_json, repair))


def _check(config: MountConfig, node: str, as_json: bool, repair: bool) -> int:
    from zarrfs.daemon import garbage

    garbage.collect_nothing()
    import json

    from zarrfs.lifecycle import interrupts
    from zarrfs.options import log_file
    from zarrfs.reports import check as checking
    from zarrfs.reports import check_text, progress

    log_file.configure(config.log_level, config.log_file)

    async def checked() -> Report:
        with check_text.Bar() as bar:
            return await checking.check(config, node, bar.update, repairs=repair)

    garbage.collect_in_portions()
    report = interrupts.run(checked)
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        progress.console_of(sys.stdout).print(check_text.render(report))
    if not report.complete:
        return INTERRUPTED
    return 1 if report.bad.count or report.unchecked.count or report.steps.count else 0


_what = click.argument(
    "what", cls=Argument, metavar="mount-helper", type=click.Choice(["mount-helper"]), about="Helpers of mount(8), in /sbin"
)
_dry_run = click.option("--dry-run", is_flag=True, help="Print the commands, run none")


@program.command()
@_what
@_dry_run
def install(what: str, dry_run: bool) -> int:
    """Install the file system type zarrfs for mount(8), umount(8) and /etc/fstab."""
    from zarrfs.command import install as installing

    commands = installing.commands()
    if (writable := installing.others_who_decide(commands)) is not None:
        print_line(f"warning: {writable}: writable by users other than root: they can change what root runs at a mount")
    return _do(installing.to_install(commands), dry_run, f"{commands / 'zarrfs'} install {what}")


@program.command()
@_what
@_dry_run
def uninstall(what: str, dry_run: bool) -> int:
    """Remove the links of `zarrfs install`."""
    from zarrfs.command import install as installing

    return _do(installing.to_uninstall(), dry_run, f"{installing.commands() / 'zarrfs'} uninstall {what}")


def _do(steps: list[Step], dry_run: bool, again: str) -> int:
    from zarrfs.command import install as installing

    if not dry_run:
        installing.do(steps, again)
    for step in steps:
        print(printable(str(step)))
    if not steps:
        print("nothing to do")
    return 0


# --- helpers --------------------------------------------------------------------------------------------------------------------


def _mount(config: MountConfig) -> int:
    """Mount as configured, in the foreground or in the background."""
    from zarrfs.command.serving import serve

    config = located(config)
    replaces_dead = check_before(config)
    return serve(config) if config.foreground else end(start(config, replaces_dead, print_line))
