"""What a choice was compiled for, packed for a file: the texts of an entry differ in a word or two.

``~ 2*fp32:16 =1 3i32 _ =128; 7 =64; 2 =null`` stands for three texts. A number before a word repeats it. From the
second text on, a number alone stands for so many words of the text before, those that are there at this place, and what
follows after the last word that is given is as there; ``0`` at the end says that nothing follows. A text that cannot be
packed stands as it is. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from pytest_autotune.cache.model import LONGEST_COMPILED, MOST_COMPILED

_START, _BETWEEN, _END = "~ ", "; ", "0"
# Texts of words that cannot be taken for anything else.
_WORDS = re.compile(r"[^0-9; ][^; ]*(?: [^0-9; ][^; ]*)*")
_DIGITS, _MOST_DIGITS = "0123456789", 3
# What is packed takes no more than so many times its length in memory once it is read, and each text so much besides
# its characters: a file is read in a multiple of its size.
_MOST_TIMES, _OF_TEXT = 15, 60
_LONGEST_PACKED = (LONGEST_COMPILED + len(_BETWEEN)) * MOST_COMPILED


def packed(texts: Iterable[str]) -> tuple[str, ...]:
    """The texts of an entry, which are sorted, as a file holds them: packed where all can be, and it is shorter."""
    plain = tuple(texts)
    if all(len(text) <= LONGEST_COMPILED and _WORDS.fullmatch(text) for text in plain):
        fields = tuple(_fields(plain))
        if len(fields) <= MOST_COMPILED and sum(map(len, fields)) < sum(map(len, plain)):
            return fields
    return plain if len(plain) > MOST_COMPILED else tuple(map(_as_it_is, plain))


def unpacked(fields: Iterable[str]) -> tuple[str, ...]:
    """The texts that the fields of a file stand for, in their order.

    A field that is damaged is a text as it is, and so is each of more than an entry has.
    """
    found = tuple(fields)
    if len(found) > MOST_COMPILED or not any(field.startswith("~") for field in found):
        return found
    return tuple([text for field in found for text in _texts(field)])


def memory_of(texts: Iterable[str]) -> int:
    """The bytes that texts take in memory."""
    return sum([len(text) + _OF_TEXT for text in texts])


def _fields(texts: Iterable[str]) -> Iterator[str]:
    """As few as may hold the texts; one that repeats a word so often that it may not be packed stands as it is."""
    field, before = "", [""]
    number = memory = 0
    for text in texts:
        words = text.split(" ")
        longer = f"{field}{_BETWEEN}{_beside(before, words)}" if field else ""
        number, memory = number + 1, memory + memory_of([text])
        if not field or number > MOST_COMPILED or memory > _MOST_TIMES * len(longer):
            if field:
                yield field
            longer = f"{_START}{_beside([], words)}"
            number, memory = 1, memory_of([text])
            if memory > _MOST_TIMES * len(longer):
                yield _as_it_is(text)
                longer = ""
        field, before = longer, words
    if field:
        yield field


def _beside(before: Sequence[str], words: Sequence[str]) -> str:
    """The words of a text, by those of the text before."""
    tokens = []
    last: str | None = words[0]
    times = 0
    for word, there in zip_longest(words, before[: len(words)]):
        now = None if word == there else word  # None: as before
        if now != last and times:
            tokens.append(_token(last, times))
            times = 0
        last, times = now, times + 1
    if last is not None or len(words) != len(before) or not tokens:
        tokens.append(_token(last, times))
    if len(words) < len(before):
        tokens.append(_END)
    return " ".join(tokens)


def _token(word: str | None, times: int) -> str:
    if word is None:
        return str(times)
    return word if times == 1 else f"{times}{word}"


def _as_it_is(text: str) -> str:
    """A text that is not packed."""
    return text if list(_texts(text)) == [text] else f"~{text}"


def _texts(field: str) -> Sequence[str]:
    """The texts of a field."""
    if field.startswith("~~"):
        return (field[1:],)
    if not field.startswith(_START) or len(field) > _LONGEST_PACKED:
        return (field,)
    texts: list[str] = []
    before: list[str] = []
    memory = 0
    for part in field[len(_START) :].split(_BETWEEN):
        words = _words(before, part)
        # Counted before it is made.
        length = sum(map(len, words)) + len(words) - 1 if words else 0
        memory += length + _OF_TEXT
        if not 0 < length <= LONGEST_COMPILED or memory > _MOST_TIMES * len(field) or len(texts) == MOST_COMPILED:
            return (field,)
        before = words
        texts.append(" ".join(words))
    return texts


def _words(before: Sequence[str], part: str) -> list[str]:
    """The words of a text that stands beside the one before; none where it is damaged."""
    words: list[str] = []
    tokens = part.split(" ")
    if not all(tokens):
        return []
    ends = tokens[-1] == _END
    for token in tokens[:-1] if ends else tokens:
        if not "0" <= token[0] <= "9":
            words.append(token)
            continue
        word = token.lstrip(_DIGITS)
        number = token[: len(token) - len(word)]
        times = int(number) if len(number) <= _MOST_DIGITS else 0
        if word:
            words += [word] * times
        elif times <= len(before) - len(words):
            words += before[len(words) : len(words) + times]
        else:
            return []
        if not times or len(words) > LONGEST_COMPILED:
            return []
    return words if ends else [*words, *before[len(words) :]]
