"""``--autotune-verify``: which planted losses it finds, how often it reports one that is not there, and what it costs.

    python tests/benchmarks/verify.py SECONDS [--parts=planted,unchanged,wall] [--pairs=5] [FOLDER:PYTEST_ARGUMENTS...]
    python tests/benchmarks/verify.py 450 example_suite:tests

On a GPU. The problems are those of the kernels of example_suite in 120 sizes, in a suite that this script writes.

1. The suite is dumped.
2. Planted: in one process, the truth of each problem is measured as in measuring.py (up to 400 launches of each
   candidate in turn), and its choice swapped for the candidates whose true loss is nearest above 2, 5 and 10 %. Each
   is raced as ``--autotune-verify`` does.
3. Unchanged: the suite is loaded up to ten times with ``--autotune-verify=all``, serial and with ``-n 4`` in turn. A
   report is false where the true loss of the choice is below 3 %.
4. Wall: those named (as in measuring.py), then this suite, loaded with and without ``--autotune-verify=10%``, in so
   many pairs: of every other pair the plain run is the second one. What verifying took by the run's own report is told,
   too: walls of runs differ by more than it.

SECONDS bound the whole, and each suite has its part of the time of walls; what was not reached is left out, and so is
what failed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any

import measuring
from common import REPOSITORY, machine, table

EXAMPLES = REPOSITORY / "example_suite"
#: Planted: true losses from the first to the second share.
BANDS = ((0.02, 0.04), (0.05, 0.08), (0.10, 0.25))
#: A choice with a smaller true loss is reported falsely.
TRULY_SLOWER = 0.03
RUNS = 10
#: How the time is divided among the parts that are wanted.
SHARES = {"planted": 0.5, "unchanged": 0.35, "wall": 0.15}
SUITE = """
import pytest, torch
from example_kernels.attention import attention
from example_kernels.layer_norm import layer_norm
from example_kernels.matmul import matmul
from example_kernels.softmax import softmax

HALF, BFLOAT, FLOAT = torch.float16, torch.bfloat16, torch.float32

def random(*shape, dtype):
    return torch.randn(shape, device="cuda", dtype=dtype)

@pytest.mark.parametrize("k", [512, 1024])
@pytest.mark.parametrize("n", [512, 1024, 1536, 2048])
@pytest.mark.parametrize("m", [512, 1024, 1536, 2048])
def test_matmul(m, n, k):
    assert matmul(random(m, k, dtype=HALF), random(k, n, dtype=HALF)).isfinite().all()

@pytest.mark.parametrize("m", [256, 768, 1280, 2560])
@pytest.mark.parametrize("n", [512, 1024, 4096])
def test_matmul_of_bfloats(m, n):
    assert matmul(random(m, 512, dtype=BFLOAT), random(512, n, dtype=BFLOAT)).isfinite().all()

@pytest.mark.parametrize("dtype", [HALF, FLOAT], ids=str)
@pytest.mark.parametrize("cols", [256, 512, 1024, 2048, 4096])
@pytest.mark.parametrize("rows", [1024, 4096, 8192])
def test_softmax(rows, cols, dtype):
    assert softmax(random(rows, cols, dtype=dtype)).isfinite().all()

@pytest.mark.parametrize("dtype", [HALF, FLOAT], ids=str)
@pytest.mark.parametrize("cols", [768, 1024, 2048, 3072, 4096])
@pytest.mark.parametrize("rows", [1024, 4096, 8192])
def test_layer_norm(rows, cols, dtype):
    weight, bias = random(cols, dtype=dtype), random(cols, dtype=dtype)
    assert layer_norm(random(rows, cols, dtype=dtype), weight, bias).isfinite().all()

@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("tokens", [512, 1024, 2048])
@pytest.mark.parametrize("heads", [4, 16])
def test_attention(heads, tokens, dim, causal):
    q, k, v = (random(1, heads, tokens, dim, dtype=HALF) for _ in range(3))
    assert attention(q, k, v, causal).isfinite().all()
"""


def main() -> None:
    parser = argparse.ArgumentParser(usage=(__doc__ or "").replace("%", "%%"))
    parser.add_argument("seconds", type=float)
    parser.add_argument("suites", nargs="*")
    parser.add_argument("--parts", default=",".join(SHARES))
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_intermixed_args()
    began, parts = time.time(), options.parts.split(",")
    print(machine("torch", "triton", "pytest-xdist"), flush=True)
    truths, runs, walls = [], [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_problems.py").write_text(SUITE)
        cache = folder / "cache.textproto"
        print(f"dump: {_pytest(folder, f'--autotune-dump={cache}', '-n4'):.1f} s", flush=True)
        until = dict(zip(parts, accumulate(SHARES[part] for part in parts), strict=True))
        ends = {part: began + options.seconds * share / max(until.values()) for part, share in until.items()}
        if "planted" in parts:
            truths = _planted(folder, ends["planted"])
            print(f"planted: {time.time() - began:.0f} s", flush=True)
        if "unchanged" in parts:
            runs = _unchanged(folder, cache, ends["unchanged"])
            print(f"unchanged: {time.time() - began:.0f} s", flush=True)
        if "wall" in parts:
            walls = _walls([*options.suites, f"{folder}:test_problems.py"], folder, options.pairs, ends["wall"])
    if out := os.environ.get("OUT"):
        (Path(out) / "verify.json").write_text(json.dumps({"truths": truths, "runs": runs, "walls": walls}))
    _tell(truths, runs, walls)


def _pytest(where: Path, *args: str, until: float | None = None, **environment: str) -> float:
    """The wall time of a run in seconds; its failure ends the benchmark, and so does a run that is not over by then."""
    paths = [str(Path(__file__).parent), str(REPOSITORY), str(EXAMPLES), os.environ.get("PYTHONPATH", "")]
    started = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args],
            cwd=where,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
            capture_output=True,
            text=True,
            timeout=None if until is None else max(until - time.time(), 0.0),
        )
    except subprocess.TimeoutExpired:
        sys.exit(f"pytest {' '.join(args)}: no time left")
    if done.returncode:
        sys.exit(f"pytest {' '.join(args)}:\n{done.stdout[-3000:]}\n{done.stderr[-2000:]}")
    return time.perf_counter() - started


def _planted(folder: Path, until: float) -> list[dict[str, Any]]:
    out = folder / "planted.jsonl"
    _pytest(folder, "-pno:autotune", "-p", "verify", VERIFY_UNTIL=str(until), VERIFY_OUT=str(out))
    return [json.loads(line) for line in out.read_text().splitlines()]


def _unchanged(folder: Path, cache: Path, until: float) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []
    longest = 0.0
    for number in range(RUNS):
        if time.time() + longest > until:
            break
        mode = "-n4" if number % 2 else "serial"
        report = folder / "report.json"
        args = [f"--autotune-load={cache}", "--autotune-verify=all", f"--autotune-report={report}"]
        try:
            wall = _pytest(folder, *args, "-n4" if number % 2 else "-pno:xdist")
        except SystemExit as failed:
            print(f"unchanged, {mode}: no more runs: {str(failed)[-1500:]}", flush=True)
            break
        print(f"unchanged, {mode}: {wall:.1f} s", flush=True)
        longest = max(longest, wall)
        told = json.loads(report.read_text())
        rows = [
            {name: row[name] for name in ("kernel", "key", "choice", "verdict")}
            for row in told["lookups"]
            if row["verdict"]
        ]
        runs.append({"mode": mode, "wall_s": wall, "verify": told["verify"], "rows": rows})
    return runs


def _walls(suites: list[str], folder: Path, pairs: int, until: float) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number, suite in enumerate(suites):
        where, _, arguments = suite.partition(":")
        name = "problems" if Path(where) == folder else Path(where).name
        cache = folder / f"wall-{number}.pb"
        args = arguments.split()
        end = time.time() + (until - time.time()) / (len(suites) - number)
        done: list[dict[str, Any]] = []
        try:
            dump = _pytest(Path(where), *args, "-n4", f"--autotune-dump={cache}", until=until)
            print(f"wall of {name}: dump {dump:.1f} s", flush=True)
            # A dump takes longer than any of its loads, so it says nothing of how many of these there is time for.
            longest = 0.0
            while len(done) < pairs and time.time() + 2 * longest < end:
                done.append(_pair(Path(where), args, cache, len(done), until))
                longest = max(longest, done[-1]["plain_s"], done[-1]["share_s"])
                print(f"wall of {name}: {done[-1]}", flush=True)
        except SystemExit as failed:
            print(f"wall of {name}: left out from here: {str(failed)[-1500:]}", flush=True)
        if done:
            found.append({"suite": name, "pairs": done})
    return found


def _pair(where: Path, args: list[str], cache: Path, number: int, until: float) -> dict[str, Any]:
    """A suite loaded plainly, and with a share verified: walls, and what the report says of verifying, in seconds."""
    report = cache.with_suffix(".json")
    load = [*args, "-pno:xdist", f"--autotune-load={cache}"]
    shared = [f"--autotune-verify={number % 10 + 1}/10", f"--autotune-report={report}"]
    walls: dict[str, float] = {}
    runs: list[tuple[str, list[str]]] = [("plain_s", []), ("share_s", shared)]
    for name, more in runs if number % 2 == 0 else reversed(runs):
        walls[name] = _pytest(where, *load, *more, until=until)
    told = json.loads(report.read_text())
    verdicts = [row["verdict"] for row in told["lookups"] if row["verdict"]]
    return {
        **walls,
        "lookups": len(told["lookups"]),
        "raced": told["verify"]["raced"],
        "not_raced": told["verify"]["not_raced"],
        "verify_s": told["verify"]["seconds"],
        "held_s": told["verify"]["device_seconds"],
        "each": [[verdict["raced"], verdict["seconds"], verdict["device_seconds"]] for verdict in verdicts],
    }


def _tell(truths: list[dict[str, Any]], runs: list[dict[str, Any]], walls: list[dict[str, Any]]) -> None:
    candidates = sum(len(one["truth"]) for one in truths)
    print(f"{len(truths)} problems with a truth, {candidates} candidates")
    rows: list[tuple[object, ...]] = []
    tried = [plant for one in truths for plant in one["planted"]]
    for low, high in BANDS:
        own = [plant for plant in tried if low <= plant["loss"] < high]
        rows.append((f"planted loss of {low:.0%} to {high:.0%}", *_share(own)))
    rows.append((f"planted loss of {BANDS[1][0]:.0%} or more", *_share([p for p in tried if p["loss"] >= BANDS[1][0]])))
    by_name = {_name(one["kernel"], one["key"]): one for one in truths}
    for mode in ("serial", "-n4"):
        own_runs = [run for run in runs if run["mode"] == mode]
        raced = sum(run["verify"]["raced"] for run in own_runs)
        slower = [row for run in own_runs for row in run["rows"] if row["verdict"]["slower"]]
        losses = [_true_loss(by_name, row) for row in slower]
        false = sum(loss is not None and loss < TRULY_SLOWER for loss in losses)
        known = ", ".join("?" if loss is None else f"{loss:.1%}" for loss in losses)
        per_1000 = f"{false / raced * 1000:.2f} in 1,000" if raced else ""
        what = f"unchanged, {mode}: {len(own_runs)} runs, {raced} raced"
        rows.append((what, f"{len(slower)} reported; true losses: {known or '-'}", f"{false} false: {per_1000}"))
        left = sum(part["problems"] for run in own_runs for part in run["verify"]["not_raced"])
        held = [row["verdict"]["device_seconds"] for run in own_runs for row in run["rows"]]
        if held:
            quantile = sorted(held)[int(len(held) * 0.95)]
            rows.append(
                (
                    f"GPU held for a verified problem, {mode}",
                    f"mean {statistics.mean(held):.3f} s",
                    f"median {statistics.median(held):.3f} s, 95th percentile {quantile:.3f} s; {left} not raced",
                )
            )
    for wall in walls:
        rows += _costs(wall["suite"], wall["pairs"])
    table(("what", "found", "share"), rows)


def _costs(suite: str, pairs: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    plain, with_share = (statistics.median(pair[name] for pair in pairs) for name in ("plain_s", "share_s"))
    ratio = statistics.median(pair["share_s"] / pair["plain_s"] for pair in pairs)
    took = statistics.median(pair["verify_s"] / pair["plain_s"] for pair in pairs)
    raced = sum(pair["raced"] for pair in pairs)
    seconds, held = (sum(pair[name] for pair in pairs) for name in ("verify_s", "held_s"))
    each = f", {seconds / raced:.3f} s each, GPU held {held / raced:.3f} s" if raced else ""
    of = sum(pair["lookups"] for pair in pairs)
    return [
        (
            f"wall of {suite}, medians of {len(pairs)} pairs",
            f"{plain:.1f} s, with --autotune-verify=10% {with_share:.1f} s",
            f"{ratio - 1:+.1%} (median of pairs)",
        ),
        (f"verifying, of {suite}", f"{raced} of {of} raced in {seconds:.2f} s{each}", f"{took:.1%} (median of pairs)"),
    ]


def _share(planted: list[dict[str, Any]]) -> tuple[str, str]:
    found = sum(plant["found"] for plant in planted)
    return f"{found} of {len(planted)}", f"{found / len(planted):.1%}" if planted else ""


def _name(kernel: str, key: dict[str, Any]) -> str:
    return json.dumps([kernel, key], sort_keys=True)


def _true_loss(by_name: dict[str, Any], row: dict[str, Any]) -> float | None:
    one = by_name.get(_name(row["kernel"], row["key"]))
    params = row["choice"]["params"]
    if one is None or params not in one["params"]:
        return None
    truth = one["truth"]
    return float(truth[one["params"].index(params)] / min(truth) - 1)


# What follows runs inside pytest, as a plugin.


def pytest_configure() -> None:
    if "VERIFY_UNTIL" not in os.environ:
        return
    module: Any = import_module("triton.runtime.autotuner")
    from pytest_autotune.tuners.triton.adapter import _AlwaysAsk

    def check_disk_cache(self: Any, tuning_key: Any, configs: Any, bench_fn: Any) -> bool:
        return _plant(self, tuning_key, list(configs), bench_fn)

    module.Autotuner.check_disk_cache = check_disk_cache
    module.Autotuner.cache_results = _AlwaysAsk(check_disk_cache)


def _plant(autotuner: Any, tuning_key: Any, configs: list[Any], bench_fn: Any) -> bool:
    from pytest_autotune.devices import current_gpu
    from pytest_autotune.tuners.shared.functions import python_function
    from pytest_autotune.tuners.triton.compiling import load_ahead
    from pytest_autotune.tuners.triton.identity import Call, compute_identity
    from pytest_autotune.tuners.triton.tuning import build_runner

    call = Call.of(autotuner, tuning_key, bench_fn)
    if len(configs) > 1 and time.time() < float(os.environ["VERIFY_UNTIL"]):
        codes = load_ahead(call, configs)
        runners = [build_runner(call, config, codes.get(config)) for config in configs]
        measuring.TRUTH_US = 4e5
        truth = measuring._truth(call, runners)["truth"]
        function, device = python_function(autotuner), current_gpu()
        assert function is not None
        assert device is not None
        identity = compute_identity(call, function, configs, device)
        record = {
            "kernel": identity.problem.kernel,
            "key": {value.name: value.value for value in identity.problem.key},
            "params": [{value.name: value.value for value in params} for params in identity.config_by_params],
            "truth": truth,
            "planted": [_raced(autotuner, runners, truth, number) for number in _to_plant(truth)],
        }
        with open(os.environ["VERIFY_OUT"], "a") as file:
            file.write(json.dumps(record) + "\n")
    call.adopt(measuring._first_that_fits(call, configs), {})
    return True


def _to_plant(truth: list[float]) -> list[int]:
    """The candidates whose loss is nearest above the beginning of each band."""
    losses = {number: time_us / min(truth) - 1 for number, time_us in enumerate(truth)}
    found = []
    for low, high in BANDS:
        own = [number for number, loss in losses.items() if low <= loss < high]
        found += sorted(own, key=lambda number: losses[number])[:2]
    return found


def _raced(autotuner: Any, runners: list[Any], truth: list[float], number: int) -> dict[str, Any]:
    """What ``--autotune-verify`` makes of a problem whose choice is this candidate."""
    from pytest_autotune.modes.verify import WORTH, race_choice
    from pytest_autotune.tuners.triton.internals import autotuners
    from pytest_autotune.tuners.triton.tuning import find_clocks

    clocks = find_clocks(autotuner)
    assert clocks is not None
    order = [number, *(other for other in range(len(runners)) if other != number)]
    started = time.perf_counter()
    challenge = race_choice(
        clocks.make_clock(), [runners[position] for position in order], WORTH, autotuners.list_candidate_errors()
    )
    outcome = challenge.outcome
    return {
        "loss": truth[number] / min(truth) - 1,
        "found": challenge.winner is not None and not outcome.disturbed,
        "told": outcome.slower.slower if outcome.slower else 0.0,
        "disturbed": outcome.disturbed,
        "held_s": time.perf_counter() - started,
    }


if __name__ == "__main__":
    main()
