"""What a failing test's report says in a sweep: the candidates that it ran with, and how to run with them again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable

import pytest

from pytest_autotune.cache.foreign_text import one_line
from pytest_autotune.run.lookup import Lookup
from pytest_autotune.session.parsed_options import Options

#: The heading of the section.
HEADING = "autotune sweep"


def section(item: pytest.Item, options: Options, ran_with: Iterable[Lookup]) -> str:
    """The text of the section."""
    used = [(lookup.problem, lookup.entry.choice) for lookup in ran_with if lookup.entry is not None]
    lines = [one_line(f"{problem}: {choice}") for problem, choice in used if choice is not None]
    return "\n".join([*(lines or ["no candidate of a sweep was asked for"]), f"rerun: {_command(item, options)}"])


def _command(item: pytest.Item, options: Options) -> str:
    typed = ["pytest", f"--autotune-sweep={options.sweep}"]
    if options.tuners is not None:
        typed.append(f"--autotune-tuners={','.join(options.tuners)}")
    _, colons, name = item.nodeid.partition("::")
    path = os.path.relpath(item.path, item.config.invocation_params.dir)
    return shlex.join([*typed, f"{path}{colons}{name}"])
