"""Data sources, collectors and other kinds around scheduling that break a rule of the kit."""

from __future__ import annotations

import asyncio
import socket
import sys

import aiohttp
import numpy as np

from conformance.broken.register import breaks, meta
from endpick.api import (
    KV_CACHE_USAGE,
    WAITING_QUEUE_SIZE,
    Admitter,
    DataCollector,
    EndpointDiscovery,
    MetricsPage,
    ParsedRequest,
    Parser,
    PollingSource,
    PreRequest,
    Rejection,
    ResponseObserver,
    SaturationDetector,
    Screener,
    StreamSource,
    Unavailable,
)


class Pages(PollingSource):
    """Fetches pages as it should: a source without fault."""

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


@breaks("names_its_payload", "`meta.payload` is missing")
class Anonymous(Pages):
    """Does not say what it brings."""

    meta = meta("anonymous")


@breaks("source_is_unavailable_and_nothing_else", "it raises ClientConnectorError")
class Raw(Pages):
    """Lets its client's exceptions out."""

    meta = meta("raw", payload=MetricsPage)

    async def poll(self, endpoint):
        async with self.session.get(f"http://{endpoint.address}/metrics") as response:
            return MetricsPage(await response.read())


@breaks("source_gives_its_payload", "it brings a bytes when the server answers an empty page")
class Unwrapped(Pages):
    """Brings bytes and announces a page."""

    meta = meta("unwrapped", payload=MetricsPage)

    async def poll(self, endpoint):
        return (await super().poll(endpoint)).body


@breaks("source_heeds_cancellation", "it goes on after it was cancelled")
class Stubborn(StreamSource):
    """Takes cancellation for a hiccup."""

    meta = meta("stubborn", payload=MetricsPage)

    async def watch(self, endpoint, publish):
        for _ in range(60):
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue


@breaks("source_has_sane_times", "`timeout_seconds` is 0")
class Impatient(Pages):
    """Gives servers no time."""

    meta = meta("impatient", payload=MetricsPage)
    timeout_seconds = 0


@breaks("source_blocks_nobody", "it connects a blocking socket at")
class Synchronous(PollingSource):
    """Uses a client that blocks."""

    meta = meta("synchronous", payload=MetricsPage)

    async def poll(self, endpoint):
        try:
            with socket.create_connection((endpoint.host, endpoint.port), timeout=0.2):
                raise Unavailable("nothing to say")
        except OSError as problem:
            raise Unavailable(str(problem)) from problem


KEPT: list[socket.socket] = []
"""What keeps the leak alive, because Python closes sockets that nobody holds; the tests close these."""


@breaks("leaves_nothing_running", "open socket(s)")
class Leaking(PollingSource):
    """Never closes a connection."""

    meta = meta("leaking", payload=MetricsPage)

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


@breaks("source_is_unavailable_and_nothing_else", "it raises SystemExit: 3 at")
class Quitting(PollingSource):
    """Takes the process with it."""

    meta = meta("quitting", payload=MetricsPage)

    async def poll(self, endpoint):
        sys.exit(3)


@breaks("collector_survives_nonsense", "`collect` raises AttributeError")
class Naive(DataCollector):
    """Expects pages to be as documented."""

    meta = meta("naive", payload=MetricsPage, produces=(WAITING_QUEUE_SIZE,))

    def collect(self, payload, writer):
        writer.set(WAITING_QUEUE_SIZE, payload.newest("queue").value)


@breaks("collector_reads_good_payloads", "`collect` raises Unavailable", payloads=[MetricsPage(b"queue 3\n"), MetricsPage(b"size 3\n")])
class Misreading(DataCollector):
    """Knows one of two names."""

    meta = meta("misreading", payload=MetricsPage, produces=(WAITING_QUEUE_SIZE,))

    def collect(self, payload, writer):
        sample = payload.newest("queue")
        if sample is None:
            raise Unavailable("no queue")
        writer.set(WAITING_QUEUE_SIZE, sample.value)


@breaks("parser_refuses_what_it_cannot_read", "raises JSONDecodeError")
class Credulous(Parser):
    """Believes that clients send JSON."""

    meta = meta("credulous")

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

    meta = meta("thirsty")
    reads_usage = True

    def parse(self, path, headers, body):
        return ParsedRequest(needs_model=False)

    def usage(self, body, streaming):
        return body.split(b"usage", 1)[1] and None


@breaks("screener_keeps_a_subset", "`screen` answered the same endpoint more than once")
class Generous(Screener):
    """Answers endpoints of its own."""

    meta = meta("generous")

    def screen(self, request, endpoints):
        return endpoints.take([0, 0]) if len(endpoints) > 1 else endpoints


@breaks("detector_answers_a_share", "`saturation` answers nan for 0 endpoints")
class Averaging(SaturationDetector):
    """Takes the mean of nobody."""

    meta = meta("averaging", consumes=(KV_CACHE_USAGE,))

    def saturation(self, endpoints):
        usage = np.nan_to_num(endpoints[KV_CACHE_USAGE], nan=1.0)
        return float(usage.mean()) if len(usage) else float("nan")


@breaks("pre_request_admits_or_rejects", "`before_request` answers bool for request")
class Affirmative(PreRequest):
    """Answers yes."""

    meta = meta("affirmative")

    def before_request(self, request, result, headers, state):
        return True


@breaks("observer_copes_with_every_response", "`response_ended` raises KeyError: 'started'")
class Stopwatch(ResponseObserver):
    """Expects to have been there from the beginning."""

    meta = meta("stopwatch")

    def response_ended(self, request, end, state):
        state.private["seconds"] = self.context.clock() - state.private["started"]


@breaks("discovery_fails_in_words", "`run` raises FileNotFoundError")
class Lost(EndpointDiscovery):
    """Does not say what it cannot find."""

    meta = meta("lost")

    async def run(self, registry):
        raise FileNotFoundError("/nowhere")


@breaks("admitter_admits_or_rejects", "`admit` answers bool for request")
class Polite(Admitter):
    """Answers yes."""

    meta = meta("polite")

    def admit(self, request, endpoints, state):
        return True
