"""How long candidates are measured, and how good the choice is: Triton alone, the version before, and the race.

    python tests/benchmarks/measuring.py SECONDS FOLDER:PYTEST_ARGUMENTS...
    python tests/benchmarks/measuring.py 600 ../mamba:tests/ops/triton/test_ssd.py example_suite:tests

Runs suites unmodified on a GPU. First all candidates are compiled, by many processes; not where MEASURING_COMPILED is
a folder in which Triton has cached them already. Then in two fresh processes, one after the other, each problem that a
suite meets is measured by the race and every fourth one in the other ways, in turn, on the same compiled candidates; in
the second, every third one by Triton.
The truth is a measurement of ten times the race's: up to 400 launches of each candidate in turn, the GPU kept busy.
Loss: the truth of the choice over the truth of the best. SECONDS bound the whole; what was not reached is left out.
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

#: Of the time: for compiling, and for the first of the two processes.
COMPILING, FIRST = 0.4, 0.75
ARMS = ("plain", "before", "race")
#: For the truth of one problem, a little more where candidates are many.
TRUTH_US = 1e6


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
                last = number == len(suites) - 1
                until = began + seconds * share
                # No suite takes the time of those after it.
                mine = until if last else time.time() + (until - time.time()) * 2 / (len(suites) - number + 1)
                _run(suite, part, mine, Path(name))
                print(f"{part} {suite}: {time.time() - began:.0f} s", flush=True)
        found = {part: _read(Path(name) / f"{part}.jsonl") for part in ("first", "second")}
    if out := os.environ.get("OUT"):
        (Path(out) / "measuring.json").write_text(json.dumps(found))
    _tell(found["first"], found["second"])


def _run(suite: str, part: str, until: float, folder: Path) -> None:
    where, _, arguments = suite.partition(":")
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
            cwd=where,
            env=environment,
            capture_output=True,
            text=True,
            timeout=max(until - time.time() + 20, 1),
        )
        print(done.stdout[-300:] if done.returncode in (0, 1) else done.stdout[-2000:] + done.stderr[-1000:])
    except subprocess.TimeoutExpired as expired:
        print(f"stopped: {(expired.stdout or b'')[-300:]!r}")


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        record = json.loads(line)
        found.setdefault(record["problem"], record)
    return found


def _tell(first: dict[str, Any], second: dict[str, Any]) -> None:
    problems = {name: one for name, one in first.items() if one["truth"]}
    if not problems:
        print("no problem was measured")
        return
    candidates = [len(one["truth"]) for one in problems.values()]
    noise = sorted(one["noise"] for one in problems.values())
    print(f"{len(problems)} problems, {sum(candidates)} candidates; the halves of the truth differ by", end=" ")
    print(f"{statistics.median(noise):.2%} (median), {noise[int(len(noise) * 0.95)]:.2%} (95th percentile)")
    rows = [_row(arm, arm, problems, second) for arm in ARMS if any(arm in one["arms"] for one in problems.values())]
    if compared := {name: one for name, one in problems.items() if "plain" in one["arms"]}:
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
    losses, held, differ = [], [], []
    for name, one in problems.items():
        if arm not in one["arms"]:
            continue
        truth, choice = one["truth"], one["arms"][arm]["choice"]
        losses.append(truth[choice] / min(truth) - 1)
        held.append(one["arms"][arm]["held_s"])
        if other := second.get(name, {}).get("arms", {}).get(arm):
            differ.append(other["choice"] != choice)
            losses.append(truth[other["choice"]] / min(truth) - 1)
    losses.sort()
    return (
        title,
        len(held),
        f"{sum(held):.1f} s",
        f"{statistics.median(held):.3f} s",
        f"{statistics.mean(losses):.2%}",
        f"{losses[int(len(losses) * 0.95)]:.1%}",
        f"{losses[-1]:.1%}",
        f"{sum(loss > 0.02 for loss in losses)} of {len(losses)}",
        f"{sum(differ)} of {len(differ)}" if differ else "",
    )


# What follows runs inside pytest, as a plugin.


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

    call = Call.of(autotuner, tuning_key, bench_fn)
    left_s = float(os.environ["MEASURING_UNTIL"]) - time.time()
    problem = f"{autotuner.base_fn.__qualname__} {tuning_key}"
    cores = 2 if part == "compile" else len(os.sched_getaffinity(0))
    run: Any = SimpleNamespace(policy=SimpleNamespace(compile_threads=cores))
    own = find_clocks(autotuner) is None
    chosen = None
    if len(configs) > 1 and left_s > 0 and not own:
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
    """A short look at all, those within 25 % in full, up to eight, and those within 5 % once more."""
    times = {number: _bench(call, config, warmup=3, rep=10) for number, config in enumerate(configs)}
    best = min(times.values())
    leaders = sorted((n for n in times if times[n] <= best * 1.25), key=lambda n: times[n])[:8]
    times.update({n: _bench(call, configs[n]) for n in leaders})
    best = min(times[n] for n in leaders)
    leaders = [n for n in leaders if times[n] <= best * 1.05]
    if len(leaders) > 1:
        times.update({n: min(times[n], _bench(call, configs[n])) for n in leaders})
    found = _best(times)
    return {**found, "choice": min(leaders, key=lambda n: times[n])}


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
    """The mean of the middle half of many launches of each in turn; a rough time of those far from the best."""
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
    rough = {number: min(found) for number, found in times.items() if found}
    for found in times.values():
        found.clear()
    close = [number for number in rough if rough[number] <= max(min(rough.values()) * 1.5, min(rough.values()) + 100)]
    each_us = sum(rough[number] + busy_us + 100 for number in close)
    count = max(20, min(400, int(TRUTH_US / each_us)))
    rounds(close, count, busy_us)
    # Candidates of the same code take the same time.
    pooled: dict[Any, list[float]] = {}
    for number in close:
        pooled.setdefault(runners[number].code or number, []).extend(times.get(number, []))
    times = {number: pooled[runners[number].code or number] for number in close if number in times}
    means = {number: interquartile_mean(times[number])[0] for number in close if times.get(number)}
    halves = [
        abs(interquartile_mean(own[::2])[0] / interquartile_mean(own[1::2])[0] - 1)
        for own in (times[number] for number in means)
        if len(own) > 3
    ]
    truth = [means.get(number, rough.get(number, 1e9)) for number in range(len(runners))]
    return {"truth": truth, "noise": max(halves, default=0.0)}


if __name__ == "__main__":
    main()
