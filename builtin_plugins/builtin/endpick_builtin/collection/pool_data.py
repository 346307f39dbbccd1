"""`http-pool-source` and `json-values-extractor`: values from a JSON document."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias
from urllib.parse import urlsplit

import orjson
from pydantic import ConfigDict, Field, field_validator, model_validator

from endpick.api import (
    ColumnWriter,
    DataCollector,
    DataKey,
    Duration,
    PluginContext,
    PollingPoolSource,
    Scope,
    Stability,
    Subscriptions,
    Unavailable,
)
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.collection.http_pages import MAX_PAGE_BYTES, HttpPages, client_tls
from endpick_builtin.collection.sources import MaxPageBytes


@dataclass(frozen=True, slots=True)
class JsonDocument:
    """A parsed JSON document, whose root may be any JSON value."""

    root: object


class PoolSourceParameters(CamelParameters):
    """Locates the document, and sets how it is polled."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"url": "http://127.0.0.1:8090/pool.json"}]})

    url: Annotated[str, Field(description="URL of the document, `http://` or `https://`; this or `path`.")] = ""
    path: Annotated[str, Field(description="File that holds the document; this or `url`.")] = ""
    interval: Annotated[Duration, Field(gt=0, description="Time from one poll to the next.")] = 10.0
    timeout: Annotated[Duration, Field(gt=0, description="A poll that takes longer counts as failed.")] = 5.0
    ca_cert_path: Annotated[str, Field(description="With https: PEM file of the authorities to trust, instead of the system's.")] = ""
    insecure_skip_verify: Annotated[bool, Field(description="With https: accept any certificate.")] = False
    max_page_bytes: MaxPageBytes = MAX_PAGE_BYTES

    @field_validator("url")
    @classmethod
    def _is_a_url(cls, url: str) -> str:
        # No message repeats the URL: it may hold a password.
        if not url.isascii() or any(character.isspace() for character in url):
            raise ValueError("a URL has ASCII characters and no blanks: escape others as %20")
        try:
            parts = urlsplit(url)
            port = parts.port
            usable = parts.scheme in ("http", "https") and parts.hostname
        except ValueError:
            usable = False
        if url and not usable:
            raise ValueError("not a URL; write http://host:port/path")
        if url and port == 0:
            raise ValueError("port 0 is not valid")
        return url

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        if bool(self.url) == bool(self.path):
            raise ValueError("give url or path, and not both")
        return self


class HttpPoolSource(PollingPoolSource[PoolSourceParameters, JsonDocument]):
    """Fetches a JSON document about the whole pool at an interval, from an HTTP server or a file.

    After an error the values stay, and polls back off.
    """

    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: PoolSourceParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self.interval_seconds = parameters.interval
        self.timeout_seconds = parameters.timeout
        self._pages: HttpPages | None = None

    async def start(self) -> None:
        parameters = self.parameters
        is_https = parameters.url.startswith("https:")
        tls = client_tls(parameters.ca_cert_path, verify=not parameters.insecure_skip_verify) if is_https else None
        self._pages = HttpPages("application/json", parameters.max_page_bytes, tls)

    async def stop(self) -> None:
        if self._pages is not None:
            self._pages.close()

    async def poll_pool(self) -> JsonDocument:
        body = await (self._fetch() if self.parameters.url else asyncio.to_thread(self._read))
        try:
            return JsonDocument(orjson.loads(body))
        except orjson.JSONDecodeError as error:
            raise Unavailable(f"{self.parameters.url or self.parameters.path} is not JSON: {error}") from error

    async def _fetch(self) -> bytes:
        if self._pages is None:
            raise RuntimeError(f"source '{self.name}' was polled before it was started")
        parts = urlsplit(self.parameters.url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return await self._pages.get(f"{host}:{port}", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))

    def _read(self) -> bytes:
        path, limit = self.parameters.path, self.parameters.max_page_bytes
        try:
            body = Path(path).read_bytes()
        except OSError as error:
            raise Unavailable(f"{path}: {error.strerror or error}") from error
        if len(body) > limit:
            raise Unavailable(f"{path} is longer than maxPageBytes, {limit}")
        return body


ValueType: TypeAlias = Literal["number", "text", "boolean"]
"""The type that a value must have in the document to be kept."""


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None  # type: ignore[arg-type]


_READERS: Mapping[ValueType, tuple[type[Any], Callable[[object], object | None]]] = {
    "number": (float, _number),
    "text": (str, lambda value: value if isinstance(value, str) else None),
    "boolean": (bool, lambda value: value if isinstance(value, bool) else None),
}


class MappedValue(CamelParameters):
    """Maps a value of the document to a data key."""

    attribute_key: Annotated[str, Field(min_length=1, description="Name of the data key it is kept under, such as `acme.example/price`.")]
    pointer: Annotated[
        str,
        Field(pattern=r"^(/([^~/]|~[01])*)*$", description="JSON pointer (RFC 6901) to it, such as `/energy/price`; empty for the whole."),
    ]
    type: Annotated[ValueType, Field(description="`number`, `text` or `boolean`; a value of another type counts as missing.")] = "number"
    per_endpoint: Annotated[
        bool, Field(description="The pointer leads to an object with one value per endpoint, by name, `namespace/name` or `host:port`.")
    ] = False

    @property
    def key(self) -> DataKey[Any]:
        scope = Scope.ENDPOINT if self.per_endpoint else Scope.POOL
        return DataKey(self.attribute_key, _READERS[self.type][0], scope, doc=f"The value at {self.pointer or 'the root'} of a document.")


class JsonValuesParameters(CamelParameters):
    """Lists the values of the document to keep."""

    values: Annotated[
        tuple[MappedValue, ...],
        Field(
            min_length=1,
            description="The values to keep.",
            examples=[[{"attributeKey": "acme.example/price", "pointer": "/energy/price"}]],
        ),
    ]

    @model_validator(mode="after")
    def _keys_differ(self) -> Self:
        names = [value.attribute_key for value in self.values]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"attributeKey '{name}' is given {names.count(name)} times; give each value its own key")
        return self


_ABSENT = object()
_INDEX = re.compile("0|[1-9][0-9]{0,8}")


class JsonValuesExtractor(DataCollector[JsonValuesParameters, JsonDocument]):
    """Keeps values of a JSON document under data keys: for the whole pool, or with `perEndpoint` one for each endpoint.

    Plugins read pool values with `endpoints.pool(key)`, endpoint numbers as columns, as `endpoint-attribute-scorer` does. A missing value,
    or one of another type, is an error and keeps its old value; the others are written. Unknown endpoints are skipped.
    """

    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: JsonValuesParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._values = tuple((value, value.key, _READERS[value.type][1], path_of(value.pointer)) for value in parameters.values)

    @classmethod
    def subscriptions(cls, parameters: JsonValuesParameters) -> Subscriptions:
        return Subscriptions(produces=tuple(value.key for value in parameters.values))

    def collect(self, payload: JsonDocument, writer: ColumnWriter) -> None:
        missing = []
        for value, key, read, path in self._values:
            found = at(payload.root, path)
            if value.per_endpoint:
                if not isinstance(found, dict):
                    missing.append(f"no object at '{value.pointer}'")
                else:
                    _write_each(found, key, read, writer)
            elif (converted := read(found)) is None:
                missing.append(f"no {value.type} at '{value.pointer}'")
            else:
                writer.set_pool(key, converted)
        if missing:
            raise Unavailable(f"the document has {', '.join(missing)}")


def _write_each(found: Mapping[str, object], key: DataKey[Any], read: Callable[[object], object | None], writer: ColumnWriter) -> None:
    for endpoint in writer.endpoints():
        for name in (endpoint.name, endpoint.name.rpartition("/")[2], endpoint.address):
            if (converted := read(found.get(name, _ABSENT))) is not None:
                writer.set(key, converted, endpoint)
                break


def path_of(pointer: str) -> tuple[str, ...]:
    """Split a JSON pointer (RFC 6901) into its unescaped steps."""
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])


def at(root: object, path: tuple[str, ...]) -> object:
    """Return the value at a path, or `_ABSENT`."""
    for step in path:
        if isinstance(root, dict):
            root = root.get(step, _ABSENT)
        elif isinstance(root, list) and _INDEX.fullmatch(step):
            root = root[int(step)] if int(step) < len(root) else _ABSENT
        else:
            return _ABSENT
    return root
