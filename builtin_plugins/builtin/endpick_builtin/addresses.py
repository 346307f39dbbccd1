"""Parses IP addresses of endpoints."""

from __future__ import annotations

import ipaddress
import re

_ZONE = re.compile(r"[0-9A-Za-z._-]{1,32}", re.ASCII)
_LONGEST = 80


def ip_address(text: str) -> str:
    """The normalized IP address. Raises ValueError, also for unusual IPv6 zones."""
    address = str(ipaddress.ip_address(text if len(text) <= _LONGEST else ""))
    _, percent, zone = address.partition("%")
    if percent and not _ZONE.fullmatch(zone):
        raise ValueError("the zone of an IPv6 address is a number, or the name of an interface")
    return address
