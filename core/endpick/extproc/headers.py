"""Header maps: what the gateway's say, and which headers may be set in a reply."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from endpick._proto.ext_proc_pb2 import HeaderMap, HeaderMutation, HeaderValue, HeaderValueOption
from endpick.extproc.names import DESTINATION_HEADER, SERVED_KEY, SUBSET_KEY

logger = logging.getLogger(__name__)

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Belong to one connection: repeating `transfer-encoding` on the next has truncated streamed responses."""

OURS = frozenset({DESTINATION_HEADER, SERVED_KEY, SUBSET_KEY, "content-length"})
"""Set by the session or the gateway, and by nobody else."""

_NEVER_SET = HOP_BY_HOP | OURS
_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_NOT_IN_A_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

_OVERWRITE = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def read_headers(header_map: HeaderMap) -> dict[str, str]:
    """Lower-case names and their values; of a repeated header the last value.

    Gateways put a value into `raw_value` or, older ones, into `value`.
    """
    headers = header_map.headers
    try:
        return {header.key.lower(): raw.decode() if (raw := header.raw_value) else header.value for header in headers}
    except UnicodeDecodeError:
        # Rare, and saying so for every value costs 0.2 µs each.
        return {header.key.lower(): header.raw_value.decode(errors="replace") or header.value for header in headers}


def option(name: str, value: str) -> HeaderValueOption:
    """The instruction to set one header, whatever it was before."""
    return HeaderValueOption(header=HeaderValue(key=name, raw_value=value.encode()), append_action=_OVERWRITE)


def mutation(own: Mapping[str, str], further: Mapping[str, str]) -> HeaderMutation:
    """Set our `own` headers, and those of `further` that may be set.

    A header that the gateway would refuse fails the whole request, so a plugin's bad header is left out and logged.
    """
    options = [option(name, value) for name, value in own.items()]
    options += [option(name.lower(), value) for name, value in further.items() if may_set(name, value)]
    return HeaderMutation(set_headers=options)


def may_set(name: str, value: str) -> bool:
    """Whether a plugin's header is one, and the plugin's to set."""
    lowered = name.lower()
    if lowered in _NEVER_SET:
        return False
    if _NAME.fullmatch(lowered) and not _NOT_IN_A_VALUE.search(value):
        return True
    logger.warning("header %r was not set: its name or its value %r is not valid in HTTP", name, value)
    return False
