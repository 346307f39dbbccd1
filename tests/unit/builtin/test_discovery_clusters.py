"""Files of clusters: names as addresses, and where the metrics of a cluster are."""

from __future__ import annotations

import asyncio

import pytest

from endpick.api import ConfigurationError, PluginContext
from endpick.data.table import EndpointTable
from endpick_builtin.listed_discovery import FileDiscoveryParameters, MulticlusterFileDiscovery


def discovered(tmp_path, address: str, labels: str = "{}"):
    """The endpoint of a file with one entry."""
    file = tmp_path / "clusters.yaml"
    file.write_text(f"endpoints:\n- {{name: east, address: '{address}', port: '443', labels: {labels}}}\n")
    discovery = MulticlusterFileDiscovery("clusters", FileDiscoveryParameters(path=str(file)), PluginContext())
    table = EndpointTable(lambda: 0.0)
    asyncio.run(discovery.run(table))
    return table.find("default/east")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("gateway.east.example", "gateway.east.example:443"),
        ("localhost", "localhost:443"),
        ("192.0.2.1", "192.0.2.1:443"),
        ("2001:DB8::1", "[2001:db8::1]:443"),
        ("1st.example", "1st.example:443"),
    ],
)
def test_an_address_is_an_ip_address_or_a_name(tmp_path, address, shown):
    endpoint = discovered(tmp_path, address)
    assert (endpoint.address, endpoint.metrics_address) == (shown, shown)


@pytest.mark.parametrize(
    "address", ["", "-a.example", "a_b.example", "A.example", "a..b", "192.0.2", "192.0.2.256", "x" * 64, "a." * 127 + "a"]
)
def test_what_is_neither_is_refused(tmp_path, address):
    with pytest.raises(ConfigurationError, match="`address` of 'default/east' must be an IP address or a DNS name"):
        discovered(tmp_path, address)


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        ("{metricsAddress: epp.east.example}", "epp.east.example:443"),
        ("{metricsAddress: epp.east.example, metricsPort: '9090'}", "epp.east.example:9090"),
        ("{metricsAddress: '2001:db8::2', metricsPort: '9090'}", "[2001:db8::2]:9090"),
        ("{metricsPort: '9090'}", "gateway.east.example:443"),
    ],
)
def test_labels_say_where_the_metrics_are(tmp_path, labels, shown):
    assert discovered(tmp_path, "gateway.east.example", labels).metrics_address == shown


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("{metricsAddress: 'no name'}", "label 'metricsAddress' must be an IP address or a DNS name, not 'no name'"),
        ("{metricsAddress: a, metricsPort: '0'}", "label 'metricsPort' must be \"1\" to \"65535\", not '0'"),
        ("{metricsAddress: a, metricsPort: http}", "label 'metricsPort' must be"),
    ],
)
def test_labels_that_say_it_wrongly_are_refused(tmp_path, labels, message):
    with pytest.raises(ConfigurationError, match=f"line 2: {message}"):
        discovered(tmp_path, "gateway.east.example", labels)
