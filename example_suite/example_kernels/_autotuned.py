"""Tuned choices of Triton kernels, and what picks them where a kernel is launched; needs nothing but Triton and torch.

Of a problem that is known, one candidate is left: Triton 3.8 and later then measures nothing, earlier versions time it
once, or not with ``do_bench=picked.do_bench``. What is not known is tuned by Triton, as without this file; under its
interpreter, which measures nothing that counts, the first candidate is left.

pytest-autotune wrote it. Edit nothing here: COMMAND writes it anew.
"""

import functools
import math
import os
import re
import sys
import threading
import warnings
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any


def pick(kernel: str, prune: Any = None, nearest: Any = (), other_devices: bool = False) -> Any:
    """An ``early_config_prune`` for ``triton.autotune`` that leaves the candidate that was tuned, where it knows one.

    Its attribute ``do_bench`` is Triton's own benchmark, but for what is left alone, which it does not time.

    :param kernel: its module and name, as they stand below.
    :param prune: the pruner that the kernel has otherwise.
    :param nearest: the names of numbers in the key that may differ: where no choice is exact, the nearest one is taken.
    :param other_devices: the choices of the GPU of the same architecture that is the nearest in size may be taken.
    """
    left = threading.local()

    def early_config_prune(configs: Any, named_args: Any, **kwargs: Any) -> Any:
        left.over = configs if prune is None else list(prune(configs, named_args, **kwargs))  # all, in a run of tests
        if left.over[1:] and not getattr(sys.modules.get("pytest_autotune.tuners.hooks"), "active_runs", 0):
            choices = None
            try:
                names, choices, remark = choices_here(kernel, other_devices)
                here = tuple(sorted(parts({**named_args, **kwargs, "grid": None}, names)))
                known = here if here in choices else find_nearest_key(choices, here, nearest)
                best = choices[known]
                live = [one for one in left.over if one.kwargs.items() <= best.items() and one.all_kwargs() == best]
                assert live, f"{best} is no candidate any more"
                left.over = live[:1] if live.count(live[0]) == len(live) else live
                if inexact := remark if known == here else "nearest":
                    what = f"{kernel}: what was tuned for {dict(known)}{remark} is used for {dict(here)}"
                    warn(what, inexact, is_tuned_here=inexact != remark)
            except Exception as error:  # it is not known, there is no GPU, or somebody has edited the file
                if interprets():
                    left.over = left.over[:1]
                else:
                    what = f"{kernel}: no candidate is known as the choice, so Triton tunes: {error!r}"
                    warn(what, is_tuned_here=choices is not None)
        return left.over

    def do_bench(kernel_call: Any, quantiles: Any) -> Any:
        driver = sys.modules["triton"].runtime.driver
        return [0.0] * 3 if len(left.over) == 1 else driver.active.get_benchmarker()(kernel_call, quantiles=quantiles)

    # By the first one pytest-autotune knows that no arguments beside the key decide.
    vars(early_config_prune).update(autotune_pruner=prune, do_bench=do_bench)
    return early_config_prune


def find_nearest_key(choices: Any, wanted: Any, nearest: Any) -> Any:
    """Return the key of the choices that is the nearest to the wanted one, else the wanted key itself.

    :param choices: the choices of a kernel on this GPU, by key.
    :param nearest: the names of the numbers that may differ; all else is the same.
    """
    near_keys = [key for key in choices if is_near(dict(wanted), dict(key), nearest)]
    return min(near_keys, key=lambda key: distance(dict(wanted), dict(key)), default=wanted)


def is_near(wanted: Any, has: Any, nearest: Any) -> bool:
    """Whether two keys have the same names, and differ in the numbers of the names in ``nearest`` alone."""
    if wanted.keys() != has.keys():
        return False
    for name, value in has.items():
        if wanted[name] == value:
            continue
        if name not in nearest or not {type(wanted[name]), type(value)} <= {int, float}:
            return False
    return True


def distance(wanted: Mapping[str, Any], has: Mapping[str, Any]) -> tuple[int, float]:
    """Return how far two keys are apart: first the parts that are no numbers, then the doublings between the numbers.

    The nearest key has the smallest result. A part that only one key has counts as one. 16 and 64 are two doublings
    apart, and numbers below 0.5 count as 0.5. Texts and tuples are compared word by word and number by number.
    """
    parts = len(wanted.keys() ^ has.keys())
    doublings = []
    for name in wanted.keys() & has.keys():
        if wanted[name] == has[name]:
            continue
        pairs: Any = [(wanted[name], has[name])]
        if isinstance(wanted[name], (str, tuple)) and isinstance(has[name], (str, tuple)):
            words = [re.findall(r"\w+", str(value)) for value in pairs[0]]
            pairs = zip_longest(*words)
        for a, b in pairs:
            if isinstance(a, str) and isinstance(b, str) and a.isdecimal() and b.isdecimal():
                a, b = float(a), float(b)
            if a == b:
                continue
            if type(a) in (int, float) and type(b) in (int, float) and a == a and b == b:  # not a bool, not NaN
                doublings.append(abs(math.log2(max(a, 0.5)) - math.log2(max(b, 0.5))))
            else:
                parts += 1
    # Sets have another order in each process, which must not change the last digit of the sum.
    return parts, math.hypot(*sorted(doublings))


def parts(named: Any, names: Any) -> Any:
    """What selects a problem: arguments that keys name, functions, and the dtypes of all, in tuples too."""
    for name, arg in named.items():
        arg = arg.value if type(arg).__name__ == "constexpr" else arg
        if name in names or callable(arg):  # functions are in no key of an export, so nothing is known with them
            yield name, arg
        if hasattr(arg, "dtype"):  # of a reinterpreted tensor, which has a base, too
            yield f"{name}.dtype", str(arg.dtype).rpartition(".")[2]
        elif inner := [*enumerate(arg)] if isinstance(arg, tuple) else hasattr(arg, "base") and [("base", arg.base)]:
            yield from parts({f"{name}.{at}": part for at, part in inner}, ())  # a tensor's descriptor has a base


@functools.cache
def choices_here(kernel: str, other_devices: bool) -> Any:
    """The arguments in the keys of a kernel, its choices for this GPU by key, and how they were tuned if not here."""
    now = device()
    near = [one for one in CHOICES[kernel] if one[1] == now[1] and (one[2] == now[2] or other_devices)]
    then = min(near, key=lambda one: (one[:3] != now[:3], abs(one[2] - now[2])), default=now)
    remark = "" if then[:3] == now[:3] and now[3].startswith(then[3]) else f" on {then} and not on {now}"
    return KEYS[kernel], {tuple(sorted(key.items())): best for key, best in CHOICES[kernel][then]}, remark


def device() -> Any:
    """This process's GPU by name, architecture and multiprocessors, and Triton's version."""
    if interprets():
        return "Triton interpreter", "interpreter", 0, sys.modules["triton"].__version__
    on = sys.modules["torch"].cuda.get_device_properties(None)
    arch = on.gcnArchName.split(":")[0] if sys.modules["torch"].version.hip else f"sm_{on.major}{on.minor}"
    return *ALIASES.get((on.name, arch), (on.name, arch, on.multi_processor_count)), sys.modules["triton"].__version__


def interprets() -> bool:
    """Whether kernels run in Python, where no GPU is needed."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def warn(what: str, kind: str = "", is_tuned_here: bool = True) -> None:
    """Say once in a process that choices are not used as they were tuned, and what mends it.

    :param is_tuned_here: choices are there for this GPU and this Triton: only a test for the problem is missing.
    """
    cache = COMMAND.partition(" export ")[2].partition(" --to=")[0]
    mend = "cover it in the tests"
    if not is_tuned_here:
        mend = f"tune on this GPU with this Triton: pytest --autotune-load= --autotune-dump={cache}"
    torch = sys.modules.get("torch")
    if not (torch and torch.compiler.is_compiling()) and vars(warn).setdefault(kind, what) is what:  # it traces none
        warnings.warn(f"{what} ({mend}, then: {COMMAND})", stacklevel=3)


# What follows is data.
# ruff: noqa: E501
# fmt: off
COMMAND = "pytest-autotune export autotune.textproto --to=python '--device=NVIDIA*' --output=example_kernels/_autotuned.py"
ALIASES: Any = {}
KEYS: Any = {  # the arguments that keys name, beside dtypes
    "example_kernels.add.add_kernel": ["n_elements"],
    "example_kernels.attention.attention_kernel": ["CAUSAL", "HEAD_DIM", "n_heads", "n_tokens"],
    "example_kernels.layer_norm.layer_norm_backward_kernel": ["n_cols", "n_rows"],
    "example_kernels.layer_norm.layer_norm_forward_kernel": ["n_cols", "n_rows"],
    "example_kernels.matmul.matmul_kernel": ["K", "M", "N"],
    "example_kernels.softmax.softmax_kernel": ["n_cols", "n_rows"],
}
CHOICES: Any = {
    "example_kernels.add.add_kernel": {
        ("NVIDIA H200", "sm_90", 132, "3.6"): [  # triton 3.6.0, torch 2.11.0, cuda 13.0
            ({"n_elements": 1, "x_ptr.dtype": "float16", "y_ptr.dtype": "float16", "out_ptr.dtype": "float16"}, {"BLOCK": 2048, "num_warps": 8, "num_ctas": 1, "num_stages": 3}),  # 4.8 us
            ({"n_elements": 1, "x_ptr.dtype": "float32", "y_ptr.dtype": "float32", "out_ptr.dtype": "float32"}, {"BLOCK": 512, "num_warps": 4, "num_ctas": 1, "num_stages": 3}),  # 4.8 us
            ({"n_elements": 98432, "x_ptr.dtype": "float16", "y_ptr.dtype": "float16", "out_ptr.dtype": "float16"}, {"BLOCK": 512, "num_warps": 4, "num_ctas": 1, "num_stages": 3}),  # 5.408 us
            ({"n_elements": 98432, "x_ptr.dtype": "float32", "y_ptr.dtype": "float32", "out_ptr.dtype": "float32"}, {"BLOCK": 2048, "num_warps": 8, "num_ctas": 1, "num_stages": 3}),  # 5.536 us
            ({"n_elements": 16777216, "x_ptr.dtype": "float16", "y_ptr.dtype": "float16", "out_ptr.dtype": "float16"}, {"BLOCK": 1024, "num_warps": 4, "num_ctas": 1, "num_stages": 3}),  # 30.08 us
            ({"n_elements": 16777216, "x_ptr.dtype": "float32", "y_ptr.dtype": "float32", "out_ptr.dtype": "float32"}, {"BLOCK": 1024, "num_warps": 4, "num_ctas": 1, "num_stages": 3}),  # 53.22 us
        ],
    },
    "example_kernels.attention.attention_kernel": {
        ("NVIDIA H200", "sm_90", 132, "3.6"): [  # triton 3.6.0, torch 2.11.0, cuda 13.0
            ({"n_heads": 8, "n_tokens": 1000, "HEAD_DIM": 128, "CAUSAL": 0, "q_ptr.dtype": "bfloat16", "k_ptr.dtype": "bfloat16", "v_ptr.dtype": "bfloat16", "out_ptr.dtype": "bfloat16"}, {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_ctas": 1, "num_stages": 3}),  # 20.64 us
            ({"n_heads": 8, "n_tokens": 1000, "HEAD_DIM": 128, "CAUSAL": 0, "q_ptr.dtype": "float16", "k_ptr.dtype": "float16", "v_ptr.dtype": "float16", "out_ptr.dtype": "float16"}, {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_ctas": 1, "num_stages": 3}),  # 20.7 us
            ({"n_heads": 8, "n_tokens": 1000, "HEAD_DIM": 128, "CAUSAL": 1, "q_ptr.dtype": "bfloat16", "k_ptr.dtype": "bfloat16", "v_ptr.dtype": "bfloat16", "out_ptr.dtype": "bfloat16"}, {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_ctas": 1, "num_stages": 3}),  # 24.22 us
            ({"n_heads": 8, "n_tokens": 1000, "HEAD_DIM": 128, "CAUSAL": 1, "q_ptr.dtype": "float16", "k_ptr.dtype": "float16", "v_ptr.dtype": "float16", "out_ptr.dtype": "float16"}, {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_ctas": 1, "num_stages": 3}),  # 24.19 us
            ({"n_heads": 32, "n_tokens": 2048, "HEAD_DIM": 64, "CAUSAL": 0, "q_ptr.dtype": "bfloat16", "k_ptr.dtype": "bfloat16", "v_ptr.dtype": "bfloat16", "out_ptr.dtype": "bfloat16"}, {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_ctas": 1, "num_stages": 3}),  # 97.31 us
            ({"n_heads": 32, "n_tokens": 2048, "HEAD_DIM": 64, "CAUSAL": 0, "q_ptr.dtype": "float16", "k_ptr.dtype": "float16", "v_ptr.dtype": "float16", "out_ptr.dtype": "float16"}, {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_ctas": 1, "num_stages": 3}),  # 97.89 us
            ({"n_heads": 32, "n_tokens": 2048, "HEAD_DIM": 64, "CAUSAL": 1, "q_ptr.dtype": "bfloat16", "k_ptr.dtype": "bfloat16", "v_ptr.dtype": "bfloat16", "out_ptr.dtype": "bfloat16"}, {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_ctas": 1, "num_stages": 3}),  # 85.76 us
            ({"n_heads": 32, "n_tokens": 2048, "HEAD_DIM": 64, "CAUSAL": 1, "q_ptr.dtype": "float16", "k_ptr.dtype": "float16", "v_ptr.dtype": "float16", "out_ptr.dtype": "float16"}, {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_ctas": 1, "num_stages": 3}),  # 85.95 us
        ],
    },
    "example_kernels.layer_norm.layer_norm_backward_kernel": {
        ("NVIDIA H200", "sm_90", 132, "3.6"): [  # triton 3.6.0, torch 2.11.0, cuda 13.0
            ({"n_rows": 1500, "n_cols": 1999, "dy_ptr.dtype": "float16", "x_ptr.dtype": "float16", "w_ptr.dtype": "float16", "mean_ptr.dtype": "float32", "rstd_ptr.dtype": "float32", "dx_ptr.dtype": "float16", "dw_ptr.dtype": "float32", "db_ptr.dtype": "float32"}, {"ROWS": 16, "num_warps": 8, "num_ctas": 1, "num_stages": 3}),  # 45.06 us
            ({"n_rows": 1500, "n_cols": 1999, "dy_ptr.dtype": "float32", "x_ptr.dtype": "float32", "w_ptr.dtype": "float32", "mean_ptr.dtype": "float32", "rstd_ptr.dtype": "float32", "dx_ptr.dtype": "float32", "dw_ptr.dtype": "float32", "db_ptr.dtype": "float32"}, {"ROWS": 16, "num_warps": 8, "num_ctas": 1, "num_stages": 3}),  # 50.08 us
            ({"n_rows": 4096, "n_cols": 1024, "dy_ptr.dtype": "float16", "x_ptr.dtype": "float16", "w_ptr.dtype": "float16", "mean_ptr.dtype": "float32", "rstd_ptr.dtype": "float32", "dx_ptr.dtype": "float16", "dw_ptr.dtype": "float32", "db_ptr.dtype": "float32"}, {"ROWS": 16, "num_warps": 8, "num_ctas": 1, "num_stages": 3}),  # 29.38 us
            ({"n_rows": 4096, "n_cols": 1024, "dy_ptr.dtype": "float32", "x_ptr.dtype": "float32", "w_ptr.dtype": "float32", "mean_ptr.dtype": "float32", "rstd_ptr.dtype": "float32", "dx_ptr.dtype": "float32", "dw_ptr.dtype": "float32", "db_ptr.dtype": "float32"}, {"ROWS": 16, "num_warps": 8, "num_ctas": 1, "num_stages": 3}),  # 35.26 us
        ],
    },
    "example_kernels.layer_norm.layer_norm_forward_kernel": {
        ("NVIDIA H200", "sm_90", 132, "3.6"): [  # triton 3.6.0, torch 2.11.0, cuda 13.0
            ({"n_rows": 1500, "n_cols": 1999, "x_ptr.dtype": "float16", "w_ptr.dtype": "float16", "b_ptr.dtype": "float16", "y_ptr.dtype": "float16", "mean_ptr.dtype": "float32", "rstd_ptr.dtype": "float32"}, {"BLOCK": 512, "num_warps": 4, "num_ctas": 1, "num_stages": 3}),  # 13.82 us
            ({"n_rows": 1500, "n_cols": 1999, "x_ptr.dtype": "float32", "w_ptr.dtype": "float32", "b_ptr.dtype": "float32", "y_ptr.dtype": "float32", "mean_ptr.dtype": "float32", "rstd_ptr.dtype": "float32"}, {"BLOCK": 2048, "num_warps": 8, "num_ctas": 1, "num_stages": 3}),  # 17.92 us
            ({"n_rows": 4096, "n_cols": 1024, "x_ptr.dtype": "float16", "w_ptr.dtype": "float16", "b_ptr.dtype": "float16", "y_ptr.dtype": "float16", "mean_ptr.dtype": "float32", "rstd_ptr.dtype": "float32"}, {"BLOCK": 1024, "num_warps": 4, "num_ctas": 1, "num_stages": 3}),  # 12.35 us
            ({"n_rows": 4096, "n_cols": 1024, "x_ptr.dtype": "float32", "w_ptr.dtype": "float32", "b_ptr.dtype": "float32", "y_ptr.dtype": "float32", "mean_ptr.dtype": "float32", "rstd_ptr.dtype": "float32"}, {"BLOCK": 512, "num_warps": 4, "num_ctas": 1, "num_stages": 3}),  # 15.71 us
        ],
    },
    "example_kernels.matmul.matmul_kernel": {
        ("NVIDIA H200", "sm_90", 132, "3.6"): [  # triton 3.6.0, torch 2.11.0, cuda 13.0
            ({"M": 1000, "N": 720, "K": 336, "a_ptr.dtype": "bfloat16", "b_ptr.dtype": "bfloat16", "c_ptr.dtype": "bfloat16"}, {"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 4, "num_ctas": 1, "num_stages": 4}),  # 10.24 us
            ({"M": 1000, "N": 720, "K": 336, "a_ptr.dtype": "float16", "b_ptr.dtype": "float16", "c_ptr.dtype": "float16"}, {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8, "num_warps": 4, "num_ctas": 1, "num_stages": 5}),  # 8.64 us
            ({"M": 1000, "N": 720, "K": 336, "a_ptr.dtype": "float32", "b_ptr.dtype": "float32", "c_ptr.dtype": "float32"}, {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8, "num_warps": 4, "num_ctas": 1, "num_stages": 5}),  # 25.76 us
            ({"M": 1024, "N": 1024, "K": 1024, "a_ptr.dtype": "bfloat16", "b_ptr.dtype": "bfloat16", "c_ptr.dtype": "bfloat16"}, {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 4, "num_ctas": 1, "num_stages": 4}),  # 11.97 us
            ({"M": 1024, "N": 1024, "K": 1024, "a_ptr.dtype": "float16", "b_ptr.dtype": "float16", "c_ptr.dtype": "float16"}, {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 4, "num_ctas": 1, "num_stages": 4}),  # 12.1 us
            ({"M": 1024, "N": 1024, "K": 1024, "a_ptr.dtype": "float32", "b_ptr.dtype": "float32", "c_ptr.dtype": "float32"}, {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 4, "num_ctas": 1, "num_stages": 4}),  # 61.6 us
            ({"M": 2048, "N": 512, "K": 1024, "a_ptr.dtype": "bfloat16", "b_ptr.dtype": "bfloat16", "c_ptr.dtype": "bfloat16"}, {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 4, "num_ctas": 1, "num_stages": 4}),  # 12.19 us
            ({"M": 2048, "N": 512, "K": 1024, "a_ptr.dtype": "float16", "b_ptr.dtype": "float16", "c_ptr.dtype": "float16"}, {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 4, "num_ctas": 1, "num_stages": 4}),  # 12.13 us
            ({"M": 2048, "N": 512, "K": 1024, "a_ptr.dtype": "float32", "b_ptr.dtype": "float32", "c_ptr.dtype": "float32"}, {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 4, "num_ctas": 1, "num_stages": 4}),  # 61.76 us
        ],
    },
    "example_kernels.softmax.softmax_kernel": {
        ("NVIDIA H200", "sm_90", 132, "3.6"): [  # triton 3.6.0, torch 2.11.0, cuda 13.0
            ({"n_rows": 1823, "n_cols": 781, "x_ptr.dtype": "float16", "out_ptr.dtype": "float16"}, {"ROWS": 1, "num_warps": 4, "num_ctas": 1, "num_stages": 3}),  # 8.64 us
            ({"n_rows": 1823, "n_cols": 781, "x_ptr.dtype": "float32", "out_ptr.dtype": "float32"}, {"ROWS": 1, "num_warps": 4, "num_ctas": 1, "num_stages": 3}),  # 9.344 us
            ({"n_rows": 8192, "n_cols": 4096, "x_ptr.dtype": "float16", "out_ptr.dtype": "float16"}, {"ROWS": 1, "num_warps": 8, "num_ctas": 1, "num_stages": 3}),  # 38.26 us
            ({"n_rows": 8192, "n_cols": 4096, "x_ptr.dtype": "float32", "out_ptr.dtype": "float32"}, {"ROWS": 1, "num_warps": 8, "num_ctas": 1, "num_stages": 3}),  # 70.66 us
        ],
    },
}
