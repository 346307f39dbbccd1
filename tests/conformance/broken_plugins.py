"""Plugins that each break one rule of the kit, and which check has to say so in which words."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import aiohttp
import numpy as np
import prometheus_client
from pydantic import ConfigDict, Field

from endpick.api import (
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    Admitter,
    DataCollector,
    DataKey,
    DataProducer,
    EndpointDiscovery,
    Filter,
    MetricsPage,
    Parameters,
    ParsedRequest,
    Parser,
    Picker,
    PluginMeta,
    PollingSource,
    PreRequest,
    ProfileHandler,
    ProfileRunResult,
    Rejection,
    ResponseObserver,
    SaturationDetector,
    SchedulingResult,
    Scope,
    Scorer,
    Screener,
    StreamSource,
    Unavailable,
)

API = ">=1.0,<2"
TOKENS = DataKey("acme.example/tokens", int, Scope.REQUEST, doc="Tokens of the prompt (count).")
MATCH = DataKey("acme.example/match", float, Scope.CANDIDATE, doc="How well the endpoint fits (0 to 1).")
TENANTS: DataKey[list] = DataKey("acme.example/tenants", list, doc="Tenants that the endpoint serves.")
NAMELESS = DataKey("acme.example/nameless", float)


@dataclass(frozen=True)
class Broken:
    """A class, the one check that has to fail, what it has to say, and what the kit is given."""

    plugin: type
    check: str
    message: str
    material: Mapping[str, object] = field(default_factory=dict)


BROKEN: list[Broken] = []


def breaks(check: str, message: str, **material: object):
    """Note the rule that a class breaks, and give it a type if it has no `meta` yet."""

    def note(plugin: type) -> type:
        BROKEN.append(Broken(plugin, check, message, material))
        return plugin

    return note


def meta(name: str, **facts: object) -> PluginMeta:
    return PluginMeta(**{"type": f"broken.{name}", "api": API, **facts})


class Fair(Scorer):
    """Everybody is equal: a scorer without fault, for others to spoil."""

    def score(self, request, endpoints, state):
        return np.ones(len(endpoints))


@breaks("loads", "does not implement `score`")
class Unfinished(Scorer):
    """Forgot `score`."""

    meta = meta("unfinished")


@breaks("loads", "is called with (request, endpoints, state), but")
class OldSignature(Scorer):
    """Takes one argument too few."""

    meta = meta("old-signature")

    def score(self, request, endpoints):
        return np.ones(len(endpoints))


@breaks("accepts_no_future_api", "`meta.api` is '>=1.0', which includes plugin API 2")
class Optimist(Fair):
    """Promises to work with what nobody has seen."""

    meta = meta("optimist", api=">=1.0")


@breaks("has_a_docstring", "the class has no docstring")
class Undocumented(Fair):
    meta = meta("undocumented")


@breaks("has_a_vendor_prefix", "the type has no prefix")
class Prefixless(Fair):
    """Its type looks like one of endpick's own."""

    meta = PluginMeta(type="prefixless", api=API)


@breaks("documents_its_data_keys", "the data key 'acme.example/nameless' has no `doc`")
class Secretive(Scorer):
    """Reads a key of which nobody knows what it holds."""

    meta = meta("secretive", consumes=(NAMELESS,))

    def score(self, request, endpoints, state):
        return np.nan_to_num(endpoints[NAMELESS])


@breaks("works_under_its_aliases", "the alias 'broken.formerly' has no entry point")
class Renamed(Fair):
    """Has a former name that leads nowhere."""

    meta = meta("renamed", aliases=("broken.formerly",))


class Terse(Parameters):
    """Says nothing about its field."""

    limit: int = 1


@breaks("describes_its_parameters", "the parameter 'limit' has no description")
class TerseScorer(Fair):
    """Has a parameter without description."""

    meta = meta("terse", parameters=Terse)


class Lenient(Parameters):
    """Takes anything."""

    model_config = ConfigDict(extra="allow")


@breaks("refuses_unknown_parameters", "it accepts a parameter that does not exist")
class LenientScorer(Fair):
    """Ignores typing mistakes."""

    meta = meta("lenient", parameters=Lenient)


class Contradictory(Parameters):
    """Its default breaks its own rule."""

    limit: Annotated[int, Field(gt=0, description="A count.")] = 0


@breaks("has_valid_defaults", "the default of 'limit', 0, is not valid: Input should be greater than 0")
class ContradictoryScorer(Fair):
    """Has an invalid default."""

    meta = meta("contradictory", parameters=Contradictory)


class Misleading(Parameters):
    """Its example does not work."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"limit": "many"}]})
    limit: Annotated[int, Field(description="A count.")] = 1


@breaks("has_valid_examples", "the host refuses example 1 of the schema: parameter 'limit'")
class MisleadingScorer(Fair):
    """Has an invalid example."""

    meta = meta("misleading", parameters=Misleading)


class Required(Parameters):
    """Cannot be left out."""

    model: Annotated[str, Field(description="A model.")]


@breaks("has_valid_examples", "parameter 'model' of broken.exacting is missing")
class Exacting(Fair):
    """Needs a parameter of which it gives no example."""

    meta = meta("exacting", parameters=Required)


class Mutable(Parameters):
    """Can be changed."""

    model_config = ConfigDict(frozen=False)


@breaks("keeps_parameters_immutable", "its parameters can be changed")
class MutableScorer(Fair):
    """Has parameters that change under way."""

    meta = meta("mutable", parameters=Mutable)


class Ratio(Parameters):
    """A share."""

    share: Annotated[int, Field(description="A share.")] = 0


@breaks("can_be_built", "ZeroDivisionError: division by zero")
class Unbuildable(Fair):
    """Divides by its default."""

    meta = meta("unbuildable", parameters=Ratio)

    def __init__(self, name, parameters, context):
        super().__init__(name, parameters, context)
        self.inverse = 1 / parameters.share


@breaks("filter_answers", "`filter` answers int64 array of shape (8,) for 8 endpoints")
class Positions(Filter):
    """Answers positions instead of a mask."""

    meta = meta("positions")

    def filter(self, request, endpoints, state):
        return np.arange(len(endpoints), dtype=np.int64)


@breaks("filter_answers", "`filter` raises KeyError: 'x-tenant'")
class Demanding(Filter):
    """Cannot do without a header."""

    meta = meta("demanding")

    def filter(self, request, endpoints, state):
        tenant = request.headers["x-tenant"]
        return endpoints.only(lambda endpoint: endpoint.labels.get("tenant") in (None, tenant))


@breaks("filter_keeps_a_subset", "`filter` answered endpoints that it was not given")
class Resurrecting(Filter):
    """Brings back whom others have dropped."""

    meta = meta("resurrecting")

    def filter(self, request, endpoints, state):
        return type(endpoints)(endpoints.generation)


@breaks("filter_keeps_the_order", "`filter` changes the order of the endpoints")
class Sorting(Filter):
    """Sorts by queue."""

    meta = meta("sorting", consumes=(WAITING_QUEUE_SIZE,))

    def filter(self, request, endpoints, state):
        return endpoints.take(np.argsort(endpoints[WAITING_QUEUE_SIZE], kind="stable"))


@breaks("filter_is_idempotent", "endpoints it has just kept, `filter` drops")
class Halving(Filter):
    """Keeps those that are not worse than the average."""

    meta = meta("halving", consumes=(WAITING_QUEUE_SIZE,))

    def filter(self, request, endpoints, state):
        queue = np.nan_to_num(endpoints[WAITING_QUEUE_SIZE])
        return queue <= queue.mean()


@breaks("scorer_rates_every_endpoint", "`score` answers list, not an array")
class Listing(Scorer):
    """Answers a list."""

    meta = meta("listing")

    def score(self, request, endpoints, state):
        return [1.0 for _ in endpoints]


@breaks("scorer_rates_every_endpoint", "`score` raises IndexError")
class Promptless(Scorer):
    """Takes for granted that there is a prompt."""

    meta = meta("promptless")

    def score(self, request, endpoints, state):
        return np.full(len(endpoints), min(len(request.prompt.texts[0]) / 1e6, 1.0))


@breaks("scorer_tolerates_missing_data", "`score` answers nan for 8 of 8 endpoints when no endpoint has reported anything")
class Trusting(Scorer):
    """Has no answer to missing data."""

    meta = meta("trusting", consumes=(KV_CACHE_USAGE,))

    def score(self, request, endpoints, state):
        return 1.0 - endpoints[KV_CACHE_USAGE]


@breaks("scorer_answers_finite_numbers", "when every reported number is 0")
class Dividing(Scorer):
    """Divides by the longest queue."""

    meta = meta("dividing", consumes=(WAITING_QUEUE_SIZE,))

    def score(self, request, endpoints, state):
        queue = endpoints[WAITING_QUEUE_SIZE]
        if np.isnan(queue).any() or len(queue) == 1:
            return np.zeros(len(endpoints))
        with np.errstate(invalid="ignore"):
            return 1.0 - queue / queue.max()


@breaks("scorer_stays_in_range", "`score` answers -")
class Penalising(Scorer):
    """Answers minus the queue."""

    meta = meta("penalising", consumes=(WAITING_QUEUE_SIZE,))

    def score(self, request, endpoints, state):
        return -np.nan_to_num(endpoints[WAITING_QUEUE_SIZE])


@breaks("scorer_follows_the_candidates", "`score` answers (8,) scores for 4 endpoints after a filter has dropped some")
class Oblivious(Scorer):
    """Rates the whole pool, whoever is a candidate."""

    meta = meta("oblivious")

    def score(self, request, endpoints, state):
        return np.ones(len(endpoints) if len(endpoints) in (1, 10_000) else 8)


@breaks("scorer_follows_the_candidates", "the same endpoints in reverse order get other scores")
class Ranking(Scorer):
    """Prefers whoever comes first."""

    meta = meta("ranking")

    def score(self, request, endpoints, state):
        return np.linspace(1.0, 0.0, len(endpoints))


@breaks("scorer_is_deterministic", "two instances with the same seed give different scores")
class Moody(Scorer):
    """Draws from the global generator."""

    meta = meta("moody")

    def score(self, request, endpoints, state):
        return np.array([random.random() for _ in endpoints])


@breaks("scorer_rates_a_single_endpoint", "`score` raises ValueError: no spread of one at")
class Comparing(Scorer):
    """Cannot rate one alone."""

    meta = meta("comparing")

    def score(self, request, endpoints, state):
        if len(endpoints) == 1:
            raise ValueError("no spread of one")
        return np.ones(len(endpoints))


@breaks("handles_ten_thousand_endpoints", "times as long as a loop over 10000 endpoints")
class Quadratic(Scorer):
    """Compares everybody with everybody."""

    meta = meta("quadratic")

    def score(self, request, endpoints, state):
        names = sorted(endpoint.name for endpoint in endpoints)
        return np.array([1.0 - names.index(endpoint.name) / len(names) for endpoint in endpoints])


class First(Picker):
    """The first candidate: a picker without fault."""

    def pick(self, request, scored, state):
        return scored.take([0])


@breaks("picker_answers", "`pick` answers Endpoint, not Endpoints")
class PicksOne(Picker):
    """Answers a single endpoint."""

    meta = meta("picks-one")

    def pick(self, request, scored, state):
        return scored.endpoints.members[0]


@breaks("picker_picks_somebody", "`pick` picks none of 4 candidates")
class Choosy(Picker):
    """Wants a choice of at least five."""

    meta = meta("choosy")

    def pick(self, request, scored, state):
        return scored.take([0] if len(scored.scores) != 4 else [])


@breaks("picker_picks_candidates", "`pick` answered the same endpoint more than once")
class Insisting(Picker):
    """Picks the best twice."""

    meta = meta("insisting")

    def pick(self, request, scored, state):
        return scored.take([0, 0])


@breaks("picker_is_deterministic_under_a_seed", "two instances with the same seed pick different endpoints")
class Gambling(Picker):
    """Draws from the global generator."""

    meta = meta("gambling")

    def pick(self, request, scored, state):
        return scored.take([random.randrange(len(scored.scores))])


@breaks("picker_puts_the_best_first", "it picks number 50, 49, in this order")
class Upside(Picker):
    """Sorts the wrong way round."""

    meta = meta("upside")

    def pick(self, request, scored, state):
        return scored.take(np.argsort(scored.scores)[:2])


@breaks("picker_leaves_scores_alone", "`pick` changes the totals it is given")
class Consuming(Picker):
    """Crosses out whom it has picked."""

    meta = meta("consuming")

    def pick(self, request, scored, state):
        best = int(scored.scores.argmax())
        scored.scores[best] = -1.0
        return scored.take([best])


class Single(ProfileHandler):
    """Runs everything once: a handler without fault."""

    def pick_profiles(self, request, profiles, results, state):
        return () if results else profiles

    def process_results(self, request, results, state):
        name, run = next(iter(results.items()))
        return "nobody" if run.picked is None else SchedulingResult(name, results, tuple(e.address for e in run.picked))


@breaks("handler_ends_its_loop", "`pick_profiles` names a profile again that has run: default")
class Endless(Single):
    """Never has enough of a profile that fails."""

    meta = meta("endless")

    def pick_profiles(self, request, profiles, results, state):
        return [name for name in profiles if name not in results or results[name].picked is None]


@breaks("handler_decides", "`process_results` raises TypeError")
class Confident(Single):
    """Does not expect a run to fail."""

    meta = meta("confident")

    def process_results(self, request, results: Mapping[str, ProfileRunResult], state):
        name, run = next(iter(results.items()))
        return SchedulingResult(name, results, tuple(endpoint.address for endpoint in run.picked))


@breaks("reads_only_declared_keys", "it reads the data key 'kv-cache-usage', which it does not declare in `consumes`")
class Peeking(Scorer):
    """Reads what it did not ask for."""

    meta = meta("peeking")

    def score(self, request, endpoints, state):
        return np.fmax(1.0 - endpoints[KV_CACHE_USAGE], 0.0)


@breaks("reads_every_declared_key", "the data key 'running-requests-size' is declared and was never read")
class Hoarding(Scorer):
    """Asks for more than it reads."""

    meta = meta("hoarding", consumes=(KV_CACHE_USAGE,), consumes_optional=(RUNNING_REQUESTS_SIZE,))

    def score(self, request, endpoints, state):
        return np.fmax(1.0 - endpoints[KV_CACHE_USAGE], 0.0)


class Counting(DataProducer):
    """Counts tokens: a producer without fault."""

    meta = meta("counting", produces=(TOKENS,))

    def produce(self, request, endpoints, state):
        state.put(TOKENS, request.prompt.estimated_tokens)


@breaks("writes_only_declared_keys", "it writes the data key 'acme.example/tokens', which it does not declare in `produces`")
class Smuggling(DataProducer):
    """Writes what it did not declare."""

    meta = meta("smuggling", produces=(WAITING_QUEUE_SIZE,))

    def produce(self, request, endpoints, state):
        self.context.columns.set(WAITING_QUEUE_SIZE, 1.0, endpoints.members[0])
        state.put(TOKENS, 1)


@breaks("writes_every_declared_key", "the data key 'acme.example/tokens' is in `produces` and was never written")
class Promising(DataProducer):
    """Keeps its promise to nobody."""

    meta = meta("promising", produces=(TOKENS,))

    def produce(self, request, endpoints, state):
        return None


@breaks("produces_something", "it produces nothing with the defaults")
class Idle(DataProducer):
    """Declares nothing."""

    meta = meta("idle")

    def produce(self, request, endpoints, state):
        return None


@breaks("producer_copes_with_every_request", "`produce` raises IndexError")
class Assuming(DataProducer):
    """Takes for granted that there is a prompt."""

    meta = meta("assuming", produces=(TOKENS,))

    def produce(self, request, endpoints, state):
        state.put(TOKENS, len(request.prompt.texts[0]) // 4)


@breaks("leaves_its_inputs_alone", "`score` changes the column 'waiting-queue-size'")
class Clamping(Scorer):
    """Cuts queues in place."""

    meta = meta("clamping", consumes=(WAITING_QUEUE_SIZE,))

    def score(self, request, endpoints, state):
        queue = endpoints[WAITING_QUEUE_SIZE]
        np.minimum(queue, 5.0, out=queue)
        return np.fmax(1.0 - queue / 5.0, 0.0)


@breaks("leaves_its_inputs_alone", "`score` changes the column 'acme.example/match'")
class Scaling(Scorer):
    """Scales in place what a producer has left for everybody."""

    meta = meta("scaling", consumes=(MATCH,))

    def score(self, request, endpoints, state):
        match = state.column(MATCH, endpoints)
        match *= 0.5
        return np.nan_to_num(match)


@breaks("leaves_its_inputs_alone", "`score` changes the column 'acme.example/tenants'", samples={TENANTS: [["a"], ["b"]]})
class Subscribing(Scorer):
    """Adds to lists that belong to the endpoint table."""

    meta = meta("subscribing", consumes=(TENANTS,))

    def score(self, request, endpoints, state):
        for tenants in endpoints.objects(TENANTS):
            if tenants is not None:
                tenants.append(request.fairness_id)
        return np.ones(len(endpoints))


@breaks("leaves_its_inputs_alone", "`before_request` changes the headers of the request")
class Stamping(PreRequest):
    """Writes into the request's headers."""

    meta = meta("stamping")

    def before_request(self, request, result, headers, state):
        request.headers["x-stamp"] = "1"


@breaks("blocks_nobody", "`score` opens a file at")
class Reading(Fair):
    """Reads a file for every request."""

    meta = meta("reading")

    def score(self, request, endpoints, state):
        with Path(__file__).open() as file:
            file.readline()
        return np.ones(len(endpoints))


@breaks("blocks_nobody", "`score` sleeps at")
class Sleeping(Fair):
    """Takes a nap for every request."""

    meta = meta("sleeping")

    def score(self, request, endpoints, state):
        time.sleep(0)
        return np.ones(len(endpoints))


@breaks("blocks_nobody", "`before_request` starts a process at")
class Forking(PreRequest):
    """Starts a process for every request."""

    meta = meta("forking")

    def before_request(self, request, result, headers, state):
        subprocess.run(["true"], check=True)


@breaks("takes_leave_of_any_endpoint", "`endpoint_removed('default/e0')` comes to KeyError")
class Forgetful(Fair):
    """Cannot forget whom it has never met."""

    meta = meta("forgetful")

    def __init__(self, name, parameters, context):
        super().__init__(name, parameters, context)
        self.learnt = {}

    def endpoint_removed(self, name):
        del self.learnt[name]


@breaks("starts_and_stops", "`start` or `stop` raises AttributeError")
class Stumbling(Fair):
    """Closes what it never opened."""

    meta = meta("stumbling")

    session = None

    async def stop(self):
        await self.session.close()


@breaks("leaves_nothing_running", "it leaves the thread 'broken-ticker'")
class Haunting(Fair):
    """Leaves a thread behind."""

    meta = meta("haunting")

    async def start(self):
        self.end = threading.Event()
        self.thread = threading.Thread(target=self.end.wait, args=(2,), name="broken-ticker", daemon=True)
        self.thread.start()


@breaks("leaves_nothing_running", "it leaves the task of `Ticking.tick`")
class Ticking(Fair):
    """Leaves a task behind."""

    meta = meta("ticking")

    async def start(self):
        self.task = asyncio.create_task(self.tick())

    async def tick(self):
        await asyncio.sleep(60)


@breaks("can_be_built", "a second instance cannot be built beside the first")
class Registering(Fair):
    """Registers its metric for the whole process, with every instance."""

    meta = meta("registering")

    def __init__(self, name, parameters, context):
        super().__init__(name, parameters, context)
        self.asked = prometheus_client.Counter("broken_asked", "Requests.")


@breaks("works_after_a_reload", "once another instance has stopped, `score` raises RuntimeError: the session is closed")
class Sharing(Scorer):
    """All instances share one session, and whoever stops first closes it."""

    meta = meta("sharing")
    is_open = False
    uses_it = False

    async def start(self):
        type(self).is_open = self.uses_it = True

    async def stop(self):
        type(self).is_open = False

    def score(self, request, endpoints, state):
        if self.uses_it and not type(self).is_open:
            raise RuntimeError("the session is closed")
        return np.ones(len(endpoints))


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
