"""`otlp-source`: metrics that model servers, or an OpenTelemetry collector, push over OTLP instead of being asked for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from endpick.api import (
    ConfigurationError,
    Duration,
    Endpoint,
    Limit,
    Limits,
    MetricsPage,
    Parameters,
    PluginContext,
    Stability,
    StreamSource,
)
from endpick.api.fast_metrics import Counts
from endpick.api.tls_channel import MOST_HANDSHAKE_BYTES
from endpick_builtin.collection.otlp_messages import MAX_POINTS, Export, MalformedExport, TooManyParts
from endpick_builtin.collection.otlp_ports import HTTP_PATH, MOST_GRPC_CONNECTIONS, Certificate, GrpcPort, HttpPort, Outcome, Refused
from endpick_builtin.collection.push_server import FIRST_SECONDS, IDLE_SECONDS, MAX_CONNECTIONS, Closed, PushBounds

Publish = Callable[[MetricsPage], None]

_WARN_SECONDS = 30.0
_GRACE_SECONDS = 1.0
"""For which a body may come slowly though it has the place of another export."""
_TOO_LARGE = Limit("maxBodyBytes", "an export was refused: longer than maxBodyBytes; send smaller batches, or raise it")
_MANY_POINTS = Limit("maxPoints", "points of an export were left out: it has more than maxPoints; send smaller batches, or raise it")
_MANY_PARTS = Limit(
    "MOST_PARTS",
    "an export was refused: it has more parts than 20 for each of maxPoints (MOST_PARTS); send smaller batches, or raise maxPoints",
)
_BUSY = Limit("maxExports", "an export was refused: as many are being read as maxExports allows; send fewer at a time, or raise it")
_TOO_SLOW = Limit("bodyTimeout", "an export was given up: its body was not complete within bodyTimeout; see the network, or raise it")
_CROWDED = Limit(
    "maxConnections", "a connection to the port for OTLP was closed: there are more than maxConnections; find out who connects, or raise it"
)
_IDLE = Limit(
    "idleTimeout",
    f"a connection to the port for OTLP was closed: its first request took longer than {FIRST_SECONDS:g} s, or its next one longer than "
    "idleTimeout; find out who connects, or raise idleTimeout if exporters push less often",
)
_LONG_HANDSHAKE = Limit(
    "maxHandshakeBytes",
    "a connection to the port for OTLP was closed: its client sent more for a TLS handshake than maxHandshakeBytes; find out who connects, "
    "or raise it if its certificates are so long",
)
_LIMITS = (_TOO_LARGE, _MANY_POINTS, _MANY_PARTS, _BUSY, _TOO_SLOW, _CROWDED, _IDLE, _LONG_HANDSHAKE)
_OF_OUTCOME = {Outcome.TOO_LARGE: _TOO_LARGE, Outcome.TOO_MANY: _MANY_PARTS, Outcome.BUSY: _BUSY, Outcome.TOO_SLOW: _TOO_SLOW}
_OF_CLOSED = {Closed.CROWDED: _CROWDED, Closed.SLOW: _IDLE, Closed.LONG: _LONG_HANDSHAKE}


class OtlpParameters(Parameters):
    """Where pushes are taken, and how they name their endpoint."""

    host: Annotated[str, Field(min_length=1, description="Address to listen on; `0.0.0.0` or `::` for pushes from other machines.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Field(ge=0, le=65535, description="Port of OTLP over HTTP; 0 lets the system choose, and the log says which.")] = (
        4318
    )
    grpc_port: Annotated[
        int | None,
        Field(alias="grpcPort", ge=0, le=65535, description="Port of OTLP over gRPC; 0 lets the system choose; null for none."),
    ] = 4317
    cert_path: Annotated[
        str, Field(alias="certPath", description="Certificate, or chain, that both ports show: then they speak TLS. With `keyPath`.")
    ] = ""
    key_path: Annotated[str, Field(alias="keyPath", description="Private key of `certPath`.")] = ""
    client_ca_path: Annotated[
        str,
        Field(alias="clientCaPath", description="Authority that must have signed the certificates of clients; empty asks for none."),
    ] = ""
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
    max_points: Annotated[
        int,
        Field(alias="maxPoints", gt=0, le=1_000_000, description="Points of one export that are read; others are left out."),
    ] = MAX_POINTS
    max_exports: Annotated[
        int, Field(alias="maxExports", gt=0, le=1024, description="Exports that are read at once; others are told to come again.")
    ] = 8
    body_timeout: Annotated[Duration, Field(alias="bodyTimeout", gt=0, le=600, description="In which a body must be complete.")] = 10.0
    idle_timeout: Annotated[
        Duration,
        Field(alias="idleTimeout", gt=0, description="Longest time between two requests over HTTP, after which a connection is closed."),
    ] = IDLE_SECONDS
    max_connections: Annotated[
        int,
        Field(alias="maxConnections", gt=0, le=65536, description="Connections over HTTP; for one more, the quietest one is closed."),
    ] = MAX_CONNECTIONS
    max_handshake_bytes: Annotated[
        int,
        Field(
            alias="maxHandshakeBytes",
            ge=1024,
            le=1024 * 1024,
            description="What a client may send for a TLS handshake over HTTP, above all its certificates; a longer one is closed.",
        ),
    ] = MOST_HANDSHAKE_BYTES
    max_grpc_connections: Annotated[
        int, Field(alias="maxGrpcConnections", gt=0, le=65536, description="Connections over gRPC; one more is refused.")
    ] = MOST_GRPC_CONNECTIONS

    @model_validator(mode="after")
    def _certificate_is_whole(self) -> Self:
        if bool(self.cert_path) != bool(self.key_path):
            raise ValueError("certPath and keyPath belong together: give both, or neither")
        if self.client_ca_path and not self.cert_path:
            raise ValueError("clientCaPath needs certPath and keyPath: only with TLS do clients show certificates")
        return self

    @property
    def certificate(self) -> Certificate | None:
        """What both ports show; None for ports without TLS."""
        if not self.cert_path:
            return None
        return Certificate(Path(self.cert_path), Path(self.key_path), Path(self.client_ca_path) if self.client_ca_path else None)


class OtlpSource(StreamSource[OtlpParameters, MetricsPage]):
    """Takes metrics that are pushed over OTLP and hands them on as pages: over gRPC, and over HTTP (`POST /v1/metrics`, protobuf or JSON).

    A resource belongs to the endpoint that its attribute `endpointAttribute` names. Its gauges and sums, and of histograms and summaries
    count and sum, become a page with the names of the push, where all but letters, digits, `_` and `:` is `_`; collectors such as
    `core-metrics-extractor` read it like one that was scraped. What the engine should report and one push lacks counts as an error of the
    collector, so a server's metrics belong into one push. Attributes that are no texts are no labels. Every client that reaches
    a port can say what it likes of any endpoint, unless `clientCaPath` asks for its certificate: so both listen on this machine alone
    unless told otherwise.

    Resources of unknown endpoints are left out and the sender is told so, as for points beyond `maxPoints` in one export. A body over
    `maxBodyBytes`, packed with gzip or not, one that takes more than `bodyTimeout`, and more than `maxExports` at once are refused. Of more
    than `maxConnections` over HTTP the one that has said nothing for longest is closed, and so is one without a request for 10 s at first,
    and for `idleTimeout` later.
    """

    default_collectors = ("core-metrics-extractor",)
    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: OtlpParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._publishers: dict[str, dict[str, Publish]] = {}
        """By each name of an endpoint, and then by the endpoint's own name: several may share one."""
        self._ports: list[HttpPort | GrpcPort] = []
        self.port, self.grpc_port = parameters.port, parameters.grpc_port
        """Where it listens; once started, as the system chose."""
        self._reading = 0
        self._receiving: dict[asyncio.Timeout, float] = {}
        """Exports whose bodies are still coming, in the order in which they began, with when they did."""
        self._turn = asyncio.Lock()
        self._warned_at = -_WARN_SECONDS
        requests = Counts("endpick_otlp_exports_total", "Exports over OTLP, by what became of them.", ("outcome",), context.registry)
        points = Counts("endpick_otlp_points_total", "Points of exports over OTLP, by what became of them.", ("outcome",), context.registry)
        closed = Counts("endpick_otlp_connections_closed_total", "Connections closed on the port for OTLP.", ("reason",), context.registry)
        self._closed = {reason: closed.labels(reason.value) for reason in Closed}
        self._exports = {outcome: requests.labels(outcome.value) for outcome in Outcome}
        self._limits = Limits(context, _LIMITS)
        self._delivered, self._left_out = points.labels("delivered"), points.labels("left_out")

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigurationError: an address cannot be had, or a certificate file does not work.
        """
        scheme = "https" if self.parameters.certificate else "http"
        given = self.parameters
        bounds = PushBounds(given.max_connections, given.idle_timeout, given.max_handshake_bytes)
        over_http = HttpPort(self._take, given.max_body_bytes, bounds, self._has_closed)
        self.port = await self._open(over_http, given.port)
        self.context.logger.info("takes metrics over OTLP at %s://%s:%d%s", scheme, given.host, self.port, HTTP_PATH)
        if given.grpc_port is not None:
            over_grpc = GrpcPort(self._take, given.max_body_bytes, given.max_grpc_connections, given.max_exports)
            self.grpc_port = await self._open(over_grpc, given.grpc_port)
            self.context.logger.info("takes metrics over OTLP by gRPC at %s:%d", given.host, self.grpc_port)

    async def _open(self, listener: HttpPort | GrpcPort, port: int) -> int:
        host = self.parameters.host
        try:
            chosen = await listener.open(host, port, self.parameters.certificate)
        except OSError as problem:
            await self.stop()
            raise ConfigurationError(f"source '{self.name}' cannot listen on {host}:{port}: {problem.strerror or problem}") from problem
        self._ports.append(listener)
        return chosen

    async def stop(self) -> None:
        """Listen no more."""
        while self._ports:
            await self._ports.pop().close()

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

    async def _take(self, body: Callable[[], Awaitable[bytes]], read: Callable[[bytes, int], Export]) -> tuple[int, str]:
        try:
            export = await self._read(body, read)
        except Refused as refusal:
            self._exports[refusal.outcome].inc()
            if refusal.outcome in _OF_OUTCOME:
                self._limits.acted(_OF_OUTCOME[refusal.outcome])
            raise
        self._exports[Outcome.READ].inc()
        return self._deliver(export)

    async def _read(self, body: Callable[[], Awaitable[bytes]], read: Callable[[bytes, int], Export]) -> Export:
        if self._reading >= self.parameters.max_exports and not self._has_made_room():
            raise Refused(Outcome.BUSY, "too many exports at once; send fewer at a time, or less often")
        self._reading += 1
        try:
            whole = await self._received(body)
            return await self._read_in_turn(whole, read)
        except TooManyParts as problem:
            raise Refused(Outcome.TOO_MANY, str(problem)) from problem
        except TimeoutError as problem:
            raise Refused(Outcome.TOO_SLOW, f"the body was not complete within {self.parameters.body_timeout:g} s") from problem
        except MalformedExport as problem:
            raise Refused(Outcome.MALFORMED, str(problem)) from problem
        finally:
            self._reading -= 1

    async def _received(self, body: Callable[[], Awaitable[bytes]]) -> bytes:
        async with asyncio.timeout(self.parameters.body_timeout) as limit:
            self._receiving[limit] = asyncio.get_running_loop().time()
            try:
                return await body()
            finally:
                self._receiving.pop(limit, None)

    def _has_made_room(self) -> bool:
        """Give up the body that has been coming for longest, unless it has come for a moment only: who sends slowly locks no other out."""
        now = asyncio.get_running_loop().time()
        for limit, began in self._receiving.items():
            if now - began < _GRACE_SECONDS:
                return False
            del self._receiving[limit]
            limit.reschedule(now)
            return True
        return False

    async def _read_in_turn(self, whole: bytes, read: Callable[[bytes, int], Export]) -> Export:
        """One export after the other, each in a thread: two would take the interpreter from the requests that are being decided."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            began = loop.time()
            try:
                return await asyncio.to_thread(read, whole, self.parameters.max_points)
            finally:
                await asyncio.sleep(loop.time() - began)

    def _deliver(self, export: Export) -> tuple[int, str]:
        """Hand each page to its endpoint's collectors; how many points were left out, and why."""
        rejected, unknown, why = export.dropped, 0, ""
        if export.dropped:
            why = f"more than {self.parameters.max_points} points"
            self._limits.acted(_MANY_POINTS)
        for resource in export.resources:
            name = resource.attributes.get(self.parameters.endpoint_attribute, "")
            publishers = self._publishers.get(name, {})
            if len(publishers) != 1:
                unknown += resource.points
                why = f"'{self.parameters.endpoint_attribute}' is '{name}', which is the name of {len(publishers)} endpoints"
                continue
            (publish,) = publishers.values()
            publish(resource.page)
            self._delivered.value += resource.points
        if unknown:
            self._warn(unknown, why)
        self._left_out.value += rejected + unknown
        return rejected + unknown, why

    def _has_closed(self, reason: Closed) -> None:
        self._closed[reason].inc()
        self._limits.acted(_OF_CLOSED[reason])

    def _warn(self, unknown: int, why: str) -> None:
        now = self.context.clock()
        if now - self._warned_at >= _WARN_SECONDS:
            self._warned_at = now
            self.context.logger.warning("%d points of an export were left out: %s; see endpointAttribute", unknown, why)
