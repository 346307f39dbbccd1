"""Data sources, collectors and other kinds around scheduling that break a rule of the kit."""

from __future__ import annotations

import asyncio
import socket
import sys

import aiohttp
import numpy as np

from conformance.broken.register import breaks
from endpick.api import (
    KV_CACHE_USAGE,
    WAITING_QUEUE_SIZE,
    Admitter,
    CandidateFilter,
    DataCollector,
    DisaggregationDecider,
    MetricsPage,
    Parameters,
    ParsedRequest,
    Parser,
    PollingSource,
    PreRequest,
    Rejection,
    RequestHeaderProcessor,
    Responder,
    ResponseObserver,
    SaturationDetector,
    StreamSource,
    Unavailable,
)
from endpick.api.discovery import EndpointDiscovery


class Fetching:
    """What sources of pages have in common, whatever they say of their payload."""

    session = None

    async def start(self):
        self.session = aiohttp.ClientSession()

    async def stop(self):
        if self.session is not None:
            await self.session.close()

    async def poll(self, endpoint):
        try:
            async with self.session.get(f"http://{endpoint.address}/metrics") as response:
                return MetricsPage(await response.read())
        except (aiohttp.ClientError, OSError) as problem:
            raise Unavailable(str(problem)) from problem


class Pages(Fetching, PollingSource[Parameters, MetricsPage]):
    """Fetches pages as it should: a source without fault."""


@breaks("names_its_payload", "it names no type of payload")
class Anonymous(Fetching, PollingSource):
    """Does not say what it brings."""


@breaks("source_raises_only_unavailable", "it raises ClientConnectorError")
class Raw(Pages):
    """Lets its client's exceptions out."""

    async def poll(self, endpoint):
        async with self.session.get(f"http://{endpoint.address}/metrics") as response:
            return MetricsPage(await response.read())


@breaks("source_gives_its_payload", "it brings a bytes when the server answers an empty page")
class Unwrapped(Pages):
    """Brings bytes and announces a page."""

    async def poll(self, endpoint):
        return (await super().poll(endpoint)).body


@breaks("source_ends_when_cancelled", "it goes on after it was cancelled")
class IgnoredCancellation(StreamSource[Parameters, MetricsPage]):
    """Takes cancellation for a hiccup."""

    async def watch(self, endpoint, publish):
        for _ in range(60):
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue


@breaks("source_has_valid_times", "`interval_seconds` is 0")
class Impatient(Pages):
    """Asks without a pause."""

    interval_seconds = 0


@breaks("source_does_not_block", "it connects a blocking socket at")
class Synchronous(PollingSource[Parameters, MetricsPage]):
    """Uses a client that blocks."""

    async def poll(self, endpoint):
        try:
            with socket.create_connection((endpoint.host, endpoint.port), timeout=0.2):
                raise Unavailable("nothing to say")
        except OSError as problem:
            raise Unavailable(str(problem)) from problem


KEPT: list[socket.socket] = []
"""What keeps the leak alive, because Python closes sockets without references; the tests close these."""


@breaks("leaves_nothing_running", "open socket(s)")
class Leaking(PollingSource[Parameters, MetricsPage]):
    """Never closes a connection."""

    def __init__(self, name, parameters, context):
        super().__init__(name, parameters, context)
        self.kept = KEPT

    async def poll(self, endpoint):
        try:
            connection = socket.socket()
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connection, (endpoint.host, endpoint.port))
        except OSError as problem:
            connection.close()
            raise Unavailable(str(problem)) from problem
        self.kept.append(connection)
        raise Unavailable("nothing to say")


@breaks("source_raises_only_unavailable", "it raises SystemExit: 3 at")
class Quitting(PollingSource[Parameters, MetricsPage]):
    """Takes the process with it."""

    async def poll(self, endpoint):
        sys.exit(3)


@breaks("collector_survives_garbage", "`collect` raises AttributeError")
class Naive(DataCollector[Parameters, MetricsPage]):
    """Expects pages to be as documented."""

    produces = (WAITING_QUEUE_SIZE,)

    def collect(self, payload, writer):
        writer.set(WAITING_QUEUE_SIZE, payload.newest("queue").value)


@breaks("collector_reads_good_payloads", "`collect` raises Unavailable", payloads=[MetricsPage(b"queue 3\n"), MetricsPage(b"size 3\n")])
class Misreading(DataCollector[Parameters, MetricsPage]):
    """Knows one of two names."""

    produces = (WAITING_QUEUE_SIZE,)

    def collect(self, payload, writer):
        sample = payload.newest("queue")
        if sample is None:
            raise Unavailable("no queue")
        writer.set(WAITING_QUEUE_SIZE, sample.value)


@breaks("parser_refuses_what_it_cannot_read", "raises JSONDecodeError")
class Credulous(Parser):
    """Believes that clients send JSON."""

    def parse(self, path, headers, body):
        import json

        try:
            payload = json.loads(body.decode(errors="replace"))
        except RecursionError:
            return Rejection("too deep", 400)
        if not isinstance(payload, dict):
            return Rejection("not an object", 400)
        return ParsedRequest(model=str(payload.get("model", "")))


@breaks("parser_finds_no_usage_in_garbage", "`usage` raises IndexError")
class Thirsty(Parser):
    """Believes that servers send usage."""

    reads_usage = True

    def parse(self, path, headers, body):
        return ParsedRequest(needs_model=False)

    def usage(self, body, streaming):
        return body.split(b"usage", 1)[1] and None


@breaks("candidate_filter_keeps_a_subset", "`filter_candidates` answered the same endpoint more than once")
class Generous(CandidateFilter):
    """Answers endpoints of its own."""

    def filter_candidates(self, request, endpoints):
        return endpoints.take([0, 0]) if len(endpoints) > 1 else endpoints


@breaks("detector_answers_a_share", "`saturation` answers nan for 0 endpoints")
class Averaging(SaturationDetector):
    """Takes the mean of no values."""

    consumes = (KV_CACHE_USAGE,)

    def saturation(self, endpoints):
        usage = np.nan_to_num(endpoints[KV_CACHE_USAGE], nan=1.0)
        return float(usage.mean()) if len(usage) else float("nan")


@breaks("pre_request_admits_or_rejects", "`before_request` answers bool for request")
class Affirmative(PreRequest):
    """Answers yes."""

    def before_request(self, request, result, headers, state):
        return True


@breaks("observer_copes_with_every_response", "`response_ended` raises KeyError: 'started'")
class Stopwatch(ResponseObserver):
    """Expects to have been there from the beginning."""

    def response_ended(self, request, end, state):
        state.private["seconds"] = self.context.clock() - state.private["started"]


@breaks("discovery_reports_configuration_errors", "`run` raises FileNotFoundError")
class Lost(EndpointDiscovery):
    """Does not say what it cannot find."""

    async def run(self, registry):
        raise FileNotFoundError("/nowhere")


@breaks("admitter_admits_or_rejects", "`admit` answers bool for request")
class Polite(Admitter):
    """Answers yes."""

    def admit(self, request, endpoints, state):
        return True


@breaks("decider_answers_yes_or_no", "`disaggregate` answers int for request")
class Wordy(DisaggregationDecider):
    """Answers a number."""

    def disaggregate(self, request, endpoint, state):
        return 1


@breaks("responder_answers_or_declines", "`respond` answers str")
class Chatty(Responder):
    """Answers with text instead of a response."""

    def respond(self, request, endpoints, state):
        return "Hello"


@breaks("header_processor_admits_or_rejects", "`request_headers` raises KeyError")
class Presuming(RequestHeaderProcessor):
    """Takes a header for granted."""

    def request_headers(self, request, state):
        return None if request.headers["x-agent"] else Rejection("no agent", 403)
