"""Subset hints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api.endpoint import Endpoint, Generation
from endpick.api.endpoints import Endpoints
from endpick.requests.intake import within

POOL = ("10.0.0.1:8080", "10.0.0.1:9090", "10.0.0.2:8080", "10.0.0.2:9090", "10.0.0.3:8080")


def view(*addresses: str) -> Endpoints:
    parts = (address.rpartition(":") for address in addresses)
    members = tuple(Endpoint(f"default/{host}-{port}", host.strip("[]"), int(port)) for host, _, port in parts)
    return Endpoints(Generation(members, {}, {}, lambda: 0.0))


def admitted(subset: tuple[str, ...] | None, *addresses: str) -> tuple[str, ...]:
    return tuple(endpoint.address for endpoint in within(subset, view(*addresses)))


@pytest.mark.parametrize(
    ("subset", "expected"),
    [
        (None, POOL),
        ((), ()),
        (("10.0.0.1:8080",), ("10.0.0.1:8080",)),
        (("10.0.0.1",), ("10.0.0.1:8080", "10.0.0.1:9090")),
        (("10.0.0.1:8080", "10.0.0.2"), ("10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.2:9090")),
        (("10.0.0.1:3000",), ()),
        (("192.168.1.1:8080",), ()),
        (("10.0.0",), ()),
    ],
)
def test_entry_with_port_allows_that_port_only(subset, expected):
    assert admitted(subset, *POOL) == expected


@pytest.mark.parametrize("entry", ["[fd00::1]:8000", "[fd00::1]", "fd00::1"])
def test_ipv6_entry_may_have_brackets_and_port(entry):
    assert admitted((entry,), "[fd00::1]:8000", "[fd00::2]:8000") == ("[fd00::1]:8000",)


@given(st.lists(st.ip_addresses().map(str)), st.ip_addresses(), st.integers(1, 65535))
def test_bare_address_allows_all_its_ports(entries, address, port):
    endpoint = f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
    assert bool(admitted(tuple(entries), endpoint)) == (str(address) in entries)
