"""Predicts the cost of a request at each endpoint from earlier answers.

An endpoint prefills the prompts sent to it one after the other, while it decodes other answers. Its *clock* is the time at which it
will have prefilled all of them. A first token that arrives early or late moves the clock, and with it the later first tokens.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

import numpy as np

from endpick.api import FloatArray, RowArray

_FIELDS: Final = 15
_START_SECONDS: Final = 4.0  # of prefill, for `_START_TOKENS`: the pool's speed before any measurement
_START_TOKENS: Final = 2e4
_START_OUTPUT_SECONDS: Final = 20.0
_START_OUTPUT_TOKENS: Final = 1000.0
_POOL_WEIGHT: Final = 2e5  # tokens that an endpoint must prefill for its own speed to count as much as the pool's
_POOL_OUTPUT_WEIGHT: Final = 2000.0
_HALF_LIFE: Final = 1e6  # tokens, of an endpoint's prefill speed; twice as many for the pool's
_POOL_HALF_LIFE: Final = 2e6
_OUTPUT_HALF_LIFE: Final = 5e3
_POOL_OUTPUT_HALF_LIFE: Final = 2e4
_MEASURED_TOKENS: Final = 2000  # shorter prefills do not measure the speed
_STEP_SECONDS: Final = 0.01  # of a request, in addition to its prefill
_SENDING_SECONDS: Final = 0.005
_DELAY_OF_OPEN: Final = 0.05  # share of a prefill by which it delays each open answer
_DECODE_SHARE: Final = 0.1
_WORST_PENALTY: Final = 16.0
_PENALTY_HALF_LIFE_SECONDS: Final = 10.0
_HIDDEN_SECONDS: Final = 0.1
_MEAN_STEP: Final = 0.02


class Prefill:
    """A prompt at an endpoint, from the decision to its first token."""

    __slots__ = ("due", "first_at", "is_queued", "life", "predicted_seconds", "sent_at", "slot", "streams", "tokens")

    def __init__(self, slot: int, life: int, tokens: float, sent_at: float, predicted_seconds: float, streams: bool) -> None:
        self.slot = slot
        self.life = life  # distinguishes the endpoints that had this slot one after the other
        self.tokens = tokens  # of the prompt that are not cached
        self.sent_at = sent_at
        self.predicted_seconds = predicted_seconds  # from sending to the first token
        self.streams = streams
        self.due = 0.0  # time of the first token, before the endpoint's shift
        self.is_queued = True
        self.first_at: float | None = None


class LatencyModel:
    """Learns speeds and load of endpoints, in arrays with one entry per slot."""

    def __init__(self) -> None:
        self._slot_of: dict[str, int] = {}
        self._free: list[int] = []
        self._lives: list[int] = []
        self._queues: list[OrderedDict[Prefill, None]] = []  # a dictionary is searched through the places of what it lost
        self._pool_seconds, self._pool_tokens = _START_SECONDS, _START_TOKENS
        self._pool_output_seconds, self._pool_output_tokens = _START_OUTPUT_SECONDS, _START_OUTPUT_TOKENS
        self._mean_work = 0.1  # seconds of prefill of a request
        self._mean_output = 200.0  # tokens
        self._penalties_until = -math.inf
        self._hidden = 0  # queued prefills of answers that are not streamed
        self._bind(np.zeros((_FIELDS, 0)))

    def _bind(self, state: FloatArray) -> None:
        self._state = state
        (
            self._clock,  # time at which everything sent is prefilled
            self._shift,  # of the dues in the queue
            self._head_due,  # when the next first token is due; inf without any
            self._queued,  # prompts of this picker without a first token
            self._open,  # requests of this picker that have not ended
            self._others_open,  # requests that others sent
            self._others_waiting,
            self._seconds,  # of measured prefills, decayed
            self._tokens,
            self._output_seconds,
            self._output_tokens,
            self._penalty,  # seconds, for failures
            self._penalty_at,
            self._first_at,  # of the latest first token
            self._changed_at,  # when this picker last changed the load
        ) = state

    def slots(self, names: list[str]) -> RowArray:
        """Return the slot of each endpoint; new endpoints begin with the pool's speed."""
        return np.array([self._slot(name) for name in names], np.intp)

    def _slot(self, name: str) -> int:
        found = self._slot_of.get(name)
        if found is not None:
            return found
        if not self._free:
            size = len(self._queues)
            more = max(size, 16)
            self._bind(np.concatenate([self._state, np.zeros((_FIELDS, more))], axis=1))
            self._queues += [OrderedDict() for _ in range(more)]
            self._lives += [0] * more
            self._free = list(range(size + more - 1, size - 1, -1))
        slot = self._slot_of[name] = self._free.pop()
        self._state[:, slot] = 0.0
        self._head_due[slot] = math.inf
        return slot

    def slot_of(self, name: str) -> int | None:
        """Return the slot of an endpoint, or None if it has none."""
        return self._slot_of.get(name)

    def snapshot(self) -> tuple[dict[str, tuple[float, ...]], tuple[float, ...]]:
        """Return the speeds of each endpoint, and of the pool."""
        speeds = np.stack((self._seconds, self._tokens, self._output_seconds, self._output_tokens))
        pool = (self._pool_seconds, self._pool_tokens, self._pool_output_seconds, self._pool_output_tokens)
        return {name: tuple(speeds[:, slot].tolist()) for name, slot in self._slot_of.items()}, (*pool, self._mean_work, self._mean_output)

    def restore(self, endpoints: dict[str, tuple[float, ...]], pool: tuple[float, ...]) -> None:
        """Adopt the speeds of a `snapshot` that were measured over more tokens than the current ones."""
        if pool[1] + pool[3] > self._pool_tokens + self._pool_output_tokens:
            self._pool_seconds, self._pool_tokens, self._pool_output_seconds, self._pool_output_tokens = pool[:4]
            self._mean_work, self._mean_output = pool[4:]
        for name, speeds in endpoints.items():
            slot = self._slot_of.get(name)
            if slot is not None and speeds[1] + speeds[3] > self._tokens[slot] + self._output_tokens[slot]:
                self._seconds[slot], self._tokens[slot], self._output_seconds[slot], self._output_tokens[slot] = speeds

    def forget(self, name: str) -> None:
        """Drop the state of an endpoint, and free its slot."""
        slot = self._slot_of.pop(name, None)
        if slot is None:
            return
        for prefill in self._queues[slot]:
            self._leave(prefill)
        self._queues[slot].clear()
        self._lives[slot] += 1
        self._free.append(slot)

    def dump(self, now: float, most: int) -> dict[str, object]:
        """Return the pool's speeds, and speed, backlog and load of up to `most` endpoints, for people."""
        endpoints = {
            name: {
                "prefillTokensPerSecond": round(1 / self._rate(slot)),
                "backlogSeconds": round(max(float(self._clock[slot]) - now, 0.0), 3),
                "open": int(self._open[slot]),
                "openOfOthers": int(self._others_open[slot]),
            }
            for name, slot in sorted(self._slot_of.items())[:most]
        }
        return {
            "prefillTokensPerSecond": round(self._pool_tokens / self._pool_seconds),
            "secondsPerOutputToken": round(self._pool_output_seconds / self._pool_output_tokens, 5),
            "meanOutputTokens": round(self._mean_output),
            "endpoints": endpoints,
        }

    def read_load(self, slots: RowArray, waiting: FloatArray, running: FloatArray, read_at: FloatArray) -> None:
        """Adopt the load that endpoints reported at `read_at`, unless this picker changed it since; NaN without a report."""
        is_new = read_at > self._changed_at[slots]
        if np.count_nonzero(is_new):
            slots, waiting, running = slots[is_new], np.fmax(waiting[is_new], 0.0), np.fmax(running[is_new], 0.0)
            behind = np.maximum(self._queued[slots] - 1.0, 0.0)
            self._others_waiting[slots] = np.maximum(waiting - behind, 0.0)
            self._others_open[slots] = np.maximum(waiting + running - self._open[slots], 0.0)

    def finish_hidden(self, slots: RowArray, waiting: FloatArray, now: float) -> None:
        """Count unstreamed prompts as prefilled once the endpoint's queue is too short for them."""
        if not self._hidden:
            return
        for slot, length in zip(slots.tolist(), waiting.tolist(), strict=True):
            queue = self._queues[slot]
            while len(queue) > length + 1 and not (head := next(iter(queue))).streams and now - head.sent_at > _HIDDEN_SECONDS:
                self.first_token(head, now)

    def costs(self, slots: RowArray, missing: FloatArray, now: float) -> tuple[FloatArray, FloatArray]:
        """Return the cost of a request in seconds at each slot, and the part until its first token.

        `missing` counts its prompt tokens that are not cached, per slot.
        """
        speed = self._pool_seconds / self._pool_tokens
        rate = (self._seconds[slots] + speed * _POOL_WEIGHT) / (self._tokens[slots] + _POOL_WEIGHT)
        output_speed = self._pool_output_seconds / self._pool_output_tokens
        output_rate = (self._output_seconds[slots] + output_speed * _POOL_OUTPUT_WEIGHT) / (
            self._output_tokens[slots] + _POOL_OUTPUT_WEIGHT
        )
        own = missing * rate + _STEP_SECONDS
        late = np.maximum(now - self._head_due[slots], 0.0)  # an overdue first token delays all behind it
        ahead = np.maximum(self._clock[slots] + late - now, 0.0) + self._others_waiting[slots] * self._mean_work
        delayed = own * (1.0 + _DELAY_OF_OPEN * (self._open[slots] + self._others_open[slots]))
        decode = _DECODE_SHARE * self._mean_output * output_rate
        first = ahead + own
        costs = first + delayed + decode
        if now < self._penalties_until:
            costs += self._penalty[slots] * np.exp2((self._penalty_at[slots] - now) / _PENALTY_HALF_LIFE_SECONDS)
        return costs, first

    def sent(self, slot: int, missing: float, predicted_seconds: float, now: float, streams: bool) -> Prefill:
        """Record that a request leaves for an endpoint."""
        prefill = Prefill(slot, self._lives[slot], missing, now, predicted_seconds, streams)
        work = missing * self._rate(slot)
        clock = max(float(self._clock[slot]), now) + work + _SENDING_SECONDS
        self._clock[slot] = clock
        prefill.due = clock - float(self._shift[slot])
        queue = self._queues[slot]
        queue[prefill] = None
        self._queued[slot] += 1.0
        if len(queue) == 1:
            self._head_due[slot] = clock
        self._open[slot] += 1.0
        self._changed_at[slot] = now
        self._hidden += not streams
        self._mean_work += _MEAN_STEP * (work - self._mean_work)
        return prefill

    def is_here(self, prefill: Prefill) -> bool:
        """Whether the endpoint has neither left nor restarted since it got the prompt."""
        return self._lives[prefill.slot] == prefill.life

    def first_token(self, prefill: Prefill, now: float) -> None:
        """Record a first token: correct the clock, and learn the prefill speed."""
        slot = prefill.slot
        if not self.is_here(prefill) or not prefill.is_queued:
            return
        prefill.first_at = now
        late = now - (prefill.due + float(self._shift[slot]))
        self._dequeue(prefill, late, now)
        if prefill.tokens > _MEASURED_TOKENS:
            seconds = now - max(prefill.sent_at, float(self._first_at[slot])) - _STEP_SECONDS
            seconds = max(min(seconds, 4 * prefill.tokens * self._rate(slot)), 0.0)
            kept = 0.5 ** (prefill.tokens / _HALF_LIFE)
            self._seconds[slot] = self._seconds[slot] * kept + seconds
            self._tokens[slot] = self._tokens[slot] * kept + prefill.tokens
            kept = 0.5 ** (prefill.tokens / _POOL_HALF_LIFE)
            self._pool_seconds = self._pool_seconds * kept + seconds
            self._pool_tokens = self._pool_tokens * kept + prefill.tokens
        self._first_at[slot] = now
        self._penalty[slot] = 0.0

    def ended(self, prefill: Prefill, output_tokens: int, now: float) -> None:
        """Record a complete answer, and learn the decoding speed if its tokens were counted."""
        slot = prefill.slot
        if not self.is_here(prefill):
            return
        if prefill.is_queued:
            self._dequeue(prefill, 0.0, now)
        self._open[slot] = max(float(self._open[slot]) - 1.0, 0.0)
        self._changed_at[slot] = now
        if output_tokens > 0:
            self._mean_output += _MEAN_STEP * (output_tokens - self._mean_output)
        if output_tokens > 1 and prefill.first_at is not None and prefill.streams:
            seconds = now - prefill.first_at
            kept = 0.5 ** (output_tokens / _OUTPUT_HALF_LIFE)
            self._output_seconds[slot] = self._output_seconds[slot] * kept + seconds
            self._output_tokens[slot] = self._output_tokens[slot] * kept + output_tokens
            kept = 0.5 ** (output_tokens / _POOL_OUTPUT_HALF_LIFE)
            self._pool_output_seconds = self._pool_output_seconds * kept + seconds
            self._pool_output_tokens = self._pool_output_tokens * kept + output_tokens

    def failed(self, prefill: Prefill, now: float, is_fault: bool) -> None:
        """Record that a request ended without an answer; `is_fault` if the endpoint caused it."""
        slot = prefill.slot
        if not self.is_here(prefill):
            return
        if prefill.is_queued:
            self._clock[slot] -= prefill.tokens * self._rate(slot)
            self._dequeue(prefill, 0.0, now)
        self._open[slot] = max(float(self._open[slot]) - 1.0, 0.0)
        self._changed_at[slot] = now
        if is_fault:
            left = float(self._penalty[slot]) * 2.0 ** ((float(self._penalty_at[slot]) - now) / _PENALTY_HALF_LIFE_SECONDS)
            self._penalty[slot], self._penalty_at[slot] = min(2.0 * left + 1.0, _WORST_PENALTY), now
            self._penalties_until = now + 20 * _PENALTY_HALF_LIFE_SECONDS

    def _rate(self, slot: int) -> float:
        speed = self._pool_seconds / self._pool_tokens
        return (float(self._seconds[slot]) + speed * _POOL_WEIGHT) / (float(self._tokens[slot]) + _POOL_WEIGHT)

    def _dequeue(self, prefill: Prefill, late: float, now: float) -> None:
        slot = prefill.slot
        queue = self._queues[slot]
        del queue[prefill]
        self._leave(prefill)
        self._queued[slot] -= 1.0
        self._changed_at[slot] = now
        if queue:
            self._clock[slot] += late
            self._shift[slot] += late
            self._head_due[slot] = next(iter(queue)).due + self._shift[slot]
        else:
            self._clock[slot], self._shift[slot], self._head_due[slot] = now, 0.0, math.inf

    def _leave(self, prefill: Prefill) -> None:
        prefill.is_queued = False
        self._hidden -= not prefill.streams
