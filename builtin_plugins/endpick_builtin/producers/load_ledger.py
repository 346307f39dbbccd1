"""Open accounts: what is in flight to each endpoint, and which request each part of it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from endpick.api import Endpoint


@dataclass(slots=True)
class Load:
    """What is in flight to one endpoint."""

    endpoint: Endpoint
    requests: int = 0
    tokens: int = 0


@dataclass(slots=True)
class Charge:
    """One request's part of a load; worth nothing once released."""

    load: Load
    requests: int
    prompt_tokens: int
    output_tokens: int


class LoadLedger:
    """Loads of all endpoints that have any. An endpoint that left takes its load with it: charges on it are released to nobody."""

    def __init__(self, publish: Callable[[Load], None]) -> None:
        """`publish` is called with each load that changed, and with an empty one when an account is closed."""
        self._publish = publish
        self._loads: dict[str, Load] = {}

    def load_of(self, endpoint: Endpoint) -> Load:
        """The endpoint's load; an empty one, not kept, when nothing is in flight."""
        return self._loads.get(endpoint.name) or Load(endpoint)

    def charge(self, endpoint: Endpoint, prompt_tokens: int, output_tokens: int) -> Charge:
        """One more request is on its way to the endpoint."""
        charge = Charge(self._loads.setdefault(endpoint.name, Load(endpoint)), 1, prompt_tokens, output_tokens)
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
        self._add(charge.load, -requests, -tokens)

    def forget(self, name: str) -> None:
        """The endpoint has left."""
        self._loads.pop(name, None)

    def _add(self, load: Load, requests: int, tokens: int) -> None:
        load.requests += requests
        load.tokens += tokens
        if self._loads.get(load.endpoint.name) is load:
            self._publish(load)
            if not load.requests:
                del self._loads[load.endpoint.name]
