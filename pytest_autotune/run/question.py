"""The question that an adapter asks the session about one problem."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from pytest_autotune.cache.model import (
    NO_VERSIONS,
    Candidate,
    Digest,
    Entry,
    Fingerprint,
    Identity,
    Problem,
    Value,
    Versions,
)
from pytest_autotune.cache.wording import to_one_line
from pytest_autotune.run.notes import Notes


class Question(ABC):
    """One problem that an adapter asks about.

    An adapter makes a question for each lookup. It says in :meth:`offers` which choices its tuner can use, and
    overrides each other method that its tuner has an answer for.

    :param fingerprint: the values that must be equal for an entry to be trusted; empty if the key says it all.
    :param label: words about the call that are known only sometimes, for reports; never compared.
    :param versions: of the libraries that matter to the tuner, its own first.
    :param may_be_renamed: the kernel is named by where its code stands. An entry with the same source, under a name
        that no test asks for, then belongs to the kernel.
    """

    def __init__(
        self,
        problem: Problem,
        fingerprint: Iterable[Value] = (),
        *,
        label: str = "",
        versions: Versions = NO_VERSIONS,
        may_be_renamed: bool = False,
    ) -> None:
        self.problem = problem
        self.fingerprint = Fingerprint(fingerprint)
        self.label = str(label)
        self.versions = versions
        self.may_be_renamed = may_be_renamed

    @property
    def identity(self) -> Identity:
        """The problem and its fingerprint."""
        return Identity(self.problem, self.fingerprint)

    @abstractmethod
    def offers(self, entry: Entry) -> bool:
        """Whether the choice of an entry is among the candidates now."""

    def candidates(self) -> Sequence[Candidate]:
        """Return all candidates without times, in the tuner's own order; empty if they are not known.

        The session asks for them in a sweep, and if a candidate or a near entry's choice replaces a tuning. If they
        are not known, the tuner searches.
        """
        return ()

    def digests(self) -> Iterable[Digest]:
        """Return the parts that the digests of the fingerprint are made of.

        The session asks for them if the problem is stale, to name what changed, and when a tuning is recorded.
        """
        return ()

    def help(self) -> None:
        """Help another worker that tunes this problem now, for example by compiling candidates."""
        return


def list_digests(question: Question, notes: Notes) -> tuple[Digest, ...]:
    """Return the digests of a question as a cache file can hold them; none if the adapter fails to give them."""
    digests = []
    with notes.guard(question.problem.tuner, "digests()"):
        for digest in question.digests():
            digests.append(Digest(to_one_line(digest.id), tuple(map(to_one_line, digest.parts))))
        return tuple(digests)
    return ()
