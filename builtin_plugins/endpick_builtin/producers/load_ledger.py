"""Open accounts: what is in flight to each endpoint, and which request each part of it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from endpick.api import Endpoint

Flow: TypeAlias = tuple[str, int]
"""Whose traffic it is, and how important: fairness id and priority."""


@dataclass(slots=True)
class Load:
    """What is in flight to one endpoint."""

    endpoint: Endpoint
    requests: int = 0
    tokens: int = 0


@dataclass(slots=True, eq=False)
class Charge:
    """One request's part of a load; worth nothing once released."""

    load: Load
    flow: Flow
    requests: int
    prompt_tokens: int
    output_tokens: int


class LoadLedger:
    """Loads of all endpoints that have any. An endpoint that left takes its load with it: charges on it are released to nobody."""

    def __init__(self, publish: Callable[[Load], None]) -> None:
        """`publish` is called with each load that changed, and with an empty one when an account is closed."""
        self._publish = publish
        self._loads: dict[str, Load] = {}
        self._open: set[Charge] = set()

    def load_of(self, endpoint: Endpoint) -> Load:
        """The endpoint's load; an empty one, not kept, when nothing is in flight."""
        return self._loads.get(endpoint.name) or Load(endpoint)

    def open_charges(self) -> Iterator[Charge]:
        """What is in flight to endpoints of the pool, request by request."""
        return (charge for charge in self._open if self._counts(charge.load))

    def charge(self, endpoint: Endpoint, flow: Flow, prompt_tokens: int, output_tokens: int) -> Charge:
        """One more request is on its way to the endpoint."""
        charge = Charge(self._loads.setdefault(endpoint.name, Load(endpoint)), flow, 1, prompt_tokens, output_tokens)
        self._open.add(charge)
        self._add(charge.load, 1, prompt_tokens + output_tokens)
        return charge

    def release_prompt(self, charge: Charge) -> None:
        """The prompt has been worked on."""
        tokens, charge.prompt_tokens = charge.prompt_tokens, 0
        self._add(charge.load, 0, -tokens)

    def release(self, charge: Charge) -> None:
        """The request is over; a second time changes nothing."""
        requests, tokens = charge.requests, charge.prompt_tokens + charge.output_tokens
        charge.requests = charge.prompt_tokens = charge.output_tokens = 0
        self._open.discard(charge)
        self._add(charge.load, -requests, -tokens)

    def forget(self, name: str) -> None:
        """The endpoint has left."""
        self._loads.pop(name, None)

    def _add(self, load: Load, requests: int, tokens: int) -> None:
        load.requests += requests
        load.tokens += tokens
        if self._counts(load):
            self._publish(load)
            if not load.requests:
                del self._loads[load.endpoint.name]

    def _counts(self, load: Load) -> bool:
        """False once its endpoint has left, even if another one has taken the name."""
        return self._loads.get(load.endpoint.name) is load
