"""Runs the endpoint discovery and checks its reports."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterable, Mapping

from endpick.api.discovery import EndpointDiscovery, ModelRewrite
from endpick.api.endpoint import Endpoint
from endpick.api.errors import ConfigurationError
from endpick.api.plugin import Parameters
from endpick.data.table import EndpointTable
from endpick.data.tasks import Backoff, cancel_all
from endpick.host.awaiting import is_being_cancelled
from endpick.host.failures import PLUGIN_ERRORS
from endpick.host.instance import Instance
from endpick.host.methods import ExtensionPoint
from endpick.host.telemetry import Telemetry

_NOT_IN_AN_ADDRESS = re.compile(r"[^\x21-\x7e]|,")  # commas separate addresses in a header


class Registry:
    """Checks the reports of a discovery. Methods raise TypeError or ValueError for invalid reports."""

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self._is_open = True
        self._thread = threading.get_ident()

    def close(self) -> None:
        """Ignore later reports, from a discovery that is stopped or replaced."""
        self._is_open = False

    def upsert(self, endpoint: Endpoint) -> None:
        self._check(endpoint)
        if self._accepts():
            self._table.upsert(endpoint)

    def remove(self, name: str) -> None:
        if self._accepts():
            self._table.remove(name)

    def replace_all(self, endpoints: Iterable[Endpoint]) -> None:
        reported = list(endpoints)
        for endpoint in reported:
            self._check(endpoint)
        if self._accepts():
            self._table.replace_all(reported)

    def set_objectives(self, priorities: Mapping[str, int]) -> None:
        for name, priority in priorities.items():
            _check_type(name, str, "the name of an objective")
            _check_type(priority, int, "a priority")
        if self._accepts():
            self._table.set_objectives(priorities)

    def set_rewrites(self, rewrites: Iterable[ModelRewrite]) -> None:
        reported = tuple(rewrites)
        for rule in reported:
            _check_type(rule, ModelRewrite, "a rewrite")
            if any(target.weight < 0 for target in rule.targets):
                raise ValueError("the weight of a target must not be negative")
        if self._accepts():
            self._table.set_rewrites(reported)

    def ready(self) -> None:
        if self._accepts():
            self._table.ready()

    def stand_by(self, reason: str) -> None:
        if self._accepts():
            self._table.stand_by(reason)

    async def until_ending(self) -> None:
        await self._table.until_ending()

    def _accepts(self) -> bool:
        if threading.get_ident() != self._thread:
            raise RuntimeError("report on the thread of the event loop; from another thread use loop.call_soon_threadsafe")
        return self._is_open

    def _check(self, endpoint: Endpoint) -> None:
        _check_type(endpoint, Endpoint, "an endpoint")
        if self._table.find(endpoint.name) is endpoint:
            return
        _check_type(endpoint.name, str, "the name of an endpoint")
        if not endpoint.name:
            raise ValueError("an endpoint needs a name")
        for field, address in (("host", endpoint.host), ("metrics_address", endpoint.metrics_address)):
            _check_type(address, str, f"the {field} of an endpoint")
            if not address or _NOT_IN_AN_ADDRESS.search(address):
                raise ValueError(f"the {field} of an endpoint must be an address, not {address!r:.100}")
        _check_type(endpoint.port, int, "the port of an endpoint")
        if not 0 < endpoint.port < 2**16:
            raise ValueError(f"the port of an endpoint must be between 1 and 65535, not {endpoint.port}")
        for label, value in endpoint.labels.items():
            _check_type(label, str, "a label")
            _check_type(value, str, "the value of a label")


def _check_type(value: object, expected: type, what: str) -> None:
    if not isinstance(value, expected):
        raise TypeError(f"{what} must be {expected.__name__}, not {type(value).__name__}")


STOP_SECONDS = 10.0  # a discovery may have to release a lease


class DiscoveryTask:
    """Runs an endpoint discovery, and restarts it with back-off after a fault."""

    def __init__(self, instance: Instance, table: EndpointTable, telemetry: Telemetry) -> None:
        if not isinstance(instance.plugin, EndpointDiscovery):
            raise TypeError(f"{instance.origin} is not an endpoint discovery")
        self.instance = instance
        self.plugin: EndpointDiscovery[Parameters] = instance.plugin
        self._table = table
        self._registry = Registry(table)
        self._telemetry = telemetry
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the discovery in a task. Called once, inside the event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def wait_ready(self, timeout_seconds: float) -> None:
        """Wait for the first complete report.

        Raises:
            ConfigurationError: the discovery ended or cannot work.
            TimeoutError: no report in time, with the reason if known; it continues.
        """
        assert self._task is not None
        ready = asyncio.ensure_future(self._table.is_ready.wait())
        try:
            await asyncio.wait((ready, self._task), timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if self._table.is_ready.is_set():
            return
        if not self._task.done():
            reason = self.plugin.not_ready_because
            raise TimeoutError(f"reported no endpoints within {timeout_seconds:g} s{reason and f': {reason}'}")
        self._task.result()
        raise ConfigurationError(f"{self.instance.origin} ended before it reported endpoints")

    async def stop(self) -> None:
        """Cancel the discovery and ignore its later reports. Idempotent."""
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
                return await self.plugin.run(self._registry)
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
