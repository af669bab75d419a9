"""Finds the command that was asked for, and turns what went wrong into one line and an exit status."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from pytest_autotune import __version__
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cli.status import BROKEN_PIPE, FAILED, INTERRUPTED, OK

PROGRAM = "pytest-autotune"

#: Commands and their modules. Each is imported when it is asked for: a merge or a completion does not wait for others.
COMMANDS = {
    "show": "show",
    "diff": "diff",
    "merge": "merge",
    "check": "check",
    "prune": "prune",
    "convert": "convert",
    "git-setup": "git_setup",
    "git-merge": "git_merge",
    "git-textconv": "git_textconv",
    "completion": "completion",
}


class _NobodyReads(Exception):
    """The reader, such as `head`, has had enough. Click would make status 1 of it, which says that a check failed."""


@contextmanager
def _unseen_by_click() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _NobodyReads from error


class _Commands(click.Group):
    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _unseen_by_click():  # --help and --version
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _unseen_by_click():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"pytest_autotune.cli.{COMMANDS[cmd_name]}").command
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0; 1 where check, --exit-code or git-merge found something; 4, with one line, "
    "where arguments make no sense or a file cannot be read or written.",
)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
@click.pass_context
def commands(context: click.Context) -> None:
    """Work with autotuning caches: files in any of their formats, and folders with a / at the end."""
    context.color = _wants_color()


def _wants_color() -> bool | None:
    """None: where standard output is a terminal."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return True if os.environ.get("FORCE_COLOR") else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    :returns: its exit status.
    """
    try:
        status = commands.main(arguments, PROGRAM, standalone_mode=False)
        if sys.stdout is not None:  # it was closed before we began
            sys.stdout.flush()
        return status if isinstance(status, int) else OK
    except CacheError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else PROGRAM
        print(f"{path}: {error.format_message().removesuffix('.')} (see {path} --help)", file=sys.stderr)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except (BrokenPipeError, _NobodyReads):
        _write_no_more()
        return BROKEN_PIPE
    except OSError as error:  # those of caches say what to do
        _write_no_more()
        print(f"{PROGRAM}: {error.filename or 'standard output'}: {error.strerror or error}", file=sys.stderr)
    return FAILED


def _write_no_more() -> None:
    """What is still to be written would fail again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
