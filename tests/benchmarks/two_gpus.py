"""Check on a machine with two NVIDIA GPUs what the documentation says of several GPUs.

    python tests/benchmarks/two_gpus.py [--seconds=S] [--logs=FOLDER] [--suite=FOLDER::FILE] [--dry] [STEP...]

The steps; without a name, all of them run:

- spread: four workers, with and without ``autotune_spread_gpus``. Each worker sees its own GPU, each GPU has its own
  lock, and measurements overlap only on different GPUs.
- ranks: two ranks under ``torchrun``, with NCCL. Both choose the same config, and no rank hangs.
- devices: one process and two devices. They share their entries, also under ``use()`` and an exported module.
- lost: half of the workers cannot see one of the GPUs. The entries are the same, and the locks are right.

The script writes a small suite of Triton kernels into a temporary folder and runs it. ``--suite`` adds the tests of a
checkout to the step spread, such as ``--suite=../flash-linear-attention::tests/modules/test_l2norm.py``. ``--dry``
needs no GPU: it takes Triton's interpreter, gloo, and names in place of GPUs. A dry run shows only that the script
works.

Each command may take ``--seconds``, and has a log in ``--logs``. If a check or a step fails, the script prints the end
of the log and goes on. The table of all checks comes last, and the exit status is 1 if any of them failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common import REPOSITORY, machine, table

from pytest_autotune.cache.codec import Format, decode, encode
from pytest_autotune.cache.model import Cache

LOG_LINES = 25
NO_MISSES = "--autotune-max-misses=0"
SPREAD = ("-o", "autotune_spread_gpus=true")

# The files of the generated suite.

KERNELS = '''
"""Kernels of all steps, and notes of their choices."""

import json
import os

import torch
import triton
import triton.language as tl

DRY = os.environ.get("TWO_GPUS_DRY") == "1"
DEVICE = "cpu" if DRY else "cuda"
SIZES = [256, 500, 900, 1300] if DRY else [1 << 20, 3 << 20, 1 << 23, 1 << 25]
#: Large enough that BLOCK=16 is slower than BLOCK=1024 beyond any noise.
CLEAR_SIZES = [2048, 3000] if DRY else [1 << 22, 3 << 22]

if DRY:
    CONFIGS = [triton.Config({"BLOCK": block}) for block in (64, 256)]
else:
    CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (256, 1024, 4096) for warps in (1, 4, 8)]
CLEAR_CONFIGS = [triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 1024})]


def raise_on_rank_1(arguments):
    if os.environ.get("TWO_GPUS_RAISE") and os.environ.get("RANK") == "1":
        raise RuntimeError("the search fails on rank 1")


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offsets, 2 * tl.load(x + offsets, mask=offsets < n), mask=offsets < n)


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def square(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + offsets, mask=offsets < n)
    tl.store(y + offsets, values * values, mask=offsets < n)


@triton.autotune(configs=CONFIGS, key=["n"], reset_to_zero=["y"])
@triton.jit
def accumulate(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y + offsets, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)


@triton.autotune(configs=CLEAR_CONFIGS, key=["n"])
@triton.jit
def clear(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offsets, 2 * tl.load(x + offsets, mask=offsets < n), mask=offsets < n)


@triton.autotune(
    configs=[triton.Config({"BLOCK": block}, pre_hook=raise_on_rank_1) for block in (16, 1024)], key=["n"]
)
@triton.jit
def raising(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offsets, 2 * tl.load(x + offsets, mask=offsets < n), mask=offsets < n)


def launch(kernel, x):
    """Launch a kernel on the current device; note its choice, and return the output."""
    y = torch.zeros_like(x)
    n = x.numel()
    kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
    note = {
        "process": os.environ.get("RANK") or os.environ.get("PYTEST_XDIST_WORKER") or "main",
        "kernel": kernel.base_fn.__name__,
        "n": n,
        "block": kernel.best_config.kwargs["BLOCK"],
        "device": 0 if DRY else torch.cuda.current_device(),
    }
    with open(os.path.join(os.environ["TWO_GPUS_NOTES"], f"choices-{os.getpid()}.jsonl"), "a") as file:
        print(json.dumps(note), file=file)
    return y
'''

PROBE = '''
"""A plugin of pytest that notes each measurement of this process, and the GPU that the process sees."""

import contextlib
import json
import os
import sys
import time

from pytest_autotune.devices import current_gpu_uuid
from pytest_autotune.workers import locks

DRY = os.environ.get("TWO_GPUS_DRY") == "1"
#: Each measurement holds its GPU for so many seconds more, so that measurements surely overlap.
HOLD_S = float(os.environ.get("TWO_GPUS_HOLD_S", "0"))
measure = locks.Locks.measuring


def find_uuid():
    if not DRY:
        return current_gpu_uuid()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1")
    return visible.split(",")[0].removeprefix("GPU-").removeprefix("dry-")


def list_held_locks():
    """Return the names of the GPU locks that this process has open."""
    names = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
            if name.startswith("gpu-"):
                names.append(name.removesuffix(" (deleted)"))
    return names


def write(kind, **values):
    note = {"kind": kind, "process": os.environ.get("PYTEST_XDIST_WORKER", "main"), "pid": os.getpid(), **values}
    with open(os.path.join(os.environ["TWO_GPUS_NOTES"], f"probe-{os.getpid()}.jsonl"), "a") as file:
        print(json.dumps(note), file=file)


@contextlib.contextmanager
def note_measurement(self, name=""):
    uuid = find_uuid()
    if DRY and not name:
        name = uuid
    with measure(self, name) as has_lock:
        start = time.monotonic()
        held = list_held_locks()
        time.sleep(HOLD_S)
        try:
            yield has_lock
        finally:
            # The next process may enter only after this moment.
            write("measurement", uuid=uuid, start=start, end=time.monotonic(), has_lock=has_lock, locks=held)


locks.Locks.measuring = note_measurement


def pytest_sessionfinish(session):
    count = 0
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        count = torch.cuda.device_count()
    write("process", visible=os.environ.get("CUDA_VISIBLE_DEVICES"), uuid=find_uuid(), count=count)
'''

#: Each rank has files of its own where an argument contains RANK. A rank waits for the other at its end, because
#: torchrun kills all ranks as soon as one of them fails.
OF_RANK = """
import os
import time
from datetime import timedelta

import pytest
from pytest_autotune.workers import ranks

RANK = os.environ["RANK"]
if os.environ.get("TWO_GPUS_RANK_TIMEOUT_S"):
    ranks._TIMEOUT = timedelta(seconds=float(os.environ["TWO_GPUS_RANK_TIMEOUT_S"]))


def pytest_load_initial_conftests(args):
    args[:] = [argument.replace("RANK", RANK) for argument in args]


@pytest.hookimpl(trylast=True)
def pytest_unconfigure():
    folder = os.environ["TWO_GPUS_NOTES"]
    open(os.path.join(folder, f"ended-{RANK}"), "w").close()
    other = os.path.join(folder, f"ended-{1 - int(RANK)}")
    give_up_at = time.monotonic() + float(os.environ.get("TWO_GPUS_WAIT_S", "10"))
    while not os.path.exists(other) and time.monotonic() < give_up_at:
        time.sleep(0.05)
"""

TEST_SPREAD = """
import pytest, torch
import kernels

@pytest.mark.parametrize("n", kernels.SIZES)
@pytest.mark.parametrize("name", ["double", "square", "accumulate"])
def test_kernel(name, n):
    x = torch.full((n,), 3.0, device=kernels.DEVICE)
    y = kernels.launch(getattr(kernels, name), x)
    expected = {"double": 6.0, "square": 9.0, "accumulate": 3.0}[name]
    torch.testing.assert_close(y, torch.full_like(x, expected))
"""

#: A worker dies, and xdist starts another in its place.
TEST_CRASH = """
import os
import pytest

def test_crash_once():
    worker = os.environ["PYTEST_XDIST_WORKER"]
    with open(os.path.join(os.environ["TWO_GPUS_NOTES"], "crashed"), "x") as file:
        print(worker, file=file)
    os._exit(1)

# Pytest collects these tests after the test above.
from test_spread import *
"""

TEST_RANKS = """
import os
from datetime import timedelta

import pytest, torch
import torch.distributed as dist
import kernels

RANK = int(os.environ["RANK"])

@pytest.fixture(scope="session", autouse=True)
def job(request):
    if not kernels.DRY:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo" if kernels.DRY else "nccl", timeout=timedelta(seconds=60))
    # NCCL connects the ranks at the first collective.
    dist.all_reduce(torch.ones(1, device=kernels.DEVICE))
    yield
    # NCCL may wait for all ranks here, and a rank with a failure does not come.
    if not request.session.testsfailed and not os.environ.get("TWO_GPUS_RAISE"):
        dist.destroy_process_group()

@pytest.mark.parametrize("n", kernels.CLEAR_SIZES)
def test_reduce(n):
    x = torch.full((n,), 1.0 + RANK, device=kernels.DEVICE)
    y = kernels.launch(kernels.clear, x)
    dist.all_reduce(y)
    torch.testing.assert_close(y, torch.full_like(y, 6.0))

def test_own_shape():
    n = kernels.CLEAR_SIZES[0] + 64 * RANK
    y = kernels.launch(kernels.clear, torch.ones(n, device=kernels.DEVICE))
    total = y.sum()
    dist.all_reduce(total)
    assert total.item() == 4 * kernels.CLEAR_SIZES[0] + 128

def test_raising():
    x = torch.ones(kernels.CLEAR_SIZES[0], device=kernels.DEVICE)
    if os.environ.get("TWO_GPUS_RAISE") == "alone":
        # As in most suites: the rank that raises does not reach the collective.
        y = kernels.launch(kernels.raising, x)
        dist.all_reduce(y)
        # NCCL returns at once, and this waits for the result.
        y.cpu()
        return
    try:
        y = kernels.launch(kernels.raising, x)
    finally:
        dist.all_reduce(x)
    torch.testing.assert_close(y, torch.full_like(y, 2.0))
"""

TEST_DEVICES = """
import ctypes
import json
import os

import pytest, torch
from kernels import CLEAR_SIZES, DEVICE, DRY, SIZES, launch
from shipped import ops

def run_on(index, how, n):
    if DRY:
        y = launch(ops.double, torch.ones(n))
    elif how == "set_device":
        torch.cuda.set_device(index)
        y = launch(ops.double, torch.ones(n, device="cuda"))
    else:
        x = torch.ones(n, device=f"cuda:{index}")
        with torch.cuda.device(x.device):
            y = launch(ops.double, x)
    if not DRY:
        assert y.device.index == index
    torch.testing.assert_close(y, torch.full_like(y, 2.0))

@pytest.mark.parametrize("index", [0, 1], ids=["index0", "index1"])
@pytest.mark.parametrize("how", ["set_device", "tensor"])
@pytest.mark.parametrize("n", CLEAR_SIZES)
def test_double(n, how, index):
    run_on(index, how, n)

# Each of these tests begins with an empty memory of Triton, so that the cache answers.
@pytest.mark.autotune_cache(load="devices.textproto")
@pytest.mark.parametrize("index", [0, 1], ids=["index0", "index1"])
def test_marked(index, autotune_cache):
    run_on(index, "tensor", CLEAR_SIZES[0])
    assert len(autotune_cache.hits) == 1 and not autotune_cache.misses

def test_context_of_index0():
    if DRY:
        return
    flags, is_active = ctypes.c_uint(), ctypes.c_int(-1)
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(is_active)) == 0
    with open(os.path.join(os.environ["TWO_GPUS_NOTES"], "context.json"), "w") as file:
        json.dump(is_active.value, file)
"""

SHIPPED = """
import os

if os.environ.get("TWO_GPUS_SHIP") == "use":
    import pytest_autotune
    pytest_autotune.use(__name__, "cache.textproto", on_miss="error")
"""

SHIPPED_OPS = """
import os
import triton
import triton.language as tl

OPTIONS = {}
if os.environ.get("TWO_GPUS_SHIP") == "export":
    from ._picked import pick
    picked = pick("shipped.ops.double")
    OPTIONS = {"prune_configs_by": {"early_config_prune": picked}, "do_bench": picked.do_bench}

@triton.autotune(configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 1024})], key=["n"], **OPTIONS)
@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offsets, 2 * tl.load(x + offsets, mask=offsets < n), mask=offsets < n)
"""

PRODUCTION = """
import contextlib
import torch
import kernels
from shipped import ops

for index in (1, 0, 1):
    for n in kernels.CLEAR_SIZES:
        # Triton would answer the second device from its memory.
        ops.double.cache.clear()
        with contextlib.nullcontext() if kernels.DRY else torch.cuda.device(index):
            y = kernels.launch(ops.double, torch.ones(n, device=kernels.DEVICE))
        torch.testing.assert_close(y, torch.full_like(y, 2.0))
"""

#: Before CUDA starts, each worker gets its own list of visible GPUs.
LOST_CONFTEST = """
import json
import os

worker = os.environ.get("PYTEST_XDIST_WORKER")
if worker:
    os.environ["CUDA_VISIBLE_DEVICES"] = json.loads(os.environ["TWO_GPUS_VISIBLE"])[worker]
"""

FILES = {
    "pytest.ini": "[pytest]\n",
    "kernels.py": KERNELS,
    "two_gpus_probe.py": PROBE,
    "of_rank.py": OF_RANK,
    "test_spread.py": TEST_SPREAD,
    "test_crash.py": TEST_CRASH,
    "test_ranks.py": TEST_RANKS,
    "test_devices.py": TEST_DEVICES,
    "production.py": PRODUCTION,
    "shipped/__init__.py": SHIPPED,
    "shipped/ops.py": SHIPPED_OPS,
    "lost/conftest.py": LOST_CONFTEST,
    "lost/test_lost.py": "from test_spread import *\n",
}

# The results.


@dataclass(frozen=True)
class Gpu:
    """A GPU, as ``CUDA_VISIBLE_DEVICES`` names it, and its UUID without the prefix ``GPU-``."""

    index: str
    uuid: str


@dataclass(frozen=True)
class Run:
    """A command that has ended.

    :param is_stopped: the command took too long and was killed.
    :param notes: the notes of the probe and of the kernels; their fields differ by ``kind``.
    :param reports: the JSON report of each process that wrote one, by the name of its file without the suffix.
    """

    name: str
    seconds: float
    status: int
    is_stopped: bool
    output: str
    notes: list[dict[str, Any]] = field(default_factory=list)
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)

    def count(self, name: str, report: str = "report") -> int:
        """Return a count of a JSON report; -1 if the process wrote no report."""
        if report not in self.reports:
            return -1
        return int(self.reports[report].get("counts", {}).get(name, 0))

    def list_problems(self, report: str = "report") -> list[tuple[str, str]]:
        """Return the kernel and the key of each problem that the tests asked for, sorted."""
        lookups = self.reports.get(report, {}).get("lookups", [])
        return sorted((lookup["kernel"], json.dumps(lookup["key"], sort_keys=True)) for lookup in lookups)

    def list_devices(self, report: str = "report") -> list[str]:
        """Return the names of the devices of a run's problems."""
        return [device["name"] for device in self.reports.get(report, {}).get("devices", [])]

    def list_notes(self, kind: str) -> list[dict[str, Any]]:
        """Return the notes of the probe of one kind: ``measurement`` or ``process``."""
        return [note for note in self.notes if note.get("kind") == kind]

    def list_blocks(self, process: str = "") -> list[int]:
        """Return the different values of BLOCK that the launches of a process used; those of all without a name."""
        blocks = set()
        for note in self.notes:
            if "block" in note and process in ("", note["process"]):
                blocks.add(note["block"])
        return sorted(blocks)

    def has_line(self, *texts: str) -> bool:
        """Whether a line of the output has all these texts."""
        return any(all(text in line for text in texts) for line in self.output.splitlines())


@dataclass
class Checks:
    """The rows of the table.

    Attributes: ``rows``, the step, check, result and seconds; ``has_failed``, whether a check failed.
    """

    rows: list[tuple[str, str, str, str]] = field(default_factory=list)
    has_failed: bool = False
    _timed_runs: set[str] = field(default_factory=set)

    def expect(self, step: str, check: str, run: Run, actual: object, expected: object = True) -> None:
        """Add a row: the check is ok if both values are equal."""
        failure = ""
        if actual != expected:
            failure = f"{actual!r} instead of {expected!r}"
        self.add(step, check, run, failure)

    def add(self, step: str, check: str, run: Run, failure: str, remark: str = "") -> None:
        """Add a row. A failure is printed with the end of the command's log.

        :param failure: empty if the check is ok.
        :param remark: words for a check that is ok.
        """
        if run.is_stopped and failure:
            failure = f"stopped after {run.seconds:.0f} s; {failure}"
        result = f"FAILED: {failure}" if failure else "ok"
        if remark and not failure:
            result = f"ok, {remark}"
        seconds = ""
        if run.name not in self._timed_runs:
            # The seconds of a command stand in the row of its first check.
            self._timed_runs.add(run.name)
            seconds = f"{run.seconds:.1f}"
        self.rows.append((step, check, result[:200].replace("|", "/").replace("\n", " "), seconds))
        print(f"    {check}: {result}", flush=True)
        if failure:
            self.has_failed = True
            print(f"    the last lines of {run.name}.log:")
            for line in run.output.rstrip().splitlines()[-LOG_LINES:]:
                print(f"      {line}")

    def add_broken_step(self, step: str, error: Exception) -> None:
        """Add a row for a step that ended with an error of this script."""
        traceback.print_exc()
        self.has_failed = True
        self.rows.append((step, "the whole step", f"FAILED: {error!r}"[:200].replace("|", "/"), ""))


# The commands.


@dataclass(frozen=True)
class Place:
    """The machine and the folders of all steps.

    :param suite: the folder of the generated suite.
    :param logs: the folder of the logs, with a folder of notes and reports for each command.
    :param public_suite: the folder of a checkout, and its test files; None without ``--suite``.
    """

    suite: Path
    logs: Path
    gpus: tuple[Gpu, Gpu]
    has_more_gpus: bool
    seconds: float
    is_dry: bool
    public_suite: tuple[Path, list[str]] | None = None

    @property
    def workers(self) -> list[str]:
        """The names of xdist's workers. Under the interpreter two are enough."""
        return [f"gw{number}" for number in range(2 if self.is_dry else 4)]

    @property
    def worker_option(self) -> str:
        """The option for xdist with the number of workers."""
        return f"-n{len(self.workers)}"

    @property
    def uuids(self) -> tuple[str, str]:
        return self.gpus[0].uuid, self.gpus[1].uuid

    def pytest(self, name: str, *arguments: str, folder: Path | None = None, **environment: str) -> Run:
        """Run pytest with the plugin, xdist and the probe."""
        plugins = ["-ppytest_autotune.plugin", "-pxdist.plugin", "-ptwo_gpus_probe", "-pno:cacheprovider"]
        report = f"--autotune-report={self.logs / name / 'report.json'}"
        command = [sys.executable, "-m", "pytest", *plugins, report, *arguments]
        return self.run(name, command, folder, **environment)

    def ranks(self, name: str, *arguments: str, **environment: str) -> Run:
        """Run pytest in two ranks under torchrun. RANK in an argument becomes the number of the rank."""
        rank_logs = self.logs / name / "ranks"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        # The ranks would mix their lines in one file.
        torchrun += ["--redirects=3", f"--log-dir={rank_logs}"]
        plugins = ["-pof_rank", "-ppytest_autotune.plugin", "-ptwo_gpus_probe", "-pno:cacheprovider"]
        report = f"--autotune-report={self.logs / name / 'RANK.json'}"
        # The memory of NVLink multicast is not there in many containers.
        environment = {"NCCL_NVLS_ENABLE": "0", "OMP_NUM_THREADS": "1", **environment}
        run = self.run(name, [*torchrun, "-m", "pytest", *plugins, report, *arguments], None, **environment)
        output = run.output
        for path in sorted(rank_logs.rglob("std*.log")):
            output += f"--- rank {path.parent.name}, {path.stem}\n{path.read_text(errors='replace')}\n"
        (self.logs / f"{name}.log").write_text(output)
        return replace(run, output=output)

    def run(self, name: str, command: Sequence[str], folder: Path | None = None, **environment: str) -> Run:
        """Run a command, and kill it with all its processes after ``seconds``.

        :param folder: the working folder; None for the generated suite.
        """
        print(f"  {name}", flush=True)
        notes_folder = self.logs / name
        notes_folder.mkdir(parents=True)
        log = self.logs / f"{name}.log"
        with log.open("w") as file:
            print(f"$ {' '.join(command)}", file=file, flush=True)
            started = time.perf_counter()
            process = subprocess.Popen(
                command,
                cwd=folder or self.suite,
                env=self._build_environment(notes_folder, environment),
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            is_stopped = False
            try:
                status = process.wait(self.seconds)
            except subprocess.TimeoutExpired:
                is_stopped, status = True, -1
            finally:
                stop(process)
            seconds = time.perf_counter() - started
        return Run(
            name,
            seconds,
            status,
            is_stopped,
            log.read_text(errors="replace"),
            read_notes(notes_folder),
            read_reports(notes_folder),
        )

    def _build_environment(self, notes: Path, more: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a command."""
        environment = dict(os.environ)
        for name in ("CUDA_VISIBLE_DEVICES", "PYTEST_ADDOPTS", "WORLD_SIZE", "RANK", "LOCAL_RANK"):
            environment.pop(name, None)
        # The generated suite is last, so that its modules hide none of a checkout.
        python_path = [str(REPOSITORY), os.environ.get("PYTHONPATH", ""), str(self.suite)]
        environment |= {
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, python_path)),
            "PYTHONUNBUFFERED": "1",
            # torch counts the GPUs as nvidia-smi does.
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "TRITON_CACHE_DIR": find_compiled(self, "all"),
            "TWO_GPUS_NOTES": str(notes),
        }
        if self.is_dry:
            environment |= {"TRITON_INTERPRET": "1", "TWO_GPUS_DRY": "1"}
        if self.is_dry or self.has_more_gpus:
            environment["CUDA_VISIBLE_DEVICES"] = f"{self.gpus[0].index},{self.gpus[1].index}"
        return {**environment, **more}


def read_notes(folder: Path) -> list[dict[str, Any]]:
    """Return the notes that the processes of a command wrote. A process that was killed may leave half a line."""
    notes = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                notes.append(json.loads(line))
    return notes


def read_reports(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the JSON reports of a command by the names of their files."""
    reports = {}
    for path in folder.glob("*.json"):
        with contextlib.suppress(ValueError):
            report = json.loads(path.read_text())
            if isinstance(report, dict):
                reports[path.stem] = report
    return reports


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kill the processes of a command that still live. The ranks of torchrun have sessions of their own."""
    if process.poll() is None:
        for pid in list_descendants(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def list_descendants(ancestor: int) -> list[int]:
    """Return the ids of the processes that a process started, and of those that they started."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name of a process may contain blanks, and ends with the last parenthesis.
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    descendants = []
    waiting = [ancestor]
    while waiting:
        started = children.get(waiting.pop(), [])
        descendants += started
        waiting += started
    return descendants


# Locks.


def explain_wrong_locks(run: Run, uuids: Sequence[str]) -> str:
    """Return what is wrong with the locks of a run; empty if each GPU has its own, and every measurement holds it."""
    measurements = run.list_notes("measurement")
    if not measurements:
        return "no measurement was noted"
    locks_by_uuid: dict[str, set[str]] = {}
    for note in measurements:
        if not note["has_lock"]:
            return f"{note['process']} measured without the lock"
        if len(note["locks"]) != 1:
            return f"{note['process']} has the locks {note['locks']}"
        locks_by_uuid.setdefault(note["uuid"], set()).update(note["locks"])
    if set(locks_by_uuid) != set(uuids):
        return f"measured on {sorted(locks_by_uuid)} instead of {sorted(uuids)}"
    names = [name for locks in locks_by_uuid.values() for name in locks]
    if len(names) != len(uuids) or len(set(names)) != len(uuids):
        return f"the locks are {locks_by_uuid}"
    return ""


def count_overlaps(run: Run) -> dict[bool, int]:
    """Return how many pairs of measurements of two processes overlapped in time: on the same GPU, and on two GPUs."""
    measurements = run.list_notes("measurement")
    counts = {True: 0, False: 0}
    for number, first in enumerate(measurements):
        for second in measurements[number + 1 :]:
            if first["pid"] == second["pid"]:
                continue
            if first["start"] < second["end"] and second["start"] < first["end"]:
                counts[first["uuid"] == second["uuid"]] += 1
    return counts


def check_locks(checks: Checks, step: str, run: Run, uuids: Sequence[str], *, must_overlap: bool) -> None:
    """Check the locks of a run, and which of its measurements overlapped.

    :param uuids: the GPUs that were used.
    :param must_overlap: two measurements on two GPUs have to overlap.
    """
    many = "one lock for each GPU" if len(uuids) > 1 else "one lock for the one GPU"
    checks.add(step, f"{run.name}: {many}, held in each measurement", run, explain_wrong_locks(run, uuids))
    counts = count_overlaps(run)
    failure = ""
    if counts[True]:
        failure = f"{counts[True]} pairs overlapped on the same GPU"
    elif must_overlap and not counts[False]:
        failure = "no two measurements overlapped on two GPUs"
    total = len(run.list_notes("measurement"))
    remark = f"{total} measurements, {counts[False]} pairs overlapped on two GPUs"
    checks.add(step, f"{run.name}: no two measurements at once on a GPU", run, failure, remark)


def find_gpu_by_worker(run: Run) -> dict[str, tuple[str, str]]:
    """Return what each worker saw: ``CUDA_VISIBLE_DEVICES``, and the UUID of its current GPU."""
    seen = {}
    for note in run.list_notes("process"):
        if note["process"] != "main":
            seen[note["process"]] = (note["visible"], note["uuid"])
    return seen


def name_gpus_of_workers(gpus: Sequence[Gpu], workers: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return what the workers see if worker *i* has the GPU *i* mod *n*."""
    expected = {}
    for number, worker in enumerate(workers):
        gpu = gpus[number % len(gpus)]
        expected[worker] = (gpu.index, gpu.uuid)
    return expected


# The steps.


def run_spread(place: Place, checks: Checks) -> None:
    """Run four workers with and without ``autotune_spread_gpus``."""
    step = "spread"
    first, second = place.gpus
    # The compile caches are empty before each of the two dumps, so their seconds can be compared.
    together = place.pytest(
        "dump-together",
        place.worker_option,
        "test_spread.py",
        "--autotune-dump=together.textproto",
        TRITON_CACHE_DIR=find_compiled(place, "together"),
    )
    checks.expect(step, "dump, no option: passes", together, together.status, 0)
    checks.expect(step, "dump, no option: 12 problems tuned", together, together.count("tuned"), 12)
    check_locks(checks, step, together, [first.uuid], must_overlap=False)

    dump = place.pytest(
        "dump-spread",
        *(place.worker_option, *SPREAD, "test_spread.py", "--autotune-dump=spread.textproto"),
        TRITON_CACHE_DIR=find_compiled(place, "spread"),
    )
    checks.expect(step, "dump, spread: passes", dump, dump.status, 0)
    checks.expect(step, "dump, spread: 12 problems tuned", dump, dump.count("tuned"), 12)
    expected = name_gpus_of_workers(place.gpus, place.workers)
    checks.expect(step, "worker i sees GPU i mod 2", dump, find_gpu_by_worker(dump), expected)
    if not place.is_dry:
        counts = {note["count"] for note in dump.list_notes("process") if note["process"] != "main"}
        checks.expect(step, "each worker sees one GPU", dump, counts, {1})
    check_locks(checks, step, dump, place.uuids, must_overlap=False)
    problems = [list_cached_problems(place.suite / f"{name}.textproto") for name in ("together", "spread")]
    checks.expect(
        step, "both dumps hold the same 12 problems", dump, (len(problems[0]), problems[1]), (12, problems[0])
    )
    checks.expect(step, "the entries are of one device", dump, len(dump.list_devices()), 1)

    load = place.pytest(
        "load-spread", place.worker_option, *SPREAD, "test_spread.py", "--autotune-load=together.textproto", NO_MISSES
    )
    is_hit = (load.status, load.count("hit"), load.count("tuned"))
    checks.expect(step, "load, spread: 12 hits, none tuned", load, is_hit, (0, 12, 0))

    one_gpu = place.pytest(
        "dump-on-one-gpu",
        *(place.worker_option, *SPREAD, "test_spread.py", "--autotune-dump=one.textproto"),
        CUDA_VISIBLE_DEVICES=second.index,
        TWO_GPUS_HOLD_S="0.1",
    )
    checks.expect(step, "four workers on the second GPU: passes", one_gpu, one_gpu.status, 0)
    check_locks(checks, step, one_gpu, [second.uuid], must_overlap=False)

    two_gpus = place.pytest(
        "dump-in-other-order",
        *(place.worker_option, *SPREAD, "test_spread.py", "--autotune-dump=order.textproto"),
        CUDA_VISIBLE_DEVICES=f"{second.index},{first.index}",
        TWO_GPUS_HOLD_S="0.3",
    )
    expected = name_gpus_of_workers((second, first), place.workers)
    checks.expect(
        step, "CUDA_VISIBLE_DEVICES of the controller counts", two_gpus, find_gpu_by_worker(two_gpus), expected
    )
    check_locks(checks, step, two_gpus, place.uuids, must_overlap=True)

    run_workers_with_own_gpus(place, checks)
    run_spread_errors(place, checks)
    if place.public_suite is not None:
        run_public_suite(place, checks)


def run_workers_with_own_gpus(place: Place, checks: Checks) -> None:
    """Run workers whose specification names their GPU, and a worker that takes the place of a crashed one."""
    step = "spread"
    first, second = place.gpus
    specifications = []
    for gpu in (second, first):
        specifications += ["--tx", f"popen//env:CUDA_VISIBLE_DEVICES={gpu.index}"]
    own = place.pytest(
        "own-gpus", "-d", *specifications, *SPREAD, "test_spread.py", "--autotune-load=together.textproto"
    )
    expected = name_gpus_of_workers((second, first), ("gw0", "gw1"))
    checks.expect(step, "a worker keeps the GPU of its specification", own, find_gpu_by_worker(own), expected)

    crash = place.pytest("crash", "-n2", *SPREAD, "test_crash.py", "--autotune-dump=crash.textproto")
    crashed_file = place.logs / "crash" / "crashed"
    crashed_worker = crashed_file.read_text().strip() if crashed_file.exists() else ""
    # The other worker may have run all tests before the new worker was ready, so the new worker may have used no GPU.
    visible = {worker: seen[0] for worker, seen in find_gpu_by_worker(crash).items()}
    gpu_of_crashed = name_gpus_of_workers(place.gpus, ("gw0", "gw1")).get(crashed_worker, ("no worker crashed", ""))
    checks.expect(step, "a new worker has the GPU of the crashed worker", crash, visible.get("gw2"), gpu_of_crashed[0])
    problems = set(crash.list_problems())
    checks.expect(step, "after a crash, the problems are complete", crash, len(problems), 12)


def run_spread_errors(place: Place, checks: Checks) -> None:
    """Run the option without a GPU and without workers, which are errors."""
    step = "spread"
    no_gpu = place.pytest("no-gpu", "-n2", *SPREAD, "test_spread.py", CUDA_VISIBLE_DEVICES="")
    is_told = no_gpu.status == 4 and no_gpu.has_line("autotune_spread_gpus", "no NVIDIA GPU is visible")
    checks.expect(step, "no GPU: one line, status 4", no_gpu, is_told)
    no_workers = place.pytest("no-workers", *SPREAD, "test_spread.py", "--autotune-dump=none.textproto")
    is_told = no_workers.status == 4 and no_workers.has_line("autotune_spread_gpus")
    checks.expect(step, "no workers: one line, status 4", no_workers, is_told)


def run_public_suite(place: Place, checks: Checks) -> None:
    """Dump the tests of a checkout with four workers, on one GPU and on two."""
    step = "spread"
    assert place.public_suite is not None
    folder, files = place.public_suite
    runs = []
    for name, options in (("public-together", ()), ("public-spread", SPREAD)):
        dump = f"--autotune-dump={place.logs / f'{name}.textproto'}"
        run = place.pytest(
            name,
            place.worker_option,
            *options,
            dump,
            *files,
            folder=folder,
            TRITON_CACHE_DIR=find_compiled(place, name),
        )
        # Tests of the checkout may fail for reasons of their own.
        passed = run.reports.get("report", {}).get("tests", {}).get("passed", 0)
        failure = "" if passed else f"status {run.status}, and no test passed"
        checks.add(step, f"{name}: tests pass", run, failure, f"{passed} passed, {run.count('tuned')} problems tuned")
        runs.append(run)
    together, spread = runs
    check_locks(checks, step, together, place.uuids[:1], must_overlap=False)
    check_locks(checks, step, spread, place.uuids, must_overlap=False)
    problems = [list_cached_problems(place.logs / f"{run.name}.textproto") for run in runs]
    is_same = bool(problems[0]) and problems[0] == problems[1]
    checks.expect(step, "public: both dumps hold the same problems", spread, is_same)


def run_ranks(place: Place, checks: Checks) -> None:
    """Run two ranks with a collective after each kernel."""
    step = "ranks"
    reduce, cache = "test_ranks.py::test_reduce", place.suite / "ranks.textproto"
    cache.unlink(missing_ok=True)
    dump = place.ranks("ranks-dump", reduce, "--autotune-dump=ranks.textproto")
    checks.expect(step, "dump: passes", dump, dump.status, 0)
    tuned = [dump.count("tuned", rank) for rank in ("0", "1")]
    checks.expect(step, "dump: each rank tunes for itself", dump, tuned, [2, 2])
    blocks = [dump.list_blocks(rank) for rank in ("0", "1")]
    checks.expect(step, "dump: both ranks choose the faster config", dump, blocks, [[1024], [1024]])
    entries = len(re.findall(r'name: "BLOCK" int: ', read_text(cache)))
    checks.expect(step, "dump: the file has each problem once", dump, entries, 2)
    if not place.is_dry:
        uuids = sorted({note["uuid"] for note in dump.list_notes("measurement")})
        checks.expect(step, "dump: the ranks measured on two GPUs", dump, uuids, sorted(place.uuids))

    # A slower choice in the file shows that the ranks took it from there.
    plant_slower_choice(cache, place.suite / "planted.textproto")
    load = place.ranks("ranks-load", reduce, "--autotune-load=planted.textproto", NO_MISSES)
    checks.expect(step, "load: passes without a miss", load, load.status, 0)
    blocks = [load.list_blocks(rank) for rank in ("0", "1")]
    checks.expect(step, "load: both ranks take the choice of the file", load, blocks, [[16], [16]])

    miss = place.ranks("ranks-one-miss", "test_ranks.py::test_own_shape", "--autotune-load=ranks.textproto")
    checks.expect(step, "a miss on one rank: nothing hangs", miss, miss.status, 0)
    counts = [(miss.count("hit", rank), miss.count("miss", rank)) for rank in ("0", "1")]
    checks.expect(step, "a miss on one rank: that rank tunes alone", miss, counts, [(1, 0), (0, 1)])
    is_told = miss.has_line("MISS", "kernels.clear", "the nearest entry has n")
    checks.expect(step, "a miss on one rank: the summary says it", miss, is_told)

    run_unequal_caches(place, checks)
    run_raising_searches(place, checks)


def run_unequal_caches(place: Place, checks: Checks) -> None:
    """Run two ranks whose caches differ: by an entry, by a choice, and a cache that only one rank has."""
    step = "ranks"
    reduce, cache = "test_ranks.py::test_reduce", place.suite / "ranks.textproto"
    shutil.copy(cache, place.suite / "lacks-0.textproto")
    write_first_entry(cache, place.suite / "lacks-1.textproto")
    plant_slower_choice(cache, place.suite / "choice-1.textproto")
    shutil.copy(cache, place.suite / "choice-0.textproto")
    for name, words in (("lacks", "lacks an entry"), ("choice", "has another choice")):
        run = place.ranks(f"ranks-{name}", reduce, f"--autotune-load={name}-RANK.textproto")
        is_told = run.status != 0 and run.has_line(f"{name}-1.textproto", "holds other choices on rank 1")
        checks.expect(step, f"the cache of rank 1 {words}: refused in one line", run, is_told and not run.is_stopped)

    # Without torchrun's store the plugin cannot compare the caches, as under other launchers.
    run = place.ranks(
        "ranks-without-store",
        *(reduce, "--autotune-load=lacks-RANK.textproto"),
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
    )
    counts = [(run.count("hit", rank), run.count("miss", rank)) for rank in ("0", "1")]
    checks.expect(step, "an entry is missing on rank 1 of another launcher: nothing hangs", run, run.status, 0)
    checks.expect(step, "an entry is missing on rank 1 of another launcher: tunes alone", run, counts, [(2, 0), (1, 1)])

    (place.suite / "only-0.textproto").unlink(missing_ok=True)
    shutil.copy(cache, place.suite / "only-1.textproto")
    run = place.ranks(
        "ranks-nothing-from-0",
        *(reduce, "--autotune-load=only-RANK.textproto?optional"),
        TWO_GPUS_RANK_TIMEOUT_S="5",
        TWO_GPUS_WAIT_S="0",
    )
    is_told = run.status != 0 and run.has_line("rank 1", "rank 0 did not send its caches")
    checks.expect(step, "only rank 1 has a cache: told after the time-out", run, is_told and not run.is_stopped)


def run_raising_searches(place: Place, checks: Checks) -> None:
    """Run a search that raises on rank 1: both ranks reach the collective, or rank 0 alone."""
    step = "ranks"
    dump = place.suite / "raising.textproto"
    dump.unlink(missing_ok=True)
    raising = place.ranks(
        "ranks-raise",
        *("test_ranks.py::test_raising", "test_ranks.py::test_reduce", "--autotune-dump=raising.textproto"),
        TWO_GPUS_RAISE="together",
    )
    passed = [raising.reports.get(rank, {}).get("tests", {}).get("passed") for rank in ("0", "1")]
    checks.expect(step, "rank 1 raises in a search: other tests pass", raising, passed, [3, 2])
    checks.expect(step, "rank 1 raises in a search: nothing hangs", raising, raising.is_stopped, False)
    is_told = raising.has_line("UNRECORDED", "kernels.raising", "the search fails on rank 1")
    checks.expect(step, "rank 1 raises in a search: the summary says it", raising, is_told)
    entries = len(re.findall(r'name: "BLOCK" int: ', read_text(dump)))
    checks.expect(step, "rank 1 raises in a search: all results are dumped", raising, entries, 3)

    alone = place.ranks(
        "ranks-raise-alone",
        *("-x", "test_ranks.py::test_raising", "--autotune-dump=alone.textproto"),
        TWO_GPUS_RAISE="alone",
        TWO_GPUS_WAIT_S="0",
    )
    checks.expect(step, "rank 0 waits in a collective: torchrun ends the job", alone, alone.is_stopped, False)
    is_told = alone.status != 0 and alone.has_line("UNRECORDED", "the search fails on rank 1")
    checks.expect(step, "rank 0 waits in a collective: rank 1 says why", alone, is_told)


def run_devices(place: Place, checks: Checks) -> None:
    """Run one process that launches on two devices."""
    step = "devices"
    cache = place.suite / "devices.textproto"
    cache.unlink(missing_ok=True)
    test = "test_devices.py::test_double"
    dump = place.pytest("devices-dump", test, "--autotune-dump=devices.textproto")
    checks.expect(step, "dump on both devices: passes", dump, dump.status, 0)
    checks.expect(step, "dump on both devices: each problem tuned once", dump, dump.count("tuned"), 2)
    checks.expect(step, "dump on both devices: one type of GPU", dump, len(dump.list_devices()), 1)
    checks.expect(step, "dump on both devices: no note of two types", dump, dump.has_line("two types of GPU"), False)

    load = place.pytest("devices-load", test, "-k", "index1", "--autotune-load=devices.textproto", NO_MISSES)
    is_hit = (load.status, load.count("hit"), load.count("tuned"))
    checks.expect(step, "load on cuda:1: hits, none tuned", load, is_hit, (0, 2, 0))

    marked = place.pytest("devices-marked", "test_devices.py::test_marked")
    checks.expect(step, "load for each test: a hit on each device", marked, marked.status, 0)

    on_second = place.pytest(
        "devices-dump-on-1",
        *("test_devices.py", "-k", "(test_double and index1) or context", "--autotune-dump=second.textproto"),
    )
    checks.expect(step, "dump on cuda:1: the same problems", on_second, on_second.list_problems(), dump.list_problems())
    checks.expect(step, "dump on cuda:1: the same device", on_second, on_second.list_devices(), dump.list_devices())
    if not place.is_dry:
        uuids = {note["uuid"] for note in on_second.list_notes("measurement")}
        checks.expect(step, "dump on cuda:1: measured there, under its lock", on_second, uuids, {place.gpus[1].uuid})
        check_context(place, checks)
    run_production(place, checks, cache)


def check_context(place: Place, checks: Checks) -> None:
    """Check that tuning on ``cuda:1`` creates no CUDA context on ``cuda:0``, unless Triton alone creates one."""
    command = [sys.executable, "-m", "pytest", "-q", "-pno:cacheprovider", "test_devices.py"]
    # The marker and the fixture of the plugin are not there in this run.
    selection = ["-k", "(test_double and index1) or context", "-W", "ignore"]
    plain = place.run("devices-without-plugin", [*command, *selection])
    contexts = []
    for name in ("devices-dump-on-1", "devices-without-plugin"):
        contexts.append(read_text(place.logs / name / "context.json"))
    failure = ""
    # Without a test that passed, the file is not there.
    if not contexts[0] or contexts[0] != contexts[1]:
        failure = f"a context on cuda:0: {contexts[0]!r}, and without the plugin {contexts[1]!r}"
    checks.add(
        "devices", "dump on cuda:1: no context on cuda:0", plain, failure, f"{contexts[0]} as without the plugin"
    )


def run_production(place: Place, checks: Checks, cache: Path) -> None:
    """Launch on both devices with ``use()`` and with an exported module, which have a slower choice."""
    step = "devices"
    shipped = place.suite / "shipped"
    plant_slower_choice(cache, shipped / "cache.textproto")
    used = place.run("devices-use", [sys.executable, "production.py"], TWO_GPUS_SHIP="use")
    checks.expect(step, "use(): passes", used, used.status, 0)
    checks.expect(step, "use(): its choice on both devices", used, used.list_blocks(), [16])

    export = ["export", "shipped/cache.textproto", "--to=python", "-o", "shipped/_picked.py"]
    exported = place.run("devices-export", [sys.executable, "-m", "pytest_autotune.cli", *export])
    checks.expect(step, "export: passes", exported, exported.status, 0)
    picked = place.run("devices-picked", [sys.executable, "production.py"], TWO_GPUS_SHIP="export")
    checks.expect(step, "exported module: passes", picked, picked.status, 0)
    checks.expect(step, "exported module: no warning", picked, picked.has_line("shipped.ops.double: "), False)
    checks.expect(step, "exported module: its choice on both devices", picked, picked.list_blocks(), [16])
    if not place.is_dry:
        devices = sorted({note["device"] for note in picked.notes})
        checks.expect(step, "exported module: it ran on both devices", picked, devices, [0, 1])


def run_lost(place: Place, checks: Checks) -> None:
    """Hide a GPU from half of the workers. Some workers name their GPUs by UUIDs, or in another order."""
    step = "lost"
    first, second = place.gpus
    visible = {
        "gw0": f"{first.index},{second.index}",
        "gw1": f"GPU-{second.uuid}",
        "gw2": f"{second.index},{first.index}",
        "gw3": first.index,
    }
    current = {"gw0": first, "gw1": second, "gw2": second, "gw3": first}
    expected = {worker: (visible[worker], current[worker].uuid) for worker in place.workers}
    dump = place.pytest(
        "lost-dump",
        *(place.worker_option, "lost", "--autotune-dump=lost.textproto"),
        TWO_GPUS_VISIBLE=json.dumps(visible),
        TWO_GPUS_HOLD_S="0.3",
    )
    checks.expect(step, "dump: passes", dump, dump.status, 0)
    checks.expect(step, "dump: 12 problems tuned", dump, dump.count("tuned"), 12)
    checks.expect(step, "dump: the workers see what the conftest says", dump, find_gpu_by_worker(dump), expected)
    checks.expect(step, "dump: the entries are of one device", dump, len(dump.list_devices()), 1)
    check_locks(checks, step, dump, place.uuids, must_overlap=True)

    # The other file of the same tests runs without the conftest.
    load = place.pytest("lost-load", place.worker_option, "test_spread.py", "--autotune-load=lost.textproto", NO_MISSES)
    is_hit = (load.status, load.count("hit"), load.count("tuned"))
    checks.expect(step, "load where all workers see both: 12 hits", load, is_hit, (0, 12, 0))
    checks.expect(step, "the problems are the same", load, load.list_problems(), dump.list_problems())


STEPS: dict[str, Callable[[Place, Checks], None]] = {
    "spread": run_spread,
    "ranks": run_ranks,
    "devices": run_devices,
    "lost": run_lost,
}

# Files.


def find_compiled(place: Place, name: str) -> str:
    """Return the folder for compiled kernels of this name, which is empty at its first use."""
    return str(place.suite.parent / f"compiled-{name}")


def read_text(path: Path) -> str:
    """Return the text of a file; empty if a failed command did not write it."""
    return path.read_text() if path.exists() else ""


def plant_slower_choice(cache: Path, planted: Path) -> None:
    """Write a cache with the slower of two configs as the choice of each problem."""
    planted.write_text(read_text(cache).replace('name: "BLOCK" int: 1024', 'name: "BLOCK" int: 16'))


def list_cached_problems(cache: Path) -> list[str]:
    """Return the problems that have an entry in a cache, sorted; empty if a failed command did not write the cache."""
    if not cache.exists():
        return []
    entries = decode(cache.read_bytes(), Format.TEXT, str(cache)).entries
    return sorted(f"{entry.problem} on {entry.problem.device}" for entry in entries)


def write_first_entry(cache: Path, shorter: Path) -> None:
    """Write a cache that has only the first entry of another cache."""
    entries = decode(cache.read_bytes(), Format.TEXT, str(cache)).entries
    shorter.write_bytes(encode(Cache(entries[:1]), Format.TEXT))


def write_suite(folder: Path) -> None:
    """Write the files of the generated suite."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.lstrip("\n"))


# The script.


def find_gpus(is_dry: bool) -> list[Gpu]:
    """Return the GPUs of this machine, as nvidia-smi lists them."""
    if is_dry:
        return [Gpu("0", "0"), Gpu("1", "1")]
    try:
        output = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    gpus = []
    for match in re.finditer(r"^GPU (\d+): .*\(UUID: GPU-([^)]+)\)", output, re.MULTILINE):
        gpus.append(Gpu(match[1], match[2]))
    return gpus


def parse_suite(text: str) -> tuple[Path, list[str]]:
    """Return the folder and the test files of ``FOLDER::FILE[,FILE...]``.

    :raises argparse.ArgumentTypeError: if the text has another form, or the folder is not there.
    """
    folder, colons, files = text.partition("::")
    if not colons or not files or not Path(folder).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not FOLDER::FILE[,FILE...] with an existing folder")
    return Path(folder).resolve(), files.split(",")


def exit_after_sigterm(*arguments: object) -> None:
    """Exit with an exception, so that the running command is killed."""
    sys.exit("ended from outside")


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=90.0, help="the time of each command, at most")
    parser.add_argument("--logs", type=Path, help="a folder for the logs, reports and notes")
    parser.add_argument("--suite", type=parse_suite, help="the tests of a checkout: FOLDER::FILE[,FILE...]")
    parser.add_argument("--dry", action="store_true", help="run without a GPU, to try the script")
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"any of {', '.join(STEPS)}")
    arguments = parser.parse_args()
    for name in arguments.steps:
        if name not in STEPS:
            parser.error(f"{name!r} is not one of {', '.join(STEPS)}")
    print(machine("torch", "triton", "pytest-xdist", "filelock"), flush=True)
    gpus = find_gpus(arguments.dry)
    if len(gpus) < 2:
        sys.exit(f"the script needs two NVIDIA GPUs, and nvidia-smi lists {len(gpus)}; --dry runs without a GPU")
    logs = (arguments.logs or Path(tempfile.mkdtemp(prefix="two-gpus-"))).resolve()
    if logs.exists() and any(logs.iterdir()):
        sys.exit(f"{logs} is not empty")
    # The commands end with this script, too.
    signal.signal(signal.SIGTERM, exit_after_sigterm)
    started = time.perf_counter()
    checks = Checks()
    with tempfile.TemporaryDirectory() as name:
        suite = Path(name) / "suite"
        write_suite(suite)
        place = Place(
            suite,
            logs,
            (gpus[0], gpus[1]),
            has_more_gpus=len(gpus) > 2,
            seconds=arguments.seconds,
            is_dry=arguments.dry,
            public_suite=arguments.suite,
        )
        for step in arguments.steps or STEPS:
            print(f"{step}, after {time.perf_counter() - started:.0f} s", flush=True)
            try:
                STEPS[step](place, checks)
            except Exception as error:  # the other steps run all the same
                checks.add_broken_step(step, error)
    failed = sum(row[2].startswith("FAILED") for row in checks.rows)
    print(f"{len(checks.rows)} checks, {failed} failed, {time.perf_counter() - started:.0f} s; logs in {logs}\n")
    table(("step", "check", "result", "s"), checks.rows)
    return int(checks.has_failed)


if __name__ == "__main__":
    sys.exit(main())
