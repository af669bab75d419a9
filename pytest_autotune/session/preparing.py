"""What collection has found, for the tuners that prepare something beside the tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_autotune import devices
from pytest_autotune.session.completeness import selecting_flag
from pytest_autotune.session.values import Options
from pytest_autotune.tuners.hooks import Hooks
from pytest_autotune.tuners.protocol import Suite
from pytest_autotune.workers.folder import Membership
from pytest_autotune.workers.locks import in_distributed_run

#: More threads would only wait for Python's lock, of which Triton's compiler holds 15 %, and keep the tests from it.
MOST_THREADS = 8


@dataclass(frozen=True)
class MeetingPlace:
    """Where the processes of a run meet.

    :param folder: the run's own on this machine.
    :param workers: how many processes run its tests there.
    """

    folder: Path
    workers: int = 1


def cores(affinity: int, quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The cores that this process may use: a container may have less time of them than there are.

    :param affinity: those that it may run on.
    :param quota: where the time of a container stands, ``MICROSECONDS PERIOD``.
    """
    with suppress(OSError, ValueError, ZeroDivisionError):
        time_us, period_us = map(int, quota.read_text(encoding="ascii").split())
        return max(min(affinity, time_us // period_us), 1)
    return affinity


def prepare(
    session: pytest.Session, options: Options, place: MeetingPlace, hooks: Hooks, deselected: int
) -> Membership | None:
    """Let tuners prepare what they can for the tests that are to run.

    :param deselected: how many tests were collected and are not to run.
    :returns: what keeps the place while they do; None where there is nothing to prepare.
    """
    config = session.config
    if options.compile_ahead == "off" or config.option.collectonly:
        return None
    if not session.items or in_distributed_run():
        return None
    usable = cores(devices.cpu().multiprocessors) // place.workers
    threads = min(max(usable - 1, options.compile_ahead == "always"), MOST_THREADS)
    if not threads:
        return None
    try:
        membership = Membership(place.folder)
    except OSError:  # reported when the run began
        return None
    tests = tuple(tuple(_made_of(item)) for item in session.items)
    hooks.prepare(Suite(tests, deselected > 0 or _is_part(config), threads, place.folder))
    return membership


def _is_part(config: pytest.Config) -> bool:
    """Whether the user asked for some of the tests, or for other than whole folders."""
    if selecting_flag(config):
        return True
    typed = config.args_source is pytest.Config.ArgsSource.ARGS
    return typed and not all((config.invocation_params.dir / arg).is_dir() for arg in config.args)


def _made_of(item: pytest.Item) -> Iterator[object]:
    """What a test calls, as far as pytest knows: its function, its fixtures' and what it is parametrized with."""
    found: Any = item
    yield getattr(found, "obj", None)
    with suppress(AttributeError):
        yield from found.callspec.params.values()
    with suppress(AttributeError, TypeError, IndexError):
        definitions: Sequence[Any]
        for definitions in found._fixtureinfo.name2fixturedefs.values():
            yield definitions[-1].func
