"""Sends the endpoint data that one worker polls to the other workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from endpick.api.data import AnyKey
from endpick.api.endpoint import Endpoint
from endpick.data.table import EndpointTable
from endpick.host.failures import PLUGIN_ERRORS

COLUMNS: Final = "columns"  # the name of their part in messages


class _Row(msgspec.Struct, array_like=True, frozen=True):
    """The values of one endpoint from one source, by key name; `age_seconds` counts from the request."""

    source: str
    endpoint: str
    address: str
    age_seconds: float
    values: dict[str, msgspec.Raw]


_encode = msgspec.msgpack.Encoder().encode
_decode_rows = msgspec.msgpack.Decoder(list[_Row]).decode


class SharedColumns:
    """Columns of the endpoint table that one worker polls and the others receive.

    A worker skips endpoints whose values it received within the interval, but polls each at least once a second. If the polling worker
    ends, the others therefore notice, and poll by themselves.
    """

    def __init__(self, table: EndpointTable, *, sends: bool) -> None:
        """The worker that `sends` receives nothing."""
        self._table = table
        self._sends = sends
        self._polled: dict[tuple[str, str], tuple[float, frozenset[str]]] = {}  # by source and endpoint
        self._readers: dict[type[object], Callable[[bytes], Any] | None] = {}
        if sends:
            table.on_polled.append(self._was_polled)

    def _was_polled(self, source: str, endpoint: Endpoint, keys: frozenset[str], since: float) -> None:
        self._polled[source, endpoint.name] = (since, keys)

    def drain(self) -> bytes:
        """Return the rows polled since the last call, encoded; empty if there are none."""
        polled, self._polled = self._polled, {}
        rows = [row for (source, name), (since, keys) in polled.items() if (row := self._row(source, name, keys, since))]
        return _encode(rows) if rows else b""

    def apply(self, data: bytes) -> None:
        """Write the rows of the polling worker. Raises MsgspecError or ValueError for malformed data."""
        if self._sends:
            return
        table, now = self._table, self._table.clock()
        for row in _decode_rows(data):
            endpoint = table.find(row.endpoint)
            if endpoint is None or endpoint.address != row.address:
                continue
            table.received[row.source, row.endpoint] = now
            for name, raw in row.values.items():
                key = table.key(name)
                read = None if key is None else self._reader(key)
                if key is not None and read is not None:
                    table.write(key, endpoint, read(raw), now - row.age_seconds)
        for delivered in table.on_delivered:
            delivered()

    def _row(self, source: str, name: str, keys: frozenset[str], since: float) -> _Row | None:
        endpoint = self._table.find(name)
        if endpoint is None:
            return None
        values: dict[str, msgspec.Raw] = {}
        for key_name in keys:
            key = self._table.key(key_name)
            if key is None:
                continue
            value, written_at = self._table.cell(key_name, name)
            if written_at >= since and (raw := self._encoded(key, value)) is not None:
                values[key_name] = raw
        return _Row(source, name, endpoint.address, self._table.clock() - since, values) if values else None

    def _encoded(self, key: AnyKey, value: object) -> msgspec.Raw | None:
        """None for a value that cannot be decoded to an equal one."""
        read = self._reader(key)
        try:
            raw = _encode(value)
            arrives = read is not None and (key.is_number or bool(read(raw) == value))
        except PLUGIN_ERRORS:  # of a plugin's type
            return None
        return msgspec.Raw(raw) if arrives else None

    def _reader(self, key: AnyKey) -> Callable[[bytes], Any] | None:
        if key.type not in self._readers:
            try:
                self._readers[key.type] = msgspec.msgpack.Decoder(key.type).decode
            except PLUGIN_ERRORS:  # a type that msgspec does not know, or whose annotations have no value
                self._readers[key.type] = None
        return self._readers[key.type]
