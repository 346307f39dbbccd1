"""`predicted-latency`: sends a request where it is expected to cost the least time."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from endpick.api import (
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    Category,
    CycleState,
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
from endpick.api.keys import PREFIX_BLOCKS, PREFIX_MATCH_BLOCKS, TOKENIZED_PROMPT
from endpick.api.plugin import MAX_DUMPED
from endpick_builtin.predicted.model import LatencyModel, Prefill
from endpick_builtin.producers.inflight_load import prompt_tokens

_RATIO_BUCKETS: Final = (0.1, 0.25, 0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
_READ_SECONDS: Final = 0.01
_FIRST_ERROR: Final = 400
_FIRST_SERVER_ERROR: Final = 500


class PredictedLatency(Scorer[Parameters], PreRequest[Parameters], ResponseObserver[Parameters]):
    """Prefers the endpoint where a request costs the least time; needs no parameters and no training.

    cost = time until everything ahead is prefilled + the prefill of what is not cached there, twice, + 5 % of it for each open answer that
    it delays + a tenth of the expected decoding + a penalty after failures. score = least cost / cost.

    Speeds are learnt from first tokens and answers, from the pool's at first. Requests of other clients count as the endpoint's metrics
    show them. Of answers that are not streamed only the end is seen: their prompts count as prefilled once the endpoint's queue is too
    short for them.
    """

    category = Category.BALANCE
    consumes = (PREFIX_MATCH_BLOCKS, PREFIX_BLOCKS)
    consumes_optional = (WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, TOKENIZED_PROMPT)

    def __init__(self, name: str, parameters: Parameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._model = LatencyModel()
        help_text = "Time to first token divided by the prediction, of streamed answers."
        self._accuracy = Distributions("endpick_first_token_prediction_ratio", help_text, (), _RATIO_BUCKETS, context.registry).labels()
        self._read_at = -math.inf
        self._pool: object = None
        self._slot_of_member: RowArray = np.empty(0, np.intp)

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        now, model = self.context.clock(), self._model
        members = endpoints.pool_members
        if members is not self._pool:
            self._slot_of_member, self._pool = model.slots([endpoint.name for endpoint in members]), members
            self._read_at = -math.inf
        slots = endpoints.gather(self._slot_of_member)
        if now - self._read_at > _READ_SECONDS or slots is not self._slot_of_member:
            self._read_at = now
            waiting = endpoints[WAITING_QUEUE_SIZE]
            model.read_load(slots, waiting, endpoints[RUNNING_REQUESTS_SIZE], now - endpoints.age(WAITING_QUEUE_SIZE))
            model.finish_hidden(slots, waiting, now)
        missing = self._missing_tokens(request, endpoints, state)
        costs, first = model.costs(slots, missing, now)
        state.private["asked"] = endpoints, missing, first
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
        picked = result.runs[result.primary].picked
        asked = state.private.pop("asked", None)
        if picked is None or not isinstance(asked, tuple):
            return
        endpoints, missing, first = asked
        endpoint = picked.members[0]
        position = endpoints.position(endpoint.name)
        if position is None:
            return
        seconds = float(first[position])
        slot = int(endpoints.gather(self._slot_of_member)[position])
        state.private["sent"] = self._model.sent(slot, float(missing[position]), seconds, self.context.clock(), request.streaming), endpoint
        state.annotate("predicted_first_token_seconds", round(seconds, 4))

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> None:
        scratch = state.private
        sent = scratch.get("sent")
        if isinstance(sent, tuple) and head.endpoint is not None and head.endpoint.name != sent[1].name:
            self._model.failed(sent[0], self.context.clock(), is_fault=True)  # the gateway had to try another
            del scratch["sent"]
        elif head.status < _FIRST_ERROR:
            scratch["answers"] = True

    def first_chunk(self, request: InferenceRequest, state: CycleState) -> None:
        sent = state.private.get("sent")
        if isinstance(sent, tuple) and request.streaming and "answers" in state.private:
            now, prefill = self.context.clock(), sent[0]
            self._model.first_token(prefill, now)
            self._accuracy.observe((now - prefill.sent_at) / prefill.predicted_seconds)

    def response_ended(self, request: InferenceRequest, end: ResponseEnd, state: CycleState) -> None:
        sent = state.private.pop("sent", None)
        if not isinstance(sent, tuple):
            return
        prefill: Prefill = sent[0]
        now = self.context.clock()
        if end.gateway_error or end.status >= _FIRST_SERVER_ERROR or end.cause is TerminationCause.ERROR:
            self._model.failed(prefill, now, is_fault=True)
        elif end.status >= _FIRST_ERROR or (end.cause is not TerminationCause.NATURAL and prefill.is_queued):
            self._model.failed(prefill, now, is_fault=False)
        else:
            self._model.ended(prefill, 0 if end.usage is None else end.usage.completion_tokens, now)

    def dump_state(self) -> object:
        return self._model.dump(self.context.clock(), MAX_DUMPED)

    def endpoint_removed(self, name: str) -> None:
        self._model.forget(name)
        self._pool = None
