"""Takes part in the election of a leader: takes the lease when it may be taken, renews it, and gives it back."""

from __future__ import annotations

import asyncio
import logging
import socket
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from time import monotonic

from prometheus_client.metrics import Counter, Gauge

from endpick_builtin.kubernetes.client import ApiClient, ApiError
from endpick_builtin.kubernetes.following import Collection, Follower, Following
from endpick_builtin.kubernetes.leases import GROUP, TRANSITIONS, VERSION, Attempt, Lease, Observed, Role, claim, lease_name, read_lease

_MOST_HASTE = 3
"""Pauses in a row that a change of the lease may cut short: where it changes all the time it is not asked for all the time."""
RELEASE_SECONDS = 2.0
"""How long giving the lease back may take, at the end of the process."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How a lease is kept; the defaults of llm-d are 15, 10 and 2 seconds.

    Attributes:
        lease_seconds: After which a lease that was not renewed may be taken.
        renew_seconds: For which renewing may fail before the leader stands by; shorter than `lease_seconds`, so that two never lead.
        retry_seconds: Between two attempts.
    """

    lease_seconds: int
    renew_seconds: float
    retry_seconds: float


class Election:
    """One replica in the election of one pool's leader."""

    def __init__(
        self,
        namespace: str,
        pool: str,
        environment: Mapping[str, str],
        timing: Timing,
        shared: Following,
        gauge: Gauge,
        attempts: Counter,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called whenever this replica has become another `role`, and when another one has begun to lead."""
        pod_name = environment.get("POD_NAME", "")
        self.role = Role.FOLLOWER
        self.holder = ""
        """Identity of the replica that leads, as far as known."""
        self.name = lease_name(namespace, pool, pod_name)
        self.identity = f"{pod_name or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        self._namespace = namespace
        self._path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/leases"
        self._timing = timing
        self._shared = shared
        self._client: ApiClient = shared.client
        self._random: Random = shared.random
        self._logger: logging.Logger = shared.logger
        self._gauge, self._attempts, self._changed = gauge, attempts, changed
        self._observed = Observed()
        self._lease: Lease | None = None
        self._renewed_at = 0.0
        self._may_have_written = False
        """Whether the answer to the latest write has not come: then the lease may be ours, or newer, without our knowing."""
        self._wake = asyncio.Event()
        self._haste = 0
        """Pauses in a row that were cut short."""
        self._trouble = ""
        collection = Collection("leases", self._path, read_lease, {"fieldSelector": f"metadata.name={self.name}"}, only=self.name)
        self._follower: Follower[Lease] = Follower(collection, shared, self._seen)

    async def run(self) -> None:
        """Take part until cancelled; then the lease is given back."""
        self._gauge.set(0)
        following = asyncio.get_running_loop().create_task(self._follower.run())
        try:
            while True:
                self._wake.clear()  # what the lease becomes during the attempt ends the pause after it
                self._become(await self._attempt())
                await self._pause()
        finally:
            following.cancel()
            release = asyncio.get_running_loop().create_task(self._release())
            while not release.done():  # a process that ends at once cancels again, and the next leader would have to wait
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(release)
            await asyncio.gather(following, return_exceptions=True)

    async def _attempt(self) -> Attempt:
        """Take the lease, or renew it."""
        leads = self.role is Role.LEADER
        begun = monotonic()
        left = self._renewed_at + self._timing.renew_seconds - begun if leads else self._timing.renew_seconds
        try:
            # Half, so that after a server that no longer answers there is time for another one, over another connection.
            async with asyncio.timeout(max(0.0, min(left, self._timing.renew_seconds / 2))):
                attempt = await (self._renew() if leads else self._take())
        except (ApiError, TimeoutError) as problem:
            return self._failed(problem, leads=leads)
        if attempt in (Attempt.TAKEN, Attempt.RENEWED):
            self._renewed_at = begun
        self._trouble = ""
        return attempt

    def _failed(self, problem: ApiError | TimeoutError, *, leads: bool) -> Attempt:
        told = str(problem) or "no answer in time"
        if told != self._trouble:
            self._trouble = told
            self._logger.warning("the lease %s cannot be %s, trying again: %s", self.name, "renewed" if leads else "taken", told)
        if leads and monotonic() - self._renewed_at >= self._timing.renew_seconds:
            return Attempt.OVERDUE
        return Attempt.FAILED

    async def _take(self) -> Attempt:
        self._lease = await self._read()
        self._observed.see(self._lease, monotonic())
        self.holder = "" if self._lease is None else self._lease.holder
        if not self._observed.may_be_taken(self.identity, monotonic()):
            return Attempt.HELD
        return Attempt.TAKEN if await self._write(self.identity, self._timing.lease_seconds) else Attempt.HELD

    async def _renew(self) -> Attempt:
        seconds = self._timing.lease_seconds
        if await self._write(self.identity, seconds):
            return Attempt.RENEWED
        self._lease = await self._read()  # an answer may have been lost whose write was made
        self.holder = "" if self._lease is None else self._lease.holder
        return Attempt.RENEWED if self.holder == self.identity and await self._write(self.identity, seconds) else Attempt.HELD

    async def _read(self) -> Lease | None:
        query = {"fieldSelector": f"metadata.name={self.name}"}
        found: deque[Lease] = deque(maxlen=1)
        await self._client.page(self._path, query, lambda item: found.append(read_lease(item)))
        return found[0] if found else None

    async def _write(self, holder: str, seconds: int) -> bool:
        """Whether the lease was as we knew it, so that it says this now; False where another replica was faster."""
        body = claim(self.name, self._namespace, holder, seconds, self._lease)
        method, path = ("POST", self._path) if self._lease is None else ("PUT", f"{self._path}/{self.name}")
        self._may_have_written = True
        try:
            self._lease = read_lease(await self._client.write(method, path, body))
        except ApiError as problem:
            self._may_have_written = problem.status not in (404, 409)
            if problem.status in (404, 409):
                return False
            raise
        self._may_have_written = False
        self.holder = self._lease.holder
        return True

    def _become(self, attempt: Attempt) -> None:
        self._attempts.labels(attempt.value).inc()
        before, self.role = self.role, TRANSITIONS[self.role, attempt]
        if self.role is before:
            return
        self._gauge.set(self.role is Role.LEADER)
        self._logger.info(
            "this replica leads" if self.role is Role.LEADER else "this replica leads no longer",
            extra={"lease": self.name, "identity": self.identity, "attempt": attempt.value},
        )
        self._changed()

    async def _pause(self) -> None:
        """Until the next attempt: at once when a follower's lease was given back, or a leader's is gone or another's."""
        seconds = self._timing.retry_seconds * self._random.uniform(0.8, 1.0)
        if self._haste >= _MOST_HASTE:
            self._haste = 0
            await asyncio.sleep(seconds)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
            self._haste += 1
        except TimeoutError:
            self._haste = 0

    def _seen(self) -> None:
        """The lease has changed."""
        lease = self._follower.objects.get(self.name)
        if self.role is Role.LEADER:
            if lease is None or lease.holder != self.identity:
                self._wake.set()
        elif self.role is Role.GONE:
            return
        elif lease is None or not lease.holder:
            self._wake.set()
        elif lease.holder != self.holder:
            self.holder = lease.holder
            self._changed()

    async def _give_back(self) -> None:
        """Let the lease go if it is ours, also where the attempt that the end cut off had already written it."""
        if self._may_have_written or not await self._write("", 1):
            self._lease = await self._read()
            while self._lease is not None and self._lease.holder == self.identity and not await self._write("", 1):
                self._lease = await self._read()

    async def _release(self) -> None:
        if self.role is Role.LEADER or self._may_have_written:
            try:
                async with asyncio.timeout(RELEASE_SECONDS):
                    await self._give_back()
            except (ApiError, TimeoutError) as problem:
                self._logger.warning("the lease %s cannot be given back; it may be taken when it is over: %s", self.name, problem)
        self._become(Attempt.RELEASED)
