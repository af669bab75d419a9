"""``pytest-autotune git-textconv``: a cache as git shall show it in differences."""

from __future__ import annotations

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.diff import winner
from pytest_autotune.cache.model import Entry
from pytest_autotune.cli.output import choice_text, print_lines, problem_text, safe, time_text


@click.command("git-textconv", short_help="a line for each entry; git-setup has git diff show these")
@click.argument("file")
def command(file: str) -> None:
    """Print a line for each entry of the cache FILE: the problem, its device, what was chosen, and what it rests on."""
    cache = stores.read(file, missing_ok=True)
    print_lines(_line(entry) for entry in sorted(cache.entries, key=lambda entry: entry.sort_key))


def _line(entry: Entry) -> str:
    best = winner(entry)
    time = time_text(best)
    rests_on = "".join(f" {safe(str(value))}" for value in entry.fingerprint)
    return (
        f"{problem_text(entry.problem)} on {safe(entry.problem.device.id)}: {choice_text(entry, best)}"
        f"{f', {time}' if time else ''};{rests_on}"
    )
