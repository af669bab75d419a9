"""The sources of a choice, in the order in which a lookup asks them.

An adapter asks a question about one problem: a kernel with a key and a device. The fingerprint of the question has
digests of all that the choice depends on, such as the kernel's source and its list of candidates. The entry of a cache
is the choice for one problem and fingerprint, or says that every candidate failed.

A lookup has a list of sources. Each source answers with an entry for the tuner, with an outcome without an entry, or
with nothing. If the tuner rejects an entry, the lookup asks the same source again, and then the next source. The
session decides which sources a lookup has. :class:`~pytest_autotune.run.tuning.Tuning` asks them and decides when an
outcome is an error. A mode may add a source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Protocol

from pytest_autotune.cache.diff import find_winner
from pytest_autotune.cache.digest_parts import describe_changes, list_changed_names
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Candidate, Digest, Entry, Fingerprint, Identity, Value
from pytest_autotune.run.lookup import (
    NO_ENTRY,
    Lookup,
    LookupResult,
    NoResult,
    NotRecorded,
    Outcome,
    Policy,
    Question,
    SharedEntry,
    UsedEntry,
    UsedFallback,
)
from pytest_autotune.run.nearest import explain_miss, list_kernel_entries, list_nearest_entries
from pytest_autotune.run.reporter import WAITING_FOR_WORKER, Reporter
from pytest_autotune.workers.coordinator import Claim


@dataclass(frozen=True)
class Answer:
    """The reply of a source.

    :param outcome: the outcome of the lookup; None leaves the lookup's outcome and reason as they are.
    :param reason: why the outcome is no hit, in words.
    :param changed: the names of the parts of the fingerprint that changed, for a stale problem.
    :param result: holds the entry that the source offers, if it offers any.
    :param label: replaces the label of the lookup; an empty label leaves the lookup's label as it is.
    :param has_rejected_entry: a loaded entry with this problem and fingerprint was offered, and the tuner rejected it.
    :param is_final: no later source is asked.
    :param is_remembered: this process has reported the problem before.
    :param is_disturbed: another worker may still measure while this worker does.
    """

    outcome: Outcome | None = None
    reason: str = ""
    result: LookupResult = field(default_factory=NoResult)
    label: str = ""
    has_rejected_entry: bool = False
    is_final: bool = False
    is_remembered: bool = False
    is_disturbed: bool = False
    changed: tuple[str, ...] = ()

    @property
    def entry(self) -> Entry | None:
        """The entry that the tuner may use; None if there is no entry, or if it says that every candidate failed."""
        if isinstance(self.result, (NoResult, NotRecorded)) or self.result.entry.is_failure:
            return None
        return self.result.entry

    def fold_into(self, lookup: Lookup) -> Lookup:
        """Return the lookup with this answer."""
        if self.outcome is not None:
            lookup = replace(lookup, outcome=self.outcome, reason=self.reason, changed=self.changed)
        return replace(
            lookup,
            result=self.result,
            label=self.label or lookup.label,
            has_rejected_entry=self.has_rejected_entry or lookup.has_rejected_entry,
        )


class Source(Protocol):
    """An object that may know the choice of a problem."""

    def ask(self, question: Question, rejections: Sequence[Rejection]) -> Answer | None:
        """Return an answer; None if the source has nothing more to say.

        After an answer with an entry, the source is asked again if the tuner rejects the entry.

        :param rejections: all entries that the tuner has rejected in this lookup, also those of other sources.
        """


@dataclass(frozen=True)
class Rejection:
    """An entry that the tuner could not use.

    :param reason: why not, in words.
    """

    source: Source
    entry: Entry
    reason: str


def select_rejections(rejections: Sequence[Rejection], source: Source) -> list[Rejection]:
    """Return the rejections of entries that this source offered."""
    return [rejection for rejection in rejections if rejection.source is source]


@dataclass(frozen=True)
class RememberedEntry:
    """The source of the entry that this process used or recorded before.

    :param entry: None if this process has not asked for the problem before.
    """

    entry: Entry | None

    def ask(self, question: Question, rejections: Sequence[Rejection]) -> Answer | None:
        """Return the entry if the tuner can still use it; see :class:`Source`."""
        if self.entry is None or select_rejections(rejections, self):
            return None
        if self.entry.is_failure or not question.offers(self.entry):
            return None
        return Answer(result=UsedEntry(self.entry), is_remembered=True)


@dataclass(frozen=True)
class LoadedCaches:
    """The source of the entries of loaded caches.

    :param indexes: of the caches; the first takes precedence.
    :param has_test_cache: a test has loaded some of the caches for itself. Only this process can then say which entry
        is the nearest; else the controller says it.
    :param reporter: notes an error of the adapter's ``digests()``.
    """

    indexes: Sequence[EntryIndex]
    policy: Policy
    has_test_cache: bool
    reporter: Reporter

    def ask(self, question: Question, rejections: Sequence[Rejection]) -> Answer | None:
        """Return the outcome, with the entry of a hit; see :class:`Source`.

        The first rule that applies decides:

        1. The tuner has rejected an entry of this source: stale.
        2. An entry has the kernel, the key, the device and the fingerprint: a hit, or stale without such a candidate.
        3. An entry of the same code has another kernel name: a hit. The kernel was renamed, or is a copy.
        4. An entry has the kernel, the key and the device: stale.
        5. An entry has the kernel and the key, but another device: a mismatch.
        6. Otherwise: a miss.
        """
        rejections_of_source = select_rejections(rejections, self)
        if rejections_of_source:
            last_rejection = rejections_of_source[-1]
            is_entry_of_question = last_rejection.entry.identity == question.identity
            return Answer(Outcome.STALE, last_rejection.reason, has_rejected_entry=is_entry_of_question)
        same_key_entries: list[Entry] = []
        for index in self.indexes:
            same_key_entries += index.list_same_key(question.problem)
        device_entries = self._select_entries_of_device(question, same_key_entries)
        answer = _answer_by_fingerprint(question, device_entries)
        if answer is not None:
            return answer
        other_entry = self._find_entry_of_same_source(question)
        if other_entry is not None:
            reason = f"used the entry of {other_entry.problem.kernel}, which has the same source"
            return Answer(Outcome.HIT, reason, UsedEntry(other_entry))
        if device_entries:
            return self._describe_stale(question, device_entries)
        if same_key_entries:
            devices = ", ".join(sorted({str(entry.problem.device) for entry in same_key_entries}))
            return Answer(Outcome.MISMATCH, f"tuned on {devices}, but this run is on {question.problem.device}")
        return Answer(Outcome.MISS, self._describe_miss(question))

    def _select_entries_of_device(self, question: Question, same_key_entries: Sequence[Entry]) -> list[Entry]:
        """Return the entries for the device of the problem.

        If there is none, return the entries for the device that ``autotune_device_alias`` names in its place.
        """
        device = question.problem.device
        device_entries = [entry for entry in same_key_entries if entry.problem.device == device]
        if device_entries:
            return device_entries
        return [entry for entry in same_key_entries if self.policy.may_use_entries_of(device, entry.problem.device)]

    def _describe_stale(self, question: Question, device_entries: Sequence[Entry]) -> Answer:
        """Return a stale answer that says how the nearest entry differs.

        Kernels that one factory makes share a name, so a problem can have several entries. The nearest entry is the
        entry that differs in the fewest parts, among the entries whose choice is still a candidate. If there is no such
        entry, all entries are compared. With ``--autotune-on-stale=use``, the answer offers the nearest entry.

        :param device_entries: the entries of the problem, all with other fingerprints than the question.
        """
        digests = self.reporter.list_digests(question)
        nearest_first = _sort_by_differences(device_entries, question.fingerprint, digests)
        usable_entry = _find_usable_entry(question, nearest_first)
        nearest_entry = usable_entry or nearest_first[0]
        reason = _explain_change(nearest_entry, question.fingerprint, digests)
        if usable_entry is None and not nearest_entry.is_failure:
            reason += f", and {_describe_choice(nearest_entry)} is no longer a candidate"
        changed_names = tuple(list_changed_names(nearest_entry.fingerprint, question.fingerprint))
        stale_answer = Answer(Outcome.STALE, reason, changed=changed_names)
        if usable_entry is not None and self.policy.on_stale == "use":
            return replace(stale_answer, result=UsedFallback(usable_entry, "stale"))
        return stale_answer

    def _find_entry_of_same_source(self, question: Question) -> Entry | None:
        """Return an entry with the same key, device and fingerprint under another kernel's name; None if there is none.

        The question's kernel was renamed, or is a copy of the other kernel. The choice is good for both. If several
        kernels have such an entry, the first by name counts, so that the order of the tests does not matter.
        """
        if not question.may_use_other_names:
            return None
        for kernel in self._list_other_names(question):
            entry = self._find_entry_of_kernel(question, kernel)
            if entry is not None:
                return entry
        return None

    def _list_other_names(self, question: Question) -> list[str]:
        """Return the names of other kernels that have an entry with this fingerprint."""
        tuner = question.problem.tuner
        names: set[str] = set()
        for index in self.indexes:
            names.update(index.list_kernels_with_fingerprint(tuner, question.fingerprint))
        names.discard(question.problem.kernel)
        return sorted(names)

    def _find_entry_of_kernel(self, question: Question, kernel: str) -> Entry | None:
        """Return the entry that answers the question under another name of its kernel; None if there is none."""
        identity = Identity(replace(question.problem, kernel=kernel), question.fingerprint)
        for index in self.indexes:
            for entry in index.list_same_key(identity.problem):
                if entry.identity == identity and entry.choice is not None and question.offers(entry):
                    return entry
        return None

    def _describe_miss(self, question: Question) -> str:
        """Return why there is no entry, in words.

        Only an error, and the miss of a test with a cache of its own, name the nearest entry here: the search for it
        takes time. For all other misses the controller names the nearest entry when it builds the rows.
        """
        if not self.has_test_cache and self.policy.on_miss != "error":
            return NO_ENTRY
        return explain_miss(self.indexes, question.problem, self.policy).text


def _answer_by_fingerprint(question: Question, device_entries: Sequence[Entry]) -> Answer | None:
    """Return the answer of an entry with the question's fingerprint; None if there is no such entry.

    :param device_entries: the entries of the problem.
    """
    hit = _find_hit(question, device_entries)
    if hit is not None:
        # An entry can say that every candidate failed. Then no later source is asked, and the tuner fails as it
        # would without the plugin.
        return Answer(Outcome.HIT, result=UsedEntry(hit), is_final=hit.is_failure)
    for entry in device_entries:
        if entry.fingerprint == question.fingerprint:
            # The code is the same, so only the choice itself can be the reason.
            return Answer(Outcome.STALE, f"{_describe_choice(entry)} is no longer a candidate")
    return None


def _find_hit(question: Question, entries: Sequence[Entry]) -> Entry | None:
    """Return the entry that is a hit for the question; None if there is none.

    The entry has the question's fingerprint, or the question's fingerprint without pruning. Its choice is a candidate.
    An entry that says that every candidate failed has no choice, and is a hit as well.

    Pruning (such as Triton's ``early_config_prune``) leaves a part of the candidates, or makes others. The fingerprint
    then has a digest of these candidates, named ``pruned``.
    """
    fingerprint = question.fingerprint
    for entry in entries:
        if entry.fingerprint == fingerprint and (entry.is_failure or question.offers(entry)):
            return entry
    if not fingerprint.has_only_listed_candidates:
        # Pruning has made candidates that an entry without pruning does not know.
        return None
    # Pruning left a part of the candidates. The choice of an entry without pruning is the fastest of all candidates. If
    # the part contains that choice, the choice is the fastest candidate of the part, too.
    unpruned_fingerprint = fingerprint.without_pruning()
    for entry in entries:
        if entry.fingerprint == unpruned_fingerprint and not entry.is_failure and question.offers(entry):
            return entry
    return None


def _sort_by_differences(entries: Iterable[Entry], fingerprint: Fingerprint, digests: Iterable[Digest]) -> list[Entry]:
    """Return the entries of a problem by the number of parts in which their fingerprints differ, the fewest first.

    :param fingerprint: the fingerprint to compare with.
    :param digests: the parts of this fingerprint's digests.
    """
    wanted_parts = _list_parts(fingerprint, digests)

    def count_differences(entry: Entry) -> int:
        return len(wanted_parts ^ _list_parts(entry.fingerprint, entry.digests))

    return sorted(entries, key=count_differences)


def _find_usable_entry(question: Question, entries: Iterable[Entry]) -> Entry | None:
    """Return the first entry whose choice is among the candidates now."""
    for entry in entries:
        if not entry.is_failure and question.offers(entry):
            return entry
    return None


def _explain_change(entry: Entry, fingerprint: Fingerprint, digests: Iterable[Digest]) -> str:
    """Return in words how the fingerprint of an entry differs from the fingerprint now.

    :param digests: the parts of the digests now.
    """
    if not fingerprint.has_only_listed_candidates and entry.fingerprint == fingerprint.without_pruning():
        return "the kernel's pruner now adds candidates that were not measured"
    return describe_changes(entry.fingerprint, fingerprint, (*digests, *entry.digests))


def _list_parts(fingerprint: Iterable[Value], digests: Iterable[Digest]) -> set[Value | str]:
    """Return the values of a fingerprint and the parts of its digests, for counting differences.

    A part is a name and a digest, such as ``lib.add 5f2a``. The result has ``lib.add 5f2a`` and ``lib.add``. A changed
    function then counts as less different than a function that the other fingerprint does not have.
    """
    parts: set[Value | str] = set(fingerprint)
    for digest in digests:
        for part in digest.parts:
            parts.add(part)
            parts.add(part.rpartition(" ")[0])
    return parts


def _describe_choice(entry: Entry) -> str:
    """Return the choice of an entry in words or, if the entry holds times without a choice, the fastest candidate."""
    return f"the choice {find_winner(entry) or ''}".rstrip()


class Fallback:
    """The source of the choices that the user wants in place of a tuning.

    ``--autotune-on-miss=nearest`` offers the choices of the nearest entries, and then each candidate. ``first`` offers
    the candidates, in the tuner's own order.
    """

    def __init__(self, indexes: Sequence[EntryIndex], policy: Policy) -> None:
        self._indexes = indexes
        self._policy = policy
        #: The choices that are not offered yet; None before the first question.
        self._pending: list[UsedFallback] | None = None

    def ask(self, question: Question, rejections: Sequence[Rejection]) -> Answer | None:
        """Return the next choice; see :class:`Source`."""
        if self._pending is None:
            self._pending = self._list_choices(question)
        if not self._pending:
            return None
        return Answer(result=self._pending.pop(0))

    def _list_choices(self, question: Question) -> list[UsedFallback]:
        """Return the choices in the order in which the tuner tries them."""
        candidates = question.candidates()
        if not candidates:
            # The tuner does not know its candidates before the search, so it searches.
            return []
        choices = []
        if self._policy.on_miss == "nearest":
            kernel_entries = list_kernel_entries(self._indexes, question.problem)
            for entry in list_nearest_entries(kernel_entries, question.problem, self._policy):
                if entry.choice is not None and question.offers(entry):
                    choices.append(_build_fallback(question, entry.choice, "nearest"))
        for candidate in candidates:
            choices.append(_build_fallback(question, candidate, "first"))
        return choices


def _build_fallback(question: Question, choice: Candidate, kind: str) -> UsedFallback:
    """Return a choice as the question's entry. See :class:`UsedFallback` for the kinds."""
    # The choice loses its time, which was measured for another problem.
    entry = Entry(question.problem, question.fingerprint, replace(choice, time_us=None))
    return UsedFallback(entry, kind)


class OtherWorker:
    """The source of the entry that another worker of this run tunes.

    The source claims the problem, or waits for the worker that has the claim. The claim lasts until ``claims`` is
    closed, which happens when the tuning ends.
    """

    def __init__(self, reporter: Reporter, claims: ExitStack) -> None:
        self._reporter = reporter
        self._claims = claims

    def ask(self, question: Question, rejections: Sequence[Rejection]) -> Answer | None:
        """Return the other worker's entry; see :class:`Source`.

        If there is none that this tuner can use, the answer says whether the other worker may still be measuring.
        """
        if select_rejections(rejections, self):
            # The tuner has rejected the other worker's entry, and there is no second one.
            return None
        claim = self._claim(question)
        lookup = _find_usable_lookup(claim, question)
        if lookup is None:
            # After a time-out, the other worker may go on measuring while this worker measures.
            return Answer(is_disturbed=claim.has_timed_out)
        assert lookup.entry is not None
        # This worker reports the outcome of the other worker, so the count is right even if the other worker dies.
        return Answer(
            outcome=lookup.outcome,
            reason=lookup.reason,
            result=SharedEntry(lookup.entry, lookup.is_disturbed),
            label=lookup.label,
            has_rejected_entry=lookup.has_rejected_entry,
            changed=lookup.changed,
        )

    def _claim(self, question: Question) -> Claim:
        """Claim the problem, or wait for the worker that has the claim and meanwhile help it to compile."""
        helper: Question | None = question
        if self._reporter.progress.open_tunings:
            # Inside a tuning, this worker may have a claim for which the other worker waits. Without a helper, this
            # worker does not wait.
            helper = None
        self._reporter.progress.begin(question.problem, WAITING_FOR_WORKER)
        claiming = self._reporter.coordinator.claim(question.identity.digest, helper)
        return self._claims.enter_context(self._reporter.enter_under_guard(question.problem.tuner, claiming, Claim()))


def _find_usable_lookup(claim: Claim, question: Question) -> Lookup | None:
    """Return the other worker's lookup, with an entry that this tuner can use; None if this worker tunes itself."""
    # No other worker has tuned the problem.
    if claim.result is None:
        return None
    lookup = Lookup.from_event(claim.result)
    if lookup is None or lookup.entry is None:
        return None
    # No candidate worked for the other worker, or this process has other candidates.
    if lookup.entry.is_failure or not question.offers(lookup.entry):
        return None
    return lookup
