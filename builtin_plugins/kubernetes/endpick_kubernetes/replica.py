"""One of several replicas: takes part in the election and follows the pool as its role requires."""

from __future__ import annotations

import asyncio

from prometheus_client.metrics import Counter, Gauge

from endpick.api.discovery import EndpointRegistry
from endpick_kubernetes.election import Election
from endpick_kubernetes.follower import Connection
from endpick_kubernetes.parameters import KubernetesDiscoveryParameters
from endpick_kubernetes.pool import PoolFollower


class Replica:
    """Follows the pool always, or with `populateFollowers: false` only while it leads."""

    def __init__(
        self,
        parameters: KubernetesDiscoveryParameters,
        connection: Connection,
        registry: EndpointRegistry,
        gauge: Gauge,
        attempts: Counter,
    ) -> None:
        self._parameters = parameters
        self._connection = connection
        self._registry = registry
        self._election = Election(parameters, connection, gauge, attempts, self._role_changed)
        self._changed = asyncio.Event()
        self._is_complete = False
        self._following: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Take part until cancelled."""
        self._report_role()
        electing, ending = asyncio.create_task(self._election.run()), asyncio.create_task(self._registry.until_ending())
        try:
            while not ending.done():
                await self._follow_if_due()
                await self._until_changed(electing, ending)
            # Shutdown: another replica can lead at once while this one serves the remaining requests.
            await _cancel(electing)
            await (asyncio.Event().wait() if self._following is None else self._following)
        except asyncio.CancelledError:
            self._registry.stand_by("")  # after a reload the next discovery decides
            raise
        finally:
            for task in (electing, ending, self._following):
                if task is not None:
                    await _cancel(task)

    async def _until_changed(self, *tasks: asyncio.Task[None]) -> None:
        self._changed.clear()
        changed = asyncio.create_task(self._changed.wait())
        running = [*tasks, *([] if self._following is None else [self._following])]
        try:
            done, _ = await asyncio.wait([changed, *running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        for task in done.intersection(running):
            task.result()

    async def _follow_if_due(self) -> None:
        due = self._parameters.populate_followers or self._election.leads
        if due and self._following is None:
            pool = PoolFollower(self._parameters, self._connection, self._registry, self._completed)
            self._following = asyncio.create_task(pool.run())
        elif not due:
            if self._following is not None:
                await _cancel(self._following)
                self._following = None
            self._is_complete = False
            self._registry.replace_all(())
            self._registry.ready()  # a replica that stands by needs no endpoints
        self._report_role()

    def _completed(self) -> None:
        self._is_complete = True
        self._registry.ready()
        self._report_role()

    def _role_changed(self) -> None:
        self._changed.set()
        self._report_role()

    def _report_role(self) -> None:
        if self._election.leads and self._is_complete:
            self._registry.stand_by("")
        else:
            self._registry.stand_by(f"standing by: {self._election.holder or 'no replica'} leads")


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
