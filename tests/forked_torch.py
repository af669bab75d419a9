"""Run pytest in processes that already have torch and Inductor. Their import takes five seconds of a core.

One process imports them, and forks for each run. A test starts a new interpreter if it is about the order of imports,
about environment variables that torch reads during its import, or uses a GPU.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
TIMEOUT_S = 300
#: The environment in which torch is imported.
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH")])),
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_VEC_ISA_OK": "1",
    "OMP_NUM_THREADS": "1",
}


@cache
def _server() -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "PYTEST_ADDOPTS")}
    server = subprocess.Popen(
        [sys.executable, "-Wignore", __file__],
        env={**kept, **ENVIRONMENT},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.kill)
    return server


def run_pytest(folder: Path, args: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Run pytest in a folder, in a child of the one process that imports torch.

    :param environment: all of the run's environment.
    :returns: the exit status, negative for a signal, and what was written to the terminal.
    """
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    print(json.dumps([str(folder), list(args), dict(environment)]), file=server.stdin, flush=True)
    status = int(server.stdout.readline())
    return status, (folder / "output").read_text()


def _compile_once() -> None:
    """Let Inductor import its modules for a first graph. Its patterns depend on the device, so they are not built."""
    import pytest
    import torch._dynamo.testing
    import torch._inductor.compile_fx
    import torch._inductor.scheduler
    import torch._inductor.select_algorithm
    from torch._inductor.fx_passes import joint_graph, post_grad, pre_grad

    def write(*args: object, **kwargs: object) -> None:
        raise RuntimeError("enough")

    with pytest.MonkeyPatch.context() as patch, suppress(torch._dynamo.exc.BackendCompilerFailed):
        patch.setattr("torch._inductor.codecache.PyCodeCache.write", write)
        for passes in (joint_graph, post_grad, pre_grad):
            patch.setattr(passes, "lazy_init", lambda *args, **kwargs: None, raising=False)
        torch.compile(lambda a, b: torch.relu(a @ b))(torch.zeros(64, 64), torch.zeros(64, 64))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def _serve() -> None:
    import pytest

    from tests import forked_workers

    forked_workers.import_all()
    _compile_once()
    # pytest collects garbage at its end. Imported modules are no garbage, so the collector may skip them.
    gc.freeze()
    for line in sys.stdin:
        folder, args, environment = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.alarm(TIMEOUT_S)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            status = int(pytest.main(args))
            sys.stdout.flush()
            os._exit(status)
        _, waited = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(waited), flush=True)


if __name__ == "__main__":
    _serve()
