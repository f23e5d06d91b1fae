"""The command line: mount, umount, info, check.

Nothing heavy is imported until a command runs, so that ``--help`` and ``--version`` answer at once. Errors are one line on stderr,
which says what to do, and an exit code from one table; a traceback is for ``--log-level debug``.
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

from zarrfs import __version__
from zarrfs.command.exit_codes import EXIT_CODES, INTERRUPTED, end, ended, log_cause, outcome_of, say
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
    "7 something could not be stored at unmount.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run(arguments: Sequence[str]) -> int:
    """Run one command line (without the program's name) and give its exit code. Errors are printed here, nowhere else."""
    code = ended(lambda: _parsed(arguments), arguments)
    return code if arguments else EXIT_CODES[UsageError]


def _parsed(arguments: Sequence[str]) -> object:
    try:
        return app(list(arguments) or ["--help"], prog_name="zarrfs", standalone_mode=False)
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    except Exception as error:
        if not hasattr(error, "format_message"):  # the parser's own; Typer has brought its classes from two different places
            raise
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "zarrfs"
        raise UsageError(f"{' '.join(error.format_message().split()).rstrip('.')}; see `{command} --help`") from error


# --- commands -------------------------------------------------------------------------------------------------------------------

_Store = Annotated[str, typer.Argument(metavar="STORE", show_default=False, help="A path or URL.")]
_MountOptions = Annotated[
    list[str] | None,
    typer.Option(
        "-o", metavar="OPT[,OPT]...", help=r"Options as mount(8) has them; '\,' is a comma inside a value.", show_default=False
    ),
]
_ConfigFile = Annotated[str | None, typer.Option("--config", metavar="FILE", help="A TOML file of options.", show_default=False)]
# Where the TOML file may name them.
_StoreIfAny = Annotated[str | None, typer.Argument(metavar="STORE", show_default=False, help="A path or URL.")]
_MountpointIfAny = Annotated[str | None, typer.Argument(metavar="MOUNTPOINT", show_default=False, help="An empty folder.")]


def _print_version(asked: bool) -> None:
    if asked:
        print(f"zarrfs {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""


@app.command(
    epilog="Every option is also one of -o (`-o metadata_ttl=5`), an environment variable (ZARRFS_METADATA_TTL) and a key of the "
    "--config file; the first of these that says something counts.",
)
def mount(
    store: str | None,
    mountpoint: str | None,
    mount_options: list[str] | None,
    config_file: str | None,
    **flags: bool | str | None,
) -> int:
    """Mount STORE on MOUNTPOINT; return when it can be used, or say why not.

    What is not given is what the --config file says (store = "...", mountpoint = "...").
    """
    config = resolve(store, mountpoint, flags=flags, mount_options=mount_options or (), config_file=config_file)
    try:
        return _mount(config)
    except Exception as error:  # noqa: BLE001 (as there)
        # `run` hides what is secret in the arguments, and a store that a file names is in none of them.
        log_cause(logging.DEBUG, error, [config.store])
        return end(outcome_of(error, [config.store]))


def _mount_signature() -> inspect.Signature:
    """What Typer reads the command's options from: the fixed parameters, and one for each row of the table of options."""
    parameters = [
        inspect.Parameter("store", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=_StoreIfAny),
        inspect.Parameter("mountpoint", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=_MountpointIfAny),
        inspect.Parameter("mount_options", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_MountOptions),
        inspect.Parameter("config_file", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_ConfigFile),
    ]
    defaults = MountConfig(store="")
    for name, option in options().items():
        dashed = name.replace("_", "-")
        default = getattr(defaults, name)
        help_text = (
            option.help if option.flag or default in (None, ()) else f"{option.help} Default: {_shown(default, option.octal)}."
        )
        declarations = [f"--{dashed}/--no-{dashed}" if option.flag else f"--{dashed}", *([option.short] if option.short else [])]
        # Not given is None, whatever the default: then the lesser sources are asked.
        declared = typer.Option(*declarations, metavar=option.metavar or None, help=help_text, show_default=False)
        annotation = Annotated[bool | None, declared] if option.flag else Annotated[str | None, declared]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    return inspect.Signature(parameters, return_annotation=int)


def _shown(default: Any, octal: bool) -> str:
    match default:
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
        str | None, typer.Argument(metavar="MOUNTPOINT", show_default=False, help="Where zarrfs has mounted a store.")
    ] = None,
    lazy: Annotated[
        bool,
        typer.Option(
            "--lazy", help="Detach at once, even while it is in use, and do not wait: what is open is stored when it is closed."
        ),
    ] = False,
    config_file: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="A TOML file that names the mountpoint.", show_default=False)
    ] = None,
) -> int:
    """Unmount MOUNTPOINT; return when everything is stored, or say what could not be.

    While that takes long it tells what is left, and while the mount is in use, by whom.
    """
    from zarrfs.lifecycle import unmounting

    place = mountpoint_of(config_file) if mountpoint is None else mountpoint
    return end(unmounting.unmount(place, lazy=lazy, say=say))


@app.command()
def info(
    store: _Store,
    node: Annotated[
        str | None,
        typer.Argument(
            metavar="[NODE]",
            show_default=False,
            help="A node's path: describe what is there only, with its attributes and quirks; of a sharded array the index of every "
            "shard is read.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    mount_options: _MountOptions = None,
    config_file: _ConfigFile = None,
) -> int:
    """Describe the nodes of STORE: layout, shape, data type, chunks, shards, codecs, stored and raw bytes.

    One line a node, which counts its attributes and its quirks (where its producer did otherwise than the specification says): they are
    shown of the NODE that is named, and where the store is one node. --json has everything of all nodes, and null for what is not known.
    """
    import json

    from zarrfs.lifecycle import interrupts
    from zarrfs.options import log_file
    from zarrfs.reports import progress
    from zarrfs.reports.info import describe

    config = resolve(*located(store), mount_options=mount_options or (), config_file=config_file)
    log_file.configure(config.log_level, config.log_file)

    async def described() -> dict[str, Any]:
        with progress.Bar() as bar:
            # Only where one array is asked for by its name: an index is a request for each shard.
            return await describe(config, node or "/", indexes=node is not None, told=bar.show)

    description = interrupts.run(described)
    if as_json:
        print(json.dumps(description, indent=2, allow_nan=False))
    else:
        from rich.console import Console

        from zarrfs.reports.info_text import render

        # A file or pipe has no width to wrap at.
        Console(width=None if sys.stdout.isatty() else sys.maxsize).print(render(description, whole=node is not None))
    return 0


@app.command()
def check(
    store: _Store,
    node: Annotated[
        str, typer.Argument(metavar="[NODE]", show_default=False, help="A node's path: check what is there only.")
    ] = "/",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="First end, or undo, what a kill left half done.")] = False,
    mount_options: _MountOptions = None,
    config_file: _ConfigFile = None,
) -> int:
    """Read and decode every chunk of STORE; list what is bad.

    Exit code 0 says that every chunk was decoded, 1 that something is bad, half done, or could not be checked.
    """
    # That is so for what zarrfs does not support, too: `zarrfs check a && rm -r b` relies on the whole of a, and programs that test
    # archives (unzip -t, 7z t) fail for a method that they do not know. The two kinds are listed apart.
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

    report = interrupts.run(checked)
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else sys.maxsize, highlight=False).print(check_text.render(report))
    if not report.complete:
        return INTERRUPTED
    return 1 if report.bad.count or report.unchecked.count or report.steps.count else 0


class _Installed(StrEnum):
    """What can be installed beside the package."""

    MOUNT_HELPER = "mount-helper"


_What = Annotated[_Installed, typer.Argument(metavar="mount-helper", show_default=False, help="What mount(8) runs, in /sbin.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print the commands that would do it.")]


@app.command()
def install(what: _What, dry_run: _DryRun = False) -> int:
    """Let mount(8), umount(8) and /etc/fstab know the type zarrfs."""
    from zarrfs.command import install as installing

    commands = installing.commands()
    if (place := installing.others_who_decide(commands)) is not None:
        say(f"mind: {place} can be changed by others than root, and with it what root runs when something is mounted")
    return _do(installing.to_install(commands), dry_run, f"{commands / 'zarrfs'} install {what}")


@app.command()
def uninstall(what: _What, dry_run: _DryRun = False) -> int:
    """Undo what `zarrfs install` did."""
    from zarrfs.command import install as installing

    return _do(installing.to_uninstall(), dry_run, f"{installing.commands() / 'zarrfs'} uninstall {what}")


def _do(steps: list[Step], dry_run: bool, again: str) -> int:
    from zarrfs.command import install as installing

    if not dry_run:
        installing.do(steps, again)
    for step in steps:
        print(printable(str(step)))
    if not steps:
        print("nothing is to be done")
    return 0


# --- helpers --------------------------------------------------------------------------------------------------------------------


def _mount(config: MountConfig) -> int:
    """Mount what was asked for, in the foreground or in the background."""
    from zarrfs.command.serving import serve
    from zarrfs.lifecycle import background
    from zarrfs.lifecycle.mountpoint import check as check_before
    from zarrfs.stores.urls import local_path

    store, mountpoint = located(config.store, config.mountpoint)
    config = dataclasses.replace(config, store=store, mountpoint=mountpoint)
    check_before(config, local_path(config.store), say)
    if config.foreground:
        return serve(config)
    outcome, _ = background.start(config)
    return end(outcome)


def located(store: str, mountpoint: str = "") -> tuple[str, str]:
    """The store and the mountpoint with absolute paths: the daemon runs elsewhere."""
    import os

    # As it was written: whole-array files are named after the store, not after what a symlink hides.
    from zarrfs.stores.urls import absolute

    return absolute(store), os.path.abspath(mountpoint) if mountpoint else ""
