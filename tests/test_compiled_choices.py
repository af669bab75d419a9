"""The specializations of Triton's choices, with kernels that are compiled for a GPU that is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.runtime import autotuner as autotuner_module

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.run.collected import Collected, collect
from pytest_autotune.run.finish import finish_run
from pytest_autotune.run.lookup import Policy
from pytest_autotune.run.request import FileDump, RunRequest
from pytest_autotune.run.session import Session
from pytest_autotune.run.settle import EndedRun, InitialCaches, settle_run
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.triton.adapter import Adapter
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.events import Log, decode_events
from pytest_autotune.workers.locks import Locks
from tests.test_triton_compiled import AbsentGpu, absent_gpu

__all__ = ["absent_gpu"]
pytestmark = pytest.mark.usefixtures("forget_choices")


def scale_kernel() -> Any:
    @triton.autotune(configs=[triton.Config({"BLOCK": block}, num_warps=1) for block in (16, 32)], key=["n"])
    @triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
    @triton.jit
    def scale(x, y, n, factor, BLOCK: tl.constexpr, EVEN: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n if not EVEN else at >= 0
        tl.store(y + at, factor * tl.load(x + at, mask=inside), mask=inside)

    return scale


Process = Callable[..., Collected]


@pytest.fixture
def process(absent_gpu: AbsentGpu) -> Iterator[Process]:
    """Makes some calls in a process of its own, as far as kernels go, and ends it."""
    adapters: list[Adapter] = []

    def run(calls: Sequence[Callable[[Any], object]], entries: Sequence[Entry] = (), dumping: bool = True) -> Any:
        index, log = EntryIndex.from_caches([Cache(tuple(entries))]) if entries else None, Log(None, "main")
        session = Session(Policy(is_dumping=dumping), index, Coordinator(Locks(1.0)), pytest.fail, log=log)
        adapter = Adapter()
        adapter.hook(autotuner_module, session)
        adapters.append(adapter)
        kernel = scale_kernel()
        for launch in calls:
            launch(kernel)
        adapter.unhook()
        assert session.notes == []
        return collect(decode_events((log.name, line) for line in log.lines)[0])

    yield run
    for adapter in adapters:
        adapter.unhook()


def call(n: int = 64, offset: int = 0, **options: Any) -> Callable[[Any], object]:
    def launch(kernel: Any) -> None:
        x = torch.zeros(4096, dtype=torch.float16)
        kernel[(1,)](x[offset:], x, n, 2.0, **options)

    return launch


def compiled(collected: Collected, dump_entries: Sequence[Entry] = ()) -> dict[str, tuple[str, ...]]:
    """Return the specializations in a dump, by the first value of the key."""
    cache = Cache(tuple(dump_entries))
    run = EndedRun.of_one_process(InitialCaches((("x", cache),), cache), collected, RunRequest(FileDump()))
    merged = finish_run(settle_run(run), cache).merged
    return {str(merged_entry.problem.key[0]): merged_entry.compiled for merged_entry in merged.cache.entries}


def entries_of(collected: Collected) -> list[Entry]:
    return [lookup.entry for lookup in collected.lookups if lookup.entry is not None]


def test_an_entry_lists_the_compiled_variants_of_its_choice(process: Process) -> None:
    texts = compiled(process([call()]))

    assert texts == {"n=64": ("*fp16:16 *fp16:16 i32:16 fp32 _ =true",)}


def test_an_entry_lists_no_compiled_variant_of_other_candidates(process: Process) -> None:
    texts = compiled(process([call(), call(), call(), call(64, 1)]))

    assert texts == {"n=64": ("*fp16 *fp16:16 i32:16 fp32 _ =true", "*fp16:16 *fp16:16 i32:16 fp32 _ =true")}


def test_a_compiled_variant_includes_the_options_of_the_launch(process: Process) -> None:
    (text,) = compiled(process([call(64, 0, enable_fp_fusion=False)]))["n=64"]

    assert text == "*fp16:16 *fp16:16 i32:16 fp32 _ =true | enable_fp_fusion=false"


def test_a_hit_with_another_alignment_adds_a_compiled_variant(process: Process) -> None:
    first = process([call()])
    again = process([call(64, 1)], entries_of(first))

    first_run = EndedRun.of_one_process(InitialCaches(), first, RunRequest())
    entries = finish_run(settle_run(first_run), Cache()).merged.cache.entries
    assert len(entries[0].compiled) == 1
    assert len(compiled(again, dump_entries=entries)["n=64"]) == 2


def test_compiled_variants_are_saved_after_an_unsaved_tuning(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """The autotuner compiles the candidates of an earlier key again, for another alignment."""

    def launch_unrecorded(kernel: Any) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Tuning, "record", lambda tuning, *args, **kwargs: tuning.not_recorded("for this test"))
            call(n=48)(kernel)

    without_search = compiled(process([call(), call(offset=1)]))
    with_search = compiled(process([call(), launch_unrecorded, call(offset=1)]))

    assert len(without_search["n=64"]) == 2
    assert with_search == without_search


def test_a_load_without_a_dump_records_no_compiled_variant(process: Process) -> None:
    entries = entries_of(process([call()]))

    assert process([call(), call(64, 1)], entries, dumping=False).mode_events == ()


def test_a_compilation_listener_of_the_user_is_still_called(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda **event: seen.append(event["cache_hit"]))
    before = knobs.compilation.listener
    compile_function = triton.compiler.compile

    process([call()])

    assert seen.count(False) == 2
    assert knobs.compilation.listener is before
    assert triton.compiler.compile is compile_function
