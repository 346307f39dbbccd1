"""Several simulated pickers before one pool, and their messages."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from endpick.fleet.exchange import Exchange
from endpick.host.planning.plan import Plan
from endpick.host.telemetry import NullTelemetry
from endpick.requests.model import Decision, IncomingRequest
from endpick.requests.record import DecisionLog
from endpick_lab.picker import SCRAPE_SECONDS, SimulatedPicker
from endpick_lab.pool import PooledServer
from endpick_lab.virtual_time import VirtualLoop

_TRANSIT_SECONDS: Final = 0.001


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Number of pickers, interval of their exchange, and share of lost messages."""

    pickers: int = 1
    sync_seconds: float | None = 0.05  # None: they share nothing
    loss: float = 0.0


class SimulatedFleet:
    """Pickers that each get a random share of the requests."""

    def __init__(
        self,
        plan: Plan,
        servers: Sequence[PooledServer],
        loop: VirtualLoop,
        seed: int,
        settings: FleetSettings,
        decisions: DecisionLog | None = None,
    ) -> None:
        """Build the pickers of a plan; raises StartRefused."""
        self._loop = loop
        self._loss, self._interval = settings.loss, settings.sync_seconds or 0.0
        self._draws = random.Random(seed)  # noqa: S311 - routing needs no secrets
        shares = settings.pickers > 1 and settings.sync_seconds is not None
        self._pickers = [
            SimulatedPicker(plan, servers, loop, seed + number, is_shared=shares, decisions=decisions) for number in range(settings.pickers)
        ]
        self._exchanges = [Exchange(f"picker-{number}", loop.time, NullTelemetry()) for number in range(settings.pickers)] if shares else []
        self.bytes_sent = 0

    @property
    def not_simulated(self) -> tuple[str, ...]:
        """The data sources that do not run."""
        return self._pickers[0].not_simulated

    async def start(self, is_running: Callable[[], bool]) -> None:
        """Start the pickers, which read metrics and exchange deltas while `is_running`. Raises StartRefused."""
        self._is_running = is_running
        for picker in self._pickers:
            await picker.start()
        for exchange, picker in zip(self._exchanges, self._pickers, strict=False):
            exchange.follow(picker.instances)
        self._loop.at(self._loop.time() + SCRAPE_SECONDS, self._scrape)
        for number in range(len(self._exchanges)):
            begin = self._loop.time() + self._interval * (1 + number / len(self._exchanges))
            self._loop.at(begin, partial(self._sync, number))

    async def stop(self) -> None:
        """Stop all pickers and their plugins."""
        for picker in self._pickers:
            await picker.stop()

    def decide(self, incoming: IncomingRequest, decided: Callable[[Decision], None]) -> None:
        """Let one of the pickers decide; see `SimulatedPicker.decide`."""
        pickers = self._pickers
        (pickers[0] if len(pickers) == 1 else self._draws.choice(pickers)).decide(incoming, decided)

    def _scrape(self) -> None:
        for picker in self._pickers:
            picker.scrape()
        if self._is_running():
            self._loop.at(self._loop.time() + SCRAPE_SECONDS, self._scrape)

    def _sync(self, number: int) -> None:
        message = self._exchanges[number].drain()
        if message is not None:
            self.bytes_sent += len(message)
            others = [exchange for exchange in self._exchanges if exchange is not self._exchanges[number]]
            reached = [exchange for exchange in others if not self._loss or self._draws.random() >= self._loss]
            self._loop.at(self._loop.time() + _TRANSIT_SECONDS, partial(_deliver, message, reached))
        self._exchanges[number].expire()
        if self._is_running():
            self._loop.at(self._loop.time() + self._interval, partial(self._sync, number))


def _deliver(message: bytes, exchanges: Sequence[Exchange]) -> None:
    for exchange in exchanges:
        exchange.receive(message)
