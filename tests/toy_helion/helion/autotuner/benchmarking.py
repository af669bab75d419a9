"""The clock."""

import time


def do_bench(fn, warmup=25, rep=100, grad_to_none=None, quantiles=None, return_mode="mean", process_group_name=None):
    started = time.perf_counter()
    fn()
    return (time.perf_counter() - started) * 1000


def interleaved_bench(fns, *, repeat, desc=None, default_cudagraph=False, max_total_ms=None, process_group_name=None):
    return [do_bench(fn) for fn in fns]
