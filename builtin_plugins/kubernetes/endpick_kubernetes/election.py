"""Leader election by a Lease."""

from __future__ import annotations

import asyncio
import math
import os
import re
import socket
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from time import monotonic
from typing import Any

from prometheus_client.metrics import Counter, Gauge

from endpick_kubernetes.follower import Collection, Connection, Follower, describe, resource, status_of
from endpick_kubernetes.parameters import KubernetesDiscoveryParameters, Object

_LEASE = resource("coordination.k8s.io", "v1", "Lease")
_RELEASE_SECONDS = 2.0
_POD_OF_A_DEPLOYMENT = re.compile(r"(?P<deployment>.+)-[a-z0-9]+-[a-z0-9]+")


class Attempt(StrEnum):
    """Outcome of one attempt on the lease."""

    TAKEN = "taken"
    RENEWED = "renewed"
    HELD = "held"  # by another replica
    FAILED = "failed"  # the API server did not answer, or refused
    OVERDUE = "overdue"  # not renewed; another replica may take it
    RELEASED = "released"


class Observation:
    """The lease as seen by this replica's clock."""

    def __init__(self) -> None:
        self._seen: tuple[str, str] | None = None
        self._since = 0.0

    def see(self, lease: Object | None, now: float) -> None:
        seen = None if lease is None else (holder_of(lease), lease["spec"].get("renewTime", ""))
        if seen != self._seen:
            self._seen, self._since = seen, now

    def is_free(self, lease: Object | None, identity: str, now: float) -> bool:
        """Whether nobody or `identity` holds the lease, or it has expired."""
        if lease is None or holder_of(lease) in ("", identity):
            return True
        return now - self._since >= (lease["spec"].get("leaseDurationSeconds") or 0)


class Election:
    """Takes, renews and releases the lease."""

    def __init__(
        self,
        parameters: KubernetesDiscoveryParameters,
        connection: Connection,
        gauge: Gauge,
        attempts: Counter,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called when `leads` or `holder` changes."""
        pod_name = os.environ.get("POD_NAME", "")
        self.leads = False
        self.holder = ""
        self.name = lease_name(connection.namespace, parameters.pool_name, pod_name)
        self.identity = f"{pod_name or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        self._connection = connection
        self._logger = connection.logger
        self._lease_seconds = math.ceil(parameters.lease_duration)
        self._renew_seconds = parameters.renew_deadline
        self._retry_seconds = parameters.retry_period
        self._gauge, self._attempts, self._changed = gauge, attempts, changed
        self._observation = Observation()
        # `read` keeps the holder alone: renewals are not changes.
        self._watched: Follower[str] = Follower(
            Collection("leases", _LEASE, holder_of, name=self.name, required=False), connection, self._holder_changed
        )
        self._is_released = asyncio.Event()
        self._renewed_at = 0.0
        self._is_unanswered = False  # after an unknown result the lease may be ours
        self._trouble = ""

    async def run(self) -> None:
        self._gauge.set(0)
        watching = asyncio.create_task(self._watched.run())
        try:
            while True:
                self._is_released.clear()
                self._conclude(await self._attempt())
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._retry_seconds * self._connection.random.uniform(0.8, 1.0)):
                        await self._is_released.wait()
        finally:
            watching.cancel()
            release = asyncio.create_task(self._release())
            while not release.done():  # a process that ends soon cancels again
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(release)

    def _holder_changed(self) -> None:
        if not self.leads and self._watched.objects.get(self.name) == "":
            self._is_released.set()

    async def _attempt(self) -> Attempt:
        began = monotonic()
        left = self._renewed_at + self._renew_seconds - began if self.leads else self._renew_seconds
        try:
            # Half leaves time for a second request.
            async with asyncio.timeout(max(0.0, min(left, self._renew_seconds / 2))):
                attempt = await self._take()
        except Exception as error:  # after any failure the lease's state is uncertain
            self._log_once(describe(error) if str(error) else "no answer in time")
            overdue = self.leads and monotonic() - self._renewed_at >= self._renew_seconds
            return Attempt.OVERDUE if overdue else Attempt.FAILED
        self._trouble = ""
        if attempt is Attempt.TAKEN:
            self._renewed_at = began
            return Attempt.RENEWED if self.leads else Attempt.TAKEN
        return attempt

    async def _take(self) -> Attempt:
        lease = await self._read()
        self._observation.see(lease, monotonic())
        if self._observation.is_free(lease, self.identity, monotonic()) and await self._write(self.identity, self._lease_seconds, lease):
            self.holder = self.identity
            return Attempt.TAKEN
        holder, self.holder = self.holder, "" if lease is None else holder_of(lease)
        if holder != self.holder:
            self._changed()
        return Attempt.HELD

    async def _read(self) -> Object | None:
        # llm-d's roles grant `list` on leases, not `get`.
        found = self._connection.client.list(_LEASE, namespace=self._connection.namespace, fields={"metadata.name": self.name})
        return next(iter([item async for item in found]), None)

    async def _write(self, holder: str, seconds: int, before: Object | None) -> bool:
        lease = _LEASE(**claim(self.name, self._connection.namespace, holder, seconds, before))
        client = self._connection.client
        self._is_unanswered = True
        try:
            await (client.create(lease) if before is None else client.replace(lease))
        except Exception as error:
            if status_of(error) not in (404, 409):
                raise
            self._is_unanswered = False
            return False
        self._is_unanswered = False
        return True

    def _conclude(self, attempt: Attempt) -> None:
        self._attempts.labels(attempt.value).inc()
        leads = attempt in (Attempt.TAKEN, Attempt.RENEWED) or (self.leads and attempt is Attempt.FAILED)
        if leads == self.leads:
            return
        self.leads = leads
        self._gauge.set(leads)
        message = "this replica leads" if leads else "this replica no longer leads"
        self._logger.info(message, extra={"lease": self.name, "identity": self.identity, "attempt": attempt.value})
        if attempt is not Attempt.RELEASED:
            self._changed()

    async def _release(self) -> None:
        if self.leads or self._is_unanswered:
            try:
                async with asyncio.timeout(_RELEASE_SECONDS):
                    lease = await self._read()
                    if lease is not None and holder_of(lease) == self.identity:
                        await self._write("", 1, lease)
            except Exception as error:
                self._logger.warning("the lease %s cannot be released; it expires: %s", self.name, describe(error))
        self._conclude(Attempt.RELEASED)

    def _log_once(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            done = "renewed" if self.leads else "taken"
            self._logger.warning("the lease %s cannot be %s, trying again: %s", self.name, done, trouble)


def holder_of(lease: Object) -> str:
    """Return the identity of the holder; empty after a release."""
    return lease["spec"].get("holderIdentity") or ""


def claim(name: str, namespace: str, holder: str, seconds: int, before: Object | None) -> dict[str, Any]:
    """Build the lease that `holder` takes, renews or, if empty, releases; it replaces `before`."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {} if before is None else before["spec"]
    keeps = holder_of(before) == holder if before is not None else False
    transitions = 0 if before is None else (spec.get("leaseTransitions") or 0) + (not keeps)
    metadata = {"name": name, "namespace": namespace}
    if before is not None:
        metadata["resourceVersion"] = before["metadata"]["resourceVersion"]
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": {
            **({"holderIdentity": holder} if holder else {}),  # the API server refuses an empty one
            "leaseDurationSeconds": seconds,
            "acquireTime": spec.get("acquireTime") or now if keeps else now,
            "renewTime": now,
            "leaseTransitions": transitions,
        },
    }


def lease_name(namespace: str, pool: str, pod_name: str) -> str:
    """Name the lease as llm-d does: after the pool or, without one, the Deployment of the Pod."""
    replica = _POD_OF_A_DEPLOYMENT.fullmatch(pod_name)
    return f"epp-{namespace}-{pool or (replica['deployment'] if replica else 'endpick')}.llm-d.ai"
