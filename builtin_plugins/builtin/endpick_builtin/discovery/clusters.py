"""`multicluster-file-discovery`: whole clusters as endpoints, each reached through its gateway."""

from __future__ import annotations

import re
from collections.abc import Mapping

from endpick.api import Endpoint, Stability
from endpick_builtin.addresses import ip_address
from endpick_builtin.discovery.endpoint_file import EntryRules
from endpick_builtin.discovery.file_discovery import FileDiscovery

METRICS_ADDRESS_LABEL = "metricsAddress"
METRICS_PORT_LABEL = "metricsPort"
_DNS_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DNS_NAME = re.compile(rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*", re.ASCII)
_LONGEST_NAME = 253


def host_of(text: str) -> str:
    """Return an IP address or a DNS name (RFC 1123). Raises ValueError."""
    try:
        return ip_address(text)
    except ValueError:
        # Digits and dots alone are a misspelt address.
        if len(text) <= _LONGEST_NAME and _DNS_NAME.fullmatch(text) and not text.replace(".", "").isdigit():
            return text
        raise


def metrics_of(_host: str, port: int, labels: Mapping[str, str]) -> str:
    """The metrics address that the labels give; empty without the label `metricsAddress`. Raises ValueError."""
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

    `address` is an IP address or a DNS name. The labels `metricsAddress` and `metricsPort` give the metrics address of the cluster's
    endpoint picker; by default it is the endpoint's own. Wrong entries and a missing file are handled as in `file-discovery`.
    """

    stability = Stability.EXPERIMENTAL
    rules = EntryRules(host_of, "an IP address or a DNS name", metrics_of)
