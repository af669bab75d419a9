"""The adapter for ``triton.autotune``: Triton 3.4 and later.

It touches two members of ``triton.runtime.autotuner.Autotuner``:
``check_disk_cache``, which Triton calls when it has no choice in memory, with the
candidates that are left after pruning and a function that benchmarks them; and
``cache_results``, the switch that makes Triton call it. The launch of a kernel
that has its choice is not touched. Under the interpreter without a GPU it also
supplies the benchmarker that Triton lacks there (``do_bench``).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import ModuleType
from typing import Any

from pytest_autotune import devices
from pytest_autotune.cache.model import Candidate, Device, Entry
from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.run.abilities import Abilities
from pytest_autotune.run.door import TuningRun
from pytest_autotune.run.lookup import Lookup
from pytest_autotune.run.together.shared_work import Work
from pytest_autotune.tuners.protocol import Suite
from pytest_autotune.tuners.shared.guard import guarded
from pytest_autotune.tuners.shared.source.definitions import may_be_defined
from pytest_autotune.tuners.shared.source.functions import python_function, qualified_name
from pytest_autotune.tuners.triton import identity as identities
from pytest_autotune.tuners.triton import internals, interpreter
from pytest_autotune.tuners.triton.ahead import CompilingChildren
from pytest_autotune.tuners.triton.call import Call
from pytest_autotune.tuners.triton.compilations import Compilations
from pytest_autotune.tuners.triton.compiled_choices import CompiledChoices
from pytest_autotune.tuners.triton.compiling import compile_and_load, compile_candidates
from pytest_autotune.tuners.triton.failures import failure_text
from pytest_autotune.tuners.triton.identity import NAME, UnportableProblem, identity_of, made_of, versions
from pytest_autotune.tuners.triton.tuning import tune
from pytest_autotune.tuners.triton.verifying import verify_choice


class _AlwaysAsk:
    """A data descriptor for ``cache_results``: it covers autotuners made before the hook, too.

    The user's own setting stays where it was, in the instance.
    """

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else True

    def __set__(self, instance: Any, value: object) -> None:
        instance.__dict__["cache_results"] = value


class Adapter:
    """Hooks ``triton.autotune``."""

    module = internals.AUTOTUNER_MODULE
    acts_without_entries = True

    def __init__(self) -> None:
        self._run: TuningRun | None = None
        self._autotuner_class: Any = None
        self._original_check: Any = None
        self._seen: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._devices: set[Device] = set()
        self._compiled_choices: CompiledChoices | None = None
        self._compilations: Compilations | None = None
        self._ahead: CompilingChildren | None = None

    def hook(self, module: ModuleType, run: TuningRun) -> None:
        """See :class:`~pytest_autotune.tuners.protocol.Adapter`."""
        autotuner_class = module.Autotuner
        original = internals.disk_cache_check(autotuner_class)
        adapter = self

        def check_disk_cache(self: Any, tuning_key: Any, configs: Any, bench_fn: Any) -> bool:
            return adapter._choose(self, tuning_key, configs, bench_fn)

        def leave_alone(self: Any, tuning_key: Any, configs: Any, bench_fn: Any) -> bool:
            return adapter._leave_alone(self, tuning_key, configs, bench_fn)

        self._run = run
        self._autotuner_class = autotuner_class
        self._original_check = original
        autotuner_class.check_disk_cache = guarded(check_disk_cache, leave_alone, run, NAME, library=NAME)
        autotuner_class.cache_results = _AlwaysAsk()
        self._compiled_choices = CompiledChoices(run, autotuner_class)
        self._compilations = Compilations(self._compiled_choices.compiled)
        self._watch_when_imported()

    def _watch_when_imported(self) -> None:
        """Watch the compiler, which Triton imports after its autotuner."""
        import wrapt

        reference = weakref.ref(self)  # wrapt keeps its hooks for the life of the process

        def watch(compiler: ModuleType) -> None:
            adapter = reference()
            if adapter is not None and adapter._compilations is not None and adapter._run is not None:
                try:
                    adapter._compilations.hook(compiler)
                except Exception as error:  # choices are loaded all the same
                    adapter._run.note(f"triton: what is compiled is not seen: {error}")

        wrapt.register_post_import_hook(watch, internals.COMPILER_MODULE)

    def prepare(self, suite: Suite) -> None:
        """Compile loaded choices ahead of the tests; see :class:`~pytest_autotune.tuners.protocol.Suite`."""
        if self._run is not None and self._compilations is not None and self._compilations.is_hooked:
            self._ahead = CompilingChildren(self._run, self._compilations, self._autotuner_class)
            self._ahead.start(suite)

    def finish(self) -> None:
        """The tests are over."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.stop()

    def unhook(self) -> None:
        """See :class:`~pytest_autotune.tuners.protocol.Adapter`."""
        self.finish()
        if self._autotuner_class is not None:
            self._autotuner_class.check_disk_cache = self._original_check
            if isinstance(vars(self._autotuner_class).get("cache_results"), _AlwaysAsk):
                del self._autotuner_class.cache_results
            self._autotuner_class = None
        if self._compilations is not None:
            self._compilations.unhook()
            self._compilations = None

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Give every autotuner an empty memory, and its own back afterwards."""
        swapped = []
        for autotuner in self._live_autotuners():
            if type(autotuner.__dict__.get("cache")) is dict:
                swapped.append((autotuner, autotuner.cache))
                autotuner.cache = {}
        try:
            yield
        finally:
            for autotuner, cache in swapped:
                autotuner.cache = cache

    def unseen(self) -> list[str]:
        """Kernels of autotuners that hold choices and never came through the hook."""
        names = set()
        for autotuner in self._live_autotuners():
            if id(autotuner) in self._seen or len(autotuner.configs) < 2:
                continue
            if internals.was_tuned(autotuner, self._autotuner_class):
                function = python_function(autotuner)
                kernel = qualified_name(function) if function else repr(autotuner)
                if self._run is not None and not self._run.ignores(NAME, kernel):
                    names.add(f"{kernel} ({type(autotuner).__module__}.{type(autotuner).__qualname__})")
        return sorted(names)

    def _live_autotuners(self) -> list[Any]:
        return internals.live_autotuners(self._autotuner_class) if self._autotuner_class is not None else []

    def _choose(self, autotuner: Any, tuning_key: Any, configs: Sequence[Any], bench_fn: Callable[[], None]) -> bool:
        """Stand in for ``check_disk_cache``: put a choice into ``autotuner.cache``.

        :returns: True when the choice was not benchmarked in this call.
        """
        run = self._run
        assert run is not None
        self._seen[id(autotuner)] = autotuner
        function = python_function(autotuner)
        if run.paused or function is None or run.ignores(NAME, qualified_name(function)):
            return self._leave_alone(autotuner, tuning_key, configs, bench_fn)
        try:
            call = Call.of(autotuner, tuning_key, bench_fn)
        except LookupError:
            run.note(f"triton: {qualified_name(function)} is tuned in a way that is not known here; it was left alone")
            return self._leave_alone(autotuner, tuning_key, configs, bench_fn)
        if len(configs) == 1:
            call.adopt(configs[0], 0.0)
            self._forget_before_the_next_test(autotuner, tuning_key)
            return True
        if any(call.kwargs.keys() & config.kwargs.keys() for config in configs):
            # Triton refuses a call that sets what is tuned, before it measures anything.
            return self._leave_alone(autotuner, tuning_key, configs, bench_fn)
        try:
            device = self._device(autotuner)
        except RuntimeError:  # there is no GPU, or it is broken: the launch says which
            return self._leave_alone(autotuner, tuning_key, configs, bench_fn)
        try:
            identity = identity_of(call, function, configs, device, run.indexes)
        except UnportableProblem as unportable:
            run.unportable(unportable.problem, unportable.reason)
            return self._leave_alone(autotuner, tuning_key, configs, bench_fn)

        def on_offer(entry: Entry) -> bool:
            return entry.choice is not None and entry.choice.params in identity.offered

        def help_to_compile(work: Work) -> None:
            if not interpreter.interprets(autotuner):
                compile_candidates(call, configs, run, work)

        def candidates() -> list[Candidate]:
            return [Candidate(params=params) for params in identity.offered]

        assert self._compiled_choices is not None
        self._compiled_choices.forget(autotuner, tuning_key)
        label = "measured in a CUDA graph" if getattr(autotuner, "use_cuda_graph", False) else ""
        with run.tuning(
            identity.problem,
            identity.fingerprint,
            on_offer,
            versions(),
            label,
            Abilities(
                candidates,
                may_be_defined,
                help_to_compile,
                partial(made_of, call, function, identity.fingerprint, configs),
            ),
        ) as tuning:
            while tuning.entry is not None and tuning.entry.choice is not None:
                config, kernel = identity.offered[tuning.entry.choice.params], None
                try:
                    if not interpreter.interprets(autotuner) and not stream_is_capturing():
                        kernel = compile_and_load(call, config)
                except (TypeError, ValueError, KeyError):
                    pass  # the call is wrong, whatever is chosen: the launch raises it
                except Exception as error:
                    tuning.reject(f"the choice no longer compiles: {failure_text(error)}")
                    continue
                verify_choice(call, identity.offered, tuning, run)
                call.adopt(config, (tuning.entry.choice.time_us or 0.0) / 1000)
                self._compiled_choices.chosen(call, tuning.entry, config, kernel)
                self._forget_before_the_next_test(autotuner, tuning_key)
                return True
            if not run.policy.dumping and _owner_uses_disk_cache(autotuner):
                return self._from_disk_cache(autotuner, tuning_key, configs, bench_fn)
            tune(call, configs, bench_fn, tuning, run)
            self._note_tuned(call, tuning.lookup)
            self._forget_before_the_next_test(autotuner, tuning_key)
            return False

    def _note_tuned(self, call: Call, lookup: Lookup) -> None:
        """Note what the choice of a search was compiled for; what it was compiled to is in Triton's memory."""
        assert self._run is not None
        assert self._compiled_choices is not None
        config = call.autotuner.cache.get(call.tuning_key)
        if self._run.policy.dumping and lookup.tuned and lookup.entry is not None and config is not None:
            kernel = None
            if not interpreter.interprets(call.autotuner) and not stream_is_capturing():
                with suppress(Exception):  # then the launch raises it
                    kernel = compile_and_load(call, config)
            self._compiled_choices.chosen(call, lookup.entry, config, kernel)

    def _forget_before_the_next_test(self, autotuner: Any, tuning_key: Any) -> None:
        """Let the next test ask for its own choice where arguments outside the key prune the candidates.

        Triton's memory would give it the choice of whichever test came first, which pruning may have taken from it.
        In a sweep it always asks, so that it is known what it ran with.
        """
        assert self._run is not None
        is_pruned = getattr(autotuner, "early_config_prune", None) is not None and autotuner.perf_model is None
        if not is_pruned and self._run.policy.sweep is None:
            return
        reference = weakref.ref(autotuner)

        def forget() -> None:
            cache = getattr(reference(), "cache", None)
            if type(cache) is dict:
                cache.pop(tuning_key, None)

        self._run.at_next_test(forget)

    def _leave_alone(self, autotuner: Any, tuning_key: Any, configs: Any, bench_fn: Callable[[], None]) -> bool:
        """Do what Triton does without us."""
        if _owner_uses_disk_cache(autotuner):
            return self._from_disk_cache(autotuner, tuning_key, configs, bench_fn)
        bench_fn()
        return False

    def _from_disk_cache(self, autotuner: Any, tuning_key: Any, configs: Any, bench_fn: Callable[[], None]) -> bool:
        try:
            return bool(self._original_check(autotuner, tuning_key, configs, bench_fn))
        except TypeError:
            # Triton writes the key as JSON after it has tuned, and fails for a dtype in it: the choice is there.
            if tuning_key in autotuner.cache:
                return False
            raise

    def _device(self, autotuner: Any) -> Device:
        if interpreter.interprets(autotuner):
            return devices.INTERPRETER
        on = devices.current_gpu() or identities.target_device()
        self._devices.add(on)
        if len(self._devices) == 2:
            assert self._run is not None
            self._run.note(
                "triton: two types of GPU in one process, but Triton's memory of a choice ignores the device"
            )
        return on


def _owner_uses_disk_cache(autotuner: Any) -> bool:
    # Triton 3.4 and 3.5 fail there when interpreting.
    return bool(autotuner.__dict__.get("cache_results")) and not interpreter.interprets(autotuner)
