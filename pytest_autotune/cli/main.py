"""The command ``pytest-autotune``: it runs a subcommand, and reports an error as a line and an exit status."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper

import click

from pytest_autotune import __version__
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cli import check, convert, diff, export, gate, git, merge, prune, show
from pytest_autotune.cli.output import FAILED, INTERRUPTED, OK

PROGRAM = "pytest-autotune"


@click.group(
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 if all is well; 1 if check, gate, --exit-code or git-merge found "
    "something; 4, with one line, "
    "if arguments are wrong or a file cannot be read or written.",
)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
def commands() -> None:
    """Work with autotuning caches: files in any of their formats, folders with a / at the end,
    and stores at s3://, gs:// and az://."""


_COMMANDS = (
    show.command,
    diff.command,
    merge.command,
    check.command,
    gate.command,
    prune.command,
    convert.command,
    export.command,
    merge.compact,
    git.setup,
    git.merge,
    git.textconv,
)
for command in _COMMANDS:
    commands.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    :param arguments: None takes the arguments of this process. Then the command also sets up signals and output.
    """
    if arguments is None:
        _prepare_process()
    try:
        # Without standalone_mode, click returns the result of the command, and raises errors in place of exiting.
        status = commands.main(arguments, PROGRAM, standalone_mode=False)
        # The standard output is None if it was closed before this process began.
        if sys.stdout is not None:
            sys.stdout.flush()
        if isinstance(status, int):
            return status
        # Commands without a status of their own return None.
        return OK
    except CacheError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
    except click.UsageError as error:
        print(_describe_usage_error(error), file=sys.stderr)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except OSError as error:
        # Mostly the standard output failed, because errors of caches are a CacheError. When Python ends, it writes the
        # rest of the output. The rest goes to the null device, so that this write does not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"{PROGRAM}: {error.filename or 'standard output'}: {error.strerror or error}", file=sys.stderr)
    return FAILED


def _describe_usage_error(error: click.UsageError) -> str:
    """Return the line for wrong arguments. Its brackets have the remedy of the message, if any, and name the help."""
    path = error.ctx.command_path if error.ctx else PROGRAM
    message = error.format_message().removesuffix(".")
    if message.endswith(")"):
        return f"{path}: {message[:-1]}; see {path} --help)"
    return f"{path}: {message} (see {path} --help)"


def _prepare_process() -> None:
    """Set up the signals and the output of a process that runs only this command."""
    # A reader that closes the pipe early, such as `head`, is no error.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # A name that the terminal's encoding cannot show is no error, either.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
