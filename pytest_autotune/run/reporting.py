"""What becomes of a lookup that is settled: it is reported, and where the policy calls it an error, refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats import Format, encode
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.run.encoding import decode_lookup, encode_lookup
from pytest_autotune.run.lookup import Lookup, Outcome
from pytest_autotune.run.notes import Notes, in_words
from pytest_autotune.run.policy import Policy, Refusal, refusal


def raise_refusal(message: str) -> NoReturn:
    """Refuse a lookup where no test runs that could be failed.

    :raises Refusal: always.
    """
    raise Refusal(message)


def _check_written(entry: Entry, lookup: Lookup) -> None:
    """Refuse an entry that no file could hold, or of which no other process could be told.

    :raises Exception: then, whatever is wrong with it.
    """
    try:
        encode(Cache((entry,)), Format.TEXT)
    except CacheError as error:
        raise ValueError(f"{entry.problem} cannot be written: {error}") from None
    decode_lookup(encode_lookup(lookup))


class Reporting:
    """The way of lookups out of this process.

    :param log: called once for each problem that this process asked for.
    :param refuse: raises, when the policy says that a lookup is an error.
    """

    def __init__(
        self, policy: Policy, notes: Notes, log: Callable[[Lookup], None], refuse: Callable[[str], NoReturn]
    ) -> None:
        self._policy = policy
        self._notes = notes
        self._log = log
        self._refuse = refuse

    def report(self, lookup: Lookup) -> None:
        """Report what became of a lookup; an error in doing so is a line of the summary.

        An adapter of another package may record what is no entry, or ask for what is no problem: no file could hold it,
        nor could another process be told of it.
        """
        lookup, tuner = lookup.named(), lookup.problem.tuner
        try:
            if lookup.searched and lookup.entry is not None:
                _check_written(lookup.entry, lookup)
            if lookup.verdict is not None and lookup.verdict.entry is not None:
                _check_written(lookup.verdict.entry, lookup)
        except Exception as error:
            self._notes.error(tuner, "record()", error)
            bare = replace(lookup, verdict=None)
            if lookup.searched:
                bare = replace(bare, entry=None, tuned=False, shared=False, label="", unrecorded=in_words(error))
            lookup = bare
        try:
            if lookup.outcome is not Outcome.HIT and lookup.entry is None:
                decode_lookup(encode_lookup(lookup))
        except Exception as error:
            self._notes.went_wrong(tuner, "tuning()", error)
            return
        try:
            self._log(lookup)
        except Exception as error:
            self._notes.error(tuner, "the door", error)

    def refuse_errors(self, lookup: Lookup) -> None:
        """Refuse a lookup that the policy calls an error: here, and nowhere else.

        :raises BaseException: what ``refuse`` raises.
        """
        if self._policy.is_error(lookup.outcome):
            self._refuse(refusal(lookup))

    def refuse_unknown(self, tuner: str, why: str) -> None:
        """Refuse a call of which an error kept the problem from being known, where the policy calls a miss an error.

        :raises BaseException: what ``refuse`` raises.
        """
        if self._policy.is_error(Outcome.MISS):
            self._refuse(f"autotune: MISS {tuner}: {why}")
