"""A simulated model server: the OpenAI API of one vLLM instance over HTTP, answered by an `Engine` that runs in real time."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from typing import Literal
from uuid import uuid4

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from endpick.simulation.engine import Engine
from endpick.simulation.exposition import MetricsPage
from endpick.simulation.generation import Finished, Token, Usage
from endpick.simulation.job import Job, plan_job
from endpick.simulation.live import LiveEngine
from endpick.simulation.openai import (
    AnyRequest,
    ApiError,
    ChatRequest,
    CompletionRequest,
    FinishReason,
    ResponseFormat,
    parse_request,
)
from endpick.simulation.settings import ServerSettings
from endpick.simulation.tokens import split_tokens

MAX_BODY_BYTES = 64 * 1024 * 1024


class SimulatedServer:
    """A server that is listening; made by `serve`."""

    def __init__(self, settings: ServerSettings, live: LiveEngine, runner: web.AppRunner) -> None:
        self.settings = settings
        self.live = live
        self._runner = runner

    @property
    def port(self) -> int:
        """The TCP port it listens on."""
        return int(self._runner.addresses[0][1])

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{self.settings.host}:{self.port}"

    async def close(self) -> None:
        """Stop listening, cut off requests still running, and free the port."""
        self.live.close()
        await self._runner.cleanup()


async def serve(settings: ServerSettings) -> SimulatedServer:
    """Start a server on the running event loop.

    Raises:
        OSError: the address cannot be bound.
    """
    live = LiveEngine(Engine(settings.engine, random.Random(settings.seed)))  # noqa: S311 - repeatable by design
    app = _Routes(settings, live).application()
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1, keepalive_timeout=600)
    await runner.setup()
    try:
        await web.TCPSite(runner, settings.host, settings.port, backlog=1024).start()
    except OSError:
        await runner.cleanup()
        raise
    return SimulatedServer(settings, live, runner)


class _Routes:
    def __init__(self, settings: ServerSettings, live: LiveEngine) -> None:
        self._settings = settings
        self._live = live
        self._page = MetricsPage(settings.model, settings.engine, live.metrics)
        self._started = int(time.time())

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._identify])
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completion),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
            ]
        )
        return app

    @web.middleware
    async def _identify(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Every response, also an error, says who served it, and errors have the OpenAI form."""
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
        return {"x-served-by": self._settings.name, "x-request-id": request.headers.get("x-request-id") or uuid4().hex}

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._page.render(), headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _models(self, request: web.Request) -> web.Response:
        common = {"object": "model", "created": self._started, "owned_by": "vllm"}
        base = self._settings.model
        limit = self._settings.engine.max_model_len
        cards = [{"id": base, **common, "root": base, "parent": None, "max_model_len": limit}]
        cards += [{"id": name, **common, "root": name, "parent": base} for name in self._settings.adapters]
        return web.Response(body=orjson.dumps({"object": "list", "data": cards}), content_type="application/json")

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, parse_request(ChatRequest, await request.read()))

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, parse_request(CompletionRequest, await request.read()))

    async def _answer(self, http: web.Request, request: AnyRequest) -> web.StreamResponse:
        job = plan_job(request, self._settings)
        form = ResponseFormat(request.kind, job.generation.id, request.model)
        if request.stream:
            return await self._stream(http, job, form, request.include_usage)
        usage = await self._generate(job)
        return web.Response(body=form.whole(job.answer, job.finish_reason, usage), content_type="application/json")

    async def _generate(self, job: Job, on_token: Callable[[Token], Awaitable[None]] | None = None) -> Usage:
        """Run a job to its end, observing its latencies; a client that hangs up leaves early, which aborts the job."""
        reason: FinishReason | Literal["abort"] = "abort"
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
