"""The names that an adapter for another tuner may use. They stay here, even if their modules change.

An adapter is a class that fits the protocol :class:`Adapter`. An entry point of the group ``pytest_autotune.tuners``
names it. ``docs/adapters.md`` explains an example.
"""

from __future__ import annotations

from pytest_autotune.cache.digest_parts import digest_of_candidates as digest_of_candidates
from pytest_autotune.cache.digest_parts import digest_of_parts as digest_of_parts
from pytest_autotune.cache.model import Candidate as Candidate
from pytest_autotune.cache.model import Device as Device
from pytest_autotune.cache.model import Digest as Digest
from pytest_autotune.cache.model import Entry as Entry
from pytest_autotune.cache.model import Problem as Problem
from pytest_autotune.cache.model import UncacheableError as UncacheableError
from pytest_autotune.cache.model import Value as Value
from pytest_autotune.cache.model import Versions as Versions
from pytest_autotune.cache.model import plain_value as plain_value
from pytest_autotune.cache.structured import decode_params as decode_params
from pytest_autotune.cache.structured import decode_value as decode_value
from pytest_autotune.cache.structured import structured_value as structured_value
from pytest_autotune.devices import cpu as cpu
from pytest_autotune.devices import current_gpu as current_gpu
from pytest_autotune.run.lookup import Lookup as Lookup
from pytest_autotune.run.lookup import Outcome as Outcome
from pytest_autotune.run.lookup import Policy as Policy
from pytest_autotune.run.lookup import Question as Question
from pytest_autotune.run.session import Session as Session
from pytest_autotune.run.session import Suite as Suite
from pytest_autotune.run.tuning import Tuning as Tuning
from pytest_autotune.tuners.measuring.clocks import Clock as Clock
from pytest_autotune.tuners.measuring.clocks import HostClock as HostClock
from pytest_autotune.tuners.measuring.clocks import HostLaunch as HostLaunch
from pytest_autotune.tuners.measuring.clocks import Launch as Launch
from pytest_autotune.tuners.measuring.clocks import Runner as Runner
from pytest_autotune.tuners.measuring.clocks import torch_clock as torch_clock
from pytest_autotune.tuners.measuring.race import Contest as Contest
from pytest_autotune.tuners.protocol import Adapter as Adapter
from pytest_autotune.tuners.protocol import HookError as HookError
from pytest_autotune.tuners.shared.candidates import LaunchError as LaunchError
from pytest_autotune.tuners.shared.configurations import ConfigurationQuestion as ConfigurationQuestion
from pytest_autotune.tuners.shared.configurations import Configurations as Configurations
from pytest_autotune.tuners.shared.configurations import SearchResults as SearchResults
from pytest_autotune.tuners.shared.configurations import param_value as param_value
from pytest_autotune.tuners.shared.patches import CallHook as CallHook
from pytest_autotune.tuners.shared.patches import CallInstead as CallInstead
from pytest_autotune.tuners.shared.patches import CallResult as CallResult
from pytest_autotune.tuners.shared.patches import HookedCall as HookedCall
from pytest_autotune.tuners.shared.patches import Patches as Patches
from pytest_autotune.tuners.source.functions import python_function as python_function
from pytest_autotune.tuners.source.functions import qualified_name as qualified_name
from pytest_autotune.tuners.source.source_digest import digest as digest
from pytest_autotune.tuners.source.source_digest import read_source as read_source
from pytest_autotune.tuners.source.source_digest import source_digest as source_digest
from pytest_autotune.tuners.source.source_digest import source_parts as source_parts
from pytest_autotune.tuners.source.source_digest import stable_value as stable_value
