"""What is compiled into a kernel as plain JSON, and back: constants, and names of what stands in imported modules."""

from __future__ import annotations

import enum
import re
import sys
from types import ModuleType
from typing import Any

from pytest_autotune.tuners.triton.internals import kernel_layers, modules


class NoText(ValueError):
    """A specialisation has no text, or a text is none of a specialisation."""


def plain(value: Any) -> Any:
    """A constant as plain JSON.

    :raises NoText: where it has no form that another process could make it of.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (tuple, list):
        return {type(value).__name__: [plain(one) for one in value]}
    if isinstance(value, enum.Enum):
        return {"enum": f"{_name(type(value))}.{value.name}"}
    kind = type(value).__module__, type(value).__name__
    if kind == ("torch", "dtype"):
        return {"torch": str(value).partition(".")[2]}
    if kind == (modules.LANGUAGE_MODULE, "dtype"):
        return {"dtype": str(value)}
    if kind == (modules.LANGUAGE_MODULE, "constexpr"):
        return {"constexpr": plain(value.value)}
    if kind == (modules.JIT_MODULE, "JITFunction"):
        return {"jit": _name(value.fn)}
    raise NoText(f"a constant of type {type(value).__qualname__}")


def _name(of: Any) -> str:
    return f"{of.__module__}:{of.__qualname__}"


def constant_of(value: Any) -> Any:
    """The reverse of :func:`plain`: by names in modules that are imported, looked up as what stands in them.

    Nothing is imported, and no code of a module runs: attributes that a module makes when asked are not found.

    :raises NoText: for what stands for nothing here.
    """
    if not isinstance(value, dict):
        if isinstance(value, list):
            raise NoText("a list")
        return value
    if len(value) != 1:
        raise NoText("an object")
    ((kind, of),) = value.items()
    if kind in ("tuple", "list") and isinstance(of, list):
        return {"tuple": tuple, "list": list}[kind](map(constant_of, of))
    if kind == "constexpr":
        return _class(modules.LANGUAGE_MODULE, "constexpr")(constant_of(of))
    if isinstance(of, str):
        if kind in ("torch", "dtype"):
            module = "torch" if kind == "torch" else modules.LANGUAGE_MODULE
            found = vars(_module(module)).get(of)
            if type(found) is _class(module, "dtype"):
                return found
            if kind == "dtype" and re.fullmatch(r"[a-z][a-z0-9]{0,15}", of):
                return _class(modules.LANGUAGE_MODULE, "dtype")(of)
        if kind == "jit":
            return jit_function_of(named(of))
        if kind == "enum":
            name, _, member = of.rpartition(".")
            members = getattr(named(name), "__members__", {}) if isinstance(named(name), enum.EnumMeta) else {}
            if member in members:
                return members[member]
    raise NoText(f"the constant {str(value)[:60]}")


def _module(name: str) -> ModuleType:
    module = sys.modules.get(name)
    if module is None:
        raise NoText(f"the module {name[:60]} is not imported")
    return module


def _class(module: str, name: str) -> Any:
    return vars(_module(module))[name]


def named(name: str) -> Any:
    """What stands under ``module:qualified.name`` in an imported module.

    :raises NoText: where nothing does.
    """
    module, _, path = name.partition(":")
    found: Any = _module(module)
    for part in path.split("."):
        if not isinstance(found, (type, ModuleType)) or part not in vars(found):
            raise NoText(f"{name[:100]} is not there")
        found = vars(found)[part]
    return found


def jit_function_of(layer: Any) -> Any:
    """The function of Triton under decorators of Triton.

    :raises NoText: where there is none.
    """
    function = kernel_layers.jit_function(layer)
    if function is None:
        raise NoText("no function of Triton")
    return function
