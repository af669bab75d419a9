"""``pytest-autotune diff``: how two caches differ, in the words of a review."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.diff import Change, ChangeKind, Diff, diff
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.cli.output import FOUND, OK, PATH, choice_text, print_lines, problem_text, safe, table, time_text


@click.command("diff", short_help="how two caches differ")
@click.argument("old", metavar="OLD", type=PATH)
@click.argument("new", metavar="NEW", type=PATH)
@click.option("--exit-code", is_flag=True, help="Exit status 1 where they differ; with --choices, in more than time.")
@click.option("--choices", is_flag=True, help="No rows for what changed in time only.")
def command(old: str, new: str, exit_code: bool, choices: bool) -> int:
    """What is different in the cache NEW: a line of counts, then a row for each entry.

    As git's difftool: git difftool --extcmd="pytest-autotune diff" -- FILE
    """
    # So git names a side that has no such file.
    found = diff(*(Cache() if path == os.devnull else stores.read(path) for path in (old, new)))
    shown = [change for change in found.changes if not (choices and change.kind is ChangeKind.TIME)]
    print_lines(_lines(found, shown))
    return FOUND if exit_code and shown else OK


def _lines(found: Diff, shown: list[Change]) -> Iterator[str]:
    yield str(found)
    devices = {change.entry.problem.device for change in shown}
    for device in sorted(devices, key=lambda device: (device != found.device, device.sort_key)):
        yield ""
        rows = [_row(change) for change in shown if change.entry.problem.device == device]
        yield from table(str(device), rows, right=[3])


def _row(change: Change) -> list[str]:
    return [
        change.kind.value,
        problem_text(change.entry.problem),
        _arrow(change, choice_text),
        _arrow(change, time_text),
        _fingerprint(change.old, change.new),
    ]


def _arrow(change: Change, text: Callable[[Entry], str]) -> str:
    """What was, and what is where that is something else."""
    words = [text(entry) for entry in (change.old, change.new) if entry is not None]
    return " -> ".join(dict.fromkeys(filter(None, words)))


def _fingerprint(old: Entry | None, new: Entry | None) -> str:
    """Which digests differ."""
    if old is None or new is None or old.fingerprint == new.fingerprint:
        return ""
    names = sorted({value.name for value in set(old.fingerprint) ^ set(new.fingerprint)})
    return f"{safe(', '.join(names))} changed"
