"""A simulated model server: the OpenAI API of one vLLM instance over HTTP, answered by an `Engine` that runs in real time."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal
from uuid import uuid4

import orjson
import xxhash
from aiohttp import web
from aiohttp.typedefs import Handler

from endpick.simulation.engine import Engine
from endpick.simulation.exposition import MetricsPage
from endpick.simulation.generation import Finished, GenerationRequest, Token, Usage
from endpick.simulation.live import LiveEngine
from endpick.simulation.openai import (
    AnyRequest,
    ApiError,
    ChatRequest,
    CompletionRequest,
    FinishReason,
    ResponseFormat,
    bad_request,
    parse_request,
)
from endpick.simulation.settings import EngineSettings
from endpick.simulation.tokens import answer_text, chained_hashes, count_tokens, split_tokens

MAX_BODY_BYTES = 64 * 1024 * 1024
NATURAL_LENGTHS = range(16, 129)
"""Tokens after which the simulated model stops by itself, unless the client says `ignore_eos`."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What one simulated model server serves, and where."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 lets the system choose; `SimulatedServer.port` tells."""
    name: str = "sim"
    """Sent as `x-served-by` with every response."""
    model: str = "sim-model"
    adapters: tuple[str, ...] = ()
    """LoRA adapters on offer; a request asks for one by naming it as its model."""
    engine: EngineSettings = field(default_factory=EngineSettings)
    seed: int = 0
    """Servers with the same seed give the same answer to the same prompt."""

    def __post_init__(self) -> None:
        if self.adapters and not self.engine.max_loras:
            raise ValueError("adapters are offered, but max_loras is 0")


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


@dataclass(frozen=True, slots=True)
class _Job:
    """A request that has been checked and given its answer."""

    generation: GenerationRequest
    answer: str
    finish_reason: FinishReason


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
        job = self._plan(request)
        form = ResponseFormat(request.kind, job.generation.id, request.model)
        if request.stream:
            return await self._stream(http, job, form, request.include_usage)
        usage = await self._generate(job)
        return web.Response(body=form.whole(job.answer, job.finish_reason, usage), content_type="application/json")

    def _plan(self, request: AnyRequest) -> _Job:
        """Check the request against what is served, and settle the answer; the engine only says when its tokens appear."""
        settings = self._settings
        if request.model != settings.model and request.model not in settings.adapters:
            raise ApiError(404, "NotFoundError", f"The model `{request.model}` does not exist.", "model")
        adapter = request.model if request.model != settings.model else None
        prompt = request.render()
        prompt_tokens = count_tokens(prompt)
        room = settings.engine.max_model_len - prompt_tokens
        if not prompt_tokens:
            raise bad_request("The prompt is empty.", "prompt")
        if room < (request.token_limit or 1):
            raise bad_request(
                f"This model takes at most {settings.engine.max_model_len} tokens, but the prompt has {prompt_tokens}"
                f" and up to {request.token_limit or 1} more were asked for.",
                "max_tokens" if room > 0 else "messages" if request.kind == "chat.completion" else "prompt",
            )
        limit = request.token_limit or room
        answer_seed = xxhash.xxh3_64_intdigest(prompt, settings.seed)
        natural = max(NATURAL_LENGTHS[answer_seed % len(NATURAL_LENGTHS)], request.min_tokens)
        length = limit if request.ignore_eos else min(natural, limit)
        answer = answer_text(answer_seed, length)
        hashes = chained_hashes(prompt + answer.encode(), settings.engine.block_size, salt=request.model)
        finish_reason: FinishReason = "length" if request.ignore_eos or natural > limit else "stop"
        return _Job(GenerationRequest(uuid4().hex, prompt_tokens, length, hashes, adapter), answer, finish_reason)

    async def _generate(self, job: _Job, on_token: Callable[[Token], Awaitable[None]] | None = None) -> Usage:
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

    async def _stream(self, http: web.Request, job: _Job, form: ResponseFormat, include_usage: bool) -> web.StreamResponse:
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
