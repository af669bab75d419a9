"""Whether a function of some name is still defined, without importing anything."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Sequence
from inspect import getattr_static
from pathlib import Path
from types import CodeType

from pytest_autotune.tuners.shared.source.functions import python_function, qualified_name

_MISSING = object()


def may_be_defined(name: str) -> bool:
    """Whether there may be a function of this qualified name; False only where there surely is none.

    What is imported is looked through. Of a module that is not, the source is searched.

    :param name: as :func:`qualified_name` gives it.
    """
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:end]))
        if module is not None:
            return _is_in(module, parts[end:], name) or _in_other_file(parts, end)
    return _in_other_file(parts, 0)


def _is_in(value: object, path: Sequence[str], name: str) -> bool:
    if not path:
        function = python_function(value)
        # Under another name it is only kept for those who still import it from here.
        return function is None or qualified_name(function) == name
    if path[0] == "<locals>":
        outer = python_function(value)
        return outer is None or _is_in_code(outer.__code__, path[1:])
    inner = getattr_static(value, path[0], _MISSING)
    return inner is not _MISSING and _is_in(inner, path[1:], name)


def _is_in_code(code: CodeType, path: Sequence[str]) -> bool:
    inner = [const for const in code.co_consts if isinstance(const, CodeType) and const.co_name == path[0]]
    rest = path[2:] if path[1:2] == ["<locals>"] else path[1:]
    return any(not rest or _is_in_code(one, rest) for one in inner)


def _in_other_file(parts: Sequence[str], imported: int) -> bool:
    """Whether a module that is not imported, below one that is, may define it."""
    module = ".".join(parts[: imported + 1])
    if len(parts) < imported + 2 or module in sys.modules:
        return False
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    if spec.submodule_search_locations is not None or not spec.origin:
        return True
    try:
        source = Path(spec.origin).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return True
    first = next((part for part in reversed(parts) if part != "<locals>"), "")
    return re.search(rf"\bdef\s+{re.escape(first)}\b", source) is not None
