"""Why candidates failed, in words that the next run would write, too."""

from __future__ import annotations

import pytest

from pytest_autotune.run.tuning import MAX_REASON_LENGTH, stable_reason


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ("no 0x7f12ab", "no 0X1", "no 0x..."),
        ("/tmp/tmp8dj3k2a1.cu(3): error", "/var/tmp/tmpabcdefg.cu(3): error", "tmp....cu(3): error"),
        ("/home/a/.triton/cache/JX5Z/k.ptx, line 3", "/b/c/k.ptx, line 3", "k.ptx, line 3"),
        ("ptxas (pid 123) died", "ptxas (pid 45678) died", "ptxas (pid ...) died"),
        ("Thread-12 failed in process 7", "Thread-3 failed in process 88", "Thread-... failed in process ..."),
    ],
)
def test_addresses_pids_and_temporary_paths_are_cut_from_errors(first: str, second: str, kept: str) -> None:
    assert stable_reason(first) == stable_reason(second) == kept


@pytest.mark.parametrize(
    "reason",
    [
        "out of resource: shared memory, Required: 270336, Hardware limit: 232448. Reducing block sizes may help.",
        "BLOCK_M=16777216 needs 26843545600 bytes",
        "mma.sync.m16n8k16 on sm_90a; effaced",
        "2048 threads per block; timed out after 30 s",
        "lib.py:54:12: error: cannot process 16384 rows of 64:64:64 with 255 registers per thread 128",
    ],
)
def test_numbers_and_source_lines_in_a_candidates_error_are_kept(reason: str) -> None:
    assert stable_reason(reason) == reason


def test_a_long_path_in_an_error_does_not_cut_off_text_after_it() -> None:
    text = "x" * MAX_REASON_LENGTH

    assert stable_reason(f"/{'d/' * 300}a.cu: {text}") == stable_reason(f"/b/a.cu: {text}")
