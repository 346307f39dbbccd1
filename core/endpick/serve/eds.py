"""Writes the pool to a file from which an EDS cluster of Envoy learns its hosts."""

from __future__ import annotations

import ipaddress
import logging
import os
from collections.abc import Iterable
from pathlib import Path

import orjson

from endpick.api.endpoint import Endpoint, Generation

MODEL_SERVERS = "model-servers"  # the cluster

_log = logging.getLogger("endpick.gateway")
_ASSIGNMENT = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


class EdsFile:
    """The endpoints file; each change of the pool replaces it by a rename, as Envoy expects."""

    def __init__(self, path: Path) -> None:
        """Write an empty pool, because Envoy does not start without the file. Raises OSError."""
        self._path = path
        write_eds(path, ())

    def __call__(self, generation: Generation) -> None:
        """Write the pool. Envoy keeps the old one if the file cannot be written."""
        try:
            write_eds(self._path, generation.endpoints)
        except OSError as error:
            _log.error("the file %s cannot be written, so the gateway keeps the old endpoints: %s", self._path, error.strerror)


def write_eds(path: Path, endpoints: Iterable[Endpoint]) -> None:
    """Replace the file. Raises OSError."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(orjson.dumps(discovery_response(endpoints)))
    os.replace(temporary, path)  # noqa: PTH105


def discovery_response(endpoints: Iterable[Endpoint]) -> dict[str, object]:
    """Return Envoy's DiscoveryResponse with each IP address once, without host names.

    Envoy refuses the whole list if it contains a host name.
    """
    unique = {endpoint.address: endpoint for endpoint in endpoints if _is_ip_address(endpoint.host)}
    addresses = [{"address": endpoint.host, "port_value": endpoint.port} for endpoint in unique.values()]
    hosts = [{"endpoint": {"address": {"socket_address": address}}} for address in addresses]
    assignment = {"@type": _ASSIGNMENT, "cluster_name": MODEL_SERVERS, "endpoints": [{"lb_endpoints": hosts}]}
    return {"resources": [assignment]}


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
