"""DNS discovery: addresses and services of a name, for as long as they live."""

from __future__ import annotations

import asyncio
import itertools
import logging
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import ConfigurationError, PluginContext
from endpick.data.table import EndpointTable
from endpick_builtin.discovery import dns_client, dns_discovery
from endpick_builtin.discovery.dns_client import servers_of
from endpick_builtin.discovery.dns_discovery import DnsDiscovery, DnsDiscoveryParameters
from endpick_builtin.discovery.dns_messages import MessageError, RecordType, question, reading
from unit.builtin.name_server import AAAA, CNAME, SRV, A, NameServer, answering, record

NAME = "vllm.models.svc"


@asynccontextmanager
async def discovering(server: NameServer, **parameters: object):
    """The table of a discovery that asks this server; nothing says that it is ready."""
    given = {"hostname": NAME, "nameserver": "127.0.0.1", "nameserverPort": server.port, "shortestInterval": "20ms", **parameters}
    context = PluginContext(logger=logging.getLogger("tests.dns"))
    table = EndpointTable(lambda: 0.0)
    task = asyncio.create_task(DnsDiscovery("dns", DnsDiscoveryParameters.model_validate(given), context).run(table))
    try:
        yield table
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def addresses(table: EndpointTable) -> list[str]:
    return [endpoint.address for endpoint in table.view()]


async def becomes(table: EndpointTable, expected: list[str]) -> None:
    async with asyncio.timeout(10):
        while not table.is_ready.is_set() or addresses(table) != expected:  # noqa: ASYNC110 - what is waited for happens in the plugin
            await asyncio.sleep(0.002)


@pytest.mark.asyncio
async def test_addresses_come_and_go_with_the_answers(caplog):
    one, two = record(NAME, A, 0, "10.0.0.1"), record(NAME, A, 0, "10.0.0.2")
    async with answering(NameServer([one])) as server, discovering(server, labels={"app": "vllm"}) as table:
        await becomes(table, ["10.0.0.1:8000"])
        assert [(each.name, dict(each.labels)) for each in table.view()] == [("dns/10.0.0.1:8000", {"app": "vllm"})]
        server.records = [two, one]
        await becomes(table, ["10.0.0.1:8000", "10.0.0.2:8000"])
        server.status = 2
        async with asyncio.timeout(10):
            while "127.0.0.1 answers with status 2" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        assert addresses(table) == ["10.0.0.1:8000", "10.0.0.2:8000"], "nothing is known, so nothing changes"
        server.status = 3
        await becomes(table, [])


@pytest.mark.asyncio
async def test_an_answer_that_is_about_other_names_alone_changes_nothing(caplog):
    async with answering(NameServer([record(NAME, A, 0, "10.0.0.1")])) as server, discovering(server) as table:
        await becomes(table, ["10.0.0.1:8000"])
        server.records = [record("other", CNAME, 0, "other"), record("another", A, 0, "10.0.0.2")]
        async with asyncio.timeout(10):
            while "the answer is about other names, such as other" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        assert addresses(table) == ["10.0.0.1:8000"]
        server.records = []
        await becomes(table, [])


@pytest.mark.asyncio
async def test_an_answer_holds_for_as_long_as_its_shortest_lived_record():
    records = [record(NAME, CNAME, 1, "other"), record("other", A, 3600, "10.0.0.1")]
    async with answering(NameServer(records)) as server, discovering(server, hostname=NAME.upper() + ".") as table:
        await becomes(table, ["10.0.0.1:8000"])
        asked = server.asked
        server.records = [record(NAME, A, 3600, "10.0.0.2")]
        await becomes(table, ["10.0.0.2:8000"])
        assert server.asked == asked + 1


@pytest.mark.asyncio
@pytest.mark.parametrize(("aliases", "found"), [(3, ["10.0.0.1:8000"]), (4, [])])
async def test_as_many_aliases_lead_to_an_address_as_max_aliases_allows(caplog, aliases, found):
    names = [NAME, *(f"alias-{number}" for number in range(aliases))]
    chain = [record(name, CNAME, 1, alias) for name, alias in itertools.pairwise(names)]
    server = NameServer([*chain, record(names[-1], A, 1, "10.0.0.1")])
    async with answering(server), discovering(server, maxAliases=3) as table, asyncio.timeout(10):
        while not table.is_ready.is_set() and "raise it" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        assert addresses(table) == found


@pytest.mark.asyncio
async def test_records_that_live_long_are_asked_for_again_at_the_longest_interval():
    async with answering(NameServer([record(NAME, A, 3600, "10.0.0.1")])) as server, discovering(server, longestInterval="20ms") as table:
        await becomes(table, ["10.0.0.1:8000"])
        server.records = []
        await becomes(table, [])


@pytest.mark.asyncio
async def test_services_bring_their_ports_and_only_the_first_priority_counts():
    records = [
        record(NAME, SRV, 0, "a.example", 8001, priority=1),
        record(NAME, SRV, 0, "b.example", 8002, priority=1),
        record(NAME, SRV, 0, "c.example", 8003, priority=2),
        record("a.example", A, 0, "10.0.0.1"),
        record("b.example", AAAA, 0, "fd00::2"),
        record("c.example", A, 0, "10.0.0.3"),
    ]
    async with answering(NameServer(records)) as server, discovering(server, records="SRV") as table:
        await becomes(table, ["10.0.0.1:8001", "[fd00::2]:8002"])
        server.knows_all = False
        server.records = [record(NAME, SRV, 0, "lonely", 8004)]
        await becomes(table, [])


@pytest.mark.asyncio
async def test_a_service_at_the_root_is_none_and_one_at_no_name_cannot_be_looked_up():
    async with answering(NameServer([record(NAME, SRV, 0, "", 8001)])) as server:
        async with discovering(server, records="SRV") as table:
            await becomes(table, [])
        with pytest.raises(dns_client.LookupFailedError, match="is no domain name"):
            await dns_client.look_up([("127.0.0.1", server.port)], "a..b", RecordType.A)


class SlowlyAnswering(NameServer):
    """Answers questions about targets when so many wait for it, or refuses them all."""

    def __init__(self, targets: int, *, together: int, refuses: bool = False) -> None:
        super().__init__([record(NAME, SRV, 0, f"t{number}.example", 8000 + number % 2) for number in range(targets)])
        self.together, self.refuses = together, refuses
        self.waiting: list[tuple[bytes, object]] = []

    def datagram_received(self, data: bytes, addr) -> None:
        if b"example" not in data:
            super().datagram_received(data, addr)
            return
        self.waiting.append((data, addr))
        if len(self.waiting) == self.together:
            for number, (asked, sender) in enumerate(self.waiting):
                name = asked[12:].split(b"\0")[0][1:].partition(b"\x07")[0].decode() + ".example"
                self.records, kept = [record(name, A, 60, f"10.0.0.{int(name[1:-8])}")], self.records
                self.status = 2 if self.refuses and number == 3 else 0
                super().datagram_received(asked, sender)
                self.records, self.status = kept, 0
            self.waiting.clear()


@pytest.mark.asyncio
async def test_servers_of_services_are_looked_up_some_at_a_time():
    server = SlowlyAnswering(64, together=16)
    async with answering(server), discovering(server, records="SRV") as table:
        expected = sorted((f"10.0.0.{number}", 8000 + number % 2) for number in range(64))
        await becomes(table, [f"{host}:{port}" for host, port in expected])


@pytest.mark.asyncio
async def test_where_one_server_of_a_service_cannot_be_looked_up_the_pool_stays(caplog):
    server = SlowlyAnswering(16, together=16, refuses=True)
    async with answering(server), discovering(server, records="SRV") as table:
        async with asyncio.timeout(10):
            while "endpoints stay as they are" not in caplog.text:  # noqa: ASYNC110 - what is waited for happens in the plugin
                await asyncio.sleep(0.002)
        assert "answers with status 2" in caplog.text
        assert not table.is_ready.is_set()


@pytest.mark.asyncio
@pytest.mark.parametrize(("parameters", "taken"), [({}, 1024), ({"maxTargets": 3}, 3), ({"maxTargets": 1100}, 1100)])
async def test_as_many_servers_of_a_service_are_looked_up_as_max_targets_allows(parameters, taken):
    names = [f"t{number}" for number in range(1100)]
    records = [record("s", SRV, 30, name, 8000) for name in names]
    records += [record(name, A, 30, f"10.0.{number // 256}.{number % 256}") for number, name in enumerate(names)]
    server = NameServer(records, truncates=True)
    async with answering(server), discovering(server, hostname="s", records="SRV", **parameters) as table:
        await asyncio.wait_for(table.is_ready.wait(), 10)
        assert len(table.view()) == taken


@pytest.mark.asyncio
async def test_ipv6_addresses():
    both = NameServer([record(NAME, AAAA, 0, "fd00::2"), record(NAME, A, 0, "10.0.0.1")])
    async with answering(both) as server, discovering(server, records="AAAA") as table:
        await becomes(table, ["[fd00::2]:8000"])


@pytest.mark.asyncio
async def test_an_answer_that_does_not_fit_a_datagram_comes_by_stream_and_a_forged_one_is_passed_over():
    many = [record(NAME, A, 60, f"10.0.1.{last}") for last in range(1, 101)]
    async with answering(NameServer(many, truncates=True, lies=True)) as server, discovering(server) as table:
        await becomes(table, [f"{host}:8000" for host in sorted(f"10.0.1.{last}" for last in range(1, 101))])
        assert server.by_stream >= 1


@pytest.mark.asyncio
async def test_a_server_that_does_not_answer_is_passed_over(monkeypatch):
    monkeypatch.setattr(dns_client, "ANSWER_SECONDS", 0.05)
    silent, _ = await asyncio.get_running_loop().create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0))
    async with answering(NameServer([record(NAME, A, 0, "10.0.0.1")])) as server:
        servers = [silent.get_extra_info("sockname"), ("127.0.0.1", server.port)]
        assert (await dns_client.look_up(servers, NAME, RecordType.A)).records[0].value == "10.0.0.1"
        with pytest.raises(dns_client.LookupFailedError, match=r"127\.0\.0\.1 does not answer"):
            await dns_client.look_up(servers[:1], NAME, RecordType.A)
    silent.close()


@pytest.mark.asyncio
async def test_a_server_that_sends_without_an_end_what_is_no_answer_is_read_once_and_passed_over(monkeypatch):
    read: list[bytes] = []

    def noted(message, asked):
        read.append(message)
        return reading(message, asked)

    class Flooding(NameServer):
        def datagram_received(self, data, addr):
            for _ in range(100):
                self.transport.sendto(self.answer(data)[:-1], addr)
                self.transport.sendto(b"x" * 12, addr)

    monkeypatch.setattr(dns_client, "reading", noted)
    async with (
        answering(Flooding([record(NAME, A, 0, "10.0.0.1")])) as hostile,
        answering(NameServer([record(NAME, A, 0, "10.0.0.1")])) as good,
    ):
        servers = [("127.0.0.1", hostile.port), ("127.0.0.1", good.port)]
        assert (await dns_client.look_up(servers, NAME, RecordType.A)).records[0].value == "10.0.0.1"
        assert len(read) == 2
        with pytest.raises(dns_client.LookupFailedError, match=r"127\.0\.0\.1: no DNS message"):
            await dns_client.look_up(servers[:1], NAME, RecordType.A)


@pytest.mark.asyncio
async def test_an_answer_of_thousands_of_records_is_read_and_made_endpoints_of_with_turns_for_everything_else(monkeypatch):
    monkeypatch.setattr(dns_client, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(dns_discovery, "TURN_SECONDS", 0.0)
    many = [record(NAME, A, 60, f"10.0.{number // 250}.{number % 250}") for number in range(1000)]
    turns = 0
    async with answering(NameServer(many, truncates=True)) as server, discovering(server) as table:
        while not table.is_ready.is_set():
            turns += 1
            await asyncio.sleep(0)
        assert len(addresses(table)) == 1000
        assert turns > 1000 + 1000 // 32


@pytest.mark.asyncio
async def test_a_name_whose_addresses_are_always_others_is_asked_for_less_often(monkeypatch):
    monkeypatch.setattr(dns_discovery, "_SECONDS_PER_CHANGE", 0.05)
    now, asked_at = asyncio.get_running_loop().time, list[float]()

    class Flipping(NameServer):
        def datagram_received(self, data, addr):
            asked_at.append(now())
            self.records = [record(NAME, A, 0, f"10.0.0.{len(asked_at)}")]
            super().datagram_received(data, addr)

    async with answering(Flipping()) as server, discovering(server) as table:
        await becomes(table, ["10.0.0.4:8000"])
    assert asked_at[3] - asked_at[0] >= 3 * 0.05


def test_the_name_servers_of_the_system(tmp_path):
    path = tmp_path / "resolv.conf"
    path.write_text("# nameserver 1.1.1.1\nsearch a b\nnameserver 10.96.0.10\nnameserver fd00::1 # local\n")
    assert servers_of(path) == ("10.96.0.10", "fd00::1")
    assert servers_of(tmp_path / "nowhere") == ("127.0.0.1",)


@pytest.mark.parametrize("name", ["a..b", "a" * 64, ".".join(["abcdefgh"] * 30), "ä.example"])
def test_what_is_no_domain_name(name):
    parameters = DnsDiscoveryParameters.model_validate({"hostname": name, "nameserver": "127.0.0.1"})
    with pytest.raises(ConfigurationError, match="is no domain name"):
        asyncio.run(DnsDiscovery("dns", parameters, PluginContext()).run(EndpointTable(lambda: 0.0)))


ASKED = question(7, NAME, RecordType.A)


@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda tail: ASKED[:2] + b"\x80\0\0\1\0\3\0\1\0\1" + ASKED[12:] + tail))
def test_bytes_of_any_kind_are_an_answer_or_none(message):
    try:
        answer = next(each for each in reading(message, ASKED) if each is not None)
    except MessageError:
        return
    assert all(record.ttl >= 0 for record in answer.records)


def test_names_that_point_in_a_circle_are_no_answer():
    with pytest.raises(MessageError, match="no DNS message"):
        list(reading(ASKED[:2] + b"\x80\0\0\1\0\1\0\0\0\0" + ASKED[12:] + bytes([0xC0, len(ASKED)]) + b"\0" * 10, ASKED))
