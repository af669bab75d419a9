"""The tokens of Python source that matter, as text."""

from __future__ import annotations

import io
import tokenize

_LAYOUT = {
    tokenize.INDENT: "<indent>",
    tokenize.DEDENT: "<dedent>",
    tokenize.NEWLINE: "<newline>",
}
_UNSEEN = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}


def code_text(source: str) -> str:
    """The tokens of Python source that matter, one per line."""
    # Since Python 3.12 an f-string is several tokens: take its text as one, as before.
    words: list[str] = []
    start_of_fstring: tuple[int, int] | None = None
    depth = 0
    lines = source.splitlines(keepends=True)
    statement_start = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind in ("FSTRING_START", "TSTRING_START"):
            if depth == 0:
                start_of_fstring = token.start
            depth += 1
            continue
        if kind in ("FSTRING_END", "TSTRING_END"):
            depth -= 1
            if depth == 0 and start_of_fstring is not None:
                words.append(_between(lines, start_of_fstring, token.end))
                statement_start = False
            continue
        if depth or token.type in _UNSEEN:
            continue
        words.append(_LAYOUT.get(token.type, token.string))
        if token.type == tokenize.NEWLINE:
            if len(words) >= 2 and words[-2].startswith("<statement string>"):
                del words[-2:]
            statement_start = True
        elif token.type == tokenize.STRING and statement_start:
            words[-1] = "<statement string>" + token.string
            statement_start = False
        elif token.type not in (tokenize.INDENT, tokenize.DEDENT):
            statement_start = False
    return "\n".join(word.removeprefix("<statement string>") for word in words)


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    (first, left), (last, right) = start, end
    if first == last:
        return lines[first - 1][left:right]
    return "".join([lines[first - 1][left:], *lines[first : last - 1], lines[last - 1][:right]])
