"""Lets pytest-autotune keep what handrolled.Tuned chooses."""

import gc
import inspect
from contextlib import contextmanager
from functools import partial

from pytest_autotune.adapters import (
    Candidate,
    Contest,
    HookError,
    HostClock,
    Problem,
    Question,
    Runner,
    UncacheableError,
    Value,
    Versions,
    cpu,
    digest,
    source_digest,
)


class ChunkQuestion(Question):
    """Asks for the chunk size of a problem."""

    def __init__(self, problem, fingerprint, versions, chunks):
        super().__init__(problem, fingerprint, versions=versions)
        #: The params of a choice -> its chunk size.
        self.chunks_by_params = {(Value("chunk", chunk),): chunk for chunk in chunks}

    def offers(self, entry):
        return entry.choice is not None and entry.choice.params in self.chunks_by_params

    def candidates(self):
        return [Candidate(params=params) for params in self.chunks_by_params]


class Adapter:
    module = "handrolled"
    acts_without_entries = True

    def __init__(self):
        self._session = None
        self._library = None

    def hook(self, module, session):
        original = getattr(module.Tuned, "choose", None)
        if original is None or list(inspect.signature(original).parameters) != ["self", "items"]:
            raise HookError(f"handrolled {module.__version__} has no Tuned.choose(items)")

        def choose(tuned, items):
            return self._choose(tuned, items)

        self._session, self._library, self._original = session, module, original
        module.Tuned.choose = choose

    def unhook(self):
        if self._library is not None:
            self._library.Tuned.choose = self._original
            self._library = None

    def _choose(self, tuned, items):
        session, kernel = self._session, f"{tuned.function.__module__}.{tuned.function.__qualname__}"
        if session.is_paused or session.ignores("handrolled", kernel):
            return self._original(tuned, items)
        problem = Problem("handrolled", kernel, (Value("items", len(items)),), cpu())
        try:
            source = source_digest(tuned.function)
        except UncacheableError as error:
            session.report_uncacheable(problem, str(error))
            return self._original(tuned, items)
        search = digest(repr(sorted(tuned.chunks)))
        fingerprint = [Value("source", source, "digest"), Value("search", search, "digest")]
        versions = Versions((("handrolled", self._library.__version__),))
        question = ChunkQuestion(problem, fingerprint, versions, tuned.chunks)
        chunks_by_params = question.chunks_by_params

        def ready(candidates):
            runners = {}
            for candidate in candidates:
                chunk = chunks_by_params[candidate.params]
                runners[candidate] = Runner(partial(tuned.function, items, chunk))
            return runners

        with session.tuning(question) as tuning:
            if tuning.entry is not None:
                tuning.race(lambda: Contest(question.candidates(), ready, HostClock, processor="cpu"))
                return chunks_by_params[tuning.entry.choice.params]
            with tuning.measuring("cpu"):
                times = tuned.time_all(items)
            candidates = {
                chunk: Candidate(params=(Value("chunk", chunk),), time_us=round(seconds * 1e6, 1))
                for chunk, seconds in times.items()
            }
            best = min(times, key=times.get)
            tuning.record(candidates[best], list(candidates.values()))
            return best

    @contextmanager
    def isolated(self):
        tuners = []
        if self._library is not None:
            # Not isinstance: it asks proxies for their class, which may run code of theirs.
            tuners = [found for found in gc.get_objects() if issubclass(type(found), self._library.Tuned)]
        memories = [tuned.best for tuned in tuners]
        for tuned in tuners:
            tuned.best = {}
        try:
            yield
        finally:
            for tuned, memory in zip(tuners, memories, strict=True):
                tuned.best = memory

    def untracked(self):
        return []
