"""What flow control reports while it works."""

from __future__ import annotations

from typing import Protocol

from endpick.api.request import InferenceRequest
from endpick.flow_control.bands import Bands
from endpick.flow_control.queues import BandQueue, Entry
from endpick.flow_control.reclaim import ReclaimReport
from endpick.flow_control.saturation import Reading
from endpick.flow_control.states import Outcome


class Report(ReclaimReport, Protocol):
    """Told of what happens in the queues. Methods are cheap and never raise."""

    def passed(self, request: InferenceRequest) -> None:
        """A request went on without waiting."""

    def queued(self, entry: Entry, band: BandQueue, bands: Bands, seconds: float) -> None:
        """A request begins to wait; adding it took this long."""

    def left(self, entry: Entry, band: BandQueue, bands: Bands, outcome: Outcome, waited_seconds: float) -> None:
        """A request that waited there does so no more."""

    def refused(self, entry: Entry, outcome: Outcome) -> None:
        """A request was refused before it waited."""

    def attempted(self, seconds: float) -> None:
        """A cycle of dispatch took this long."""

    def read(self, reading: Reading) -> None:
        """The saturation of the pool was worked out anew."""
