"""The read-only admin API, in JSON."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final

import orjson
from aiohttp import web
from pydantic import TypeAdapter

from endpick import __version__
from endpick.api.data import AnyKey
from endpick.api.endpoint import Generation
from endpick.api.plugin import Plugin
from endpick.api.request import JSONValue
from endpick.engine.changes import masked, parameters_of, plan_hash
from endpick.engine.picker import Picker
from endpick.engine.plan_document import document_of as plan_document
from endpick.host.failures import PLUGIN_ERRORS, describe_error
from endpick.host.instance import Instance
from endpick.host.planning.plan import Plan
from endpick.requests.record import Why, document_of, is_missing, to_json
from endpick.serve.decisions import DecisionRecords
from endpick.serve.drift import Drift
from endpick.serve.metrics import EndpickMetrics

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 200
_WORK_SECONDS: Final = 0.000_2
_PAUSE_SECONDS: Final = 0.001
NO_ACCESS: Final = "admin requests need a loopback address, or the bearer token of --admin-token-file"

Answer = Callable[[], object]  # called in a thread; JSON, or `orjson.Fragment`s of it


@dataclass(frozen=True, slots=True)
class Route:
    """One path of the admin API.

    `take` copies state on the event loop; the function it returns builds the answer in a thread.
    """

    path: str
    summary: str
    take: Callable[[AdminAPI, web.Request], Answer]
    query: Mapping[str, str] = field(default_factory=dict)


class PageFailedError(Exception):
    """A page of a hook object cannot be shown."""


class AdminAPI:
    """The admin routes of the metrics port, for loopback clients and clients with the token."""

    def __init__(self, sources: Sources, pages: Sequence[Route] = (), token_file: Path | None = None) -> None:
        """Make the API with the `pages` of hook objects. Raises OSError for the token file."""
        self._sources = sources
        self.routes: Sequence[Route] = (*ROUTES, *pages)
        self._token = None if token_file is None else token_file.read_text().strip()
        self._building = asyncio.Semaphore(1)  # one answer at a time, because it competes with requests
        self._plan_answer: tuple[Plan, orjson.Fragment] | None = None  # the answer for the plan that serves

    def add_to(self, application: web.Application) -> None:
        """Register a GET handler for every route in an application."""
        for route in self.routes:
            application.router.add_get(route.path, partial(self._answer, route))

    async def _answer(self, route: Route, request: web.Request) -> web.Response:
        if not admits(request, self._token):
            return _refusal(HTTPStatus.FORBIDDEN, NO_ACCESS)
        try:
            async with self._building:
                body = await asyncio.to_thread(_built, route.take(self, request))
        except LookupError as problem:
            return _refusal(HTTPStatus.NOT_FOUND, str(problem.args[0]))
        except ValueError as problem:
            return _refusal(HTTPStatus.BAD_REQUEST, str(problem))
        except PageFailedError as problem:
            return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, str(problem))
        return web.Response(body=body, content_type="application/json")

    def _config(self, _request: web.Request) -> Answer:
        plan = self._sources.picker.deployment.plan
        return lambda: {
            "endpick": __version__,
            "python": platform.python_version(),
            "hash": plan_hash(plan),
            "file": plan.config.path,
            "document": to_json(masked(to_json(plan.config.source.data))),
            "plugins": [
                {"name": instance.name, "type": instance.type, "parameters": to_json(parameters_of(instance))}
                for instance in plan.instances
            ],
        }

    def _plan(self, _request: web.Request) -> Answer:
        return partial(self._planned, self._sources.picker.deployment.plan)

    def _planned(self, plan: Plan) -> orjson.Fragment:
        if self._plan_answer is None or self._plan_answer[0] is not plan:
            document = {"hash": plan_hash(plan), **plan_document(plan).model_dump(mode="json", by_alias=True)}
            self._plan_answer = plan, orjson.Fragment(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        return self._plan_answer[1]

    def _endpoints(self, _request: web.Request) -> Answer:
        plan = self._sources.picker.deployment.plan
        keys = {key.name: key for instance in plan.instances for key in instance.subscriptions.produces}
        writers = {key.name: instance.name for instance in plan.instances for key in instance.subscriptions.produces}
        return partial(_pool, _copied(self._sources.picker.table.generation), keys, writers)

    def _decisions(self, request: web.Request) -> Answer:
        query = request.query
        limit = min(_number(query.get("limit", str(DEFAULT_LIMIT))), MAX_LIMIT)
        why, endpoint = query.get("why"), query.get("endpoint")
        records = [
            record
            for record in self._sources.records.latest()
            if (why in (None, record.why) or (why == Why.ERROR and record.has_failed)) and (endpoint is None or record.concerns(endpoint))
        ][:limit]
        values = "values" in query
        return lambda: {"decisions": _in_pieces(document_of(record, values=values) for record in records)}

    def _decision(self, request: web.Request) -> Answer:
        wanted = request.match_info["id"]
        found = next((record for record in self._sources.records.latest() if record.id == wanted), None)
        if found is None:
            raise LookupError(
                f"no decision about request '{wanted}' is recorded; --decision-sampling 1 records all, "
                "--explain-header those with the header x-endpick-explain"
            )
        return partial(document_of, found)

    def _plugins(self, _request: web.Request) -> Answer:
        return lambda: {"plugins": self._plugin_rows()}

    def _plugin_rows(self) -> list[JSONValue]:
        faults: Counter[str] = Counter()
        for family in self._sources.metrics.faults.collect():
            for sample in family.samples:
                if sample.name.endswith("_total"):
                    faults[sample.labels["plugin_name"]] += int(sample.value)
        return [self._plugin(instance, faults[instance.name]) for instance in self._sources.picker.instances()]

    def _plugin(self, instance: Instance, faults: int) -> JSONValue:
        metrics, breaker = self._sources.metrics, instance.breaker
        timers = tuple(metrics.plugin_duration.members().items())
        own = [timer for (_, _, name), timer in timers if name == instance.name]
        seconds, all_seconds = sum(timer.total for timer in own), sum(timer.total for _, timer in timers)
        return {
            "name": instance.name,
            "type": instance.type,
            "kinds": [kind.kind for kind in instance.kinds],
            "distribution": instance.distribution,
            "loadedVersion": instance.version,
            "installedVersion": self._sources.drift().installed.get(instance.distribution, instance.version),
            "calls": sum(sum(timer.counts) for timer in own),
            "faults": faults,
            "seconds": round(seconds, 6),
            "timeShare": round(seconds / all_seconds, 4) if all_seconds else 0.0,
            "breaker": breaker.state.name.lower(),
            "breakerReason": breaker.reason,
        }

    def _state(self, _request: web.Request) -> Answer:
        """Read the plugins on the event loop, because their state is not thread-safe."""
        plugins: dict[str, JSONValue] = {}
        for instance in self._sources.picker.instances():
            if type(instance.plugin).dump_state is Plugin.dump_state:
                continue
            try:
                dumped: dict[str, JSONValue] = {"state": to_json(instance.plugin.dump_state())}
            except PLUGIN_ERRORS as error:
                dumped = {"message": describe_error(error)}
            plugins[instance.name] = {"type": instance.type, **dumped}
        return lambda: {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "plugins": plugins}


@dataclass(frozen=True, slots=True)
class Sources:
    """The parts of a serving process that the admin API reads."""

    picker: Picker
    records: DecisionRecords
    metrics: EndpickMetrics
    drift: Callable[[], Drift]


def _in_pieces(documents: Iterable[object]) -> list[orjson.Fragment]:
    """Encode one document at a time, with pauses, so that requests are not delayed."""
    pieces = []
    began = time.perf_counter()
    for document in documents:
        pieces.append(orjson.Fragment(orjson.dumps(document)))
        if time.perf_counter() - began > _WORK_SECONDS:
            time.sleep(_PAUSE_SECONDS)
            began = time.perf_counter()
    return pieces


def admits(request: web.Request, token: str | None) -> bool:
    """Return True for a client with the token; without a token, for a loopback client."""
    if token:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        return hmac.compare_digest(given.encode(), token.encode())
    return is_loopback(request.remote or "")


def is_loopback(address: str) -> bool:
    """Return True for 127.0.0.0/8 and ::1, also as an IPv4-mapped IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def _built(answer: Answer) -> bytes:
    return orjson.dumps(answer(), option=orjson.OPT_INDENT_2)


def _refusal(status: HTTPStatus, message: str) -> web.Response:
    return web.Response(status=status, body=orjson.dumps({"error": message}), content_type="application/json")


def _number(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError(f"limit is a number from 1, not '{text[:20]}'")
    return int(text)


def _description(routes: Iterable[Route]) -> JSONValue:
    return {
        "openapi": "3.1.0",
        "info": {"title": "endpick admin API", "version": __version__},
        "paths": {route.path: {"get": _operation(route)} for route in routes},
    }


def _operation(route: Route) -> JSONValue:
    in_path = [("id", "path", "The request's `x-request-id`.")] if "{id}" in route.path else []
    named = [*in_path, *((name, "query", text) for name, text in route.query.items())]
    return {
        "summary": route.summary,
        "parameters": [
            {"name": name, "in": place, "description": text, "required": place == "path", "schema": {"type": "string"}}
            for name, place, text in named
        ],
        "responses": {
            "200": {"description": "JSON.", "content": {"application/json": {}}},
            "403": {"description": "The client is neither local nor has the token."},
            **({"404": {"description": "Not recorded."}} if in_path else {}),
        },
    }


def _copied(generation: Generation) -> Generation:
    columns = {name: type(column)(column.values.copy(), column.written_at.copy()) for name, column in generation.columns.items()}
    now = generation.clock()
    return Generation(generation.endpoints, columns, dict(generation.pool), lambda: now, dict(generation.pool_written_at))


_adapters: dict[type[object], TypeAdapter[object]] = {}  # each takes a third of a millisecond to make


def _adapter(kind: type[object]) -> TypeAdapter[object]:
    return _adapters.get(kind) or _adapters.setdefault(kind, TypeAdapter(kind))


def _pool(generation: Generation, keys: Mapping[str, AnyKey], writers: Mapping[str, str]) -> object:
    adapters = {name: _adapter(key.type) for name, key in keys.items()}
    now = generation.clock()
    pool = {
        name: adapters[name].dump_python(value, mode="json", fallback=repr) for name, value in generation.pool.items() if name in adapters
    }
    rows = (_endpoint(generation, row, adapters, now) for row in range(len(generation.endpoints)))
    return {"endpoints": _in_pieces(rows), "pool": pool, "writers": {name: writers[name] for name in generation.columns if name in writers}}


def _endpoint(generation: Generation, row: int, adapters: Mapping[str, TypeAdapter[object]], now: float) -> JSONValue:
    endpoint = generation.endpoints[row]
    namespace, _, name = endpoint.name.rpartition("/")
    data: dict[str, JSONValue] = {}
    ages: dict[str, JSONValue] = {}
    for key, column in generation.columns.items():
        value = column.values[row]
        if is_missing(value):
            continue
        data[key] = adapters[key].dump_python(value, mode="json", fallback=repr) if key in adapters else to_json(value)
        ages[key] = round(now - float(column.written_at[row]), 4)
    return {
        "name": name,
        "namespace": namespace,
        "address": endpoint.host,
        "port": endpoint.port,
        "labels": dict(endpoint.labels),
        "data": data,
        "ages": ages,
    }


_DECISIONS_QUERY: Final = {
    "limit": f"At most this many; {DEFAULT_LIMIT} by default, {MAX_LIMIT} at most.",
    "why": "Only `sampled`, `asked`, `traced` or `error`, which is every failure, sampled or not.",
    "endpoint": "Only decisions that knew this endpoint.",
    "values": "Anything: include the data of the endpoints, which makes the answer long.",
}

ROUTES: Final = (
    Route("/config", "The configuration as written and the parameters with defaults; secrets are masked.", AdminAPI._config),
    Route("/plan", "The resolved plan, as `endpick plan --format json` prints it.", AdminAPI._plan),
    Route("/endpoints", "Each endpoint with all its data, the age of each value and its writer.", AdminAPI._endpoints),
    Route("/decisions", "The latest recorded decisions, newest first.", AdminAPI._decisions, _DECISIONS_QUERY),
    Route("/decisions/{id}", "The latest recorded decision about the request with this `x-request-id`.", AdminAPI._decision),
    Route("/plugins", "Each instance: versions loaded and installed, calls, faults, time and circuit breaker.", AdminAPI._plugins),
    Route("/debug/plugins/state", "What plugins have learnt, in llm-d's format.", AdminAPI._state),
    Route("/openapi.json", "This description.", lambda api, _request: partial(_description, api.routes)),
)
