"""The command and its parts, and how what went wrong becomes one line and an exit status."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper

import click

from pytest_autotune import __version__
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cli import check, convert, diff, export, git, merge, prune, show
from pytest_autotune.cli.output import FAILED, INTERRUPTED, OK

PROGRAM = "pytest-autotune"


@click.group(
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0; 1 where check, --exit-code or git-merge found something; 4, with one line, "
    "where arguments make no sense or a file cannot be read or written.",
)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
def commands() -> None:
    """Work with autotuning caches: files in any of their formats, folders with a / at the end,
    and stores at s3://, gs:// and az://."""


parts = (show, diff, merge, check, prune, convert, export)
for command in (*(part.command for part in parts), merge.compact, git.setup, git.merge, git.textconv):
    commands.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, by default with the arguments of this process, which is its own then; returns its status."""
    if arguments is None:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that has had enough, such as `head`, is no error
        if isinstance(sys.stdout, TextIOWrapper):  # nor is a name that the terminal's encoding lacks
            sys.stdout.reconfigure(errors="backslashreplace")
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
    except OSError as error:  # those of caches say what to do
        # What is still to be written would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"{PROGRAM}: {error.filename or 'standard output'}: {error.strerror or error}", file=sys.stderr)
    return FAILED
