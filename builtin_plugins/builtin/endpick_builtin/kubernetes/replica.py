"""One of several replicas of a picker: follows the pool as its role asks, and says whether it stands by."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable

from prometheus_client.metrics import Counter, Gauge

from endpick.api import EndpointRegistry
from endpick_builtin.kubernetes.election import Election, Timing
from endpick_builtin.kubernetes.following import Following
from endpick_builtin.kubernetes.leases import Role
from endpick_builtin.kubernetes.parameters import KubernetesDiscoveryParameters
from endpick_builtin.kubernetes.picture import PoolPicture


class Replica:
    """Takes part in the election; follows the pool always, or only while it leads."""

    def __init__(
        self,
        parameters: KubernetesDiscoveryParameters,
        namespace: str,
        shared: Following,
        registry: EndpointRegistry,
        picture: Callable[[Callable[[], None]], PoolPicture],
        leads: Gauge,
        attempts: Counter,
    ) -> None:
        """`picture` makes a new picture of the pool; it is given what to call when that is complete."""
        lease_seconds = math.ceil(parameters.lease_duration)
        timing = Timing(lease_seconds, parameters.renew_deadline, parameters.retry_period)
        self._registry = registry
        self._picture = picture
        self._always_follows = parameters.populate_followers
        self._election = Election(namespace, parameters.pool_name, os.environ, timing, shared, leads, attempts, self._role_changed)
        self._changed = asyncio.Event()
        self._complete = False
        self._following: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Take part until cancelled, or until the picture says that the configuration is wrong."""
        self._tell()
        loop = asyncio.get_running_loop()
        electing, ending = loop.create_task(self._election.run()), loop.create_task(self._registry.until_ending())
        try:
            while not ending.done():
                await self._follow_if_due()
                await self._until_changed(electing, ending)
            # The process ends: another replica is to lead at once, while this one serves what still comes to it.
            await _end(electing)
            await (asyncio.Event().wait() if self._following is None else self._following)
        except asyncio.CancelledError:
            self._registry.stand_by("")  # a discovery that takes over after a reload says so itself
            raise
        finally:
            for task in (electing, ending, self._following):
                if task is not None:
                    await _end(task)

    async def _until_changed(self, *tasks: asyncio.Task[None]) -> None:
        """Return when the role has changed or one of the tasks has ended; raises what ended it."""
        self._changed.clear()
        changed = asyncio.get_running_loop().create_task(self._changed.wait())
        running = [*tasks, *([] if self._following is None else [self._following])]
        try:
            done, _ = await asyncio.wait([changed, *running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        for task in done.intersection(running):
            task.result()

    async def _follow_if_due(self) -> None:
        due = self._always_follows or self._election.role is Role.LEADER
        if due and self._following is None:
            self._following = asyncio.get_running_loop().create_task(self._picture(self._completed).follow())
        elif not due:
            if self._following is not None:
                await _end(self._following)
                self._following = None
            self._complete = False
            self._registry.replace_all(())
            self._registry.ready()  # nothing to wait for: a replica that stands by may have no endpoints
        self._tell()

    def _completed(self) -> None:
        self._complete = True
        self._registry.ready()
        self._tell()

    def _role_changed(self) -> None:
        self._changed.set()
        self._tell()

    def _tell(self) -> None:
        if self._election.role is Role.LEADER and self._complete:
            self._registry.stand_by("")
        elif self._election.role is not Role.GONE:
            self._registry.stand_by(f"standing by: {self._election.holder or 'no replica'} leads")


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
