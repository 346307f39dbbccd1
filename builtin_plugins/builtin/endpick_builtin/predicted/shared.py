"""Exchanges events of `LatencyModel`, so that each model sees the requests of all pickers."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from endpick_builtin.predicted.model import LatencyModel, Prefill

_SENT: Final = 0
_FIRST_TOKEN: Final = 1
_ENDED: Final = 2
_FAILED: Final = 3
_MAX_EVENTS: Final = 10_000  # kept until they are drained; later ones are dropped

_Event: TypeAlias = tuple[int, int, float, str, float, bool]
"""Kind, number of the request, time, endpoint, tokens, and whether it streams or was the endpoint's fault.

Tokens are the prompt's that are not cached, or the answer's."""

_encode: Final = msgspec.msgpack.encode
_decode: Final = msgspec.msgpack.Decoder(tuple[float, list[_Event]]).decode  # the time of the message, by the same clock


class SharedEvents:
    """Keeps this picker's events until they are drained, and applies those of other pickers."""

    def __init__(self, model: LatencyModel) -> None:
        self._model = model
        self._events: list[_Event] = []
        self._numbers: dict[Prefill, int] = {}
        self._last_number = 0
        self._others: dict[str, dict[int, Prefill]] = {}  # open requests by picker and number
        self._newest: dict[str, int] = {}  # highest number by picker

    def sent(self, prefill: Prefill, endpoint: str, now: float) -> None:
        """Record that a request left for an endpoint."""
        self._last_number += 1
        self._numbers[prefill] = self._last_number
        self._add((_SENT, self._last_number, now, endpoint, prefill.tokens, prefill.streams))

    def first_token(self, prefill: Prefill, now: float) -> None:
        """Record the first token of a request that `sent` recorded."""
        number = self._numbers.get(prefill)
        if number is not None:
            self._add((_FIRST_TOKEN, number, now, "", 0.0, False))

    def ended(self, prefill: Prefill, output_tokens: int, now: float) -> None:
        """Record the complete answer to a request that `sent` recorded."""
        number = self._numbers.pop(prefill, None)
        if number is not None:
            self._add((_ENDED, number, now, "", float(output_tokens), False))

    def failed(self, prefill: Prefill, now: float, is_fault: bool) -> None:
        """Record that a request ended without an answer; `is_fault` if the endpoint caused it."""
        number = self._numbers.pop(prefill, None)
        if number is not None:
            self._add((_FAILED, number, now, "", 0.0, is_fault))

    def drain(self, now: float) -> bytes:
        """Return the events since the last call, encoded; empty if there are none."""
        events, self._events = self._events, []
        return _encode((now, events)) if events else b""

    def apply(self, deltas: bytes, origin: str, now: float) -> None:
        """Apply the events of another picker to the model, with their times on this clock."""
        theirs, model = self._others.setdefault(origin, {}), self._model
        sent_at, events = _decode(deltas)
        ahead = now - sent_at  # of this clock
        for kind, number, at_theirs, name, tokens, flag in events:
            at = at_theirs + ahead
            if kind == _SENT:
                slot = model.slot_of(name)
                if slot is not None and number > self._newest.get(origin, 0):
                    self._newest[origin] = number
                    theirs[number] = model.sent(slot, tokens, 0.0, at, flag)
                continue
            prefill = theirs.get(number)
            if prefill is None:
                continue
            if kind == _FIRST_TOKEN:
                model.first_token(prefill, at)
                continue
            del theirs[number]
            if kind == _ENDED:
                model.ended(prefill, int(tokens), at)
            else:
                model.failed(prefill, at, flag)

    def origin_gone(self, origin: str, now: float) -> None:
        """Fail the open requests of a picker that is gone, without blaming their endpoints."""
        self._newest.pop(origin, None)
        for prefill in self._others.pop(origin, {}).values():
            self._model.failed(prefill, now, is_fault=False)

    def _add(self, event: _Event) -> None:
        if len(self._events) < _MAX_EVENTS:
            self._events.append(event)
