"""The ranks of one distributed job have the same choices: kernels that differ between ranks can wait for each other.

Each rank is a pytest of its own. Those that ``torchrun`` starts meet at the store that it keeps for them all the time;
of others nothing is known before a test initialises torch.distributed, and they are not compared.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from pytest_autotune.cache.codec import Format, decode, encode
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache

#: As long as rank 0 may take to start and to read.
_PATIENCE = timedelta(seconds=120)


class Ranks:
    """A rank among others.

    :param meeting_place: torch's store that all ranks see.
    """

    def __init__(self, rank: int, meeting_place: Any) -> None:
        self._rank = rank
        self._place = meeting_place

    @classmethod
    def of_this_job(cls) -> Ranks | None:
        """This rank of a job that torchrun started; None where it is the only one."""
        environment = os.environ
        if environment.get("WORLD_SIZE", "1") == "1":
            return None
        import torch.distributed

        distributed: Any = torch.distributed
        address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
        place = distributed.TCPStore(address, port, int(environment["WORLD_SIZE"]), False, _PATIENCE)
        attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        return cls(int(environment["RANK"]), distributed.PrefixStore(f"pytest-autotune/{attempt}", place))

    def _of_rank_0(self, name: str, make: Callable[[], bytes]) -> bytes:
        if self._rank == 0:
            data = make()
            self._place.set(name, data)
            return data
        try:
            return bytes(self._place.get(name))
        except Exception as error:  # a time-out is one of several classes of torch's own
            raise CacheError(f"rank {self._rank}", f"nothing came from rank 0: {error}") from None

    def read(self, where: str, read: Callable[[], Cache]) -> Cache:
        """A cache that others write to meanwhile, as rank 0 has read it.

        :raises CacheError: where rank 0 cannot read it.
        """
        return decode(self._of_rank_0(where, lambda: encode(read(), Format.BINARY)), Format.BINARY, where)

    def check_same(self, caches: Iterable[tuple[str, Cache]]) -> None:
        """Refuse caches that are not those of rank 0.

        :raises CacheError: for the first one that differs.
        """
        for number, (where, cache) in enumerate(caches):
            mine = hashlib.sha256(encode(cache, Format.BINARY)).hexdigest()[:12]
            theirs = self._of_rank_0(f"digest {number}", mine.encode).decode()
            if mine != theirs:
                found = f"holds other choices on rank {self._rank} ({mine}) than on rank 0 ({theirs})"
                raise CacheError(where, found, "ranks that launch other kernels may hang: give all of them one cache")
