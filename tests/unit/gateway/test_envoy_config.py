"""Envoy's configuration, by setting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from endpick_gateway.envoy_config import EnvoySettings, adapted, bootstrap

PLAIN = EnvoySettings(9002, Path("/run/endpoints.json"))


def at(document: Any, path: str) -> Any:
    """A part by its path; numbers are positions."""
    for step in path.split("/"):
        document = document[int(step) if step.isdigit() else step]
    return document


LISTENER = "static_resources/listeners/0"
CHAIN = f"{LISTENER}/filter_chains/0"
MANAGER = f"{CHAIN}/filters/0/typed_config"
LOG = f"{MANAGER}/access_log/0/typed_config/log_format/json_format"
CASES = [
    (PLAIN, "static_resources/clusters/0/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address/port_value", 9002),
    (PLAIN, "static_resources/clusters/1/eds_cluster_config/eds_config/path_config_source/path", "/run/endpoints.json"),
    (PLAIN, f"{MANAGER}/access_log", []),
    (replace(PLAIN, port=8080), f"{LISTENER}/address/socket_address", {"address": "127.0.0.1", "port_value": 8080}),
    (replace(PLAIN, host="::"), f"{LISTENER}/address/socket_address", {"address": "::", "port_value": 0, "ipv4_compat": True}),
    (
        replace(PLAIN, certificate=(Path("/c.pem"), Path("/k.pem"))),
        f"{CHAIN}/transport_socket/typed_config/common_tls_context/tls_certificates/0",
        {"certificate_chain": {"filename": "/c.pem"}, "private_key": {"filename": "/k.pem"}},
    ),
    (
        replace(PLAIN, logs_access=True, logs_scores=True),
        f"{LOG}/scores",
        "%DYNAMIC_METADATA(envoy.lb:x-gateway-destination-endpoint-scores)%",
    ),
]


@pytest.mark.parametrize(("settings", "path", "expected"), CASES)
def test_setting_reaches_its_place(settings: EnvoySettings, path: str, expected: object):
    assert at(bootstrap(settings), path) == expected


def test_scores_and_tls_are_left_out_by_default():
    document = bootstrap(replace(PLAIN, logs_access=True))
    assert "scores" not in at(document, LOG)
    assert "transport_socket" not in at(document, CHAIN)


def test_own_configuration_gets_the_addresses_of_this_run():
    own: Any = bootstrap(replace(PLAIN, port=8443))
    own["static_resources"]["clusters"] += [{"name": "tracing"}]
    own["static_resources"]["clusters"][1]["connect_timeout"] = "9s"
    changed: Any = adapted(own, EnvoySettings(1234, Path("/tmp/new.json")))
    picker, servers, tracing = changed["static_resources"]["clusters"]
    assert at(picker, "load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address/port_value") == 1234
    assert at(servers, "eds_cluster_config/eds_config/path_config_source/path") == "/tmp/new.json"
    assert (servers["connect_timeout"], tracing) == ("9s", {"name": "tracing"})
    assert at(changed, f"{LISTENER}/address/socket_address/port_value") == 8443


@pytest.mark.parametrize("own", [{}, {"static_resources": {"clusters": [{"name": "endpick"}]}}])
def test_own_configuration_without_the_clusters_is_refused(own: dict[str, Any]):
    with pytest.raises(ValueError, match=r"it has no cluster named .*model-servers"):
        adapted(own, PLAIN)
