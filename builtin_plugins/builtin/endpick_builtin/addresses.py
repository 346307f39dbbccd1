"""Which text is the IP address of an endpoint."""

from __future__ import annotations

import ipaddress
import re

_ZONE = re.compile(r"[0-9A-Za-z._-]{1,32}", re.ASCII)
"""After the `%` of an IPv6 address: a number, or the name of an interface."""
_LONGEST = 80


def ip_address(text: str) -> str:
    """An IP address as Python writes it, in which no zone can be anything else: Python takes all but a further `%`.

    Raises:
        ValueError: it is none.
    """
    address = str(ipaddress.ip_address(text if len(text) <= _LONGEST else ""))
    _, percent, zone = address.partition("%")
    if percent and not _ZONE.fullmatch(zone):
        raise ValueError("the zone of an IPv6 address is a number, or the name of an interface")
    return address
