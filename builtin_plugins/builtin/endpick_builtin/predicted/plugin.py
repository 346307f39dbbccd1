"""`predicted-latency`: sends a request where it is expected to cost the least time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np

from endpick.api import (
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    Category,
    CycleState,
    Endpoint,
    Endpoints,
    FloatArray,
    InferenceRequest,
    Parameters,
    PluginContext,
    PreRequest,
    ResponseEnd,
    ResponseHead,
    ResponseObserver,
    RowArray,
    SchedulingResult,
    Scorer,
    ScoringState,
    TerminationCause,
    UpstreamHeaders,
)
from endpick.api.fast_metrics import Distributions
from endpick.api.fleet import LearntState
from endpick.api.keys import PREFIX_BLOCKS, PREFIX_MATCH_BLOCKS, TOKENIZED_PROMPT
from endpick.api.plugin import MAX_DUMPED
from endpick_builtin.predicted.model import LatencyModel, Prefill
from endpick_builtin.predicted.shared import SharedEvents
from endpick_builtin.producers.inflight_load import prompt_tokens
from endpick_builtin.producers.prefix_cache import PREFILL_PROFILE

_RATIO_BUCKETS: Final = (0.1, 0.25, 0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
_READ_SECONDS: Final = 0.01
_FIRST_ERROR: Final = 400
_FIRST_SERVER_ERROR: Final = 500
_encode: Final = msgspec.msgpack.encode
_decode: Final = msgspec.msgpack.Decoder(tuple[dict[str, tuple[float, ...]], tuple[float, ...]]).decode


class PredictedLatency(Scorer[Parameters], PreRequest[Parameters], ResponseObserver[Parameters], LearntState):
    """Prefers the endpoint where a request costs the least time; needs no parameters and no training.

    cost = time until everything ahead is prefilled + the prefill of the tokens not cached there, twice, + 5 % of it for each open answer
    that it delays + a tenth of the expected decoding + a penalty after failures. score = least cost / cost.

    Speeds are learnt from first tokens and answers, from the pool's at first. Requests of other clients count as the endpoint's metrics
    show them. With a `prefill` profile, its pick prefills and the primary's decodes. Of answers that are not streamed only the end is
    seen: their prompts count as prefilled once the endpoint's queue is too short for them. A prompt that the gateway does not send
    counts as empty.
    """

    category = Category.BALANCE
    consumes = (PREFIX_MATCH_BLOCKS, PREFIX_BLOCKS)
    consumes_optional = (WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, TOKENIZED_PROMPT)

    def __init__(self, name: str, parameters: Parameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._model = LatencyModel()
        self._shared = SharedEvents(self._model)
        help_text = "Time to first token divided by the prediction, of streamed answers."
        self._accuracy = Distributions("endpick_first_token_prediction_ratio", help_text, (), _RATIO_BUCKETS, context.registry).labels()
        self._read_at = -math.inf
        self._pool: object = None
        self._slot_of_member: RowArray = np.empty(0, np.intp)

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        now, model = self.context.clock(), self._model
        members = endpoints.pool_members
        if members is not self._pool:
            self._follow(members)
        slots = endpoints.gather(self._slot_of_member)
        if now - self._read_at > _READ_SECONDS or slots is not self._slot_of_member:
            self._read_at = now
            waiting = endpoints[WAITING_QUEUE_SIZE]
            model.read_load(slots, waiting, endpoints[RUNNING_REQUESTS_SIZE], now - endpoints.age(WAITING_QUEUE_SIZE))
            model.finish_hidden(slots, waiting, now)
        missing = self._missing_tokens(request, endpoints, state)
        costs, first = model.costs(slots, missing, now)
        asked = state.private.setdefault("asked", [])
        assert isinstance(asked, list)
        asked.append((endpoints, missing, first))
        scores: FloatArray = costs.min() / costs
        return scores

    @staticmethod
    def _missing_tokens(request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        tokens = prompt_tokens(request, state.get(TOKENIZED_PROMPT))
        blocks = state.get(PREFIX_BLOCKS)
        if blocks is None:
            return np.full(len(endpoints), float(tokens))
        size = blocks.block_size_tokens
        matched = np.fmax(state.column(PREFIX_MATCH_BLOCKS, endpoints), 0.0) * size
        most = (max(tokens, 1) - 1) // size * size  # the last token is always computed
        missing: FloatArray = tokens - np.minimum(matched, most)
        return missing

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        asked = state.private.pop("asked", ())
        assert isinstance(asked, Sequence)
        prefill = result.runs.get(PREFILL_PROFILE)
        prefills = prefill is not None and prefill.picked is not None and result.primary != PREFILL_PROFILE
        sent = []
        for profile in (PREFILL_PROFILE, result.primary) if prefills else (result.primary,):
            picked = result.runs[profile].picked
            for endpoints, missing, first in reversed(asked):
                position = None if picked is None else endpoints.position(picked.members[0].name)
                if position is not None:
                    slot = int(endpoints.gather(self._slot_of_member)[position])
                    tokens = 0.0 if prefills and profile == result.primary else float(missing[position])
                    now, seconds = self.context.clock(), float(first[position])
                    prefill_there = self._model.sent(slot, tokens, seconds, now, request.streaming)
                    sent.append(prefill_there)
                    if self.context.is_shared:
                        self._shared.sent(prefill_there, endpoints.members[position].name, now)
                    break
        if sent:
            picked = result.runs[result.primary].picked
            assert picked is not None
            state.private["sent"] = picked.members[0], tuple(sent)
            state.annotate("predicted_first_token_seconds", round(sent[0].predicted_seconds, 4))

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> None:
        scratch = state.private
        endpoint, sent = _sent(state)
        if endpoint is not None and head.endpoint is not None and head.endpoint.name != endpoint.name:
            for prefill in sent:  # the gateway had to try another endpoint
                self._failed(prefill, self.context.clock(), is_fault=True)
            del scratch["sent"]
        elif head.status < _FIRST_ERROR:
            scratch["answers"] = True

    def first_chunk(self, request: InferenceRequest, state: CycleState) -> None:
        _, sent = _sent(state)
        if sent and request.streaming and "answers" in state.private:
            now = self.context.clock()
            self._accuracy.observe((now - sent[0].sent_at) / sent[0].predicted_seconds)
            for prefill in sent:
                self._model.first_token(prefill, now)
                self._shared.first_token(prefill, now)

    def response_ended(self, request: InferenceRequest, end: ResponseEnd, state: CycleState) -> None:
        _, sent = _sent(state)
        state.private.pop("sent", None)
        now = self.context.clock()
        is_fault = bool(end.gateway_error) or end.status >= _FIRST_SERVER_ERROR or end.cause is TerminationCause.ERROR
        for prefill in sent:
            if is_fault or end.status >= _FIRST_ERROR or (end.cause is not TerminationCause.NATURAL and prefill.is_queued):
                self._failed(prefill, now, is_fault)
            else:
                tokens = 0 if end.usage is None else end.usage.completion_tokens
                self._model.ended(prefill, tokens, now)
                self._shared.ended(prefill, tokens, now)

    def dump_state(self) -> object:
        return self._model.dump(self.context.clock(), MAX_DUMPED)

    def snapshot(self) -> Iterable[bytes]:
        yield _encode(self._model.snapshot())

    def restore(self, part: bytes) -> None:
        self._follow_pool()
        self._model.restore(*_decode(part))

    def drain_deltas(self) -> bytes:
        return self._shared.drain(self.context.clock())

    def apply(self, deltas: bytes, origin: str) -> None:
        self._follow_pool()
        self._shared.apply(deltas, origin, self.context.clock())

    def origin_gone(self, origin: str) -> None:
        self._shared.origin_gone(origin, self.context.clock())

    def endpoint_removed(self, name: str) -> None:
        self._model.forget(name)
        self._pool = None

    def _failed(self, prefill: Prefill, now: float, is_fault: bool) -> None:
        self._model.failed(prefill, now, is_fault)
        self._shared.failed(prefill, now, is_fault)

    def _follow(self, members: tuple[Endpoint, ...]) -> None:
        self._slot_of_member, self._pool = self._model.slots([endpoint.name for endpoint in members]), members
        self._read_at = -math.inf

    def _follow_pool(self) -> None:
        if self.context.columns is not None:
            members = self.context.columns.endpoints().pool_members
            if members is not self._pool:
                self._follow(members)


def _sent(state: ScoringState) -> tuple[Endpoint | None, tuple[Prefill, ...]]:
    """Return the endpoint that answers, and the prefills recorded at it and at the prefiller."""
    found = state.private.get("sent")
    return found if isinstance(found, tuple) else (None, ())
