"""Tuned choices of Triton kernels, and the functions that pick them when a kernel is launched.

The module needs nothing but Triton and torch. For a problem that it knows, it leaves the tuned candidate alone. Triton
3.8 and later then measure nothing. Earlier versions time the candidate once, unless the kernel has
``do_bench=picked.do_bench``. For any other problem Triton tunes, as it would without this module. Triton's interpreter
measures nothing that counts, so there the module leaves the first candidate.

The data is at the end. CHOICES has, for each kernel and each GPU, the keys of the problems with their choices. A key
has the arguments that select a problem, a choice the params of a candidate: ``({"M": 64}, {"BLOCK_M": 128})``. A GPU is
a tuple of name, architecture, number of multiprocessors, and the version of the Triton that tuned. KEYS has, for each
kernel, the arguments that its keys name. ALIASES has, for a GPU without choices, the GPU whose choices it takes.

pytest-autotune wrote this module. Do not edit it: COMMAND writes it again.
"""

import functools
import math
import os
import re
import sys
import threading
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

#: The candidates of a kernel, each a ``triton.Config``.
Configs = Sequence[Any]
#: The key of a problem: the names and values of its parts, sorted: ``(("M", 64), ("a.dtype", "float16"))``.
Key = tuple[tuple[str, Any], ...]
#: A GPU with its Triton: name, architecture, number of multiprocessors, version of Triton. CHOICES has the beginning of
#: a version, such as "3.4", or a tuple of several beginnings.
Gpu = tuple[str, str, int, Any]


def pick(kernel: str, prune: Any = None, nearest: Collection[str] = (), other_devices: bool = False) -> Any:
    """Return an ``early_config_prune`` for ``triton.autotune`` that leaves the tuned candidate of a known problem.

    For example::

        picked = pick("lib.ops.matmul")
        @triton.autotune(configs, key=["M"], prune_configs_by={"early_config_prune": picked}, do_bench=picked.do_bench)

    Triton before 3.8 times a single candidate, too. The attribute ``do_bench`` avoids that: it is Triton's own
    benchmark, but does not time a single candidate.

    :param kernel: the module and the name of the kernel, as CHOICES has them.
    :param prune: the kernel's own pruner, which is called first.
    :param nearest: the names of the numbers in the key that may differ. A problem without a choice then takes the
        choice of the nearest problem.
    :param other_devices: a GPU without choices may take those of a larger or smaller GPU of its architecture.
    """
    # Triton calls early_config_prune, and then do_bench for each candidate. The candidates of a launch stand here in
    # between. Each thread has its own launch.
    launch = threading.local()

    def early_config_prune(configs: Configs, named_args: Mapping[str, Any], **kwargs: Any) -> Configs:
        candidates = configs
        if prune is not None:
            candidates = list(prune(configs, named_args, **kwargs))
        if len(candidates) > 1 and not is_in_test_run():
            # Triton passes the grid beside the arguments. A grid may be a function, which would look like a key part.
            arguments = {**named_args, **kwargs, "grid": None}
            candidates = select_candidates(kernel, candidates, arguments, nearest, other_devices)
        launch.candidates = candidates
        return candidates

    def do_bench(kernel_call: Any, quantiles: Sequence[float]) -> Any:
        if len(launch.candidates) == 1:
            # Triton expects three quantiles. Their values do not matter, because there is nothing to choose.
            return [0.0] * 3
        benchmark = sys.modules["triton"].runtime.driver.active.get_benchmarker()
        return benchmark(kernel_call, quantiles=quantiles)

    # pytest-autotune reads ``autotune_pruner``: the fingerprint of a kernel has its own pruner, and never this module.
    vars(early_config_prune).update(autotune_pruner=prune, do_bench=do_bench)
    return early_config_prune


def is_in_test_run() -> bool:
    """Whether pytest-autotune runs tests in this process. A test run tunes among all candidates."""
    return bool(getattr(sys.modules.get("pytest_autotune"), "ACTIVE_RUNS", ()))


def select_candidates(
    kernel: str, candidates: Configs, arguments: Mapping[str, Any], nearest: Collection[str], other_devices: bool
) -> Configs:
    """Return the tuned candidate of a launch in a list. If there is none, return all candidates and warn once.

    :param candidates: the candidates that the kernel's own pruner left.
    :param arguments: name -> value of all arguments of the launch.
    :param nearest: see :func:`pick`.
    :param other_devices: see :func:`pick`.
    """
    try:
        known = find_choices(kernel, other_devices)
        if known is None:
            return select_without_choice(kernel, candidates, f"no choice is known for {device()}", tune_here())
        key = tuple(sorted(list_key_parts(arguments, known.argument_names)))
        tuned_key = find_nearest_key(known.choice_by_key, key, nearest)
        if tuned_key not in known.choice_by_key:
            # No problem that is near has a choice.
            return select_without_choice(kernel, candidates, f"no choice is known for {dict(key)}", COVER)
        choice = known.choice_by_key[tuned_key]
        tuned = [candidate for candidate in candidates if has_params(candidate, choice)]
        if not tuned:
            return select_without_choice(kernel, candidates, f"{choice} is no candidate any more", COVER)
        warn_if_inexact(kernel, key, tuned_key, known.remark)
        are_all_equal = tuned.count(tuned[0]) == len(tuned)
        if not are_all_equal:
            # Their params are equal, so their hooks differ. The choice does not name hooks, so Triton measures.
            return tuned
        return tuned[:1]
    except Exception as error:  # there is no GPU, or somebody has edited the data
        return select_without_choice(kernel, candidates, f"no choice can be picked ({error!r})", tune_here())


def has_params(candidate: Any, choice: Mapping[str, Any]) -> bool:
    """Whether a candidate has the params of a choice. ``True``, ``1`` and ``1.0`` differ, and so do 0.0 and -0.0."""
    params = candidate.all_kwargs()
    if params != choice:
        return False
    for name, value in params.items():
        if type(value).__name__ == "constexpr":
            value = value.value
        if hasattr(value, "item"):
            # A scalar of numpy. CHOICES has its value in Python.
            value = value.item()
        if repr(value) != repr(choice[name]):
            return False
    return True


def warn_if_inexact(kernel: str, key: Key, tuned_key: Key, remark: str) -> None:
    """Warn once if a choice was tuned for another key than that of the launch, or elsewhere.

    :param remark: the GPU and the Triton of the tuning, if they are not those of this process; else empty.
    """
    used_for = f"{kernel}: the choice of {dict(tuned_key)}{remark} is used for {dict(key)}"
    if tuned_key != key:
        warn("nearest", used_for, COVER)
    elif remark:
        warn(remark, used_for, tune_here())


def select_without_choice(kernel: str, candidates: Configs, reason: str, remedy: str) -> Configs:
    """Return all candidates of a launch without a choice, and warn once."""
    if interprets():
        # Times of Triton's interpreter mean nothing, so no tuning is needed.
        return candidates[:1]
    warn("", f"{kernel}: {reason}, so Triton tunes", remedy)
    return candidates


class KnownChoices(NamedTuple):
    """The choices of a kernel that this GPU may take.

    :param argument_names: the arguments of the kernel that are parts of its keys.
    :param choice_by_key: the params of each choice, by name.
    :param remark: the GPU and the Triton of the tuning, in words; empty if both are those of this process.
    """

    argument_names: Collection[str]
    choice_by_key: Mapping[Key, Mapping[str, Any]]
    remark: str


@functools.cache
def find_choices(kernel: str, other_devices: bool) -> "KnownChoices | None":
    """Return the choices of a kernel; None if this GPU may take none of its choices."""
    tuned_on = find_tuned_gpu(kernel, other_devices)
    if tuned_on is None:
        return None
    this_gpu = device()
    is_same_gpu = tuned_on[:3] == this_gpu[:3]
    is_same_version = this_gpu[3].startswith(tuned_on[3])
    remark = ""
    if not is_same_gpu or not is_same_version:
        remark = f" on {tuned_on} and not on {this_gpu}"
    choice_by_key = {tuple(sorted(key.items())): choice for key, choice in CHOICES[kernel][tuned_on]}
    return KnownChoices(KEYS[kernel], choice_by_key, remark)


def find_tuned_gpu(kernel: str, other_devices: bool) -> "Gpu | None":
    """Return the GPU whose choices of a kernel this GPU takes, as CHOICES has it; None if there is none.

    A GPU takes its own choices first. Then come the choices of the GPU that has the same architecture and the nearest
    number of multiprocessors. That number must be equal unless ``other_devices`` is set.
    """
    name, arch, size, _ = device()
    # The rank of each GPU whose choices may be taken; the lowest comes first.
    ranks: dict[Gpu, tuple[bool, int]] = {}
    for tuned_on in CHOICES.get(kernel, ()):
        tuned_name, tuned_arch, tuned_size, _ = tuned_on
        has_allowed_size = tuned_size == size or other_devices
        if tuned_arch == arch and has_allowed_size:
            is_other_gpu = (tuned_name, tuned_size) != (name, size)
            ranks[tuned_on] = (is_other_gpu, abs(tuned_size - size))
    return min(ranks, key=lambda tuned_on: ranks[tuned_on], default=None)


def list_key_parts(arguments: Mapping[str, Any], argument_names: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a launch's key, as name and value.

    A key has the arguments that the kernel tunes by, and the dtypes of all tensors, also inside tuples and tensor
    descriptors. The launch ``matmul[grid](a, 64, (x, y))`` with ``argument_names=["M"]`` has these parts::

        a.dtype         "float16"
        M               64
        pair.0.dtype    "float32"
        pair.1.dtype    "float32"

    :param arguments: name -> value of all arguments of the launch, or of the items inside an argument.
    :param argument_names: the arguments that are parts of the key by their value.
    """
    for name, value in arguments.items():
        if type(value).__name__ == "constexpr":
            value = value.value
        # A function changes the kernel. No tuned key has a function, so its part makes the problem unknown.
        if name in argument_names or callable(value):
            yield name, value
        if hasattr(value, "dtype"):
            # A dtype may be torch.float16 or the text "float16". Both give the same part.
            yield f"{name}.dtype", str(value.dtype).rpartition(".")[2]
        elif isinstance(value, tuple):
            items = {f"{name}.{position}": item for position, item in enumerate(value)}
            yield from list_key_parts(items, ())
        elif hasattr(value, "base"):
            # The descriptor of a tensor has the tensor as its base.
            yield from list_key_parts({f"{name}.base": value.base}, ())


def find_nearest_key(choice_by_key: Mapping[Key, Any], key: Key, nearest: Collection[str]) -> Key:
    """Return the key that has a choice and is the nearest to the key of a launch; the launch's key if none is near.

    :param nearest: the names of the numbers that may differ. All other parts of the keys must be equal.
    """
    if key in choice_by_key:
        return key
    near_keys = [tuned_key for tuned_key in choice_by_key if is_near(dict(key), dict(tuned_key), nearest)]
    return min(near_keys, key=lambda tuned_key: distance(dict(key), dict(tuned_key)), default=key)


def is_near(wanted: Mapping[str, Any], has: Mapping[str, Any], nearest: Collection[str]) -> bool:
    """Whether two keys have the same names, and differ only in numbers whose names are in ``nearest``."""
    if wanted.keys() != has.keys():
        return False
    for name, value in has.items():
        if wanted[name] == value:
            continue
        # Types are compared, because a bool is an instance of int.
        are_numbers = {type(wanted[name]), type(value)} <= {int, float}
        if name not in nearest or not are_numbers:
            return False
    return True


def distance(wanted: Mapping[str, Any], has: Mapping[str, Any]) -> tuple[int, float]:
    """Return how far two keys are apart. The nearest key is the key with the smallest result.

    The result has two numbers, and the first is the more important:

    - The number of parts that differ and are not both numbers. A part that only one key has is counted, too.
    - The doublings between the numbers: 16 and 64 are two doublings apart. Numbers below 0.5 count as 0.5.

    Texts and tuples are compared word by word: ``f32[2, 8]`` and ``f32[2, 64]`` are three doublings apart.
    """
    differing_parts = len(wanted.keys() ^ has.keys())
    doublings = []
    for name in wanted.keys() & has.keys():
        if wanted[name] == has[name]:
            continue
        # The two values of this part, or the pairs of their words.
        pairs: Any = [(wanted[name], has[name])]
        if isinstance(wanted[name], (str, tuple)) and isinstance(has[name], (str, tuple)):
            # None stands for each word that the shorter text lacks.
            pairs = zip_longest(split_words(wanted[name]), split_words(has[name]))
        for wanted_value, value in pairs:
            if wanted_value == value:
                continue
            # Types are compared, because a bool is an instance of int.
            are_numbers = {type(wanted_value), type(value)} <= {int, float}
            # NaN does not equal itself.
            has_nan = wanted_value != wanted_value or value != value
            if are_numbers and not has_nan:
                difference = math.log2(max(wanted_value, 0.5)) - math.log2(max(value, 0.5))
                doublings.append(abs(difference))
            else:
                differing_parts += 1
    # The names are a set, whose order differs between processes. Without sorting, the last digit could differ, too.
    return differing_parts, math.hypot(*sorted(doublings))


def split_words(value: Any) -> list[Any]:
    """Return the words of a text or tuple. Words of digits become numbers: ``f32[2, 8]`` gives ``"f32"``, 2.0, 8.0."""
    words: list[Any] = []
    for word in re.findall(r"\w+", str(value)):
        if word.isdecimal():
            words.append(float(word))
        else:
            words.append(word)
    return words


def device() -> Gpu:
    """Return the GPU of this process, and the version of Triton."""
    version = sys.modules["triton"].__version__
    if interprets():
        return "Triton interpreter", "interpreter", 0, version
    torch = sys.modules["torch"]
    properties = torch.cuda.get_device_properties(None)
    arch = f"sm_{properties.major}{properties.minor}"
    if torch.version.hip:
        arch = properties.gcnArchName.split(":")[0]
    gpu = (properties.name, arch, properties.multi_processor_count)
    # A GPU with an alias takes the choices of the GPU that ALIASES names.
    name, arch, multiprocessors = ALIASES.get((properties.name, arch), gpu)
    return name, arch, multiprocessors, version


def interprets() -> bool:
    """Whether kernels run in Python, without a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


#: The remedy for a problem that no test covers.
COVER = "cover it in the tests"
#: The kinds of warnings that this process has shown.
SHOWN_WARNINGS: set[str] = set()


def tune_here() -> str:
    """Return the remedy for choices that were tuned for another GPU or with another Triton."""
    # COMMAND is "pytest-autotune export CACHE --to=python ...".
    cache = COMMAND.partition(" export ")[2].partition(" --to=")[0]
    return f"tune on this GPU with this Triton: pytest --autotune-load= --autotune-dump={cache}"


def warn(kind: str, text: str, remedy: str) -> None:
    """Warn of a choice that is unknown or not exact, once in a process for each kind of warning."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.compiler.is_compiling():
        # torch.compile cannot trace a warning.
        return
    if kind not in SHOWN_WARNINGS:
        SHOWN_WARNINGS.add(kind)
        warnings.warn(f"{text} ({remedy}, then: {COMMAND})", stacklevel=3)


# The data of this module.
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
