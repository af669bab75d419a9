"""What a piece of HLO text is about, in a few words."""

from __future__ import annotations

import re

_INSTRUCTION = re.compile(r"^\s*(ROOT\s+)?%?[\w.-]+ = (\(.*?\)|[\w]+\[[^\]]*\](?:\{[^}]*\})?) ([a-z][\w-]*)\((.*)$")
_SHAPE = re.compile(r"[a-z]\w*\[[^\]]*\]")
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
    stands alone, and of the result; empty where the text is not known here.
    """
    ops: dict[str, None] = {}
    quiet: dict[str, None] = {}
    parameters: list[str] = []
    result = ""
    operands: list[str] = []
    for line in text.splitlines():
        match = _INSTRUCTION.match(line)
        if match is None:
            continue
        root, shape, op, rest = match.groups()
        shapes = _SHAPE.findall(shape)
        if op == "parameter":
            parameters += shapes
            continue
        if root or not result:
            result = ", ".join(shapes)
        operands = operands or _SHAPE.findall(rest.partition("), ")[0])
        if op == "custom-call" and (target := _TARGET.search(rest)):
            op = target[1]
        (quiet if op in _QUIET else ops)[op] = None
    if not result:
        return ""
    names = list(ops or quiet)
    told = ", ".join(names[:_MAX_OPS]) + (", …" if len(names) > _MAX_OPS else "")
    inputs = ", ".join(parameters or operands)
    return f"{told}: {inputs} -> {result}" if inputs else f"{told}: {result}"
