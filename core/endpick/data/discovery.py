"""Runs the endpoint discovery and restarts it after errors."""

from __future__ import annotations

import asyncio

from endpick.api.discovery import EndpointDiscovery
from endpick.api.errors import ConfigurationError
from endpick.api.plugin import Parameters
from endpick.data.registry import Registry
from endpick.data.table import EndpointTable
from endpick.data.tasks import Backoff, cancel_all, is_being_cancelled
from endpick.host.failures import PLUGIN_ERRORS
from endpick.host.instance import Instance
from endpick.host.kinds import ExtensionPoint
from endpick.host.telemetry import Telemetry

STOP_SECONDS = 10.0
"""How long a discovery may take to end: it may have to release a lease."""


class DiscoveryTask:
    """Runs one discovery."""

    def __init__(self, instance: Instance, table: EndpointTable, telemetry: Telemetry) -> None:
        if not isinstance(instance.plugin, EndpointDiscovery):
            raise TypeError(f"{instance.origin} is not an endpoint discovery")
        self.instance = instance
        self._plugin: EndpointDiscovery[Parameters] = instance.plugin
        self._table = table
        self._registry = Registry(table)
        self._telemetry = telemetry
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to discover. Call once, on the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def wait_ready(self, timeout_seconds: float) -> None:
        """Wait for the first complete report.

        Raises:
            ConfigurationError: the discovery cannot work as configured, or ended before it reported anything.
            TimeoutError: nothing was reported in time; the discovery keeps trying.
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
        raise ConfigurationError(f"{self.instance.origin} ended before it reported endpoints")

    async def stop(self) -> None:
        """End the discovery and ignore later reports. Safe to call twice, and before `start`."""
        self._registry.close()
        if self._task is None or self._task.done():
            return
        if await cancel_all((self._task,), STOP_SECONDS):
            self._failed(f"did not end within {STOP_SECONDS:g} s of its cancellation")

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff()
        while True:
            started = loop.time()
            try:
                return await self._plugin.run(self._registry)
            except ConfigurationError as error:
                if not self._table.is_ready.is_set():
                    raise
                self._failed(error)
            except asyncio.CancelledError:
                if is_being_cancelled():
                    raise
                self._failed("cancelled itself")
            except PLUGIN_ERRORS as error:
                self._failed(error)
            await asyncio.sleep(backoff.delay_after(loop.time() - started))

    def _failed(self, problem: BaseException | str) -> None:
        self._telemetry.fault(self.instance, ExtensionPoint.ENDPOINT_DISCOVERY, problem)
