"""Measure how long a tuning holds the GPU, and how good its choice is, for three ways to measure.

    python tests/benchmarks/measuring.py SECONDS FOLDER:PYTEST_ARGUMENTS...
    python tests/benchmarks/measuring.py 600 ../mamba:tests/ops/triton/test_ssd.py example_suite:tests

The ways: "plain" is Triton's own benchmark, "before" is an earlier search of this plugin, "race" is today's.

1. Many processes compile all candidates of the unmodified suites. This step is left out if the environment variable
   MEASURING_COMPILED names a folder in which Triton has cached them.
2. A new process races each problem. It measures every fourth problem in the other ways, too, in random order, on the
   same compiled candidates. Then it measures the reference: up to 400 launches of each candidate in turn, on a busy
   GPU, about ten times as many as the race has.
3. Another process races each problem again, and measures every third problem by "plain".

The loss of a choice is its reference time over that of the best candidate, minus 1. "Two processes chose differently"
compares the choices of steps 2 and 3. The script ends after SECONDS; problems that it did not reach are left out.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from common import REPOSITORY, machine, table

#: The share of the time for compiling, and the share of the rest for the first of the two processes.
COMPILING, FIRST = 0.4, 0.75
ARMS = ("plain", "before", "race")
#: The time for the reference of one problem, in microseconds. Problems with many candidates take a little more.
REFERENCE_US = 1e6


def main() -> None:
    began, seconds, suites = time.time(), float(sys.argv[1]), sys.argv[2:]
    print(machine("torch", "triton"), flush=True)
    with tempfile.TemporaryDirectory() as name:
        compiling = 0.0 if "MEASURING_COMPILED" in os.environ else COMPILING
        shares = {"compile": compiling, "first": compiling + (1 - compiling) * FIRST, "second": 0.97}
        if not compiling:
            del shares["compile"]
        for part, share in shares.items():
            for number, suite in enumerate(suites):
                is_last = number == len(suites) - 1
                until = began + seconds * share
                # A suite leaves time for the suites after it.
                suite_until = until
                if not is_last:
                    suite_until = time.time() + (until - time.time()) * 2 / (len(suites) - number + 1)
                _run(suite, part, suite_until, Path(name))
                print(f"{part} {suite}: {time.time() - began:.0f} s", flush=True)
        records = {part: _read(Path(name) / f"{part}.jsonl") for part in ("first", "second")}
    if out := os.environ.get("OUT"):
        (Path(out) / "measuring.json").write_text(json.dumps(records))
    _print_tables(records["first"], records["second"])


def _run(suite: str, part: str, until: float, folder: Path) -> None:
    folder_name, _, arguments = suite.partition(":")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        "TRITON_CACHE_DIR": os.environ.get("MEASURING_COMPILED") or str(folder / "compiled"),
        "MEASURING_PART": part,
        "MEASURING_UNTIL": str(until),
        "MEASURING_OUT": str(folder / f"{part}.jsonl"),
    }
    workers = ["-n", str(len(os.sched_getaffinity(0)))] if part == "compile" else ["-p", "no:xdist"]
    command = [sys.executable, "-m", "pytest", "-q", "-pno:autotune", "-p", "measuring", *workers, *arguments.split()]
    try:
        done = subprocess.run(
            command,
            cwd=folder_name,
            env=environment,
            capture_output=True,
            text=True,
            timeout=max(until - time.time() + 20, 1),
        )
        print(done.stdout[-300:] if done.returncode in (0, 1) else done.stdout[-2000:] + done.stderr[-1000:])
    except subprocess.TimeoutExpired as expired:
        print(f"stopped: {(expired.stdout or b'')[-300:]!r}")


def _read(path: Path) -> dict[str, Any]:
    """Return the records of a process: for each problem the first one."""
    records: dict[str, Any] = {}
    if not path.exists():
        return records
    for line in path.read_text().splitlines():
        record = json.loads(line)
        records.setdefault(record["problem"], record)
    return records


def _print_tables(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Print the noise of the reference, and a row for each way."""
    problems = {name: record for name, record in first.items() if record["truth"]}
    if not problems:
        print("no problem was measured")
        return
    candidate_count = sum(len(record["truth"]) for record in problems.values())
    noise = sorted(record["noise"] for record in problems.values())
    print(f"{len(problems)} problems, {candidate_count} candidates; the halves of the truth differ by", end=" ")
    print(f"{statistics.median(noise):.2%} (median), {noise[int(len(noise) * 0.95)]:.2%} (95th percentile)")
    rows = []
    for arm in ARMS:
        if any(arm in record["arms"] for record in problems.values()):
            rows.append(_row(arm, arm, problems, second))
    compared = {name: record for name, record in problems.items() if "plain" in record["arms"]}
    if compared:
        rows.append(_row("race, the problems of plain", "race", compared, second))
    head = (
        "measured by",
        "problems",
        "GPU held",
        "median of a problem",
        "loss: mean",
        "95th percentile",
        "most",
        "over 2 %",
    )
    table((*head, "two processes chose differently"), rows)


def _row(title: str, arm: str, problems: dict[str, Any], second: dict[str, Any]) -> tuple[object, ...]:
    losses, gpu_s, differences = [], [], []
    for name, record in problems.items():
        if arm not in record["arms"]:
            continue
        reference, choice = record["truth"], record["arms"][arm]["choice"]
        losses.append(reference[choice] / min(reference) - 1)
        gpu_s.append(record["arms"][arm]["held_s"])
        second_arm = second.get(name, {}).get("arms", {}).get(arm)
        if second_arm:
            differences.append(second_arm["choice"] != choice)
            losses.append(reference[second_arm["choice"]] / min(reference) - 1)
    losses.sort()
    return (
        title,
        len(gpu_s),
        f"{sum(gpu_s):.1f} s",
        f"{statistics.median(gpu_s):.3f} s",
        f"{statistics.mean(losses):.2%}",
        f"{losses[int(len(losses) * 0.95)]:.1%}",
        f"{losses[-1]:.1%}",
        f"{sum(loss > 0.02 for loss in losses)} of {len(losses)}",
        f"{sum(differences)} of {len(differences)}" if differences else "",
    )


# The functions below run inside pytest, which loads this module as a plugin.


def pytest_configure() -> None:
    part = os.environ.get("MEASURING_PART")
    if not part:
        return
    module: Any = import_module("triton.runtime.autotuner")
    from pytest_autotune.tuners.triton.adapter import _AlwaysAsk

    def check_disk_cache(self: Any, tuning_key: Any, configs: Any, bench_fn: Any) -> bool:
        return _probe(part, self, tuning_key, list(configs), bench_fn)

    module.Autotuner.check_disk_cache = check_disk_cache
    module.Autotuner.cache_results = _AlwaysAsk(check_disk_cache)


def _probe(part: str, autotuner: Any, tuning_key: Any, configs: list[Any], bench_fn: Any) -> bool:
    from pytest_autotune.tuners.triton.compiling import compile_candidates, load_ahead
    from pytest_autotune.tuners.triton.identity import Call
    from pytest_autotune.tuners.triton.tuning import find_clocks

    call = Call.from_bench_fn(autotuner, tuning_key, bench_fn)
    remaining_s = float(os.environ["MEASURING_UNTIL"]) - time.time()
    problem = f"{autotuner.base_fn.__qualname__} {tuning_key}"
    cores = 2 if part == "compile" else len(os.sched_getaffinity(0))
    run: Any = SimpleNamespace(policy=SimpleNamespace(compile_threads=cores))
    has_own_benchmark = find_clocks(autotuner) is None
    chosen = None
    if len(configs) > 1 and remaining_s > 0 and not has_own_benchmark:
        compile_candidates(call, configs, run)
        codes = load_ahead(call, configs)
        if part != "compile":
            record = {"problem": problem, **_measured(part, call, configs, codes)}
            with open(os.environ["MEASURING_OUT"], "a") as file:
                file.write(json.dumps(record) + "\n")
            chosen = configs[record["arms"]["race"]["choice"]]
    call.adopt(chosen or _first_that_fits(call, configs), {})
    return True


def _first_that_fits(call: Any, configs: list[Any]) -> Any:
    from pytest_autotune.tuners.triton.compiling import compile_and_load

    for config in configs:
        with suppress(Exception):
            compile_and_load(call, config)
            return config
    return configs[0]


def _measured(part: str, call: Any, configs: list[Any], codes: dict[Any, Any]) -> dict[str, Any]:
    from pytest_autotune.tuners.triton.tuning import build_runner

    ways = {"plain": _plain, "before": _before, "race": partial(_race, codes=codes)}
    order = random.Random(str(call.tuning_key) + part)
    others = ["plain", "before"] if part == "first" else ["plain"]
    names = ["race", *(others if order.random() < (1 / 4 if part == "first" else 1 / 3) else [])]
    order.shuffle(names)
    arms: dict[str, Any] = {}
    for name in names:
        started = time.perf_counter()
        times = ways[name](call, configs)
        arms[name] = {"held_s": time.perf_counter() - started, **times}
    runners = [build_runner(call, config, codes.get(config)) for config in configs]
    return {"arms": arms, **(_truth(call, runners) if part == "first" else {"truth": [], "noise": 0.0})}


def _bench(call: Any, config: Any, **settings: float) -> float:
    autotuner = call.autotuner
    autotuner.nargs = dict(zip(autotuner.arg_names, call.args, strict=False))
    benchmark = autotuner.do_bench
    autotuner.do_bench = partial(benchmark, **settings)
    try:
        return float(autotuner._bench(*call.args, config=config, **call.kwargs)[0])
    finally:
        autotuner.do_bench = benchmark


def _best(times: dict[int, float]) -> dict[str, Any]:
    return {"choice": min(times, key=lambda number: times[number]), "times_us": [t * 1000 for t in times.values()]}


def _plain(call: Any, configs: list[Any]) -> dict[str, Any]:
    return _best({number: _bench(call, config) for number, config in enumerate(configs)})


def _before(call: Any, configs: list[Any]) -> dict[str, Any]:
    """Choose as an earlier search of this plugin did.

    It benchmarks all candidates shortly, the best eight within 25 % in full, and those within 5 % once more.
    """
    times = {number: _bench(call, config, warmup=3, rep=10) for number, config in enumerate(configs)}
    best = min(times.values())
    leaders = sorted((n for n in times if times[n] <= best * 1.25), key=lambda n: times[n])[:8]
    times.update({n: _bench(call, configs[n]) for n in leaders})
    best = min(times[n] for n in leaders)
    leaders = [n for n in leaders if times[n] <= best * 1.05]
    if len(leaders) > 1:
        times.update({n: min(times[n], _bench(call, configs[n])) for n in leaders})
    return {**_best(times), "choice": min(leaders, key=lambda n: times[n])}


def _race(call: Any, configs: list[Any], codes: dict[Any, Any]) -> dict[str, Any]:
    from pytest_autotune.tuners.measuring.race import Race
    from pytest_autotune.tuners.triton.internals import autotuners
    from pytest_autotune.tuners.triton.tuning import build_runner, find_clocks

    clocks = find_clocks(call.autotuner)
    assert clocks is not None
    race = Race(clocks.make_clock(), expected=autotuners.list_candidate_errors())
    race.probe([build_runner(call, config, codes.get(config)) for config in configs])
    results = race.finish()
    return {
        "choice": race.choice,
        "times_us": [result.time_us for result in results],
        "disturbed": race.disturbed,
        "of_the_same_code": sum(result.same_as is not None for result in results),
        "launches": sum(result.measured.runs for result in results if result.measured and result.same_as is None),
    }


def _truth(call: Any, runners: list[Any]) -> dict[str, Any]:
    """Return the reference: for each candidate near the best, the mean of the middle half of many launches in turn.

    Candidates far from the best have the lowest time of three launches. "noise" is the largest share by which two
    halves of a candidate's launches differ.
    """
    from pytest_autotune.tuners.measuring.times import interquartile_mean
    from pytest_autotune.tuners.triton.tuning import find_clocks

    clocks = find_clocks(call.autotuner)
    assert clocks is not None
    clock = clocks.make_clock()
    failing = sys.modules["triton.runtime.errors"].OutOfResources
    shuffle = random.Random(1).shuffle
    times: dict[int, list[float]] = {number: [] for number in range(len(runners))}
    prepared: list[float] = [100.0]

    def rounds(numbers: list[int], count: int, busy_us: float) -> None:
        for _ in range(count):
            shuffle(numbers)
            launched = []
            for number in numbers:
                try:
                    launched.append((number, clock.launch(runners[number], busy_us)))
                except failing:
                    times.pop(number, None)
            clock.synchronise()
            prepared.extend(launch.prepared_us for _, launch in launched)
            for number, launch in launched:
                if number in times and (not busy_us or launch.prepared_us <= busy_us):
                    times[number].append(launch.time_us())

    rounds(list(times), 3, 0.0)
    busy_us = min(2000.0, max(50.0, sorted(prepared)[int(len(prepared) * 0.8)] * 2))
    rough = {number: min(samples) for number, samples in times.items() if samples}
    for samples in times.values():
        samples.clear()
    close = [number for number in rough if rough[number] <= max(min(rough.values()) * 1.5, min(rough.values()) + 100)]
    each_us = sum(rough[number] + busy_us + 100 for number in close)
    count = max(20, min(400, int(REFERENCE_US / each_us)))
    rounds(close, count, busy_us)
    # Candidates of the same code take the same time.
    pooled: dict[Any, list[float]] = {}
    for number in close:
        pooled.setdefault(runners[number].code or number, []).extend(times.get(number, []))
    times = {number: pooled[runners[number].code or number] for number in close if number in times}
    means = {number: interquartile_mean(times[number])[0] for number in close if times.get(number)}
    halves = []
    for number in means:
        samples = times[number]
        if len(samples) > 3:
            first_half_us, second_half_us = interquartile_mean(samples[::2])[0], interquartile_mean(samples[1::2])[0]
            halves.append(abs(first_half_us / second_half_us - 1))
    truth = [means.get(number, rough.get(number, 1e9)) for number in range(len(runners))]
    return {"truth": truth, "noise": max(halves, default=0.0)}


if __name__ == "__main__":
    main()
