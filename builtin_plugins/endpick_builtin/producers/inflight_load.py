"""`inflight-load-producer`: counts what this picker has sent to each endpoint and what has not come back yet."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from endpick.api import (
    INFLIGHT_REQUESTS,
    INFLIGHT_TOKENS,
    PREFIX_BLOCKS,
    PREFIX_MATCH_BLOCKS,
    CycleState,
    DataProducer,
    Endpoints,
    InferenceRequest,
    Parameters,
    PluginContext,
    PluginMeta,
    PreRequest,
    ResponseEnd,
    ResponseObserver,
    SchedulingResult,
    Subscriptions,
    UpstreamHeaders,
)
from endpick_builtin.producers.inflight_gauges import InflightGauges
from endpick_builtin.producers.load_ledger import Charge, Load, LoadLedger
from endpick_builtin.producers.token_estimate import output_tokens, prompt_tokens, uncached_tokens


class InflightLoadParameters(Parameters):
    """How the tokens of a request are estimated."""

    add_estimated_output_tokens: Annotated[
        bool, Field(alias="addEstimatedOutputTokens", description="Count the tokens that the answer will probably have, too.")
    ] = False
    output_ratio: Annotated[float, Field(alias="outputRatio", ge=0.0, description="Tokens of the answer per token of the prompt.")] = 1.5
    max_estimated_output_tokens: Annotated[
        int | None, Field(alias="maxEstimatedOutputTokens", ge=0, description="No answer is estimated to be longer.")
    ] = None
    prefix_match_info_producer_name: Annotated[
        str, Field(alias="prefixMatchInfoProducerName", description="Instance that knows which tokens are cached; empty for the only one.")
    ] = ""
    sync_cross_replica_state: Annotated[
        bool, Field(alias="syncCrossReplicaState", description="Ignored: every picker counts what it sent itself.")
    ] = True


class InflightLoadProducer(
    DataProducer[InflightLoadParameters], PreRequest[InflightLoadParameters], ResponseObserver[InflightLoadParameters]
):
    """Keep the columns `inflight-requests` and `inflight-tokens` up to date.

    A request counts for the first endpoint of every profile that picked one, with the prompt tokens that are not cached there (and, if
    asked for, min(prompt * outputRatio, the client's limit, maxEstimatedOutputTokens) tokens of the answer). Its prompt tokens, and all of
    it at endpoints other than the primary's, are released with the first piece of the answer, the rest when the request ends, however it
    ends. An endpoint to which nothing was sent has 0.
    """

    meta = PluginMeta(
        type="inflight-load-producer",
        api=">=1.0,<2",
        parameters=InflightLoadParameters,
        consumes_optional=(PREFIX_MATCH_BLOCKS, PREFIX_BLOCKS),
        produces=(INFLIGHT_REQUESTS, INFLIGHT_TOKENS),
    )

    @classmethod
    def subscriptions(cls, parameters: InflightLoadParameters) -> Subscriptions:
        """The prefix matches, as the named producer finds them."""
        producer = parameters.prefix_match_info_producer_name
        prefix = (PREFIX_MATCH_BLOCKS.from_producer(producer), PREFIX_BLOCKS.from_producer(producer))
        return Subscriptions((), prefix, cls.meta.produces)

    def __init__(self, name: str, parameters: InflightLoadParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._matches = PREFIX_MATCH_BLOCKS.from_producer(parameters.prefix_match_info_producer_name)
        self._blocks = PREFIX_BLOCKS.from_producer(parameters.prefix_match_info_producer_name)
        self._ledger = LoadLedger(self._publish)
        self._known: object = None
        if context.registry is not None:
            context.registry.register(InflightGauges(name, self._ledger))

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        """Give endpoints that are new in the pool their 0; other than that the columns are up to date at any time."""
        if endpoints.generation is not self._known:
            self._known = endpoints.generation
            for endpoint in endpoints.generation.endpoints:
                self._publish(self._ledger.load_of(endpoint))

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        """Charge the endpoints that will work on the request."""
        parameters, blocks, prompt = self.parameters, state.get(self._blocks), prompt_tokens(request)
        output, flow = 0, (request.fairness_id, request.priority)
        if parameters.add_estimated_output_tokens:
            output = output_tokens(prompt, parameters.output_ratio, request.max_output_tokens, parameters.max_estimated_output_tokens)
        charges: dict[str, Charge] = {}
        for profile, run in result.runs.items():
            if run.picked is not None:
                first = run.picked.take([0])
                uncached = uncached_tokens(prompt, blocks, state.column(self._matches, first)[0])
                charges[profile] = self._ledger.charge(first.members[0], flow, uncached, output)
        state.private.update(charges=charges, primary=result.primary)

    def first_chunk(self, request: InferenceRequest, state: CycleState) -> None:
        """The prompt has been worked on, and whoever prepared it for the primary's endpoint is done."""
        for profile, charge in _charges(state).items():
            if profile == state.private["primary"]:
                self._ledger.release_prompt(charge)
            else:
                self._ledger.release(charge)

    def response_ended(self, request: InferenceRequest, end: ResponseEnd, state: CycleState) -> None:
        """Release what is left."""
        for charge in _charges(state).values():
            self._ledger.release(charge)

    def endpoint_removed(self, name: str) -> None:
        """Forget its load."""
        self._ledger.forget(name)

    def _publish(self, load: Load) -> None:
        columns = self.context.columns
        if columns is not None:
            columns.set(INFLIGHT_REQUESTS, float(load.requests), load.endpoint)
            columns.set(INFLIGHT_TOKENS, float(load.tokens), load.endpoint)


def _charges(state: CycleState) -> dict[str, Charge]:
    charges = state.private.get("charges", {})
    assert isinstance(charges, dict)
    return charges
