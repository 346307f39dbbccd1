"""What an attempt is, what it finds at hand, and what counts as a finding."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.extproc.plan import PROFILE

MAY_HOLD_SECONDS = 0.1
"""Of processor time, for the thread of the event loop, between two beats of a timer of a millisecond."""
MAY_WAIT_SECONDS = 1.0
"""For a probe, and the median of the waits of a gateway's requests; more means that for these it was down."""
MAY_END_SECONDS = 20.0
"""From SIGTERM to the end of the process, beyond its `--drain-timeout`."""
MAX_MEMORY = "512Mi"
"""`--max-memory` of every picker that does not say another."""
MAY_EXCEED = 1.2
"""What is resident, as a share of `--max-memory`: the account is an estimate."""

_INSTANCES = "- {name: endpoints, type: file-discovery, parameters: {path: endpoints.yaml, watchFile: true}}\n- type: siege.beat\n"
CONFIG = (
    PROFILE.replace("llm-d.ai/v1alpha1", "endpick/v1alpha1")
    .replace("plugins:\n", f"plugins:\n{_INSTANCES}", 1)
    .replace("  - pluginRef: max", "  - pluginRef: siege.beat\n  - pluginRef: max")
    + "dataLayer: {discovery: {pluginRef: endpoints}}\n"
)
"""llm-d's default profile, an endpoint file that is watched, and a plugin that measures the event loop."""


@dataclass(frozen=True, slots=True)
class Target:
    """The picker under attack, as an attempt sees it."""

    folder: Path
    """Working directory of the picker: `config.yaml`, `endpoints.yaml`, `site` for modules, `log`."""
    pid: int
    ext_proc_port: int
    health_port: int
    metrics_port: int
    model_server_port: int
    """Of a model server that behaves, on every address of 127/8."""
    until: float
    """By `time.monotonic`: when the attempt has to be over."""
    rng: random.Random
    """What an attempt leaves to chance it draws from this, so that `--seed` makes it the same again, or another one."""

    def seconds_left(self) -> float:
        return max(0.0, self.until - time.monotonic())


Run = Callable[[Target], Awaitable[Iterable[str] | None]]
"""Makes the attempt once; it is called again until the time is up. It answers with what it found itself, beyond what the witness sees."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way to do harm."""

    run: Run
    """Its name is the attempt's, the first line of its docstring says what it does."""
    flags: tuple[str, ...] = ()
    """Of `endpick serve`, beside those that all have."""
    config: str = CONFIG
    files: Mapping[str, str] = field(default_factory=dict)
    """Further files in the working directory of the picker, by name."""
    environment: Mapping[str, str] = field(default_factory=dict)
    may_hold_seconds: float = MAY_HOLD_SECONDS
    """More than usual only where what holds the loop is code that an operator has installed."""
    may_exceed: float = MAY_EXCEED
    """More than usual only where the threat model says so of this very thing."""
    may_lose: bool = False
    """Whether requests of others may fail: only where the threat model says so of this very thing."""
    transports: tuple[str, ...] = ("h2", "grpcio")
    until_serving: str = ""
    """A module that is run, with the port of the model server, until the picker serves: where that needs to hear the truth first."""
    blames: str = ""
    """What a line of the log names that tells of a fault of the attempt's own plugins, which is none of endpick's."""

    @property
    def name(self) -> str:
        return self.run.__name__.replace("_", "-")

    @property
    def about(self) -> str:
        return (self.run.__doc__ or "").strip().splitlines()[0]

    @property
    def of(self) -> str:
        """The class it belongs to: the module that defines it."""
        return self.run.__module__.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Noticed:
    """What became of one attempt, as the well-behaved noticed it."""

    requests: int
    lost: int
    median_wait_seconds: float
    longest_wait_seconds: float
    probes: int
    failed_probes: int
    longest_probe_seconds: float
    longest_turn_seconds: float
    """Of processor time, by the thread of the event loop."""
    most_resident_mib: float
    most_memory_mib: float
    """What `--max-memory` was."""
    exit_code: int | None
    """None: the picker had to be killed."""
    ended_early: bool
    faults: tuple[str, ...]
    """Lines of the log that tell of a fault of endpick, or that are no lines of it."""
    told: tuple[str, ...]
    """What the attempt found itself."""
    made: int
    """How often it was made."""

    def findings(self, attempt: Attempt) -> tuple[str, ...]:
        """What is not as the threat model promises; empty where it held."""
        found = [*self.told, *self.faults]
        if self.ended_early or self.exit_code != 0:
            found.append(f"the picker ended {'by itself, ' if self.ended_early else ''}with {self.exit_code}")
        if not self.requests:
            found.append("no request of a well-behaved gateway was answered")
        if self.lost and not attempt.may_lose:
            found.append(f"{self.lost} of {self.requests} requests of well-behaved gateways were lost")
        if self.failed_probes:
            found.append(f"{self.failed_probes} of {self.probes} probes failed")
        if self.longest_turn_seconds > attempt.may_hold_seconds:
            found.append(f"a turn of the event loop took {self.longest_turn_seconds * 1000:.0f} ms of processor time")
        if self.median_wait_seconds > MAY_WAIT_SECONDS:
            found.append(f"half of the requests waited {self.median_wait_seconds:.1f} s or more")
        if self.most_resident_mib > self.most_memory_mib * attempt.may_exceed:
            found.append(f"{self.most_resident_mib:.0f} MiB were resident of {self.most_memory_mib:.0f}")
        if not self.made:
            found.append("the attempt was not made")
        return tuple(found)
