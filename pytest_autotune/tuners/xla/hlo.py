"""What a piece of HLO text is about, in a few words."""

from __future__ import annotations

import re

_INSTRUCTION = re.compile(r"^\s*(ROOT\s+)?%?([\w.-]+) = (\(.*?\)|[\w]+\[[^\]]*\](?:\{[^}]*\})?) ([a-z][\w-]*)\((.*)$")
_SHAPE = re.compile(r"[a-z]\w*\[[^\]]*\]")
_NUMBER = re.compile(r"(\.\d+)+$")
_OP_NAME = re.compile(r'metadata=\{[^}]*?op_name="([^"]*)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
# They move or name data; what is left says what is computed.
_QUIET = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "copy", "broadcast", "reshape", "transpose",
    "convert", "fusion", "iota",
}  # fmt: skip
_MAX_OPS = 6


def summary(text: str) -> str:
    """Op names and shapes of HLO text: ``dot, tanh: f16[512,64], f16[64,512] -> f32[512,512]``.

    The shapes are those of the parameters, or of an instruction's operands where it
    stands alone, and of the result; empty where the text is not known here. A fusion
    whose computation is not in the text is named by its own name, which XLA makes of its
    ops, and by the operation of JAX that it came from.
    """
    ops: dict[str, None] = {}
    quiet: dict[str, None] = {}
    parameters: list[str] = []
    result = ""
    operands: list[str] = []
    source = ""
    for line in text.splitlines():
        match = _INSTRUCTION.match(line)
        if match is None:
            continue
        root, name, shape, op, rest = match.groups()
        shapes = _SHAPE.findall(shape)
        if op == "parameter":
            parameters += shapes
            continue
        if root or not result:
            result = ", ".join(shapes)
        operands = operands or _SHAPE.findall(rest.partition("), ")[0])
        if op == "custom-call" and (target := _TARGET.search(rest)):
            op = target[1]
        if op == "fusion":
            op = _NUMBER.sub("", name)
            source = source or _jax_operation(rest)
            quiet[op] = None
        elif op in _QUIET:
            quiet[op] = None
        else:
            ops[op] = None
    if not result:
        return ""
    names = list(ops or quiet)
    label = ", ".join(names[:_MAX_OPS]) + (", …" if len(names) > _MAX_OPS else "")
    inputs = ", ".join(parameters or operands)
    label += f": {inputs} -> {result}" if inputs else f": {result}"
    return f"{label}; {source}" if source and not ops else label


def _jax_operation(rest: str) -> str:
    """The last part of the path that JAX gave an instruction, with the function that was compiled."""
    found = _OP_NAME.search(rest)
    if found is None:
        return ""
    first, *others = found[1].split("/")
    return f"{first}/{others[-1]}" if others else first
