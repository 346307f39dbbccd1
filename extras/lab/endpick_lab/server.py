"""A simulated vLLM server: the OpenAI API over HTTP, answered by an `Engine` in real time."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from endpick.serve.tracing import open_provider
from endpick_lab.engine import Engine, EngineMetrics, Event, Finished, GenerationRequest, Token, TokenUsage
from endpick_lab.kv_events import KvEventLog, KvEventPublisher
from endpick_lab.metrics_page import SimulatedMetricsPage
from endpick_lab.openai import (
    AnyRequest,
    ApiError,
    ChatRequest,
    CompletionRequest,
    FinishReason,
    Job,
    RequestT,
    ResponseFormat,
    block_contents,
    parse_request,
    plan_job,
    split_tokens,
)
from endpick_lab.settings import ServerSettings
from endpick_lab.sidecar import Relayed, Sidecar, transfer_offer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

MAX_BODY_BYTES = 64 * 1024 * 1024

_STAGE_HEADERS: ContextVar[Mapping[str, str]] = ContextVar("stage_headers")  # response headers of earlier stages, for the current request


async def serve(settings: ServerSettings) -> SimulatedServer:
    """Start a server on the running event loop. Raises OSError."""
    log = None if settings.kv_events is None else KvEventLog(settings.engine.block_size)
    live = LiveEngine(Engine(settings.engine, random.Random(settings.seed), log))  # noqa: S311 - repeatable by design
    routes = _Routes(settings, live, log)
    app = routes.application()
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1, keepalive_timeout=600)
    await runner.setup()
    try:
        await web.TCPSite(runner, settings.host, settings.port, backlog=1024).start()
        server = SimulatedServer(settings, live, runner)
        if settings.kv_events is not None and log is not None:
            topic = f"kv@{server.address}@{settings.model}"
            live.publisher = KvEventPublisher(settings.kv_events, log, topic)
    except OSError:
        await runner.cleanup()
        raise
    routes.port = int(runner.addresses[0][1])
    return server


class SimulatedServer:
    """A server that listens until it is closed."""

    def __init__(self, settings: ServerSettings, live: LiveEngine, runner: web.AppRunner) -> None:
        self.settings = settings
        self.live = live
        self._runner = runner

    @property
    def port(self) -> int:
        """The port that the server is bound to."""
        return int(self._runner.addresses[0][1])

    @property
    def address(self) -> str:
        """The address of the server, as `host:port`."""
        return f"{self.settings.host}:{self.port}"

    async def close(self) -> None:
        """Abort requests and close the port."""
        self.live.close()
        if self.live.publisher is not None:
            self.live.publisher.close()
        await self._runner.cleanup()


async def _trace(provider: TracerProvider, request: web.Request, handler: Handler) -> web.StreamResponse:
    from opentelemetry.trace import SpanKind  # noqa: PLC0415 - optional
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    if "traceparent" not in request.headers:
        return await handler(request)
    context = TraceContextTextMapPropagator().extract({name.lower(): value for name, value in request.headers.items()})
    with provider.get_tracer("endpick_lab").start_as_current_span("llm_request", context, SpanKind.SERVER):
        return await handler(request)


class _Routes:
    def __init__(self, settings: ServerSettings, live: LiveEngine, log: KvEventLog | None) -> None:
        self._settings = settings
        self._live = live
        self._log = log
        self._page = SimulatedMetricsPage(settings.model, settings.engine, live.metrics)
        self._started = int(time.time())
        self._sidecar = Sidecar(self._page.count_stage) if settings.has_sidecar else None
        self.port = settings.port

    def application(self) -> web.Application:
        provider = open_provider(os.environ, "sim-server")
        traced = [] if provider is None else [partial(_trace, provider)]
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[*map(web.middleware, traced), self._identify])
        app.on_cleanup.append(self._close_sidecar)
        app.add_routes(
            [
                web.post("/v1/chat/completions", partial(self._staged, request_type=ChatRequest)),
                web.post("/v1/completions", partial(self._staged, request_type=CompletionRequest)),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/kv_event_sources", self._event_sources),
            ]
        )
        return app

    @web.middleware
    async def _identify(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Adds identifying headers and formats errors as in OpenAI."""
        _STAGE_HEADERS.set({})  # one task answers all requests of a connection
        try:
            response = await handler(request)
        except ApiError as error:
            response = web.Response(status=error.status, body=error.body(), content_type="application/json")
        except web.HTTPClientError as error:
            type_ = "NotFoundError" if error.status == 404 else "BadRequestError"
            body = ApiError(error.status, type_, f"{request.method} {request.path}: {error.reason}.").body()
            response = web.Response(status=error.status, body=body, content_type="application/json")
        if not response.prepared:
            response.headers.update(self._identity(request))
        return response

    def _identity(self, request: web.Request) -> dict[str, str]:
        own = {"x-served-by": self._settings.name, "x-request-id": request.headers.get("x-request-id") or uuid4().hex}
        return own | dict(_STAGE_HEADERS.get())

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._page.render(), headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _event_sources(self, request: web.Request) -> web.Response:
        publisher = self._live.publisher
        return web.Response(body=orjson.dumps({} if publisher is None else publisher.sources()), content_type="application/json")

    async def _models(self, request: web.Request) -> web.Response:
        common = {"object": "model", "created": self._started, "owned_by": "vllm"}
        base = self._settings.model
        limit = self._settings.engine.max_model_len
        cards = [{"id": base, **common, "root": base, "parent": None, "max_model_len": limit}]
        cards += [{"id": name, **common, "root": name, "parent": base} for name in self._settings.adapters]
        return web.Response(body=orjson.dumps({"object": "list", "data": cards}), content_type="application/json")

    async def _staged(self, http: web.Request, request_type: type[RequestT]) -> web.StreamResponse:
        """Answers after other servers have run the stages in its headers."""
        body = await http.read()
        if self._sidecar is not None:
            prepared = await self._sidecar.prepare(http.path, http.headers, body, f"{self._settings.host}:{self.port}")
            if isinstance(prepared, Relayed):
                _STAGE_HEADERS.set({"x-served-by": prepared.served_by})
                return web.Response(status=prepared.status, body=prepared.body, content_type=prepared.content_type)
            body = prepared.body
            _STAGE_HEADERS.set(prepared.headers)
        return await self._answer(http, parse_request(request_type, body))

    async def _close_sidecar(self, app: web.Application) -> None:
        if self._sidecar is not None:
            await self._sidecar.close()

    async def _answer(self, http: web.Request, request: AnyRequest) -> web.StreamResponse:
        job = plan_job(request, self._settings)
        form = ResponseFormat(request.kind, job.generation.id, request.model)
        if request.stream:
            return await self._stream(http, job, form, request.include_usage)
        usage = await self._generate(job)
        blocks = -(-job.generation.prompt_tokens // self._settings.engine.block_size)
        transfer = transfer_offer(request.kv_transfer_params, self._settings.name, self._settings.host, self.port, blocks)
        body = form.whole(job.answer, job.finish_reason, usage, transfer)
        return web.Response(body=body, headers=self._load_report(http), content_type="application/json")

    def _load_report(self, http: web.Request) -> dict[str, str]:
        metrics = self._live.metrics()
        load = {"num_requests_waiting": float(metrics.waiting), "kv_cache_usage_perc": metrics.kv_cache_usage}
        match http.headers.get("endpoint-load-metrics-format", "").lower():
            case "json":
                return {"endpoint-load-metrics": f"JSON {orjson.dumps({'named_metrics': load}).decode()}"}
            case "text":
                return {"endpoint-load-metrics": "TEXT " + ",".join(f"named_metrics.{name}={value}" for name, value in load.items())}
            case _:
                return {}

    async def _generate(self, job: Job, on_token: Callable[[Token], Awaitable[None]] | None = None) -> TokenUsage:
        reason: FinishReason | Literal["abort"] = "abort"
        hashes = job.generation.block_hashes
        if self._log is not None:
            self._log.expect(hashes, block_contents(job, self._settings.engine.block_size))
        try:
            with self._live.generating(job.generation) as (submitted, events):
                previous = submitted
                async for event in events:
                    if isinstance(event, Finished):
                        self._page.request_seconds.observe(event.time - submitted)
                        reason = job.finish_reason
                        return event.usage
                    histogram = self._page.next_token_seconds if event.index else self._page.first_token_seconds
                    histogram.observe(event.time - previous)
                    previous = event.time
                    if on_token is not None:
                        await on_token(event)
        finally:
            self._page.count_end(reason)
            if self._log is not None:
                self._log.forget(hashes)
        raise AssertionError("a generation ends with Finished")

    async def _stream(self, http: web.Request, job: Job, form: ResponseFormat, include_usage: bool) -> web.StreamResponse:
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        response = web.StreamResponse(headers={**headers, **self._identity(http)})
        pieces = split_tokens(job.answer)

        async def send(token: Token) -> None:
            if token.index == 0:
                await response.prepare(http)
            finish_reason = job.finish_reason if token.index == len(pieces) - 1 else None
            opening = b"" if token.index else form.opening()
            await response.write(opening + form.token(pieces[token.index], finish_reason))

        usage = await self._generate(job, send)
        await response.write_eof(form.closing(usage if include_usage else None))
        return response


class LiveEngine:
    """Runs an engine in real time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.publisher: KvEventPublisher | None = None
        self._loop = asyncio.get_running_loop()
        self._queues: dict[str, asyncio.Queue[Event]] = {}
        self._alarm: asyncio.TimerHandle | None = None

    @contextmanager
    def generating(self, request: GenerationRequest) -> Iterator[tuple[float, AsyncIterator[Event]]]:
        """Submit a request; yields its time and events, up to `Finished`. Leaving early aborts it. Raises like `Engine.submit`."""
        now = self._advance()
        self.engine.submit(request, now)
        queue = self._queues[request.id] = asyncio.Queue()
        self._set_alarm()
        try:
            yield now, _until_finished(queue)
        finally:
            del self._queues[request.id]
            self.engine.abort(request.id, self._advance())
            self._set_alarm()

    def metrics(self) -> EngineMetrics:
        """Return the current state and totals of the engine."""
        return self.engine.metrics(self._advance())

    def close(self) -> None:
        """Stop; running requests get no further events."""
        if self._alarm is not None:
            self._alarm.cancel()

    def _advance(self) -> float:
        now = self._loop.time()
        for event in self.engine.advance(now):
            queue = self._queues.get(event.request_id)
            if queue is not None:
                queue.put_nowait(event)
        if self.publisher is not None:
            self.publisher.flush()
        return now

    def _set_alarm(self) -> None:
        due = self.engine.next_event_time()
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None if due is None else self._loop.call_at(due, self._on_alarm)

    def _on_alarm(self) -> None:
        self._advance()
        self._set_alarm()


async def _until_finished(queue: asyncio.Queue[Event]) -> AsyncIterator[Event]:
    while True:
        event = await queue.get()
        yield event
        if isinstance(event, Finished):
            return
