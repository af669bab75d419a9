"""The ranks of one job, as torchrun starts them, load the same bytes or say in one line that they do not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_autotune import cli
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.workers.ranks import Ranks
from tests import object_storage
from tests.conftest import Suite

pytest.importorskip("torch")

#: Each rank's own choice would be its own; a store is written to while the ranks start.
GLOO = """
import os
import torch.distributed as dist


def test_all_ranks_launch_the_same(tune):
    dist.init_process_group("gloo")
    choices = [None, None]
    dist.all_gather_object(choices, tune("k", times={"a": 1.0 + dist.get_rank(), "b": 1.5}))
    dist.destroy_process_group()
    with open(f"chosen-{os.environ['RANK']}", "w") as file:  # two processes share the terminal
        file.write(repr(choices))
"""
#: Each rank has a file of its own, as on hosts with checkouts of their own.
OF_RANK = """
import os


def pytest_load_initial_conftests(args):
    args[:] = [one.replace("RANK", os.environ["RANK"]) for one in args]
"""


def torchrun(suite: Suite, *options: str) -> subprocess.CompletedProcess[str]:
    (suite.folder / "of_rank.py").write_text(OF_RANK)
    path = os.pathsep.join([str(Path(cli.__file__).parents[2]), str(suite.folder)])
    more = {
        "TOY_LOG": str(suite.log),
        "PYTHONPATH": path,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "OMP_NUM_THREADS": "1",
    }
    plugins = ["-pof_rank", "-ppytest_autotune.plugin"]
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "pytest", "-s", *plugins]
    run = [sys.executable, *command, "-o", "cache_dir=cache-RANK", *options]
    return subprocess.run(run, cwd=suite.folder, env=os.environ | more, capture_output=True, text=True, timeout=300)


@pytest.fixture
def suite(serial_suite: Suite) -> Suite:
    return serial_suite.write(test_gloo=GLOO)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[object_storage.Proxy]:
    pytest.importorskip("obstore")
    pytest.importorskip("moto")
    with object_storage.moto() as server:
        proxy = object_storage.Proxy(server)
        for name, value in proxy.environment.items():
            monkeypatch.setenv(name, value)
        yield proxy
        proxy.close()


def test_if_rank_0_sends_no_caches_another_fails_with_a_remedy() -> None:
    class Store:
        def get(self, name: str) -> bytes:
            raise RuntimeError("time-out")

    with pytest.raises(CacheError) as raised:
        Ranks(1, Store()).receive_cache("s3://bucket/caches")

    remedy = "see the output of rank 0, which must load its caches within 120 s of this rank"
    assert str(raised.value) == f"rank 1: rank 0 did not send its caches: time-out ({remedy})"


def test_ranks_that_load_different_choices_are_a_usage_error(serial_suite: Suite) -> None:
    """Each rank runs in this process, with the variables that torchrun sets."""
    import torch.distributed

    suite = serial_suite.write(test_one="def test(tune): tune('k', times={'a': 1.0, 'b': 1.5})")
    suite.run("--autotune-dump=0.textproto")
    text = (suite.folder / "0.textproto").read_text()
    (suite.folder / "1.textproto").write_text(text.replace('text: "a"', 'text: "b"'))
    # In place of the store of torchrun.
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"}

    first, second = (
        suite.run(f"--autotune-load={rank}.textproto", **job, MASTER_PORT=str(store.port), RANK=str(rank))
        for rank in (0, 1)
    )

    assert (first.ret, second.ret) == (pytest.ExitCode.OK, pytest.ExitCode.USAGE_ERROR)
    (line,) = filter(None, second.errlines)
    assert line.startswith("ERROR: 1.textproto:")
    assert "holds other choices on rank 1 (" in line
    assert "than on rank 0 (" in line


def test_only_rank_0_reads_a_cache_from_object_storage(suite: Suite, proxy: object_storage.Proxy) -> None:
    url = f"s3://{object_storage.BUCKET}/ranks/"
    suite.write(test_one="def test(tune): tune('k', times={'a': 1.0, 'b': 1.5})")
    suite.run(f"--autotune-dump={url}", "test_one.py")
    proxy.requests.clear()

    run = torchrun(suite, f"--autotune-load={url}", "--autotune-max-misses=0", "test_gloo.py")

    assert run.returncode == 0, run.stdout + run.stderr
    assert [(suite.folder / f"chosen-{rank}").read_text() for rank in (0, 1)] == ["['a', 'a']"] * 2
    assert proxy.requests == ["LIST", "GET"]
