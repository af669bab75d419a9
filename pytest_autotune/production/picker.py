"""Tuned choices of Triton kernels, and what picks them where a kernel is launched; needs nothing but Triton and torch.

Of a problem that is known, one candidate is left: Triton 3.8 and later then measures nothing, earlier versions time it
once. What is not known is tuned by Triton, as without this file.

pytest-autotune wrote it. Edit nothing here: COMMAND writes it anew.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing it takes as long as all else here
    from typing import Any


def pick(kernel: str, prune: Any = None, nearest: Any = (), other_devices: bool = False, also: Any = ()) -> Any:
    """An ``early_config_prune`` for ``triton.autotune`` that leaves the candidate that was tuned, where it knows one.

    :param kernel: its module and name, as they stand below.
    :param prune: the pruner that the kernel has otherwise.
    :param nearest: the names of numbers in the key that may differ: where no choice is exact, the nearest one is taken.
    :param other_devices: the choices of the GPU of the same architecture that is the nearest in size may be taken.
    :param also: parts of the key that are no arguments: ``{"closure.ACTIVATION": "relu"}``.
    """

    def early_config_prune(configs: Any, named_args: Any, **kwargs: Any) -> Any:
        left = configs if prune is None else list(prune(configs, named_args, **kwargs))
        if getattr(sys.modules.get("pytest_autotune.tuners.hooks"), "active_runs", 0):  # it is to see all candidates
            return left
        try:
            choices, names, remark = choices_here(kernel, other_devices)
            parts = key_parts({**named_args, **kwargs, **dict(also)}, names)
            for params, away in ranked(choices, parts, nearest):
                live = [one for one in left if one.kwargs.items() <= params.items() and one.all_kwargs() == params]
                if live and all(one == live[0] for one in live[1:]):
                    if away or remark:
                        warn(f"{kernel}: the choice{remark}{away} is used for {parts}")
                    return live[:1]
            warn(f"{kernel}: no candidate is known as the choice for {parts}, so Triton tunes")
        except Exception as error:  # no GPU, or somebody has edited the file
            warn(f"{kernel}: its choices cannot be read, so Triton tunes: {error!r}")
        return left

    # By which pytest-autotune knows that no arguments beside the key decide.
    early_config_prune.autotune_pruner = prune  # type: ignore[attr-defined]
    return early_config_prune


def warn(what: str, kind: str = "inexact") -> None:
    """Say once in a process that choices are not used as they were tuned, and what mends it."""
    torch = sys.modules.get("torch")
    if kind not in _warned and not (torch and torch.compiler.is_compiling()):  # torch.compile cannot trace a warning
        _warned.add(kind)
        warnings.warn(f"{what} (cover it in the tests, then: {COMMAND})", stacklevel=3)


@functools.cache
def device() -> tuple[str, str, int]:
    """This process's GPU: name, architecture, multiprocessors."""
    if os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y"):
        return "Triton interpreter", "interpreter", 0
    found = sys.modules["torch"].cuda.get_device_properties(None)
    arch = getattr(found, "gcnArchName", "").split(":")[0]
    return found.name, arch if arch.startswith("gfx") else f"sm_{found.major}{found.minor}", found.multi_processor_count


@functools.cache
def choices_here(kernel: str, other_devices: bool = False) -> tuple[dict[Any, Any], set[str], str]:
    """The choices of a kernel for this GPU by key, the names in the keys, and of which other GPU they are."""
    now = device()
    same_arch = {id: then for id, then in DEVICES.items() if then[1] == now[1] and id in CHOICES.get(kernel, ())}
    exact = [id for id, then in same_arch.items() if then == now or then[0] == ALIASES.get(now[0])]
    similar = [id for id, then in same_arch.items() if then[2] == now[2] or other_devices]
    if not (exact or similar):
        return {}, set(), ""
    id = min(exact or similar, key=lambda one: (same_arch[one] != now, abs(same_arch[one][2] - now[2])))
    version = ".".join(getattr(sys.modules.get("triton"), "__version__", "").split(".")[:2])
    if VERSIONS[id] and version not in VERSIONS[id]:
        warn(f"{kernel}: tuned with Triton {' and '.join(VERSIONS[id])}, and this is {version}", "version")
    by_key = {frozenset(key.items()): params for key, params in CHOICES[kernel][id]}
    names = {name for key in by_key for name, _ in key}
    return by_key, names, "" if exact else f" of {same_arch[id][0]}"


def ranked(choices: Any, parts: Any, nearest: Any) -> Any:
    """What was chosen for a problem, then for those that differ in these numbers alone, with how, the nearest first."""
    if (key := frozenset(parts.items())) in choices:
        yield choices[key], ""
    found = []
    for number, (other, params) in enumerate(choices.items() if nearest else ()):
        differing = {name: (value, parts.get(name)) for name, value in other - key}
        sizes = [size for pair in differing.values() for size in pair if isinstance(size, (int, float)) and size >= 0]
        if len(other) == len(key) and len(sizes) == 2 * len(differing) and differing.keys() <= set(nearest):
            away = sum((math.log2(max(a, 0.5)) - math.log2(max(b, 0.5))) ** 2 for a, b in differing.values())
            words = ", ".join(f"{name}={differing[name][0]}" for name in sorted(differing))
            found.append((away, number, params, f" for {words}"))
    yield from ((params, words) for _, _, params, words in sorted(found, key=lambda one: one[:2]))


def key_parts(named: Any, names: Any) -> dict[str, Any]:
    """What selects a problem: arguments by name where keys have them, and the dtypes of all."""
    parts: dict[str, Any] = {}
    for name, value in named.items():
        value = value.value if type(value).__name__ == "constexpr" else value
        typed: Any = value if hasattr(value, "dtype") else getattr(value, "base", None)  # of a tensor's descriptor
        if hasattr(typed, "dtype"):
            parts[f"{name}.dtype" if typed is value else f"{name}.base.dtype"] = str(typed.dtype).rpartition(".")[2]
        elif isinstance(value, tuple):
            parts.update(key_parts({f"{name}.{number}": part for number, part in enumerate(value)}, ()))
        if name in names or (name != "grid" and callable(value)):
            parts[name] = value  # functions are in no key of an export, so nothing is known with them
    return parts


_warned: set[str] = set()
# What follows is data.
COMMAND = "pytest-autotune export"
VERSIONS: Any = {}
DEVICES: Any = {}
ALIASES: Any = {}
CHOICES: Any = {}
