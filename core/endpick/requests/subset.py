"""The subset hint: which endpoints the gateway lets us choose among."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from endpick.api.endpoints import Endpoints


def within(subset: Iterable[str] | None, endpoints: Endpoints) -> Endpoints:
    """The endpoints that the hint allows.

    Args:
        subset: Entries `host:port` (IPv6 in brackets), or a host alone, with or without brackets, which allows every port of it.
            None allows everything, no entries nothing.
        endpoints: All there are.
    """
    if subset is None:
        return endpoints
    allowed = frozenset(_bare(entry) for entry in subset)
    members = endpoints.members
    keep = np.fromiter((e.address in allowed or e.host in allowed for e in members), dtype=np.bool_, count=len(members))
    return endpoints.where(keep)


def _bare(entry: str) -> str:
    return entry[1:-1] if entry.startswith("[") and entry.endswith("]") else entry
