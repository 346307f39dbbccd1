"""`otlp-source`: metrics that model servers, or an OpenTelemetry collector, push over OTLP/HTTP instead of being asked for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

from aiohttp import web
from aiohttp.web_exceptions import HTTPRequestEntityTooLarge
from pydantic import Field

from endpick.api import ConfigurationError, Endpoint, MetricsPage, Parameters, PluginContext, Stability, StreamSource
from endpick.api.fast_metrics import Counts
from endpick_builtin.collection.otlp_messages import MAX_POINTS, Export, MalformedExport, answer_of, read_json, read_protobuf
from endpick_builtin.collection.push_server import MAX_CONNECTIONS, Closed, PushServer

Publish = Callable[[MetricsPage], None]

_WARN_SECONDS = 30.0
_PATH = "/v1/metrics"
_PROTOBUF, _JSON = "application/x-protobuf", "application/json"
_BODY_SECONDS = 10.0
"""Within which a body must be complete."""
_MOST_AT_ONCE = 8
"""Exports that are read at once; more are told to come again."""


class OtlpParameters(Parameters):
    """Where pushes are taken, and how they name their endpoint."""

    host: Annotated[str, Field(min_length=1, description="Address to listen on; `0.0.0.0` or `::` for pushes from other machines.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Field(ge=0, le=65535, description="Port to listen on; 0 lets the system choose, and the log says which.")] = 4318
    endpoint_attribute: Annotated[
        str,
        Field(
            alias="endpointAttribute",
            min_length=1,
            description="Resource attribute that names the endpoint: its name, with or without namespace, or a `host:port` of it.",
        ),
    ] = "service.instance.id"
    max_body_bytes: Annotated[
        int, Field(alias="maxBodyBytes", ge=1024, le=64 * 1024 * 1024, description="Largest export that is read, unpacked.")
    ] = 4 * 1024 * 1024


class Outcome(StrEnum):
    """What became of an export."""

    READ = "read"
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    TOO_SLOW = "too_slow"
    BUSY = "busy"


class OtlpSource(StreamSource[OtlpParameters, MetricsPage]):
    """Takes metrics that are pushed over OTLP/HTTP (`POST /v1/metrics`, protobuf or JSON, also gzipped) and hands them on as pages.

    A resource belongs to the endpoint that its attribute `endpointAttribute` names. Its gauges and sums, and of histograms and summaries
    count and sum, become a page with the names of the push, where all but letters, digits, `_` and `:` is `_`; collectors such as
    `core-metrics-extractor` read it like one that was scraped. What the engine should report and one push lacks counts as an error of the
    collector, so a server's metrics belong into one push. Attributes that are no texts are no labels. Every client that reaches
    the port can say what it likes of any endpoint: it has no authentication, and listens on this machine alone unless told otherwise.

    Resources of unknown endpoints are left out and the sender is told so, as for points beyond 5000 in one export. A body over
    `maxBodyBytes`, one that takes more than 10 s, and a ninth export at once are refused. Of more than 64 connections the one that has
    said nothing for longest is closed, and so is one without a request for 10 s at first, and for 2 min later. gRPC is not spoken: have
    the exporter use `http/protobuf`.
    """

    default_collectors = ("core-metrics-extractor",)
    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: OtlpParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._publishers: dict[str, dict[str, Publish]] = {}
        """By each name of an endpoint, and then by the endpoint's own name: several may share one."""
        self._server: PushServer | None = None
        self._reading = 0
        self._warned_at = self._told_closed_at = -_WARN_SECONDS
        requests = Counts("endpick_otlp_exports_total", "Exports over OTLP, by what became of them.", ("outcome",), context.registry)
        points = Counts("endpick_otlp_points_total", "Points of exports over OTLP, by what became of them.", ("outcome",), context.registry)
        closed = Counts("endpick_otlp_connections_closed_total", "Connections closed on the port for OTLP.", ("reason",), context.registry)
        self._closed = {reason: closed.labels(reason.value) for reason in Closed}
        self._exports = {outcome: requests.labels(outcome.value) for outcome in Outcome}
        self._delivered, self._left_out = points.labels("delivered"), points.labels("left_out")

    @property
    def port(self) -> int:
        """Where it listens, once started."""
        return self._server.port if self._server is not None else self.parameters.port

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigurationError: the address cannot be had.
        """
        app = web.Application(client_max_size=self.parameters.max_body_bytes)
        app.router.add_post(_PATH, self._take)
        server = PushServer(app, self._has_closed)
        host, port = self.parameters.host, self.parameters.port
        try:
            await server.start(host, port)
        except OSError as problem:
            raise ConfigurationError(f"source '{self.name}' cannot listen on {host}:{port}: {problem.strerror or problem}") from problem
        self._server = server
        self.context.logger.info("takes metrics over OTLP at http://%s:%d%s", host, self.port, _PATH)

    async def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            await self._server.stop()
            self._server = None

    async def watch(self, endpoint: Endpoint, publish: Publish) -> None:
        """Take what is pushed for this endpoint."""
        names = {endpoint.name, endpoint.name.rpartition("/")[2], endpoint.address, endpoint.metrics_address}
        for name in names:
            self._publishers.setdefault(name, {})[endpoint.name] = publish
        try:
            await asyncio.Event().wait()
        finally:
            for name in names:
                self._publishers[name].pop(endpoint.name, None)
                if not self._publishers[name]:
                    del self._publishers[name]

    async def _take(self, request: web.Request) -> web.Response:
        assert self._server is not None, "a request came"
        with self._server.serving(request):
            return await self._answer(request)

    async def _answer(self, request: web.Request) -> web.Response:
        as_json = request.content_type == _JSON
        if not as_json and request.content_type != _PROTOBUF:
            return self._refused(Outcome.MALFORMED, 415, f"send {_PROTOBUF} or {_JSON}, not {request.content_type}")
        if self._reading >= _MOST_AT_ONCE:
            return self._refused(Outcome.BUSY, 503, "too many exports at once; send fewer at a time, or less often")
        self._reading += 1
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await request.read()
            # Beside the requests that are being decided.
            export = await asyncio.to_thread(read_json if as_json else read_protobuf, body)
        except TimeoutError:
            return self._refused(Outcome.TOO_SLOW, 408, f"the body was not complete within {_BODY_SECONDS:g} s")
        except HTTPRequestEntityTooLarge:
            return self._refused(Outcome.TOO_LARGE, 413, f"more than maxBodyBytes, {self.parameters.max_body_bytes}; send smaller batches")
        except MalformedExport as problem:
            return self._refused(Outcome.MALFORMED, 400, str(problem))
        except web.RequestPayloadError as problem:
            return self._refused(Outcome.MALFORMED, 400, f"the body cannot be unpacked: {problem}")
        finally:
            self._reading -= 1
        self._exports[Outcome.READ].inc()
        rejected, why = self._deliver(export)
        return web.Response(body=answer_of(rejected, why, as_json=as_json), content_type=_JSON if as_json else _PROTOBUF)

    def _deliver(self, export: Export) -> tuple[int, str]:
        """Hand each page to its endpoint's collectors; how many points were left out, and why."""
        rejected, why = export.dropped, f"more than {MAX_POINTS} points" if export.dropped else ""
        for resource in export.resources:
            name = resource.attributes.get(self.parameters.endpoint_attribute, "")
            publishers = self._publishers.get(name, {})
            if len(publishers) != 1:
                rejected += resource.points
                why = f"'{self.parameters.endpoint_attribute}' is '{name}', which is the name of {len(publishers)} endpoints"
                continue
            (publish,) = publishers.values()
            publish(resource.page)
            self._delivered.value += resource.points
        if rejected:
            self._left_out.value += rejected
            self._warn(rejected, why)
        return rejected, why

    def _has_closed(self, reason: Closed) -> None:
        self._closed[reason].inc()
        now = self.context.clock()
        if now - self._told_closed_at >= _WARN_SECONDS:
            self._told_closed_at = now
            why = f"there are more than {MAX_CONNECTIONS}" if reason is Closed.CROWDED else "no request came in time"
            self.context.logger.warning("a connection to the port for OTLP was closed: %s; find out who connects", why)

    def _warn(self, rejected: int, why: str) -> None:
        now = self.context.clock()
        if now - self._warned_at >= _WARN_SECONDS:
            self._warned_at = now
            self.context.logger.warning("%d points of an export were left out: %s; see endpointAttribute", rejected, why)

    def _refused(self, outcome: Outcome, status: int, message: str) -> web.Response:
        self._exports[outcome].inc()
        return web.Response(status=status, text=message)
