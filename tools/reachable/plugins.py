"""Plugins and a hook object for the runs: each extension point that the built-in plugins leave out, and each way of failing once.

A request says by its headers what the plugins do with it, so that one configuration serves for all runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from endpick.api import (
    Admitter,
    BoolArray,
    CandidateFilter,
    ColumnWriter,
    CycleState,
    DataCollector,
    DataKey,
    DataProducer,
    Endpoint,
    EndpointRow,
    Endpoints,
    Filter,
    InferenceRequest,
    Parameters,
    PerEndpointScorer,
    PollingPoolSource,
    PoolSource,
    PreRequest,
    ProfileHandler,
    ProfileRunResult,
    Rejection,
    ReloadRejected,
    ResponseEnd,
    ResponseHead,
    ResponseObserver,
    SchedulingResult,
    Scope,
    Scorer,
    ScoringState,
    StreamSource,
    Subscriptions,
    Unavailable,
    UpstreamHeaders,
    Usage,
    hookimpl,
)

HEAT = DataKey("reach/heat", float)
PRICE = DataKey("reach/price", float, Scope.POOL)
NOTE = DataKey("reach/note", str, Scope.REQUEST)
SHARE = DataKey("reach/share", float, Scope.CANDIDATE)


class HeatSource(StreamSource[Parameters, float]):
    """Publishes one value for each endpoint, then fails."""

    async def watch(self, endpoint: Endpoint, publish: Callable[[float], None]) -> None:
        publish(1.0)
        await asyncio.sleep(0.1)
        raise OSError("the stream broke")


class PriceSource(PoolSource[Parameters, float]):
    """Publishes a value of the pool, then one that cannot be read."""

    async def watch_pool(self, publish: Callable[[float], None]) -> None:
        publish(2.0)
        publish(-1.0)
        await asyncio.Event().wait()


class AskedPrice(PollingPoolSource[Parameters, float]):
    """Has a value of the pool at every other time that it is asked."""

    interval_seconds = 0.05
    asked = 0

    async def poll_pool(self) -> float:
        self.asked += 1
        if self.asked % 2:
            return 3.0
        raise Unavailable("nothing to have")


class HeatCollector(DataCollector[Parameters, float]):
    """Writes what both sources say."""

    produces = (HEAT, PRICE)

    def collect(self, payload: float, writer: ColumnWriter) -> None:
        if payload < 0:
            raise ValueError("a negative price")
        if writer.endpoint is not None:
            writer.set(HEAT, payload)
            return
        writer.set_pool(PRICE, payload)
        for endpoint in writer.endpoints():
            writer.set(HEAT, payload, endpoint)


class Screener(CandidateFilter):
    """Keeps all, or none."""

    def filter_candidates(self, request: InferenceRequest, endpoints: Endpoints) -> BoolArray | Endpoints:
        return np.full(len(endpoints), request.headers.get("x-screen") != "all")


class Producer(DataProducer):
    """Writes for the request, and waits where the request asks for it."""

    produces = (NOTE, SHARE)
    timeout_seconds = 0.2

    async def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        state.put(NOTE, request.id)
        state.put_column(SHARE, endpoints, np.ones(len(endpoints)))
        if "x-wait" in request.headers:
            await asyncio.sleep(float(request.headers["x-wait"]))


class Doorman(Admitter):
    """Refuses a request that asks to be refused."""

    def admit(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> Rejection | None:
        return Rejection("not today", 403, "rejected-by-wish") if "x-reject" in request.headers else None


class Even(Filter):
    """Keeps all, or none, or fails."""

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> BoolArray | Endpoints:
        if request.headers.get("x-filter") == "fault":
            raise RuntimeError("a fault by wish")
        return endpoints.only(lambda _: request.headers.get("x-filter") != "all")


class Cool(PerEndpointScorer):
    """Reads all that the others wrote."""

    consumes = (HEAT, SHARE)
    consumes_optional = (PRICE, NOTE)

    def score_endpoint(self, request: InferenceRequest, endpoint: EndpointRow, state: ScoringState) -> float:
        state.get(NOTE)
        return 1.0 - endpoint[HEAT]


class Wild(Scorer):
    """Leaves the range, or fails."""

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> np.ndarray:
        state.column(SHARE, endpoints)
        if "x-block" in request.headers:
            time.sleep(float(request.headers["x-block"]))
        if "x-fault" in request.headers:
            raise RuntimeError("a fault by wish")
        return np.full(len(endpoints) + ("x-shape" in request.headers), 2.0)

    @classmethod
    def subscriptions(cls, parameters: Parameters) -> Subscriptions:
        return Subscriptions((SHARE,))


class Handler(ProfileHandler):
    """Tries the second profile when the first finds no endpoint."""

    def pick_profiles(
        self, request: InferenceRequest, profiles: Sequence[str], results: Mapping[str, ProfileRunResult], state: ScoringState
    ) -> Sequence[str]:
        if any(not result.failure for result in results.values()):
            return ()
        if "x-twice" in request.headers:
            return [profiles[0], profiles[0]]
        return [name for name in profiles if name not in results][:1]

    def process_results(self, request: InferenceRequest, results: Mapping[str, ProfileRunResult], state: ScoringState) -> SchedulingResult:
        for name, result in results.items():
            if not result.failure:
                return SchedulingResult(name, results, tuple(endpoint.address for endpoint in result.picked.members))
        return SchedulingResult.failed("no profile serves this request")


class Label(PreRequest):
    """Adds headers and metadata; the gateway may not be told all of them."""

    def before_request(
        self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState
    ) -> Rejection | None:
        if "x-bare" in request.headers:
            return None
        headers.set("x-profile", result.primary)
        headers.set_metadata("reach", "profile", result.primary)
        return Rejection("changed our mind", 503) if "x-late-reject" in request.headers else None


class Watcher(ResponseObserver):
    """Sees all of a response."""

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> Mapping[str, str] | None:
        return {"x-seen": str(head.status)}

    def first_chunk(self, request: InferenceRequest, state: CycleState) -> None:
        """Nothing to do."""

    def response_metadata(self, request: InferenceRequest, usage: Usage | None, state: CycleState) -> Mapping[str, Mapping[str, float]]:
        return {"reach": {"read": float(usage is not None)}}

    def response_ended(self, request: InferenceRequest, end: ResponseEnd, state: CycleState) -> None:
        if "x-fault" in request.headers:
            raise RuntimeError("a fault by wish")


class Reluctant(Scorer):
    """Does not start: a configuration that names it is refused."""

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> np.ndarray:
        return np.ones(len(endpoints))

    async def start(self) -> None:
        raise RuntimeError("not in the mood")


class Clinging(Scorer):
    """Starts, and does not stop."""

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> np.ndarray:
        return np.ones(len(endpoints))

    async def stop(self) -> None:
        raise RuntimeError("cannot let go")


class Hooks:
    """Sees decisions, and refuses a configuration that says so."""

    @hookimpl
    def endpick_startup(self) -> None:
        """Agree."""

    @hookimpl
    async def endpick_shutdown(self) -> None:
        """Take leave, with a fault."""
        raise RuntimeError("no farewell")

    @hookimpl
    def endpick_config_reload(self, new: Mapping[str, object]) -> None:
        if "vetoed" in str(new):
            raise ReloadRejected("vetoed by wish")

    @hookimpl
    def endpick_decision(self, record: Mapping[str, object]) -> None:
        assert record
