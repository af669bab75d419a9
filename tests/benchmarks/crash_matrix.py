"""Count the finished tunings that survive each fault, in each place of a test.

    python tests/benchmarks/crash_matrix.py [--workers=0,2,8] [--rounds=1] [--faults=TEXT]

For each number of workers, fault and place, the script runs the suite of tests/crashes.py until the fault strikes. If
tunings are missing in the file, a second run, whose suite tunes nothing, recovers them from the logs of the first.
A cell of the table has the finished tunings / those in the file / those in the file after the second run.

The exit status is 1 if a finished tuning was lost that the summary did not report as lost, if a file of another user
changed, or if no tuning had finished. Full disks and folders of other users need the right to mount; without it, the
table leaves these faults out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from common import REPOSITORY, machine, table

sys.path.insert(0, str(REPOSITORY))

from tests.crashes import FAULTS, PLACES, Fault, StrikeResult, strike


def describe_results(results: Sequence[StrikeResult]) -> str:
    """Return the cell of one fault in one place: the sums of its rounds, and words for each defect."""
    finished = sum(result.finished for result in results)
    written = sum(result.written for result in results)
    recovered = sum(result.recovered for result in results)
    reported_lost = sum(result.reported_lost for result in results)
    lost = sum(result.lost for result in results)
    text = f"{finished} / {written}"
    if written != finished:
        text += f" / {recovered}"
    if reported_lost:
        text += f" ({reported_lost} reported as lost)"
    if lost:
        text += f" LOST {lost}"
    if not all(result.is_foreign_unchanged for result in results):
        text += " TOUCHED"
    return text


def strike_faults(
    faults: Sequence[Fault], workers: int, rounds: int, results: list[StrikeResult]
) -> Iterator[tuple[str, ...]]:
    """Yield the row of each fault as soon as the fault has struck in all places.

    :param results: the list to which each result is added.
    """
    for fault in faults:
        if fault.missing_right:
            yield fault.label, *[f"left out: {fault.missing_right}"] * len(PLACES)
            continue
        cells = []
        for place in PLACES:
            place_results = [strike(fault, place, workers) for _ in range(rounds)]
            cells.append(describe_results(place_results))
            results += place_results
        yield fault.label, *cells


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="0,2,8", help="numbers of workers, 0 for a run without xdist")
    parser.add_argument("--rounds", type=int, default=1, help="how often each fault strikes in each place")
    parser.add_argument("--faults", default="", help="only the faults whose name contains this")
    options = parser.parse_args()
    print(machine("pytest-xdist", "pytest-timeout"))
    faults = [fault for fault in FAULTS if options.faults in fault.label]
    results: list[StrikeResult] = []
    for workers in map(int, options.workers.split(",")):
        title = f"{workers} workers" if workers else "serial"
        print(f"\n{title}: finished / in the file / after the next run\n")
        table(("fault", *PLACES), strike_faults(faults, workers, options.rounds, results))
    lost = sum(result.lost for result in results)
    touched = sum(not result.is_foreign_unchanged for result in results)
    idle = sum(not result.finished for result in results)
    print(f"\n{len(results)} runs, {lost} tunings lost, files of others touched in {touched}, nothing tuned in {idle}")
    return int(lost + touched + idle > 0)


if __name__ == "__main__":
    sys.exit(main())
