"""Discovery of listed endpoints: `file-discovery`, `multicluster-file-discovery`, `static-discovery` and `dns-discovery`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, Field

from endpick.api import ConfigurationError, Duration, Endpoint, PluginContext, Stability
from endpick.api.discovery import EndpointDiscovery, EndpointRegistry
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.endpoint_file import MODEL_SERVERS, EndpointFile, EntryRules, ip_address, read_endpoint_file

if TYPE_CHECKING:
    import dns.asyncresolver
    import dns.rdata


LOOK_INTERVAL_SECONDS = 1.0
_LOGGED_LINES = 20


class FileDiscoveryParameters(CamelParameters):
    """Names the file of endpoints, and sets whether to follow its changes."""

    path: Annotated[
        str,
        Field(
            min_length=1,
            description="YAML or JSON file of endpoints; relative to the working directory.",
            examples=["endpoints.yaml"],
        ),
    ]
    watch_file: Annotated[bool, Field(description="Follow changes of the file, within about a second.")] = False


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
            content = await asyncio.to_thread(self._path.read_bytes)
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
            content = await asyncio.to_thread(self._path.read_bytes)
        except (OSError, ValueError) as error:
            if (trouble := _reason(error)) != self._trouble:
                self._trouble = trouble
                self.context.logger.warning("endpoint file %s cannot be read, endpoints stay as they are: %s", self._path, trouble)
            return seen
        self._trouble = ""
        if content != seen:
            self._apply(await asyncio.to_thread(read_endpoint_file, content, self.rules), registry)
        return content

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
    """Return an IP address or a DNS name (RFC 1123); raises ValueError."""
    try:
        return ip_address(text)
    except ValueError:
        # Digits and dots alone are a misspelt address.
        if len(text) <= _LONGEST_NAME and _DNS_NAME.fullmatch(text) and not text.replace(".", "").isdigit():
            return text
        raise


def metrics_of(_host: str, port: int, labels: Mapping[str, str]) -> str:
    """Return the metrics address in the labels, or an empty text; raises ValueError."""
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


class StaticEndpoint(CamelParameters):
    """One endpoint, with the fields of an endpoints file."""

    name: Annotated[str, Field(min_length=1, description="Unique in its namespace.")]
    namespace: Annotated[str, Field(min_length=1, description="Part of the endpoint's name.")] = "default"
    address: Annotated[str, AfterValidator(ip_address), Field(description="IP address, without brackets.")]
    port: Annotated[int, Field(ge=1, le=65535, description="TCP port of the model server.")]
    labels: Annotated[dict[str, str], Field(description="Labels, which filters and engines read.")] = {}  # noqa: RUF012


class StaticDiscoveryParameters(CamelParameters):
    """Lists the endpoints of the pool."""

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
        for endpoint in self.parameters.endpoints:
            name = f"{endpoint.namespace}/{endpoint.name}"
            if name in found:
                raise ConfigurationError(f"two of its endpoints are called '{name}'; give one of them another name")
            found[name] = Endpoint(name, endpoint.address, endpoint.port, dict(endpoint.labels))
        registry.replace_all(found.values())
        registry.ready()


_LIFETIME_SECONDS = 5.0  # for one look-up, over all name servers
_PARALLEL_LOOKUPS = 16  # targets of SRV records that are looked up at the same time


class DnsDiscoveryParameters(CamelParameters):
    """Names the domain, and sets how often it is looked up."""

    hostname: Annotated[
        str,
        Field(
            min_length=1,
            description="Full domain name, without search domains: of servers, or with `records: SRV` of a service.",
            examples=["vllm.models.svc.cluster.local", "_http._tcp.vllm.models.svc.cluster.local"],
        ),
    ]
    port: Annotated[int, Field(ge=1, le=65535, description="Port of each address; SRV records have their own.")] = 8000
    records: Annotated[Literal["A", "AAAA", "SRV"], Field(description="Type of the records.")] = "A"
    nameserver: Annotated[str, Field(description="IP address of the name server; empty for those of /etc/resolv.conf.")] = ""
    nameserver_port: Annotated[int, Field(ge=1, le=65535, description="Port of the name servers.")] = 53
    shortest_interval: Annotated[Duration, Field(gt=0, description="Minimum time between two look-ups.")] = 1.0
    longest_interval: Annotated[Duration, Field(gt=0, description="Maximum time between two look-ups, for records with a longer TTL.")] = (
        30.0
    )
    labels: Annotated[dict[str, str], Field(default_factory=dict, description="Labels of every endpoint.")]


class _Records(NamedTuple):
    records: tuple[dns.rdata.Rdata, ...]
    ttl_seconds: float


_NO_RECORDS = _Records((), 0.0)


class DnsDiscovery(EndpointDiscovery[DnsDiscoveryParameters]):
    """Takes the pool from DNS: the addresses of a name (a headless Service), or the targets and ports of SRV records.

    An endpoint is named `dns/address:port`. The name is looked up again when its first record expires, within `shortestInterval` and
    `longestInterval`. A name that does not exist or has no records has no endpoints; if the look-up fails, the pool stays as it is. Of SRV
    records those with the lowest priority count; weights are left to scorers. Needs `pip install 'endpick[dns]'`.
    """

    def __init__(self, name: str, parameters: DnsDiscoveryParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        try:
            import dns.asyncresolver  # noqa: PLC0415 - an extra
            import dns.exception  # noqa: PLC0415
            import dns.name  # noqa: PLC0415
            import dns.resolver  # noqa: PLC0415
        except ImportError as error:
            raise ConfigurationError("dns-discovery needs dnspython", "pip install 'endpick[dns]'") from error
        self._dns = dns
        try:
            dns.name.from_text(parameters.hostname)
        except (dns.exception.DNSException, UnicodeError) as error:
            raise ConfigurationError(f"`hostname` is not a domain name: '{parameters.hostname}'") from error
        self._trouble = ""

    async def run(self, registry: EndpointRegistry) -> None:
        """Follow the name until cancelled."""
        parameters = self.parameters
        while True:
            seconds = 0.0
            try:
                addresses, seconds = await self._look_up()
            except (self._dns.exception.DNSException, OSError) as error:
                if str(error) != self._trouble:
                    self._trouble = str(error)
                    self.context.logger.warning("endpoints stay as they are: %s cannot be looked up: %s", parameters.hostname, error)
            else:
                self._trouble = ""
                registry.replace_all([self._endpoint(host, port) for host, port in sorted(addresses)])
                registry.ready()
            await asyncio.sleep(max(parameters.shortest_interval, min(seconds, parameters.longest_interval)))

    async def _look_up(self) -> tuple[set[tuple[str, int]], float]:
        parameters = self.parameters
        resolver = await asyncio.to_thread(self._resolver)  # reads /etc/resolv.conf, which may have changed
        found = await self._resolve(resolver, parameters.hostname, parameters.records)
        if parameters.records != "SRV":
            return {(record.to_text(), parameters.port) for record in found.records}, found.ttl_seconds
        first = min((record.priority for record in found.records), default=0)  # type: ignore[attr-defined]
        services = [
            (str(record.target), record.port)  # type: ignore[attr-defined]
            for record in found.records
            if record.priority == first and str(record.target) != "."  # type: ignore[attr-defined]  # RFC 2782: no such service
        ]
        limit = asyncio.Semaphore(_PARALLEL_LOOKUPS)

        async def look_up(target: str) -> _Records:
            async with limit:
                return await self._resolve(resolver, target, "A")

        targets = sorted({target for target, _ in services})
        by_target = dict(zip(targets, await asyncio.gather(*map(look_up, targets)), strict=True))
        addresses = {(record.to_text(), port) for target, port in services for record in by_target[target].records}
        return addresses, min([found.ttl_seconds, *(records.ttl_seconds for records in by_target.values())])

    def _resolver(self) -> dns.asyncresolver.Resolver:
        parameters = self.parameters
        resolver: dns.asyncresolver.Resolver = self._dns.asyncresolver.Resolver(configure=not parameters.nameserver)
        if parameters.nameserver:
            resolver.nameservers = [parameters.nameserver]
        resolver.port = parameters.nameserver_port
        return resolver

    async def _resolve(self, resolver: dns.asyncresolver.Resolver, name: str, kind: str) -> _Records:
        try:
            answer = await resolver.resolve(name, kind, search=False, lifetime=_LIFETIME_SECONDS)
        except (self._dns.resolver.NXDOMAIN, self._dns.resolver.NoAnswer):
            return _NO_RECORDS
        return _Records(tuple(answer), answer.chaining_result.minimum_ttl)

    def _endpoint(self, host: str, port: int) -> Endpoint:
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return Endpoint(f"dns/{address}", host, port, self.parameters.labels)
