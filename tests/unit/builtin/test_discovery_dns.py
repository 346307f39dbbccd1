"""`dns-discovery` against a name server on the loopback address."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager

import dns.message
import dns.rcode
import dns.rrset
import pytest

from endpick.api import ConfigurationError, PluginContext
from endpick.data.table import EndpointTable
from endpick_builtin.listed_discovery import DnsDiscovery, DnsDiscoveryParameters

pytestmark = pytest.mark.asyncio
NAME = "vllm.models.svc."


class NameServer(asyncio.DatagramProtocol):
    """Answers from `zone`: record texts by name and type; a name that is missing does not exist."""

    def __init__(self) -> None:
        self.zone: dict[tuple[str, str], list[str]] = {}
        self.rcode = dns.rcode.NOERROR

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, addr):
        asked = dns.message.from_wire(data)
        (question,) = asked.question
        answer = dns.message.make_response(asked)
        answer.set_rcode(self.rcode)
        name, kind = question.name.to_text(), dns.rdatatype.to_text(question.rdtype)
        if (name, "CNAME") in self.zone:
            (target,) = self.zone[name, "CNAME"]
            answer.answer.append(dns.rrset.from_text(name, 1, "IN", "CNAME", target))
            name = target
        if records := self.zone.get((name, kind)):
            answer.answer.append(dns.rrset.from_text(name, 1, "IN", kind, *records))
        elif not any(known == name for known, _ in self.zone):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        self.transport.sendto(answer.to_wire(), addr)


@asynccontextmanager
async def discovering(**parameters):
    server = NameServer()
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: server, local_addr=("127.0.0.1", 0))
    port = transport.get_extra_info("sockname")[1]
    given = {"hostname": NAME, "nameserver": "127.0.0.1", "nameserverPort": port, "shortestInterval": "20ms", "longestInterval": "20ms"}
    context = PluginContext(logger=logging.getLogger("tests.dns"))
    plugin = DnsDiscovery("dns", DnsDiscoveryParameters.model_validate(given | parameters), context)
    table = EndpointTable(lambda: 0.0)

    async def start() -> None:
        task.append(asyncio.create_task(plugin.run(table)))

    task: list[asyncio.Task[None]] = []
    try:
        yield server, table, start
    finally:
        for each in task:
            while not each.done():  # `asyncio.wait_for` of Python 3.11, which dnspython uses, can lose a cancellation
                each.cancel()
                await asyncio.wait((each,), timeout=0.1)
        transport.close()


async def becomes(table: EndpointTable, *addresses: str) -> None:
    async with asyncio.timeout(10):
        while sorted(endpoint.address for endpoint in table.view()) != sorted(addresses) or not table.is_ready.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("kind", "value", "address"), [("A", "10.0.0.1", "10.0.0.1:8000"), ("AAAA", "fd00::1", "[fd00::1]:8000")])
async def test_addresses_of_a_name_are_endpoints(kind, value, address):
    async with discovering(records=kind, labels={"role": "decode"}) as (server, table, start):
        server.zone[NAME, kind] = [value]
        await start()
        await becomes(table, address)
        (endpoint,) = table.view()
        assert (endpoint.name, dict(endpoint.labels)) == (f"dns/{address}", {"role": "decode"})


async def test_changes_of_the_records_are_followed():
    async with discovering() as (server, table, start):
        server.zone[NAME, "A"] = ["10.0.0.1", "10.0.0.2"]
        await start()
        await becomes(table, "10.0.0.1:8000", "10.0.0.2:8000")
        server.zone[NAME, "A"] = ["10.0.0.2"]
        await becomes(table, "10.0.0.2:8000")
        server.zone.clear()
        await becomes(table)


async def test_an_alias_is_followed():
    async with discovering() as (server, table, start):
        server.zone[NAME, "CNAME"] = ["real.svc."]
        server.zone["real.svc.", "A"] = ["10.0.0.3"]
        await start()
        await becomes(table, "10.0.0.3:8000")


async def test_targets_of_the_first_priority_of_srv_are_endpoints():
    async with discovering(records="SRV") as (server, table, start):
        server.zone[NAME, "SRV"] = ["1 1 8001 a.svc.", "1 5 8002 b.svc.", "2 1 8003 c.svc."]
        server.zone["a.svc.", "A"] = ["10.0.0.1", "10.0.0.2"]
        server.zone["b.svc.", "A"] = ["10.0.0.1"]
        await start()
        await becomes(table, "10.0.0.1:8001", "10.0.0.2:8001", "10.0.0.1:8002")


async def test_failing_name_server_keeps_the_pool_and_is_logged_once(caplog):
    async with discovering() as (server, table, start):
        server.zone[NAME, "A"] = ["10.0.0.1"]
        await start()
        await becomes(table, "10.0.0.1:8000")
        server.rcode = dns.rcode.REFUSED
        async with asyncio.timeout(10):
            while not caplog.records:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert len(caplog.records) == 1
        assert "endpoints stay as they are" in caplog.text
        assert len(table.view()) == 1


async def test_a_hostname_that_is_none_is_refused():
    with pytest.raises(ConfigurationError, match="`hostname` is not a domain name"):
        DnsDiscovery("dns", DnsDiscoveryParameters(hostname="a..b"), PluginContext())
