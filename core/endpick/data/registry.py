"""Checks the reports of a discovery once, before they reach the table."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping

from endpick.api.discovery import ModelRewrite
from endpick.api.endpoint import Endpoint
from endpick.data.table import EndpointTable

_NOT_IN_AN_ADDRESS = re.compile(r"[^\x21-\x7e]|,")
"""Addresses are sent in a header that separates them by commas."""


class Registry:
    """The `EndpointRegistry` of one discovery.

    An invalid report raises TypeError or ValueError in the discovery, and changes nothing.
    """

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self._is_open = True
        self._thread = threading.get_ident()

    def close(self) -> None:
        """Ignore later reports: another discovery may report now."""
        self._is_open = False

    def upsert(self, endpoint: Endpoint) -> None:
        """See `EndpointRegistry`."""
        self._check(endpoint)
        if self._accepts():
            self._table.upsert(endpoint)

    def remove(self, name: str) -> None:
        """See `EndpointRegistry`."""
        if self._accepts():
            self._table.remove(name)

    def replace_all(self, endpoints: Iterable[Endpoint]) -> None:
        """See `EndpointRegistry`."""
        reported = list(endpoints)
        for endpoint in reported:
            self._check(endpoint)
        if self._accepts():
            self._table.replace_all(reported)

    def set_objectives(self, priorities: Mapping[str, int]) -> None:
        """See `EndpointRegistry`."""
        for name, priority in priorities.items():
            _check_type(name, str, "the name of an objective")
            _check_type(priority, int, "a priority")
        if self._accepts():
            self._table.set_objectives(priorities)

    def set_rewrites(self, rewrites: Iterable[ModelRewrite]) -> None:
        """See `EndpointRegistry`."""
        reported = tuple(rewrites)
        for rule in reported:
            _check_type(rule, ModelRewrite, "a rewrite")
            if any(target.weight < 0 for target in rule.targets):
                raise ValueError("the weight of a target must not be negative")
        if self._accepts():
            self._table.set_rewrites(reported)

    def ready(self) -> None:
        """See `EndpointRegistry`."""
        if self._accepts():
            self._table.ready()

    def stand_by(self, reason: str) -> None:
        """See `EndpointRegistry`."""
        if self._accepts():
            self._table.stand_by(reason)

    async def until_ending(self) -> None:
        """See `EndpointRegistry`."""
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
