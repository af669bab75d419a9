"""Under xdist: each problem is tuned once, measured alone, and the result is a serial run's."""

from __future__ import annotations

import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Suite

pytest.importorskip("xdist")

SHARED = """
import pytest, time

@pytest.mark.parametrize("i", range(8))
def test_shared(tune, i):
    for m in (1, 2, 3):
        assert tune("lib.shared", M=m, during=lambda: time.sleep(0.1)) == "a"
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return Suite(pytester, ["-pxdist", "-n3"])


@pytest.mark.parametrize("dist", ["load", "loadscope", "loadfile", "loadgroup", "worksteal", "each"])
def test_a_problem_that_every_worker_needs_is_tuned_once(suite: Suite, dist: str) -> None:
    suite.write(test_shared=SHARED)

    result = suite.dump(f"--dist={dist}")

    assert result.ret == 0
    assert suite.tunings == [f"lib.shared [('M', {m})]" for m in (1, 2, 3)]


GROUPED = """
import pytest

@pytest.mark.xdist_group("g")
def test_a(tune): tune("lib.op", M=1)

@pytest.mark.xdist_group("g")
def test_b(tune): tune("lib.op", M=2)
"""


def test_a_run_with_xdist_groups_is_complete(suite: Suite) -> None:
    """Only a complete run looks for unused entries.

    Before pytest 9.2, xdist adds the name of the group to the node ids after the collection.
    """
    suite.write(test_grouped=GROUPED).dump()
    suite.write(test_grouped=GROUPED.replace("M=2", "M=1"))

    result = suite.load("--dist=loadgroup", "--autotune-fail-on-unused")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["UNUSED toy:lib.op (M=2)*"])


def _comparable(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report without the values that differ between two runs: tests, seconds, the command and its record."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            omitted = ("tests", "run", "process")
            return {key: without(part) for key, part in value.items() if "seconds" not in key and key not in omitted}
        return [without(part) for part in value] if isinstance(value, list) else value

    compared: dict[str, Any] = without(report)
    return compared


MIXED = """
import pytest

@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_hit(tune, m): tune("lib.hit", M=m)

@pytest.mark.parametrize("m", [1, 2])
def test_stale(tune, m): tune("lib.stale", M=m, source="{source}")

def test_miss(tune): tune("lib.missing", M={miss})
"""


def test_report_and_junit_are_equal_serially_and_with_workers(suite: Suite) -> None:
    suite.write(test_mixed=MIXED.format(source="old", miss=1))
    suite.serial.dump()
    suite.write(test_mixed=MIXED.format(source="new", miss=2))
    results = []
    for distribution in ([], ["-pxdist", "-n0"], ["-pxdist", "-n2"], ["-pxdist", "-n3", "--dist=worksteal"]):
        suite.distribution = distribution
        report = suite.report("--autotune-load=cache.textproto", "--junitxml=junit.xml")
        properties = re.findall(r'name="(autotune_\w+)" value="(\d+)"', (suite.folder / "junit.xml").read_text())
        results.append((_comparable(report), properties))

    assert results[0][0]["counts"]["hit"] == 4
    assert results[0][0]["counts"]["stale"] == 2
    assert results[0][0]["counts"]["miss"] == 1
    for later in results[1:]:
        assert later == results[0]


OVERLAP = """
import os, pytest, time

@pytest.mark.parametrize("i", range(6))
def test_measure(tune, i):
    def measure():
        with open(os.environ["TOY_LOG"] + ".times", "a") as file:
            start = time.monotonic()
            time.sleep(0.1)
            file.write(f"{start} {time.monotonic()}\\n")
    tune("lib.measured", I=i, during=measure)
"""


def _overlaps(log: Path) -> int:
    spans = sorted(tuple(map(float, line.split())) for line in Path(f"{log}.times").read_text().splitlines())
    return sum(later[0] < earlier[1] for earlier, later in pairwise(spans))


def test_no_two_measurements_overlap_on_one_gpu(suite: Suite) -> None:
    suite.write(test_overlap=OVERLAP).prepare_dump(TOY_GPU="GPU-one")

    assert len(suite.tunings) == 6
    assert _overlaps(suite.log) == 0


def test_workers_on_different_gpus_measure_at_the_same_time(suite: Suite) -> None:
    own_gpu = "\nimport os\nos.environ['TOY_GPU'] = 'GPU-' + os.environ.get('PYTEST_XDIST_WORKER', '')\n"
    suite.write(test_overlap=own_gpu + OVERLAP).prepare_dump()

    assert _overlaps(suite.log) > 0


def test_after_autotune_wait_timeout_a_worker_tunes_by_itself(suite: Suite) -> None:
    """The option autotune_wait_timeout bounds the wait. Then the other worker tunes by itself."""
    stopped = """
        import os, signal, pytest, time

        def stop():
            if not os.path.exists("stopped"):
                open("stopped", "w").close()
                if os.fork() == 0:
                    time.sleep(4)
                    os.kill(os.getppid(), signal.SIGCONT)
                    os._exit(0)
                os.kill(os.getpid(), signal.SIGSTOP)

        @pytest.mark.parametrize("i", range(3))
        def test_shared(tune, i):
            started = time.monotonic()
            tune("lib.shared", during=stop)
            with open(f"took-{i}", "w") as file:
                file.write(str(time.monotonic() - started))
    """
    suite.write(test_stopped=stopped)

    result = suite.dump("-oautotune_wait_timeout=1", TOY_GPU="GPU-stopped")

    assert result.ret == 0
    took = [float(path.read_text()) for path in suite.folder.glob("took-*")]
    assert min(took) < 3.5
    assert suite.cache.read_text().count("entries {") == 1


def test_nested_tunings_that_need_each_other_do_not_deadlock(suite: Suite) -> None:
    """Two workers tune problems that request each other's problem during the search."""
    nested = """
        import pytest, time

        @pytest.mark.parametrize("names", ["ab", "ba", "ab", "ba"])
        def test_nested(tune, names):
            outer, inner = names
            def search():
                time.sleep(0.5)
                tune(f"lib.{inner}")
            tune(f"lib.{outer}", during=search)
    """
    suite.write(test_nested=nested)

    result = suite.dump("-oautotune_wait_timeout=60")

    assert result.ret == 0
    assert result.duration < 20
    assert suite.cache.read_text().count("entries {") == 2


def test_ranks_of_a_distributed_run_never_wait_for_each_other(suite: Suite) -> None:
    suite.write(test_shared=SHARED)

    suite.dump("--dist=each", WORLD_SIZE="2", TOY_GPU="GPU-ranks")

    assert len(suite.tunings) == 9


def test_a_child_of_a_killed_worker_stops_no_worker_from_tuning(suite: Suite) -> None:
    forking = """
        import os, signal, pytest, time

        def fork_and_die():
            if not os.path.exists("died"):
                open("died", "w").close()
                if os.fork() == 0:
                    for descriptor in os.listdir("/proc/self/fd"):  # all but locks: xdist waits for its own pipe
                        try:
                            if not os.readlink(f"/proc/self/fd/{descriptor}").endswith(".lock"):
                                os.close(int(descriptor))
                        except OSError:
                            pass
                    time.sleep(30)
                    os._exit(0)
                os.kill(os.getpid(), signal.SIGKILL)

        @pytest.mark.parametrize("i", range(3))
        def test_shared(tune, i):
            tune("lib.shared", during=fork_and_die)
    """
    suite.write(test_forking=forking)

    result = suite.dump("-oautotune_wait_timeout=60", "--max-worker-restart=2", TOY_GPU="GPU-forked")

    assert result.duration < 25
    assert suite.cache.read_text().count("entries {") == 1


def test_workers_in_another_folder_use_the_controllers_cache(suite: Suite) -> None:
    """The workers start in another folder and have no folder in common with the controller."""
    suite.write().serial.prepare_dump()
    elsewhere = suite.folder / "elsewhere"
    elsewhere.mkdir()
    remote = f"popen//chdir={elsewhere}//python={sys.executable}"
    suite.distribution = ["-pxdist", "-d", f"--tx={remote}", f"--tx={remote}", f"--rsyncdir={suite.folder}/test_lib.py",
                          f"--rsyncdir={suite.folder}/conftest.py"]  # fmt: skip

    result = suite.load("--autotune-max-misses=0", "-Wignore")

    assert result.ret == 0
    assert suite.tunings == []


def test_xdist_workers_never_open_the_loaded_or_dumped_file(suite: Suite) -> None:
    suite.write().serial.prepare_dump()
    watch = """
import sys
from itertools import pairwise
def pytest_configure(config):
    if hasattr(config, "workerinput"):
        def hook(event, args):
            if event == "open" and str(args[0]).endswith(("cache.textproto", "out.textproto")):
                raise SystemExit(f"a worker opened {args[0]}")
        sys.addaudithook(hook)
"""
    (suite.folder / "conftest.py").write_text((suite.folder / "conftest.py").read_text() + watch)

    assert suite.load("--autotune-dump=out.textproto").ret == 0


def test_setting_autotune_spread_gpus_gives_workers_gpus_in_turn(suite: Suite) -> None:
    seen = "import os, pytest\n@pytest.mark.parametrize('i', range(9))\ndef test_env(i):\n    name = os.environ"
    seen += "['PYTEST_XDIST_WORKER']\n    open('gpu-' + name, 'w').write(os.environ['CUDA_VISIBLE_DEVICES'])\n"
    suite.write(test_env=seen)

    result = suite.run("-oautotune_spread_gpus=true", "--dist=each", CUDA_VISIBLE_DEVICES="4,6")

    assert result.ret == 0
    assert [(suite.folder / f"gpu-gw{i}").read_text() for i in range(3)] == ["4", "6", "4"]


def test_autotune_spread_gpus_without_a_gpu_is_a_usage_error(suite: Suite) -> None:
    result = suite.write().run("-oautotune_spread_gpus=true", CUDA_VISIBLE_DEVICES="")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: autotune_spread_gpus: no NVIDIA GPU is visible*"])
