"""Measure the HTML report of a large suite: its size, the time to write it, and the time until a browser shows it.

    python tests/benchmarks/html_report.py [--problems 5000] [--keep report.html]

The script writes the report of a random run five times, then opens it five times in a new headless Chromium. The table
has the size in megabytes and medians in seconds. "usable" is the time from the start of loading until the user can
filter the table. "filtered" is the time from a key press until the table shows only the matching rows. Without a
browser, the last two columns are missing.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from common import machine, median, table

from pytest_autotune.cache.diff import Change, ChangeKind, Diff
from pytest_autotune.cache.merge import MergeResult
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value, Versions
from pytest_autotune.report.html import to_html
from pytest_autotune.run.lookup import Outcome
from pytest_autotune.run.request import RunRequest
from pytest_autotune.run.result import Gate, RunResult, SourceLocation
from pytest_autotune.run.rows import NOT_COVERED, ProblemRow
from tests.reasons import describe_changed, too_many_misses

GPU = Device("NVIDIA H200", "sm_90", 132)
KERNELS = ["matmul", "matmul_fp8", "softmax", "layer_norm_fwd", "layer_norm_bwd", "flash_attention_fwd", "rms_norm",
           "flash_attention_bwd", "cross_entropy", "swiglu", "rope", "moe_gate", "group_gemm", "topk", "cumsum",
           "dropout", "gelu", "adamw", "conv1d", "ssm_scan"]  # fmt: skip
CANDIDATES = 20
TIMES = 5
#: A script that filters the page, and writes the time that this took into an attribute of the page.
_FILTERING = """<script>
const input = document.getElementById("filter"), began = performance.now();
input.value = "matmul 4096"; input.dispatchEvent(new Event("input"));
document.body.getBoundingClientRect();
document.documentElement.dataset.filtered = (performance.now() - began).toFixed(1);
</script>"""


def build_result(problem_count: int, seed: int = 0) -> RunResult:
    """Return the result of a run with problems of twenty kernels, each with twenty candidates.

    A quarter of the problems has no hit, as after a change of some kernels. All problems have been tuned.
    """
    chance = random.Random(seed)
    rows = tuple(_build_row(number, chance) for number in range(problem_count))
    changes = []
    for row in rows:
        if row.outcome is Outcome.STALE and row.choice:
            changes.append(_build_change(row))
    missed_count = sum(row.outcome in NOT_COVERED for row in rows)
    tests = sorted({row.tests[0] for row in rows})
    return RunResult(
        loaded=(("tests/autotune.textproto", problem_count * 9 // 10),),
        rows=rows,
        merged=MergeResult(Cache(), changes=Diff(tuple(changes), problem_count - len(changes))),
        gate=Gate("0", too_many_misses(missed_count, "0")),
        request=RunRequest(update_arguments="--autotune-load=tests/autotune.textproto --autotune-update"),
        test_places={test: SourceLocation(test.partition("::")[0], number) for number, test in enumerate(tests)},
    )


def _build_row(number: int, chance: random.Random) -> ProblemRow:
    kernel = KERNELS[number * 7 % len(KERNELS)]
    sizes = {name: 2 ** chance.randint(6, 14) for name in "MNK"}
    key = [Value(name, size) for name, size in sizes.items()]
    key += [Value("batch", number), *(Value(f"{name}_ptr.dtype", "bf16", "dtype") for name in "abc")]
    problem = Problem("triton", f"kernels.ops.{kernel}_kernel", tuple(key), GPU)
    candidates = tuple(_list_candidates(chance, sizes["M"] * sizes["N"] / 2e5 + 4))
    timed = [candidate for candidate in candidates if candidate.time_us]
    choice = min(timed, key=lambda candidate: candidate.time_us or 0)
    outcome = chance.choices(list(Outcome), [75, 12, 2, 10, 1])[0]
    reason = {Outcome.MISS: f"no entry; the nearest entry has batch {number - 1} instead of {number}",
              Outcome.STALE: describe_changed("source"), Outcome.HIT: "", Outcome.UNCACHEABLE: "key x is a Tensor",
              Outcome.MISMATCH: "tuned on NVIDIA H100, but this run is on NVIDIA H200"}[outcome]  # fmt: skip
    test = f"tests/test_{kernel}.py::test_{kernel}[{'-'.join(map(str, sizes.values()))}-bf16]"
    seconds = chance.lognormvariate(0, 0.8)
    return ProblemRow(
        problem, outcome, reason, tests=(test,), searches=((test, seconds),),
        entry=Entry(problem, choice=choice, versions=Versions.parse("triton 3.7.1, torch 2.13.0")),
        candidates=candidates,
    )  # fmt: skip


def _list_candidates(chance: random.Random, best_us: float) -> Iterator[Candidate]:
    for number in range(CANDIDATES):
        size = {"BLOCK_M": 32 << number % 3, "BLOCK_N": 32 << number // 3 % 3, "num_warps": 4 << number // 9 % 2}
        params = tuple(Value(name, value) for name, value in {**size, "num_ctas": 1, "num_stages": 3}.items())
        if chance.random() < 0.04:
            yield Candidate(params=params, failed="out of resource: shared memory, Required: 294912, Limit: 232448")
            continue
        time_us = best_us * (1 + chance.expovariate(1.2))
        label = f"+-{time_us * chance.uniform(0.002, 0.03):.3g} us, 24 of 25 runs"
        yield Candidate(params=params, time_us=time_us, label=label)


def _build_change(row: ProblemRow) -> Change:
    assert row.choice is not None
    old = row.candidates[0]
    kind = ChangeKind.CODE if old.is_same_configuration(row.choice) else ChangeKind.CHOICE
    return Change(kind, Entry(row.problem, choice=old), Entry(row.problem, choice=row.choice))


def open_page(browser: str, page: Path) -> dict[str, float]:
    """Open a page in a new browser, and return the milliseconds that the page wrote into its attributes."""
    with tempfile.TemporaryDirectory() as profile:
        arguments = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--dump-dom"]
        done = subprocess.run([browser, *arguments, page.as_uri()], capture_output=True, text=True, check=True)
    attributes = re.findall(r'data-(ready|filtered)="([\d.]+)"', done.stdout[:2000])
    return {name: float(milliseconds) for name, milliseconds in attributes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=5000)
    parser.add_argument("--keep", type=Path, help="the file in which to keep the report")
    options = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    result = build_result(options.problems)
    times_s = []
    for _ in range(TIMES):
        started = time.perf_counter()
        text = to_html(result)
        times_s.append(time.perf_counter() - started)
    if options.keep:
        options.keep.write_text(text, encoding="utf-8")
    row = [f"{options.problems:,}", f"{len(text.encode()) / 1e6:.2f} MB", f"{median(times_s):.2f} s"]
    head = ["problems", "size", "written in"]
    if browser:
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "report.html"
            # The page's security policy allows only its own script; without the policy, ours runs, too.
            page.write_text(re.sub(r"<meta http-equiv[^>]*>", "", text).replace("</body>", f"{_FILTERING}</body>"))
            openings = [open_page(browser, page) for _ in range(TIMES)]
        for name in ("ready", "filtered"):
            milliseconds = median([opening[name] for opening in openings])
            row.append(f"{milliseconds / 1000:.2f} s")
        head += ["usable", "filtered"]
    print(machine("pytest-autotune"))
    table(head, [row])


if __name__ == "__main__":
    main()
