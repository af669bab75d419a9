"""Finds the compiled code of a function or lambda in the source of its file.

Python keeps no link from a function to its place in the file, besides the name and the number of the first line. So the
source is compiled again, and its code is compared with the function's code.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import itertools
import linecache
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import CodeType
from typing import Any

#: The function that pytest calls after each assertion that holds, if the suite's configuration says so.
_PASS_HOOK = "_call_assertion_pass"
#: Matches each source of which Python's parser may warn. It matches other sources, too. The parser warns of an unknown
#: escape such as ``\s``, of an octal escape above ``\377``, and of a number with a keyword directly behind it.
_WARNED_TEXT = re.compile(r"""\\[^\n\r\\'"abfnrtvx0-3]|\b\d[\w.]*(?:and|else|for|if|in|is|not|or)\b""")
#: The flags of code that say how it takes its arguments, and whether it is a generator or a coroutine.
_KIND_FLAGS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)
#: The flags of code that stand for ``from __future__`` imports.
_FUTURE_FLAGS = 0
for _name in __future__.all_feature_names:
    _FUTURE_FLAGS |= getattr(__future__, _name).compiler_flag
#: Only one thread at a time changes the warning filters, which all threads share.
_filters_lock = threading.RLock()
# No other thread holds the lock while the process forks, because the child could never take it then.
os.register_at_fork(
    before=_filters_lock.acquire, after_in_parent=_filters_lock.release, after_in_child=_filters_lock.release
)


@contextmanager
def _ignored_warnings() -> Iterator[None]:
    """Ignore the warnings of Python's parser and compiler inside this ``with`` block."""
    with _filters_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def without_warnings(source: str) -> Iterator[None]:
    r"""Ignore the warnings of Python's parser about a source inside this ``with`` block, such as that of ``"\sum"``.

    The import of the file has already shown these warnings. The filters of a test may turn them into errors.

    Most sources cause no warning. Then the filters are not touched, because all threads share them: a thread that waits
    for a warning could miss it.

    The compiler warns of more than the parser, such as ``assert (a, b)``. A search of the text does not find these
    cases. So the functions that compile a source always change the filters: :func:`is_in_source`, and
    :func:`list_lambdas` for a line with several lambdas.
    """
    if not _WARNED_TEXT.search(source):
        yield
        return
    with _ignored_warnings():
        yield


@contextmanager
def without_warnings_of_file(filename: str) -> Iterator[None]:
    """Let ``inspect`` read a file inside this ``with`` block without warnings; see :func:`without_warnings`.

    Python's tokenizer warns since 3.12. To find a class, ``inspect`` parses the whole file before 3.13.
    """
    if not _may_warn_of_file(filename):
        yield
        return
    with _ignored_warnings():
        yield


@lru_cache(maxsize=1024)
def _may_warn_of_file(filename: str) -> bool:
    return _WARNED_TEXT.search("".join(linecache.getlines(filename))) is not None


def parse(source: str | bytes) -> ast.Module:
    """Parse a source without warnings.

    :raises SyntaxError, ValueError: if the source is no Python code.
    """
    text = source
    if isinstance(text, bytes):
        # The texts that cause warnings are ASCII, so any encoding finds them.
        text = text.decode("latin-1")
    with without_warnings(text):
        return ast.parse(source)


def is_in_source(code: CodeType, source: str) -> bool:
    """Whether a source has the code of a function of this process, under the same name and in the same line.

    If the file was edited after its import, the source may have other code there.

    :param source: the text of the function's file.
    """
    # A notebook and a doctest compile their source with flags that the source does not show.
    flags = code.co_flags & _FUTURE_FLAGS | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    for compile_file in (_compile_source, _compile_rewritten):
        try:
            # The compiler warns of more than the parser, such as assert (a, b).
            with _ignored_warnings():
                file_codes = compile_file(source, flags)
        except (SyntaxError, ValueError):
            return False
        for file_code in file_codes:
            is_at_same_place = file_code.co_name == code.co_name and file_code.co_firstlineno == code.co_firstlineno
            if is_at_same_place and _is_same_code(code, file_code):
                return True
    # With the option enable_assertion_pass_hook, pytest rewrites in another way. Such code cannot be compared, and
    # counts as code of the source. The assertions may be in an inner function.
    return any(_PASS_HOOK in inner_code.co_names for inner_code in _list_codes(code))


def list_lambdas(code: CodeType, source: str) -> list[ast.Lambda]:
    """Return the lambdas in a source that the code of a lambda may come from, from left to right.

    If a single lambda begins in the line of the code, the code comes from this lambda. In a line with several lambdas,
    each lambda is compiled, and those with the same code are returned.
    """
    nodes = _list_lambdas_in_line(parse_module(source), code.co_firstlineno)
    if len(nodes) > 1:
        return _select_lambdas(source, code)
    return nodes


@lru_cache(maxsize=8)
def parse_module(source: str) -> ast.Module:
    return parse(source)


def _list_lambdas_in_line(tree: ast.Module, line: int) -> list[ast.Lambda]:
    """Return the lambdas that begin in a line, from left to right."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda) and node.lineno == line]
    return sorted(nodes, key=_column_of)


def _column_of(node: ast.Lambda) -> int:
    return node.col_offset


def _select_lambdas(source: str, code: CodeType) -> list[ast.Lambda]:
    """Return the lambdas that begin in the first line of ``code`` and compile to the same instructions as it."""
    # The line numbers of this tree are changed below, so it must not be a tree that parse_module() keeps.
    tree = parse(source)
    nodes = _list_lambdas_in_line(tree, code.co_firstlineno)
    # Each lambda gets lines of its own behind the file, so the first line of some code tells from which lambda it was
    # compiled.
    longest = max(node.end_lineno - node.lineno for node in nodes) + 1  # type: ignore[operator]
    far_lines = itertools.count(2 * len(source.splitlines()), longest)
    selected = []
    while nodes:
        # The outer lambdas come first, and the lambdas in their bodies move with them: an inner lambda in a line far
        # from its outer lambda would change the instructions of the outer. The next round moves the inner lambdas.
        outer_nodes = _select_outer_lambdas(nodes)
        for node in outer_nodes:
            _move_lambda(node, next(far_lines))
        code_by_line = _compile_by_line(tree)
        for node in outer_nodes:
            # Python compiles nothing for a lambda that can never run: (lambda n: n) if __debug__ else (lambda n: -n).
            compiled = code_by_line.get(node.lineno)
            if compiled is not None and _is_same_code(code, compiled):
                selected.append(node)
        nodes = [node for node in nodes if node not in outer_nodes]
    return sorted(selected, key=_column_of)


def _select_outer_lambdas(nodes: list[ast.Lambda]) -> list[ast.Lambda]:
    """Return the lambdas that lie in the body of no other lambda of a list."""
    inner_nodes: set[ast.AST] = set()
    for node in nodes:
        inner_nodes.update(ast.walk(node.body))
    return [node for node in nodes if node not in inner_nodes]


def _move_lambda(node: ast.Lambda, line: int) -> None:
    """Move a lambda and its body to a line behind the file. The parameters stay in place."""
    distance = line - node.lineno
    ast.increment_lineno(node, distance)
    # The defaults of parameters are compiled outside of the lambda.
    ast.increment_lineno(node.args, -distance)


def _compile_by_line(tree: ast.Module) -> dict[int, CodeType]:
    """Return the code that begins in each line of a module: the outermost, if there are several."""
    with _ignored_warnings():
        codes = _compile_all(tree)
    # The list has outer code before inner code. Reversed, the outer code is written last, and replaces the inner.
    return {code.co_firstlineno: code for code in reversed(codes)}


@lru_cache(maxsize=8)
def _compile_source(source: str, flags: int) -> tuple[CodeType, ...]:
    """Return the code of a source; see :func:`_compile_all`."""
    return _compile_all(source, flags)


@lru_cache(maxsize=8)
def _compile_rewritten(source: str, flags: int) -> tuple[CodeType, ...]:
    """Return the code of a module in which pytest rewrites the assertions; nothing outside of pytest."""
    rewrite: Any = sys.modules.get("_pytest.assertion.rewrite")
    if rewrite is None:
        return ()
    tree = parse(source)
    rewrite.rewrite_asserts(tree, source.encode(), "<source>")
    return _compile_all(tree, flags)


def _compile_all(source: str | ast.Module, flags: int = 0) -> tuple[CodeType, ...]:
    """Return the code of a module, and of all functions and classes in it.

    :param flags: the flags of ``__future__`` imports and of the parser, as ``compile`` takes them.
    """
    return _list_codes(compile(source, "<source>", "exec", flags, dont_inherit=True))


def _list_codes(code: CodeType) -> tuple[CodeType, ...]:
    """Return some code, and behind it the code of all functions and classes in it."""
    codes = [code]
    # The list grows in the loop: the code of a function is a constant of the code around it.
    for outer_code in codes:
        codes += [constant for constant in outer_code.co_consts if isinstance(constant, CodeType)]
    return tuple(codes)


def _is_same_code(code: CodeType, file_code: CodeType) -> bool:
    """Whether two pieces of code have the same instructions, constants, names and parameters, in any line."""
    return _describe_constant(code) == _describe_constant(file_code)


def _describe_constant(constant: object) -> str:
    """Return the text of some code, or of a constant in it. The code of an inner function is a constant."""
    if isinstance(constant, CodeType):
        parameters = constant.co_argcount, constant.co_posonlyargcount, constant.co_kwonlyargcount
        names = constant.co_names, constant.co_varnames, constant.co_freevars
        # Since Python 3.11, `try` is in a table and not in the instructions.
        instructions = constant.co_code, getattr(constant, "co_exceptiontable", b"")
        kind = constant.co_flags & _KIND_FLAGS
        return f"code({instructions}, {names}, {parameters}, {kind}, {_describe_constant(constant.co_consts)})"
    if isinstance(constant, tuple):
        return f"({', '.join(map(_describe_constant, constant))})"
    if isinstance(constant, frozenset):
        # The order of a set depends on the hash seed of the process.
        return f"frozenset({', '.join(sorted(map(_describe_constant, constant)))})"
    return repr(constant)
