"""Keeps a file of the pool from which an EDS cluster of Envoy learns its hosts."""

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
    """Replaced at each change of the pool by a rename, which Envoy watches for."""

    def __init__(self, path: Path) -> None:
        """Writes an empty pool: Envoy does not start without the file. Raises OSError."""
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
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(orjson.dumps(discovery_response(endpoints)))
    os.replace(beside, path)  # noqa: PTH105


def discovery_response(endpoints: Iterable[Endpoint]) -> dict[str, object]:
    """Envoy's DiscoveryResponse, each address once. Names are left out: Envoy refuses a list with one of them."""
    unique = {endpoint.address: endpoint for endpoint in endpoints if _is_ip_address(endpoint.host)}
    hosts = [{"endpoint": {"address": {"socket_address": {"address": each.host, "port_value": each.port}}}} for each in unique.values()]
    assignment = {"@type": _ASSIGNMENT, "cluster_name": MODEL_SERVERS, "endpoints": [{"lb_endpoints": hosts}]}
    return {"resources": [assignment]}


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
