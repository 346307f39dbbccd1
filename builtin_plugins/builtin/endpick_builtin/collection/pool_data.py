"""`http-pool-source` and `json-values-extractor`: a JSON document that speaks of the whole pool, and the values in it."""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

import orjson
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from endpick.api import (
    ColumnWriter,
    ConfigurationError,
    DataCollector,
    DataKey,
    Duration,
    Limit,
    Limits,
    Parameters,
    PluginContext,
    PollingPoolSource,
    Scope,
    Stability,
    Subscriptions,
    Unavailable,
)
from endpick_builtin.collection.http_pages import HttpPages
from endpick_builtin.collection.json_answers import refuse_too_many_parts
from endpick_builtin.collection.page_limits import MAX_PAGE_BYTES, PAGE_BYTES, SOURCE_LIMITS, PageSize

_TIMEOUT = Limit("timeout", "a look at the document was given up: it took longer than timeout; raise it, or see what keeps its server")
_GRACE_SECONDS = 1.0
"""How much later than the source the host gives a look up."""


@dataclass(frozen=True, slots=True)
class JsonDocument:
    """The payload: a document that was read, of whatever JSON holds."""

    root: object


class PoolSourceParameters(Parameters):
    """Where the document is."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"url": "http://127.0.0.1:8090/pool.json"}]})

    url: Annotated[str, Field(description="URL of the document, `http://` or `https://`; this or `path`.")] = ""
    path: Annotated[str, Field(description="File that holds the document; this or `url`.")] = ""
    interval: Annotated[Duration, Field(gt=0, description="Time from one look to the next.")] = 10.0
    timeout: Annotated[Duration, Field(gt=0, description="A look that takes longer counts as failed.")] = 5.0
    ca_cert_path: Annotated[
        str, Field(alias="caCertPath", description="With https: PEM file of the authorities to trust, instead of the system's.")
    ] = ""
    insecure_skip_verify: Annotated[bool, Field(alias="insecureSkipVerify", description="With https: accept any certificate.")] = False
    max_page_bytes: PAGE_BYTES = MAX_PAGE_BYTES

    @field_validator("url")
    @classmethod
    def _is_a_url(cls, url: str) -> str:
        """Its text is not repeated: a password or a key may be in it."""
        if not url.isascii() or any(character.isspace() for character in url):
            raise ValueError("a URL has ASCII characters and no blanks: escape others as %20")
        try:
            parts = urlsplit(url)
            port = parts.port
            usable = parts.scheme in ("http", "https") and parts.hostname
        except ValueError:
            usable = False
        if url and not usable:
            raise ValueError("it is no URL; write http://host:port/path")
        if url and port == 0:
            raise ValueError("port 0 is none")
        return url

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        if bool(self.url) == bool(self.path):
            raise ValueError("give url or path, and not both")
        return self


class HttpPoolSource(PollingPoolSource[PoolSourceParameters, JsonDocument]):
    """Looks at an interval at a JSON document that speaks of the whole pool: on an HTTP server, or in a file.

    Any answer but status 200, more than `maxPageBytes`, and what is no JSON, counts as failed: what is known stays as it was and grows
    older, and the next look is soon at first, then after ever longer.
    """

    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: PoolSourceParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self.interval_seconds = parameters.interval
        self.timeout_seconds = parameters.timeout + _GRACE_SECONDS
        self._limits = Limits(context, (_TIMEOUT, *SOURCE_LIMITS))
        self._longest = PageSize(parameters.max_page_bytes)
        self._pages: HttpPages | None = None

    async def start(self) -> None:
        """Open the connection pool.

        Raises:
            ConfigurationError: the file of authorities does not work.
        """
        tls = self._tls() if self.parameters.url.startswith("https:") else None
        self._pages = HttpPages(tls, "application/json", self._limits, self._longest)

    async def stop(self) -> None:
        """Close the connections."""
        if self._pages is not None:
            await self._pages.close()
            self._pages = None

    async def poll_pool(self) -> JsonDocument:
        """One look."""
        where = self.parameters.url or self.parameters.path
        try:
            async with asyncio.timeout(self.parameters.timeout):
                body = await (self._fetch() if self.parameters.url else self._read())
        except TimeoutError as problem:
            self._limits.acted(_TIMEOUT, about=where)
            raise Unavailable(f"{where}: no answer within {self.parameters.timeout:g} s") from problem
        refuse_too_many_parts(body, self._limits, where, self._longest)
        try:
            return JsonDocument(orjson.loads(body))
        except orjson.JSONDecodeError as problem:
            raise Unavailable(f"{where} is no JSON: {problem}") from problem

    async def _fetch(self) -> bytes:
        if self._pages is None:
            raise Unavailable("the source has not been started")
        parts = urlsplit(self.parameters.url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return await self._pages.get(f"{host}:{port}", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))

    async def _read(self) -> bytes:
        path = self.parameters.path
        body = await asyncio.to_thread(_read, path, self._longest.page_bytes)
        if len(body) > self._longest.page_bytes:
            self._limits.acted(self._longest.long_page, about=path)
            raise Unavailable(f"{path} is longer than {self._longest.shown}")
        return body

    def _tls(self) -> ssl.SSLContext:
        try:
            tls = ssl.create_default_context(cafile=self.parameters.ca_cert_path or None)
        except OSError as problem:
            raise ConfigurationError(f"source '{self.name}' cannot use {self.parameters.ca_cert_path}: {problem}") from problem
        if self.parameters.insecure_skip_verify:
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        return tls


def _read(path: str, most_bytes: int) -> bytes:
    """As much of the file as a page may have, and a byte more where there is one."""
    try:
        with Path(path).open("rb") as file:
            return file.read(most_bytes + 1)
    except OSError as problem:
        raise Unavailable(f"{path}: {problem.strerror or problem}") from problem


class ValueType(StrEnum):
    """What a value must be."""

    NUMBER = "number"
    TEXT = "text"
    BOOLEAN = "boolean"


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None  # type: ignore[arg-type]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _boolean(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


_READERS: Mapping[ValueType, tuple[type[Any], Callable[[object], object | None]]] = {
    ValueType.NUMBER: (float, _number),
    ValueType.TEXT: (str, _text),
    ValueType.BOOLEAN: (bool, _boolean),
}


class MappedValue(BaseModel):
    """A value of the document, and the data key it is kept under."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    attribute_key: Annotated[
        str, Field(alias="attributeKey", min_length=1, description="Name of the data key it is kept under, such as `acme.example/price`.")
    ]
    pointer: Annotated[
        str,
        Field(pattern=r"^(/([^~/]|~[01])*)*$", description="JSON pointer (RFC 6901) to it, such as `/energy/price`; empty for the whole."),
    ]
    type: Annotated[ValueType, Field(description="`number`, `text` or `boolean`; anything else at that place counts as missing.")] = (
        ValueType.NUMBER
    )
    per_endpoint: Annotated[
        bool,
        Field(
            alias="perEndpoint",
            description="Whether an object is there that holds one value for each endpoint, by its name, `namespace/name` or `host:port`.",
        ),
    ] = False

    @property
    def key(self) -> DataKey[Any]:
        """Where it is kept."""
        scope = Scope.ENDPOINT if self.per_endpoint else Scope.POOL
        return DataKey(self.attribute_key, _READERS[self.type][0], scope, doc=f"The value at {self.pointer or 'the root'} of a document.")


class JsonValuesParameters(Parameters):
    """Which values are of interest."""

    values: Annotated[
        tuple[MappedValue, ...],
        Field(
            min_length=1,
            description="What is kept of the document.",
            examples=[[{"attributeKey": "acme.example/price", "pointer": "/energy/price"}]],
        ),
    ]

    @model_validator(mode="after")
    def _keys_differ(self) -> Self:
        names = [value.attribute_key for value in self.values]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"attributeKey '{name}' is given {names.count(name)} times; give each value a key of its own")
        return self


_ABSENT = object()


class JsonValuesExtractor(DataCollector[JsonValuesParameters, JsonDocument]):
    """Keeps values of a JSON document under data keys: for the whole pool, or with `perEndpoint` one for each endpoint.

    Plugins read those of the pool with `endpoints.pool(key)`, and numbers of endpoints as any column: `endpoint-attribute-scorer` and
    `endpoint-attribute-filter` do. A value that is missing, or of another type, counts as an error and stays as it was; the others are
    written all the same. NaN and infinities are no JSON. Names of endpoints that are not in the pool are passed over.
    """

    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: JsonValuesParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._values = tuple((value, value.key, _READERS[value.type][1], path_of(value.pointer)) for value in parameters.values)

    @classmethod
    def subscriptions(cls, parameters: JsonValuesParameters) -> Subscriptions:
        """The keys that the parameters name."""
        return Subscriptions(produces=tuple(value.key for value in parameters.values))

    def collect(self, payload: JsonDocument, writer: ColumnWriter) -> None:
        """Read one document.

        Raises:
            Unavailable: some of the values are not there; the others are written.
        """
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
    """The steps of a JSON pointer (RFC 6901, section 4)."""
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])


def at(root: object, path: tuple[str, ...]) -> object:
    """What a path leads to; an object of no JSON type where it leads nowhere."""
    for step in path:
        if isinstance(root, dict):
            root = root.get(step, _ABSENT)
        elif isinstance(root, list) and step.isascii() and step.isdigit() and (step == "0" or step[0] != "0") and len(step) < 10:
            root = root[int(step)] if int(step) < len(root) else _ABSENT
        else:
            return _ABSENT
    return root
