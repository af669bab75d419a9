"""Where the time of a run goes that loads: a pytest plugin for compile_ahead.py, which reads what it writes.

    AHEAD_CLOCK=FOLDER pytest -p ahead_clock ...

Each process of the run writes ``FOLDER/PROCESS.json`` when it ends; children that compile ahead write a line of JSON
for each compilation into ``FOLDER/children``. All times are of the clock that the processes of a machine share.
With ``AHEAD_CLOCK_SAMPLE=SECONDS`` a thread looks that often at what the main thread does once collection is over.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pytest_autotune.tuners.triton import ahead_plan, ahead_wanted, compilations
from pytest_autotune.tuners.triton.internals import without_gpu

FOLDER = Path(os.environ["AHEAD_CLOCK"])
SAMPLE_S = float(os.environ.get("AHEAD_CLOCK_SAMPLE", "0"))


class Clock:
    """What one process has done, and when."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.marks: dict[str, dict[str, float]] = {}
        self.compiled: list[dict[str, Any]] = []
        self.loads: list[float] = []
        self.built: list[float] = []
        self.forks: list[float] = []
        self.reading = 0.0
        self.inside: Counter[str] = Counter()
        self.at: Counter[str] = Counter()
        self._titles: dict[str, str] = {}
        self._worked = False
        self._samples = SAMPLE_S > 0
        self.mark("imported")

    def mark(self, name: str) -> None:
        """This is where the process is now; the first time counts, but for the ends."""
        if name in self.marks and not name.endswith("ended"):
            return
        used = resource.getrusage(resource.RUSAGE_SELF)
        self.marks[name] = {
            "s": time.monotonic(),
            "user": used.ru_utime,
            "system": used.ru_stime,
            "faults": used.ru_minflt,
            "preempted": used.ru_nivcsw,
        }

    def watch(self) -> None:
        """See what is compiled, here and in children, what is loaded onto the GPU, and each fork."""
        turn, named, seeing = compilations.Compilations._turn, compilations._name_if_known, compilations.compile_calls
        of_source, seeing_work = named, seeing.seeing_work

        def name_if_known(given: Any) -> str:
            name = of_source(given)
            self._titles[name] = getattr(given["src"], "name", "?")
            return name

        @contextmanager
        def seen_work(source: Any) -> Iterator[list[bool]]:
            with seeing_work(source) as work:
                try:
                    yield work
                finally:
                    self._worked = bool(work)

        @contextmanager
        def timed(of: Any, name: str, compile: Any) -> Iterator[None]:
            begun = time.monotonic()
            with suppress(Exception):
                without_gpu.read_triton()
            asked = time.monotonic()
            self.reading += asked - begun
            self._worked = False
            with turn(of, name, compile):
                begun = time.monotonic()
                yield
                ended = time.monotonic()
            told = {"name": name, "of": self._titles.get(name, "?"), "asked": asked, "begun": begun, "ended": ended}
            self._add({**told, "worked": self._worked, "process": os.getpid()})

        compilations._name_if_known = name_if_known
        compilations.compile_calls.seeing_work = seen_work
        compilations.Compilations._turn = timed
        self._watch_plans()
        begun = [0.0]
        os.register_at_fork(
            before=lambda: begun.__setitem__(0, time.monotonic()),
            after_in_parent=lambda: self.forks.append(time.monotonic() - begun[0]),
        )

    def _watch_plans(self) -> None:
        """See what children take to know what to do."""

        def told(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def timed(*args: Any) -> Any:
                begun = time.monotonic()
                try:
                    return function(*args)
                finally:
                    _write("plans", {"of": name, "begun": begun, "ended": time.monotonic()})

            return timed

        plan, live = ahead_plan.Plan, ahead_wanted.LiveKernels
        plan.jobs = told("all of the plan", plan.jobs)
        live.__init__ = told("kernels that there are", live.__init__)
        live.in_order = told("what the tests reach", live.in_order)

    def _add(self, one: dict[str, Any]) -> None:
        if os.getpid() == self.process:
            self.compiled.append(one)
        elif one["worked"]:
            _write("children", one)

    def watch_loading(self) -> None:
        """See what is loaded onto the GPU and what is built in C to launch it, if Triton is there."""
        kernel = getattr(sys.modules.get("triton.compiler.compiler"), "CompiledKernel", None)
        build = sys.modules.get("triton.runtime.build")
        if kernel is not None:
            kernel._init_handles = _timed(kernel._init_handles, self.loads)
        if build is not None:
            build._build = _timed(build._build, self.built)

    def sample(self) -> None:
        """Look at the main thread until the tests are over."""
        main = threading.main_thread().ident
        last = time.monotonic()
        while self._samples:
            time.sleep(SAMPLE_S)
            frame = sys._current_frames().get(main)
            now = time.monotonic()
            seen = set()
            for depth in range(400):
                if frame is None:
                    break
                code = frame.f_code
                place = f"{Path(code.co_filename).parent.name}/{Path(code.co_filename).name}:{code.co_name}"
                if depth == 0:
                    self.at[f"{place}:{frame.f_lineno}"] += round((now - last) * 1e6)
                seen.add(place)
                frame = frame.f_back
            for place in seen:
                self.inside[place] += round((now - last) * 1e6)
            last = now

    def end(self) -> None:
        """Write it down."""
        self._samples = False
        self.mark("ended")
        told = {
            name: getattr(self, name) for name in ("process", "marks", "compiled", "loads", "built", "forks", "reading")
        }
        told["inside"], told["at"] = (dict(of.most_common(400)) for of in (self.inside, self.at))
        (FOLDER / f"{self.process}.json").write_text(json.dumps(told))


def _write(name: str, one: dict[str, Any]) -> None:
    descriptor = os.open(FOLDER / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, (json.dumps(one) + "\n").encode())
    os.close(descriptor)


def _timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """A function, and what it takes whenever that is more than nothing."""

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.monotonic()
        try:
            return function(*args, **kwargs)
        finally:
            if (took := time.monotonic() - started) > 1e-4:
                seconds.append(took)

    return timed


CLOCK = Clock()
CLOCK.watch()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_finish() -> Iterator[None]:
    CLOCK.mark("collected")
    CLOCK.watch_loading()
    if SAMPLE_S:
        threading.Thread(target=CLOCK.sample, daemon=True).start()
    yield
    CLOCK.mark("prepared")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Iterator[object]:
    CLOCK.mark("first test begun")
    result = yield
    CLOCK.mark("first test over")
    CLOCK.mark("last test ended")
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish() -> Iterator[None]:
    yield
    CLOCK.mark("session over")


def pytest_unconfigure() -> None:
    if os.getpid() == CLOCK.process:
        CLOCK.end()
