"""Command line: mount, umount, info, check, install, uninstall.

Nothing heavy is imported until a command runs, so that ``--help`` and ``--version`` answer at once. An error is one line on stderr, with
advice, and an exit code from one table; ``--log-level debug`` adds a traceback.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from zarrfs import __version__
from zarrfs.command.exit_codes import EXIT_CODES, INTERRUPTED, end, ended, log_cause, outcome_of, print_line
from zarrfs.errors import UsageError
from zarrfs.options.config import MountConfig, mountpoint_of, options, resolve
from zarrfs.printable import printable

if TYPE_CHECKING:
    from zarrfs.command.install import Step
    from zarrfs.reports.findings import Report

log = logging.getLogger("zarrfs")

app = typer.Typer(
    name="zarrfs",
    help="Mount a Zarr store as a directory.",
    epilog="Exit codes: 0 ok, 1 failure, 2 usage, 3 no such store, 4 not allowed, 5 mountpoint unusable, 6 FUSE unavailable, "
    "7 data not stored at unmount.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def run(arguments: Sequence[str]) -> int:
    """Run one command line (without the program's name) and return its exit code. Errors are printed here only."""
    code = ended(lambda: _parsed(arguments), arguments)
    return code if arguments else EXIT_CODES[UsageError]


def _parsed(arguments: Sequence[str]) -> object:
    try:
        return app(list(arguments) or ["--help"], prog_name="zarrfs", standalone_mode=False)
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    except Exception as error:
        if not hasattr(error, "format_message"):  # the parser's own; versions of Typer have it in two modules
            raise
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "zarrfs"
        raise UsageError(f"{' '.join(error.format_message().split()).rstrip('.')}; see `{command} --help`") from error


# --- commands -------------------------------------------------------------------------------------------------------------------

_Store = Annotated[str, typer.Argument(metavar="STORE", show_default=False, help="Path or URL of the store")]
_MountOptions = Annotated[
    list[str] | None,
    typer.Option("-o", metavar="OPT[,OPT]...", help=r"Options as for mount(8); '\,' is a comma in a value", show_default=False),
]
_ConfigFile = Annotated[str | None, typer.Option("--config", metavar="FILE", help="TOML file of options", show_default=False)]
# Optional, because the TOML file may name them.
_StoreIfAny = Annotated[str | None, typer.Argument(metavar="STORE", show_default=False, help="Path or URL of the store")]
_MountpointIfAny = Annotated[str | None, typer.Argument(metavar="MOUNTPOINT", show_default=False, help="Empty folder")]


def _print_version(asked: bool) -> None:
    if asked:
        print(f"zarrfs {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit")
    ] = False,
) -> None:
    """Options of the program itself."""


class _Grouped(TyperCommand):
    """Lists its options in groups, in plain text: Typer's own groups need rich, which takes longer to import than help may take."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[Any]] = {"Arguments": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                is_argument = parameter.param_type_name == "argument"
                name = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or "General"
                groups.setdefault(name, []).append(record)
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)


@app.command(
    cls=_Grouped,
    epilog="Values: DIALECT is v3, v2, v1, v0, v3_2022[:text] or v3_2019. CHUNKS is auto (as zarr-python chooses), none (one chunk) or a "
    "shape. CODECS is auto (by dialect), none or a chain such as blosc:cname=lz4:clevel=5+crc32c. SEPARATOR auto is by dialect. SHARDS "
    "is none or chunks along each dimension (v3 and v3_2022 only). PATTERN applies in chunks/, zarr3/ and npy/. D.C=V: see "
    "docs/SEMANTICS.md. --shard-delay 0 stores shards at every close. Lists are separated by ',', in -o by ':'.\n\n"
    "Default log file: stderr in the foreground, else one file for each mountpoint in /var/log/zarrfs (root) or "
    "$XDG_STATE_HOME/zarrfs.\n\n"
    "Every option is also an option of -o (`-o metadata_ttl=5`), an environment variable (ZARRFS_METADATA_TTL) and a key of the "
    "--config file; the first of these that has a value wins.",
)
def mount(
    store: str | None,
    mountpoint: str | None,
    mount_options: list[str] | None,
    config_file: str | None,
    **flags: bool | str | None,
) -> int:
    """Mount STORE on MOUNTPOINT; return once it is usable.

    Missing arguments are read from the --config file (store = "...", mountpoint = "...").
    """
    config = resolve(store, mountpoint, flags=flags, mount_options=mount_options or (), config_file=config_file)
    try:
        return _mount(config)
    except Exception as error:  # noqa: BLE001 (each has a line and an exit code)
        # `run` hides the secrets of the arguments only, and a store named by a file is in none of them.
        log_cause(logging.DEBUG, error, [config.store])
        return end(outcome_of(error, [config.store]))


def _mount_signature() -> inspect.Signature:
    """Return the signature that Typer reads the command's options from: fixed parameters, and one for each row of the option table."""
    parameters = [
        inspect.Parameter("store", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=_StoreIfAny),
        inspect.Parameter("mountpoint", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=_MountpointIfAny),
        inspect.Parameter("mount_options", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_MountOptions),
        inspect.Parameter("config_file", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_ConfigFile),
    ]
    defaults = MountConfig(store="")
    for name, option in options().items():
        dashed = name.replace("_", "-")
        shown = None if option.computed else _shown(getattr(defaults, name), option.octal)
        help_text = option.help if shown is None else f"{option.help} [default: {shown}]"
        declarations = [f"--{dashed}/--no-{dashed}" if option.flag else f"--{dashed}", *([option.short] if option.short else [])]
        # An absent option is None, for any default: lesser sources are then consulted.
        declared = typer.Option(
            *declarations, metavar=option.metavar or None, help=help_text, show_default=False, rich_help_panel=option.group
        )
        annotation = Annotated[bool | None, declared] if option.flag else Annotated[str | None, declared]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    return inspect.Signature(parameters, return_annotation=int)


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


_signature = _mount_signature()
mount.__signature__ = _signature  # type: ignore[attr-defined]
mount.__annotations__ = {name: parameter.annotation for name, parameter in _signature.parameters.items()}


@app.command()
def umount(
    mountpoint: Annotated[
        str | None, typer.Argument(metavar="MOUNTPOINT", show_default=False, help="Mountpoint of a zarrfs mount")
    ] = None,
    lazy: Annotated[
        bool,
        typer.Option("--lazy", help="Detach even if in use; open files are stored at close"),
    ] = False,
    config_file: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="TOML file that names the mountpoint", show_default=False)
    ] = None,
) -> int:
    """Unmount MOUNTPOINT; return once everything is stored.

    Progress is printed while storing takes long; if the mount is in use, the programs that use it are listed.
    """
    from zarrfs.lifecycle import unmounting

    path = mountpoint_of(config_file) if mountpoint is None else mountpoint
    return end(unmounting.unmount(path, lazy=lazy, print_line=print_line))


@app.command()
def info(
    store: _Store,
    node: Annotated[
        str | None,
        typer.Argument(
            metavar="[NODE]",
            show_default=False,
            help="Describe this node and those below; reads shard indexes",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document")] = False,
    mount_options: _MountOptions = None,
    config_file: _ConfigFile = None,
) -> int:
    """Describe the nodes of STORE.

    One line for each node: layout, shape, data type, chunks, shards, codecs, stored and raw bytes, and the numbers of its attributes and
    quirks (deviations of its producer from the specification). These are shown in full for NODE, and for a store of one node. --json
    gives everything of all nodes, with null for what is unknown.
    """
    from zarrfs.daemon import garbage

    garbage.collect_nothing()
    import json

    from rich.console import Console

    from zarrfs.lifecycle import interrupts
    from zarrfs.options import log_file
    from zarrfs.options.redact import public_url
    from zarrfs.reports import progress
    from zarrfs.reports.info import describe, describe_each
    from zarrfs.reports.info_text import InfoTree

    config = resolve(*located(store), mount_options=mount_options or (), config_file=config_file)
    log_file.configure(config.log_level, config.log_file)

    async def in_json() -> None:
        with progress.Bar() as bar:
            # Only for a node named by the caller: a shard index costs one request.
            description = await describe(config, node or "/", indexes=node is not None, on_progress=bar.show)
        print(json.dumps(description, indent=2, allow_nan=False))

    async def as_tree() -> None:
        console = Console()
        tree = InfoTree(console, public_url(config.store), whole=node is not None)
        # Lines are printed above the bar if both are on one terminal.
        with progress.Bar(console if console.is_terminal else None) as bar:
            await describe_each(config, node or "/", tree.add, indexes=node is not None, on_progress=bar.show)

    garbage.collect_in_portions()
    interrupts.run(in_json if as_json else as_tree)
    return 0


@app.command()
def check(
    store: _Store,
    node: Annotated[str, typer.Argument(metavar="[NODE]", show_default=False, help="Check this node and those below")] = "/",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="First complete or undo operations interrupted by a kill")] = False,
    mount_options: _MountOptions = None,
    config_file: _ConfigFile = None,
) -> int:
    """Read and decode every chunk of STORE; list the bad ones.

    Exit code 0: every chunk was decoded. 1: a chunk is bad or could not be checked, or an operation is incomplete.
    """
    # Unsupported chunks count as not checked: `zarrfs check a && rm -r b` relies on the whole of a, and programs that test archives
    # (unzip -t, 7z t) fail for unknown methods. The two kinds are listed apart.
    from zarrfs.daemon import garbage

    garbage.collect_nothing()
    import json

    from rich.console import Console

    from zarrfs.lifecycle import interrupts
    from zarrfs.options import log_file
    from zarrfs.reports import check as checking
    from zarrfs.reports import check_text

    config = resolve(*located(store), mount_options=mount_options or (), config_file=config_file)
    log_file.configure(config.log_level, config.log_file)

    async def checked() -> Report:
        with check_text.Bar() as bar:
            return await checking.check(config, node, bar.update, repairs=repair)

    garbage.collect_in_portions()
    report = interrupts.run(checked)
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else sys.maxsize, highlight=False).print(check_text.render(report))
    if not report.complete:
        return INTERRUPTED
    return 1 if report.bad.count or report.unchecked.count or report.steps.count else 0


class _Installed(StrEnum):
    """Installable parts outside the package."""

    MOUNT_HELPER = "mount-helper"


_What = Annotated[_Installed, typer.Argument(metavar="mount-helper", show_default=False, help="Helpers of mount(8), in /sbin")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the commands, run none")]


@app.command()
def install(what: _What, dry_run: _DryRun = False) -> int:
    """Install the file system type zarrfs for mount(8), umount(8) and /etc/fstab."""
    from zarrfs.command import install as installing

    commands = installing.commands()
    if (writable := installing.others_who_decide(commands)) is not None:
        print_line(f"warning: {writable}: writable by users other than root: they can change what root runs at a mount")
    return _do(installing.to_install(commands), dry_run, f"{commands / 'zarrfs'} install {what}")


@app.command()
def uninstall(what: _What, dry_run: _DryRun = False) -> int:
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
    from zarrfs.lifecycle import background
    from zarrfs.lifecycle.mountpoint import check as check_before
    from zarrfs.stores.urls import local_path

    store, mountpoint = located(config.store, config.mountpoint)
    config = dataclasses.replace(config, store=store, mountpoint=mountpoint)
    check_before(config, local_path(config.store), print_line)
    if config.foreground:
        return serve(config)
    outcome, _ = background.start(config)
    return end(outcome)


def located(store: str, mountpoint: str = "") -> tuple[str, str]:
    """Return store and mountpoint with absolute paths: the daemon runs in another folder."""
    import os

    # Links are not resolved: whole-array files are named after the store as written.
    from zarrfs.stores.urls import absolute

    return absolute(store), os.path.abspath(mountpoint) if mountpoint else ""
