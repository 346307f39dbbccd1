"""`dns-discovery`: an endpoint for each address of a name, asked for again when the answer has come to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from time import perf_counter
from typing import Annotated, Literal

from pydantic import Field

from endpick.api import (
    ConfigurationError,
    Duration,
    Endpoint,
    EndpointDiscovery,
    EndpointRegistry,
    Limit,
    Limits,
    Parameters,
    PluginContext,
)
from endpick_builtin.discovery.dns_client import PORT, REST_PER_TURN, TURN_SECONDS, LookupFailedError, look_up, servers_of
from endpick_builtin.discovery.dns_messages import Answer, Record, RecordType, Status, question

MOST_ALIASES = 16
"""Unless `maxAliases` says otherwise."""
_MANY_ALIASES = Limit(
    "maxAliases",
    "endpoints stay as they are: a name is an alias more often than maxAliases allows; name where it leads in hostname, or raise it",
)

MOST_TARGETS = 1024
"""Unless `maxTargets` says otherwise."""
_TARGETS_AT_ONCE = 16
"""Looked up at the same time; each question has a descriptor of its own."""
_SECONDS_PER_CHANGE = 0.001
"""For each endpoint that was not there before the name is asked for so much later: beside thousands that are others each time requests
would have no time."""
_MANY_TARGETS = Limit(
    "maxTargets",
    "endpoints are left out: SRV records name more servers than maxTargets; raise maxTargets, or ask for the addresses of one name",
)


class TooManyAliasesError(LookupFailedError):
    """The name leads from alias to alias."""


class DnsDiscoveryParameters(Parameters):
    """Which name, and how often it is asked for."""

    hostname: Annotated[
        str,
        Field(
            min_length=1,
            description="Full domain name, without search domains: of servers, or, with `records: SRV`, of a service.",
            examples=["vllm.models.svc.cluster.local", "_http._tcp.vllm.models.svc.cluster.local"],
        ),
    ]
    port: Annotated[int, Field(ge=1, le=65535, description="Port of each address; SRV records bring their own.")] = 8000
    records: Annotated[Literal["A", "AAAA", "SRV"], Field(description="Which records are asked for.")] = "A"
    nameserver: Annotated[str, Field(description="IP address of the name server; empty for those of /etc/resolv.conf.")] = ""
    nameserver_port: Annotated[int, Field(alias="nameserverPort", ge=1, le=65535, description="Port of name servers.")] = PORT
    shortest_interval: Annotated[
        Duration, Field(alias="shortestInterval", gt=0, description="Soonest after an answer that the name is asked for again.")
    ] = 1.0
    longest_interval: Annotated[
        Duration, Field(alias="longestInterval", gt=0, description="Latest after an answer, for records that live longer.")
    ] = 30.0
    labels: Annotated[dict[str, str], Field(default_factory=dict, description="Of every endpoint.")]
    max_targets: Annotated[
        int, Field(alias="maxTargets", ge=1, description="Servers named by SRV records that are looked up; others are left out.")
    ] = MOST_TARGETS
    max_aliases: Annotated[
        int, Field(alias="maxAliases", ge=1, le=1000, description="Aliases that may lead from a name to its records.")
    ] = MOST_ALIASES


class DnsDiscovery(EndpointDiscovery[DnsDiscoveryParameters]):
    """Takes the pool from DNS: the addresses of a name (a headless Service), or the targets and ports of SRV records.

    An endpoint is named `dns/address:port`. The name is asked for again when its shortest-lived record ends, but not before
    `shortestInterval`, or a millisecond for each endpoint that is new, and no later than `longestInterval`. While no server can say, the
    pool stays as it is, and the log says so once, as for an answer about other names; a name that does not exist, or has no records, has
    no endpoints. Of SRV records those of the lowest priority count; their weights do not, for scorers know better; of their targets
    `maxTargets` are looked up at most, 16 at a time.
    """

    def __init__(self, name: str, parameters: DnsDiscoveryParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._trouble = ""
        self._known: dict[str, Endpoint] = {}
        """By address."""
        self._settle_seconds = 0.0
        """After the latest answer, for what changed with it."""
        self._limits = Limits(context, (_MANY_ALIASES, _MANY_TARGETS))

    async def run(self, registry: EndpointRegistry) -> None:
        """Follow the name until cancelled.

        Raises:
            ConfigurationError: it is no domain name.
        """
        parameters = self.parameters
        try:
            question(0, parameters.hostname, RecordType.A)
        except ValueError as problem:
            raise ConfigurationError(f"`hostname` is no domain name: '{parameters.hostname}'") from problem
        while True:
            try:
                endpoints, seconds = await self._found()
            except TooManyAliasesError as problem:
                seconds = parameters.shortest_interval
                self._limits.acted(_MANY_ALIASES, about=str(problem))
            except LookupFailedError as problem:
                seconds = parameters.shortest_interval
                if str(problem) != self._trouble:
                    self._trouble = str(problem)
                    self.context.logger.warning("endpoints stay as they are: %s", problem)
            else:
                self._trouble = ""
                registry.replace_all(endpoints)
                registry.ready()
            await asyncio.sleep(max(parameters.shortest_interval, self._settle_seconds, min(seconds, parameters.longest_interval)))

    async def _found(self) -> tuple[list[Endpoint], float]:
        """The endpoints of now, and for how many seconds they hold."""
        parameters = self.parameters
        named = (parameters.nameserver,) if parameters.nameserver else await asyncio.to_thread(servers_of)
        servers = [(server, parameters.nameserver_port) for server in named]
        kind = RecordType[parameters.records]
        answer = await look_up(servers, parameters.hostname, kind)
        found = _of_name(answer, parameters.hostname, kind, parameters.max_aliases)
        if kind is not RecordType.SRV:
            return await self._endpoints({(record.value, parameters.port) for record in found}), _life(found)
        first = min((record.priority for record in found), default=0)
        # RFC 2782: a target that is the root says that there is no such service.
        services = [record for record in found if record.priority == first and record.value]
        found_of = await self._looked_up(servers, answer, sorted({service.value for service in services}))
        addresses = {(record.value, service.port) for service in services for record in found_of.get(service.value, ())}
        return await self._endpoints(addresses), min([_life(found), *map(_life, found_of.values())])

    async def _looked_up(self, servers: Sequence[tuple[str, int]], answer: Answer, targets: Sequence[str]) -> dict[str, list[Record]]:
        """The addresses of each target, where the server did not send them along; some are asked for at the same time."""
        most, aliases = self.parameters.max_targets, self.parameters.max_aliases
        if len(targets) > most:
            self._limits.acted(_MANY_TARGETS, about=self.parameters.hostname)
        found: dict[str, list[Record]] = {}
        sent: dict[str, list[Record]] = {}
        for record in answer.records:
            if record.type in (RecordType.A, RecordType.AAAA):
                sent.setdefault(record.name, []).append(record)
        waiting = iter(targets[:most])

        async def look_up_some() -> None:
            for target in waiting:
                answered = sent.get(target)
                found[target] = answered or _of_name(await look_up(servers, target, RecordType.A), target, RecordType.A, aliases)

        await _all_of(look_up_some() for _ in range(_TARGETS_AT_ONCE))
        return found

    async def _endpoints(self, addresses: set[tuple[str, int]]) -> list[Endpoint]:
        """Those of before, as far as they are there still, and others, made with turns for everything else."""
        labels, known, count = dict(self.parameters.labels), self._known, 0
        self._known = {}
        began = perf_counter()
        for host, port in sorted(addresses):
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            endpoint = known.get(address)
            if endpoint is None:
                endpoint, count = Endpoint(f"dns/{address}", host, port, labels), count + 1
            self._known[address] = endpoint
            took = perf_counter() - began
            if took > TURN_SECONDS:
                await asyncio.sleep(took * REST_PER_TURN)
                began = perf_counter()
        self._settle_seconds = count * _SECONDS_PER_CHANGE
        return list(self._known.values())


def _of_name(answer: Answer, name: str, kind: RecordType, most_aliases: int) -> list[Record]:
    """The records of a name, or of what it is an alias for; each lives no longer than the aliases that lead to it.

    Raises:
        TooManyAliasesError: it is an alias too often, perhaps of itself.
        LookupFailedError: the answer is about other names alone.
    """
    wanted, life = name.rstrip(".").lower(), 2**31
    if answer.status == Status.NO_SUCH_NAME:
        return []
    answered = answer.records[: answer.answers]
    if answered and all(record.name != wanted for record in answered):
        raise LookupFailedError(f"{name} cannot be looked up: the answer is about other names, such as {answered[0].name}")
    for _ in range(1 + most_aliases):
        found = [record for record in answer.records if record.name == wanted and record.type == kind]
        if found:
            return [Record(one.name, one.type, min(one.ttl, life), one.value, one.port, one.priority) for one in found]
        alias = next((record for record in answer.records if record.name == wanted and record.type == RecordType.CNAME), None)
        if alias is None:
            return []
        wanted, life = alias.value, min(life, alias.ttl)
    raise TooManyAliasesError(f"'{name}' has more than {most_aliases} aliases")


async def _all_of(parts: Iterable[Coroutine[None, None, None]]) -> None:
    """Run them together; the first that fails ends the others.

    Raises:
        LookupFailedError: from the first that failed.
    """
    try:
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(part)
    except* LookupFailedError as failures:
        first: BaseException = failures
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
    else:
        return
    raise first


def _life(records: list[Record]) -> float:
    """Seconds until the first of them ends; none where there are none, so that the shortest interval holds."""
    return min((record.ttl for record in records), default=0)
