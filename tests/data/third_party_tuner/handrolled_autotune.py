"""Lets pytest-autotune keep what handrolled.Tuned chooses."""

import gc
from contextlib import contextmanager
from functools import partial

from pytest_autotune.adapters import (
    CallHook,
    CallInstead,
    CallResult,
    Candidate,
    Contest,
    HostClock,
    Patches,
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


class ChunkContest:
    """Brings the chunk sizes to the race of a loaded choice."""

    def __init__(self, question, tuned, items):
        self._question = question
        self._tuned = tuned
        self._items = items

    def build(self):
        return Contest(self._question.candidates(), self.build_runners, HostClock, processor="cpu")

    def build_runners(self, candidates):
        runners = {}
        for candidate in candidates:
            chunk = self._question.chunks_by_params[candidate.params]
            runners[candidate] = Runner(partial(self._tuned.function, self._items, chunk))
        return runners


class ChooseHook(CallHook):
    """Looks up the chunk size before Tuned.choose(items) measures, and records the measured times."""

    def __init__(self, session, version):
        self._session = session
        self._version = version

    def ask(self, call):
        tuned, items = call.arguments["self"], call.arguments["items"]
        session, kernel = self._session, f"{tuned.function.__module__}.{tuned.function.__qualname__}"
        if session.leaves_alone("handrolled", kernel):
            return None
        problem = Problem("handrolled", kernel, (Value("items", len(items)),), cpu())
        try:
            source = source_digest(tuned.function)
        except UncacheableError as error:
            session.report_uncacheable(problem, str(error))
            return None
        search = digest(repr(sorted(tuned.chunks)))
        fingerprint = [Value("source", source, "digest"), Value("search", search, "digest")]
        question = ChunkQuestion(problem, fingerprint, Versions((("handrolled", self._version),)), tuned.chunks)
        tuning = call.enter(session.tuning(question))
        if tuning.entry is not None:
            tuning.race(ChunkContest(question, tuned, items).build)
            return CallResult(question.chunks_by_params[tuning.entry.choice.params])
        call.enter(tuning.measuring("cpu"))
        call.state = tuning
        return CallInstead(tuned.time_all, [items])

    def note(self, call, result):
        if call.state is None:  # the call was bypassed
            return None
        candidates = {}
        for chunk, seconds in result.items():
            candidates[chunk] = Candidate(params=(Value("chunk", chunk),), time_us=round(seconds * 1e6, 1))
        best = min(result, key=result.get)
        call.state.record(candidates[best], list(candidates.values()))
        return CallResult(best)


class Adapter:
    module = "handrolled"
    acts_without_entries = True

    def __init__(self):
        self._library = None
        self._patches = None

    def hook(self, module, session):
        self._library = module
        self._patches = Patches(session, "handrolled")
        hook = ChooseHook(session, module.__version__)
        self._patches.replace(module.Tuned, "choose", ["self", "items"], hook)

    def unhook(self):
        if self._patches is not None:
            self._patches.undo()
        self._library = self._patches = None

    @contextmanager
    def isolated(self):
        tuners = []
        if self._library is not None:
            # Not isinstance: it asks proxies for their class, which may run code of theirs.
            tuners = [tuner for tuner in gc.get_objects() if issubclass(type(tuner), self._library.Tuned)]
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
