"""Runs the configuration's endpoint discovery: start-up waits for its first picture, later failures are survived."""

from __future__ import annotations

import asyncio

from endpick.api.datalayer import EndpointDiscovery
from endpick.api.errors import ConfigurationError
from endpick.api.plugin import Parameters
from endpick.data.registry import Registry
from endpick.data.table import EndpointTable
from endpick.data.tasks import CANCELLED, Backoff
from endpick.host.attempt import leave
from endpick.host.failures import CALL_FAILURES, is_a, is_closing, is_the_hosts
from endpick.host.instance import Instance
from endpick.host.kinds import ExtensionPoint
from endpick.host.telemetry import Telemetry

STOP_SECONDS = 10.0
"""How long a discovery may take to end: it may have a lease to give back."""


class DiscoveryTask:
    """One discovery, reporting into one table."""

    def __init__(self, instance: Instance, table: EndpointTable, telemetry: Telemetry) -> None:
        if not isinstance(instance.plugin, EndpointDiscovery):
            raise TypeError(f"{instance.origin} is no endpoint discovery")
        self.instance = instance
        self._plugin: EndpointDiscovery[Parameters] = instance.plugin
        self._table = table
        self._registry = Registry(table)
        self._telemetry = telemetry
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to discover. Call it on the running event loop, once."""
        self._task = asyncio.get_running_loop().create_task(self._keep_running())

    async def wait_ready(self, timeout_seconds: float) -> None:
        """Wait for the first complete picture of the pool.

        Raises:
            ConfigurationError: the discovery cannot work as configured, or ended before it had reported anything.
            TimeoutError: nothing was reported in time; the discovery goes on trying.
        """
        if self._task is None:
            raise RuntimeError("start the discovery before waiting for it")
        ready = asyncio.ensure_future(self._table.is_ready.wait())
        try:
            await asyncio.wait((ready, self._task), timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if self._table.is_ready.is_set():
            return
        if not self._task.done():
            raise TimeoutError(f"{self.instance.origin} reported no endpoints within {timeout_seconds:g} s")
        self._task.result()
        raise ConfigurationError(f"{self.instance.origin} ended without saying which endpoints there are")

    async def stop(self) -> None:
        """End the discovery and wait for it; one that does not end is heard no more. Safe to call twice, and before `start`."""
        self._registry.close()
        if self._task is None or self._task.done():
            return
        leave(self._task)
        await asyncio.wait((self._task,), timeout=STOP_SECONDS)
        if not self._task.done():
            self._failed(f"did not end within {STOP_SECONDS:g} s of its cancellation, and is heard no more")

    async def _keep_running(self) -> None:
        """Run in a task of its own, and in another one where that was cancelled by what ran in it."""
        loop = asyncio.get_running_loop()
        backoff = Backoff()
        while True:
            began = loop.time()
            own = loop.create_task(self._run())
            try:
                await asyncio.wait((own,))
            except asyncio.CancelledError:
                own.cancel()
                await asyncio.wait((own,))
                if not own.cancelled():
                    own.exception()  # which nothing else looks at
                raise
            if not own.cancelled():
                return own.result()
            self._failed(CANCELLED)
            await asyncio.sleep(backoff.delay_after(loop.time() - began))

    async def _run(self) -> None:
        """Ends when the discovery says that nothing will change any more, or refuses to start."""
        loop, own = asyncio.get_running_loop(), asyncio.current_task()
        backoff = Backoff()
        while True:
            began = loop.time()
            try:
                await self._plugin.run(self._registry)
            except ConfigurationError as problem:
                if not self._table.is_ready.is_set():
                    raise
                self._failed(problem)
            except CALL_FAILURES as problem:
                if is_closing(problem, own) or is_the_hosts(problem):
                    raise
                self._failed("cancelled itself" if is_a(problem, asyncio.CancelledError) else problem)
            else:
                return
            await asyncio.sleep(backoff.delay_after(loop.time() - began))

    def _failed(self, problem: BaseException | str) -> None:
        self._telemetry.fault(self.instance, ExtensionPoint.ENDPOINT_DISCOVERY, problem)
