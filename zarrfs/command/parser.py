"""Click's classes with the help of ``zarrfs``: arguments have lines too, options are in groups, commands in the order of the source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

_UNGROUPED = "General"


class Argument(click.Argument):
    """An argument with a line in the help, ``about``. An optional one has its ``metavar`` in brackets."""

    def __init__(self, declarations: Sequence[str], *, about: str, **attributes: Any) -> None:
        super().__init__(declarations, **attributes)
        self._about = about

    def make_metavar(self, *context: click.Context) -> str:
        metavar = str(self.metavar)
        return metavar if self.required else f"[{metavar}]"

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        return self.make_metavar(ctx), self._about


class Option(click.Option):
    """An option in a ``group`` of the help."""

    def __init__(self, declarations: Sequence[str], *, group: str, **attributes: Any) -> None:
        super().__init__(declarations, **attributes)
        self.group = group


class Command(click.Command):
    """A command whose help lists arguments, and options by group."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            # Errors of click's parser do not name the command.
            error.ctx = error.ctx or ctx
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        parameters = self.get_params(ctx)
        ungrouped = _UNGROUPED if any(isinstance(each, Option) for each in parameters) else "Options"
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for each in parameters:
            record = each.get_help_record(ctx)
            if record is not None:
                name = "Arguments" if isinstance(each, Argument) else each.group if isinstance(each, Option) else ungrouped
                groups.setdefault(name, []).append(record)
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)


class Program(click.Group):
    """The program, with its commands."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)
