"""`dns-discovery`: an endpoint for each address of a DNS name."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import Field

from endpick.api import ConfigurationError, Duration, Endpoint, Parameters, PluginContext
from endpick.api.discovery import EndpointDiscovery, EndpointRegistry

if TYPE_CHECKING:
    import dns.asyncresolver
    import dns.rdata

_LIFETIME_SECONDS = 5.0  # for one look-up, over all name servers
_PARALLEL_LOOKUPS = 16  # targets of SRV records that are looked up at the same time


class DnsDiscoveryParameters(Parameters):
    """The name, and how often it is looked up."""

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
    nameserver_port: Annotated[int, Field(alias="nameserverPort", ge=1, le=65535, description="Port of the name servers.")] = 53
    shortest_interval: Annotated[Duration, Field(alias="shortestInterval", gt=0, description="Minimum time between two look-ups.")] = 1.0
    longest_interval: Annotated[
        Duration, Field(alias="longestInterval", gt=0, description="Maximum time between two look-ups, for records with a longer TTL.")
    ] = 30.0
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
            raise ConfigurationError("dns-discovery needs dnspython: pip install 'endpick[dns]'") from error
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
        """Addresses with ports, and the seconds until the first record expires."""
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
        return addresses, min([found.ttl_seconds, *(each.ttl_seconds for each in by_target.values())])

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
