"""`file-discovery`, `multicluster-file-discovery` and `static-discovery`: listed endpoints."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from endpick.api import ConfigurationError, Endpoint, Parameters, PluginContext, Stability
from endpick.api.discovery import EndpointDiscovery, EndpointRegistry
from endpick_builtin.addresses import ip_address
from endpick_builtin.discovery.endpoint_file import MODEL_SERVERS, EndpointFile, EntryRules, read_endpoint_file

LOOK_INTERVAL_SECONDS = 1.0
_LOGGED_LINES = 20


class FileDiscoveryParameters(Parameters):
    """The file."""

    path: Annotated[
        str,
        Field(
            min_length=1,
            description="YAML or JSON file of endpoints; relative to the working directory.",
            examples=["endpoints.yaml"],
        ),
    ]
    watch_file: Annotated[bool, Field(alias="watchFile", description="Follow changes of the file, within about a second.")] = False


class FileDiscovery(EndpointDiscovery[FileDiscoveryParameters]):
    """Takes the pool from a file in llm-d's format: `endpoints:`, a list of `{name, namespace, address, port, labels}`.

    `namespace` defaults to `default`; `address` is an IP address; `port` is text (`"8000"`) or a number. The last of two entries with one
    name wins. At start every entry must be valid. `watchFile` reads once a second, also through swapped ConfigMap links: mistakes are
    logged, an invalid entry keeps its last valid state, and the pool stays while the file is unreadable.
    """

    rules: ClassVar[EntryRules] = MODEL_SERVERS

    def __init__(self, name: str, parameters: FileDiscoveryParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._path = Path(parameters.path)
        self._pool: dict[str, Endpoint] = {}
        self._trouble = ""

    async def run(self, registry: EndpointRegistry) -> None:
        try:
            content = await asyncio.to_thread(self._read)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"endpoint file {self._path} cannot be read: {_reason(error)}") from error
        file = await asyncio.to_thread(read_endpoint_file, content, self.rules)
        if file.mistakes:
            listed = "".join(f"\n  {mistake}" for mistake in file.mistakes)
            count = len(file.mistakes)
            raise ConfigurationError(f"endpoint file {self._path} has {count} mistake{'s' if count > 1 else ''}:{listed}")
        self._apply(file, registry)
        registry.ready()
        while self.parameters.watch_file:
            await asyncio.sleep(LOOK_INTERVAL_SECONDS)
            content = await self._follow(content, registry)

    async def _follow(self, seen: bytes, registry: EndpointRegistry) -> bytes:
        try:
            content = await asyncio.to_thread(self._read)
        except (OSError, ValueError) as error:
            if (trouble := _reason(error)) != self._trouble:
                self._trouble = trouble
                self.context.logger.warning("endpoint file %s cannot be read, endpoints stay as they are: %s", self._path, trouble)
            return seen
        self._trouble = ""
        if content != seen:
            self._apply(await asyncio.to_thread(read_endpoint_file, content, self.rules), registry)
        return content

    def _read(self) -> bytes:
        return Path(self._path).read_bytes()

    def _apply(self, file: EndpointFile, registry: EndpointRegistry) -> None:
        for mistake in _first_of(file.mistakes):
            self.context.logger.error("endpoint file %s, %s", self._path, mistake)
        for remark in _first_of(file.remarks):
            self.context.logger.warning("endpoint file %s, %s", self._path, remark)
        if file.endpoints is None:
            return
        kept = {mistake.endpoint: self._pool[mistake.endpoint] for mistake in file.mistakes if mistake.endpoint in self._pool}
        self._pool = kept | {endpoint.name: endpoint for endpoint in file.endpoints}
        registry.replace_all(self._pool.values())


def _first_of(lines: Iterable[object]) -> list[str]:
    shown = [str(line) for line in lines]
    more = len(shown) - _LOGGED_LINES
    return [*shown[:_LOGGED_LINES], f"and {more} lines more"] if more > 0 else shown


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


METRICS_ADDRESS_LABEL = "metricsAddress"
METRICS_PORT_LABEL = "metricsPort"
_DNS_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DNS_NAME = re.compile(rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*", re.ASCII)
_LONGEST_NAME = 253


def host_of(text: str) -> str:
    """Return an IP address or a DNS name (RFC 1123). Raises ValueError."""
    try:
        return ip_address(text)
    except ValueError:
        # Digits and dots alone are a misspelt address.
        if len(text) <= _LONGEST_NAME and _DNS_NAME.fullmatch(text) and not text.replace(".", "").isdigit():
            return text
        raise


def metrics_of(_host: str, port: int, labels: Mapping[str, str]) -> str:
    """The metrics address in the labels, or "". Raises ValueError."""
    address, given = labels.get(METRICS_ADDRESS_LABEL, ""), labels.get(METRICS_PORT_LABEL, "")
    if not address:
        return ""
    try:
        host = host_of(address)
    except ValueError:
        raise ValueError(f"label '{METRICS_ADDRESS_LABEL}' must be an IP address or a DNS name, not '{address}'") from None
    if given and not (given.isascii() and given.isdigit() and 1 <= int(given) <= 65535):
        raise ValueError(f"label '{METRICS_PORT_LABEL}' must be \"1\" to \"65535\", not '{given}'")
    return Endpoint("", host, int(given or port)).address


class MulticlusterFileDiscovery(FileDiscovery):
    """Takes clusters from a file in the format of `file-discovery`; each entry is the gateway of one cluster.

    `address` is an IP address or a DNS name. The labels `metricsAddress` and `metricsPort` locate the endpoint picker's metrics; they
    default to the endpoint's own.
    """

    stability = Stability.EXPERIMENTAL
    rules = EntryRules(host_of, "an IP address or a DNS name", metrics_of)


class StaticEndpoint(BaseModel):
    """One endpoint, with the fields of an endpoints file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, description="Unique in its namespace.")]
    namespace: Annotated[str, Field(min_length=1, description="Part of the endpoint's name.")] = "default"
    address: Annotated[str, AfterValidator(ip_address), Field(description="IP address, without brackets.")]
    port: Annotated[int, Field(ge=1, le=65535, description="TCP port of the model server.")]
    labels: Annotated[dict[str, str], Field(description="Labels, which filters and engines read.")] = {}


class StaticDiscoveryParameters(Parameters):
    """The endpoints."""

    endpoints: Annotated[
        tuple[StaticEndpoint, ...],
        Field(
            min_length=1,
            description="All endpoints of the pool.",
            examples=[[{"name": "a", "address": "10.0.0.1", "port": 8000, "labels": {"llm-d.ai/role": "decode"}}]],
        ),
    ]


class StaticDiscovery(EndpointDiscovery[StaticDiscoveryParameters]):
    """Takes the pool from its parameters, for a few servers with fixed addresses. Two endpoints of one name are a mistake."""

    async def run(self, registry: EndpointRegistry) -> None:
        found: dict[str, Endpoint] = {}
        for each in self.parameters.endpoints:
            name = f"{each.namespace}/{each.name}"
            if name in found:
                raise ConfigurationError(f"two of its endpoints are called '{name}'; give one of them another name")
            found[name] = Endpoint(name, each.address, each.port, dict(each.labels))
        registry.replace_all(found.values())
        registry.ready()
