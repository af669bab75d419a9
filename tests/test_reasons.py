"""Why candidates failed, in words that the next run would write, too."""

from __future__ import annotations

import pytest

from pytest_autotune.run.reasons import REASON_LENGTH, stable_reason


@pytest.mark.parametrize(
    ("one", "other", "kept"),
    [
        ("no 0x7f12ab", "no 0X1", "no 0x..."),
        ("bad handle 7f33aabbccdd0011", "bad handle 55aa0011bbcc", "bad handle ..."),
        ("tensor 140234567890123 is gone", "tensor 94234567890123 is gone", "tensor ... is gone"),
        ("k_1f9e8c7a.so: no symbol", "k_88aa77bb66.so: no symbol", "k_....so: no symbol"),
        ("/tmp/kern_8dj3k2a1.cu(3): error", "/var/tmp/kern_a.cu(3): error", "tmp....cu(3): error"),
        ("/home/a/.triton/cache/JX5Z/k.ptx, line 3", "/b/c/k.ptx, line 3", "k.ptx, line 3"),
        (f"no folder {'JX5ZKQ' * 8}", f"no folder {'AB234567' * 6}", "no folder ..."),
        ("ptxas (pid 123) died", "ptxas (pid 45678) died", "ptxas (pid ...) died"),
        ("Thread-12 failed in process 7", "Thread-3 failed in process 88", "Thread-... failed in process ..."),
        ("gave up at 12:33:01.22 on 2026-11-22", "gave up at 9:02:59 on 2027-01-01", "gave up at ... on ..."),
        ("at 2026-11-22T14:38:49.123Z", "at 2027-01-01 9:02", "at ..."),
        ("too slow: 12 ms, 1.5 s", "too slow: 1.25 ms, 12.75 s", "too slow: ... ms, ... s"),
        ("id 0b0e7c1a-93f2-4c1d-8e55-1234567890ab", "id 9b0e7c1a-13f2-4c1d-8e55-1234567890ff", "id ..."),
    ],
)
def test_what_differs_from_run_to_run_is_left_out(one: str, other: str, kept: str) -> None:
    assert stable_reason(one) == stable_reason(other) == kept


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
def test_what_says_why_is_kept(reason: str) -> None:
    assert stable_reason(reason) == reason


def test_a_long_path_leaves_as_much_of_a_reason_as_a_short_one() -> None:
    said = "x" * REASON_LENGTH

    assert stable_reason(f"/{'d/' * 300}a.cu: {said}") == stable_reason(f"/b/a.cu: {said}")
