"""``pytest-autotune diff``: how two caches differ, in the words of a review."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.diff import Change, ChangeKind, Diff, diff, winner
from pytest_autotune.cache.model import Cache, Device, Entry
from pytest_autotune.cli.arguments import PATH
from pytest_autotune.cli.output import choice_text, columns, heading, print_lines, problem_text, safe, time_text
from pytest_autotune.cli.status import FOUND, OK


@click.command("diff", short_help="how two caches differ")
@click.argument("old", metavar="OLD", type=PATH)
@click.argument("new", metavar="NEW", type=PATH)
@click.option("--exit-code", is_flag=True, help="Exit status 1 where they differ; with --choices, in more than time.")
@click.option("--choices", is_flag=True, help="No rows for what changed in time only.")
def command(old: str, new: str, exit_code: bool, choices: bool) -> int:
    """What is different in the cache NEW: a line of counts, then a row for each entry.

    As git's difftool: git difftool --extcmd="pytest-autotune diff" -- FILE
    """
    found = diff(_side(old), _side(new))
    shown = [change for change in found.changes if not (choices and change.kind is ChangeKind.TIME)]
    print_lines(_lines(found, shown))
    return FOUND if exit_code and shown else OK


def _side(path: str) -> Cache:
    # So git names a side that has no such file.
    return Cache() if path == os.devnull else stores.read(path)


def _lines(found: Diff, shown: list[Change]) -> Iterator[str]:
    yield str(found)
    main = found.device
    devices = {change.entry.problem.device for change in shown}
    for device in sorted(devices, key=lambda device: (device != main, device.sort_key)):
        yield ""
        yield from _of_device(device, [change for change in shown if change.entry.problem.device == device])


def _of_device(device: Device, changes: list[Change]) -> Iterator[str]:
    yield heading(safe(str(device)))
    yield from (f"  {line}" for line in columns([_row(change) for change in changes], frozenset([3])))


def _row(change: Change) -> list[str]:
    old, new = change.old, change.new
    return [
        change.kind.value,
        problem_text(change.entry.problem),
        _arrow(_choice(old), _choice(new)),
        _arrow(_time(old), _time(new)),
        _fingerprint(old, new),
    ]


def _arrow(old: str, new: str) -> str:
    return f"{old} -> {new}" if old and new and old != new else new or old


def _choice(entry: Entry | None) -> str:
    return choice_text(entry, winner(entry)) if entry else ""


def _time(entry: Entry | None) -> str:
    return time_text(winner(entry)) if entry else ""


def _fingerprint(old: Entry | None, new: Entry | None) -> str:
    """Which digests differ."""
    if old is None or new is None or old.fingerprint == new.fingerprint:
        return ""
    before = {value.name: value for value in old.fingerprint}
    after = {value.name: value for value in new.fingerprint}
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return f"{safe(', '.join(names))} changed"
