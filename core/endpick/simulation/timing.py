"""How long one step of a simulated engine takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """A linear cost model of one engine step; the defaults are of the order of an 8B model on one data-centre GPU."""

    prefill_seconds_per_token: float = 0.000_1
    decode_seconds: float = 0.010
    """A step with a single sequence; also the least any step takes."""
    decode_slowdown_per_sequence: float = 0.01
    """Each further sequence in the batch makes the step longer by this fraction of `decode_seconds`."""
    adapter_load_seconds: float = 0.050
    jitter: float = 0.0
    """Each step is longer or shorter by up to this fraction, drawn from the engine's random source."""

    def __post_init__(self) -> None:
        if self.decode_seconds <= 0:
            raise ValueError("decode_seconds must be greater than 0, or the engine would never advance")
        if min(self.prefill_seconds_per_token, self.decode_slowdown_per_sequence, self.adapter_load_seconds) < 0:
            raise ValueError("times and slowdowns cannot be negative")
        if not 0 <= self.jitter < 1:
            raise ValueError("jitter must be at least 0 and less than 1")

    def step_seconds(self, *, prefill_tokens: int, sequences: int, adapter_loads: int) -> float:
        """Seconds that a step takes which prefills `prefill_tokens` and advances `sequences` in all, before jitter."""
        batch = self.decode_seconds * (1 + self.decode_slowdown_per_sequence * max(sequences - 1, 0))
        return batch + self.prefill_seconds_per_token * prefill_tokens + self.adapter_load_seconds * adapter_loads
