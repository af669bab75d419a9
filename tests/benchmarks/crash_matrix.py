"""Tunings that had finished, and those in the file, for each fault and place.

    python tests/benchmarks/crash_matrix.py [--workers=0,2,8] [--rounds=1] [--faults=TEXT]

It runs the suite of tests/crashes.py, and after it one that does nothing, which takes over what a killed run has
tuned. The exit status is 1 when anything was lost that the summary did not call lost, or anything of others was
touched, or no tuning had finished. Full disks and other users' folders need the right to mount; without it, these
faults are left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from common import REPOSITORY, machine, table

sys.path.insert(0, str(REPOSITORY))

from tests.crashes import FAULTS, PLACES, Fault, Left, strike


def cell(runs: list[Left]) -> str:
    """All rounds of one fault in one place: finished / in the file, and in the next run's file where that differs."""
    finished, written, recovered, given_up, lost = (
        sum(getattr(left, name) for left in runs) for name in ("finished", "written", "recovered", "given_up", "lost")
    )
    told = f" ({given_up} reported as lost)" * (given_up > 0) + f" LOST {lost}" * (lost > 0)
    touched = " TOUCHED" * any(not left.foreign for left in runs)
    return f"{finished} / {written}" + (f" / {recovered}" if written != finished else "") + told + touched


def rows(faults: list[Fault], workers: int, rounds: int, struck: list[Left]) -> Iterator[tuple[str, ...]]:
    """A row for each fault as soon as it has struck; adds what was left to ``struck``."""
    for fault in faults:
        if fault.needs:
            yield fault.label, *[f"left out: {fault.needs}"] * len(PLACES)
            continue
        left = {place: [strike(fault, place, workers) for _ in range(rounds)] for place in PLACES}
        struck += [one for of_place in left.values() for one in of_place]
        yield fault.label, *(cell(of_place) for of_place in left.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", default="0,2,8", help="numbers of workers, 0 for a run without xdist")
    parser.add_argument("--rounds", type=int, default=1, help="how often each fault strikes in each place")
    parser.add_argument("--faults", default="", help="only the faults whose name contains this")
    options = parser.parse_args()
    print(machine("pytest-xdist", "pytest-timeout"))
    struck: list[Left] = []
    for workers in map(int, options.workers.split(",")):
        print(f"\n{f'{workers} workers' if workers else 'serial'}: finished / in the file / after the next run\n")
        wanted = [fault for fault in FAULTS if options.faults in fault.label]
        table(("fault", *PLACES), rows(wanted, workers, options.rounds, struck))
    lost, touched = sum(left.lost for left in struck), sum(not left.foreign for left in struck)
    idle = sum(not left.finished for left in struck)
    print(f"\n{len(struck)} runs, {lost} tunings lost, files of others touched in {touched}, nothing tuned in {idle}")
    return int(lost + touched + idle > 0)


if __name__ == "__main__":
    sys.exit(main())
