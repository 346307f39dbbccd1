"""`otlp-source`: metrics pushed over OTLP."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from aiohttp import web
from pydantic import Field, model_validator

from endpick.api import ConfigurationError, Endpoint, MetricsPage, PluginContext, Stability, StreamSource
from endpick.api.fast_metrics import Counts
from endpick_builtin.camel_parameters import CamelParameters

if TYPE_CHECKING:
    import grpc
    import grpc.aio
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse

Publish = Callable[[MetricsPage], None]

HTTP_PATH = "/v1/metrics"
MAX_BODY_BYTES = 4 * 1024 * 1024
_PROTOBUF, _JSON = "application/x-protobuf", "application/json"
_WARN_SECONDS = 30.0


class OtlpParameters(CamelParameters):
    """Listeners, and the name of the endpoint."""

    host: Annotated[str, Field(min_length=1, description="Address to listen on; `0.0.0.0` or `::` for pushes from other machines.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Field(ge=0, le=65535, description="Port of OTLP over HTTP; 0 lets the system choose, and the log shows it.")] = (
        4318
    )
    grpc_port: Annotated[
        int | None, Field(ge=0, le=65535, description="Port of OTLP over gRPC; 0 lets the system choose; null for none.")
    ] = 4317
    cert_path: Annotated[str, Field(description="Certificate chain of both ports, which then use TLS; with `keyPath`.")] = ""
    key_path: Annotated[str, Field(description="Private key of `certPath`.")] = ""
    client_ca_path: Annotated[str, Field(description="Authority that must have signed the client certificates; empty asks for none.")] = ""
    endpoint_attribute: Annotated[
        str,
        Field(
            min_length=1, description="Resource attribute that names the endpoint: its name, with or without namespace, or its `host:port`."
        ),
    ] = "service.instance.id"

    @model_validator(mode="after")
    def _certificate_is_complete(self) -> Self:
        if bool(self.cert_path) != bool(self.key_path):
            raise ValueError("certPath and keyPath belong together: give both, or neither")
        if self.client_ca_path and not self.cert_path:
            raise ValueError("clientCaPath needs certPath and keyPath: only with TLS do clients show certificates")
        return self


class OtlpSource(StreamSource[OtlpParameters, MetricsPage]):
    """Accepts metrics pushed over OTLP, by gRPC and by HTTP (`POST /v1/metrics`, protobuf or JSON), as metrics pages.

    Gauges, sums, and count and sum of histograms and summaries become a page; characters of names other than letters, digits, `_` and `:`
    become `_`. Send all metrics of a server in one push: a missing required metric is an error. Only text attributes become labels.
    Resources of unknown endpoints are dropped and reported to the sender.

    Without `clientCaPath`, any client that reaches a port can push for any endpoint. Bodies may have 4 MiB. Needs
    `pip install 'endpick[otlp]'`.
    """

    default_collectors = ("core-metrics-extractor",)
    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: OtlpParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        try:
            from endpick_builtin.collection import otlp_messages  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ConfigurationError("otlp-source needs opentelemetry-proto", "pip install 'endpick[otlp]'") from error
        self._messages = otlp_messages
        self._publishers: dict[str, dict[str, Publish]] = {}  # by name, then by endpoint: two endpoints may share a short name
        self._http: web.AppRunner | None = None
        self._grpc: grpc.aio.Server | None = None
        self.port, self.grpc_port = parameters.port, parameters.grpc_port  # those in use, once started
        self._warned_at = -_WARN_SECONDS
        exports = Counts("endpick_otlp_exports_total", "Exports over OTLP, by outcome.", ("outcome",), context.registry)
        points = Counts("endpick_otlp_points_total", "Points of exports over OTLP, by outcome.", ("outcome",), context.registry)
        self._read, self._malformed = exports.labels("read"), exports.labels("malformed")
        self._delivered, self._dropped = points.labels("delivered"), points.labels("dropped")

    async def start(self) -> None:
        given = self.parameters
        try:
            self.port = await self._start_http()
            if given.grpc_port is not None:
                self.grpc_port = await self._start_grpc(given.grpc_port)
        except (OSError, RuntimeError) as error:
            await self.stop()
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"cannot listen on {given.host}, ports {given.port} and {given.grpc_port}: {reason}") from error
        scheme = "https" if given.cert_path else "http"
        self.context.logger.info("takes metrics over OTLP at %s://%s:%d%s", scheme, given.host, self.port, HTTP_PATH)
        if self.grpc_port is not None:
            self.context.logger.info("takes metrics over OTLP by gRPC at %s:%d", given.host, self.grpc_port)

    async def stop(self) -> None:
        if self._http is not None:
            await self._http.cleanup()
        if self._grpc is not None:
            await self._grpc.stop(1.0)
            self._grpc = None  # grpc's thread ends with its last server

    async def watch(self, endpoint: Endpoint, publish: Publish) -> None:
        names = {endpoint.name, endpoint.name.rpartition("/")[2], endpoint.address, endpoint.metrics_address}
        for name in names:
            self._publishers.setdefault(name, {})[endpoint.name] = publish
        try:
            await asyncio.Event().wait()
        finally:
            for name in names:
                del self._publishers[name][endpoint.name]

    async def _start_http(self) -> int:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post(HTTP_PATH, self._post)
        self._http = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._http.setup()
        given = self.parameters
        site = web.TCPSite(self._http, given.host, given.port, ssl_context=_server_tls(given), reuse_port=True)  # for several workers
        await site.start()
        port: int = self._http.addresses[0][1]
        return port

    async def _start_grpc(self, port: int) -> int:
        import grpc  # noqa: PLC0415 - slow to import
        import grpc.aio  # noqa: PLC0415
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (  # noqa: PLC0415
            add_MetricsServiceServicer_to_server,
        )

        self._grpc = grpc.aio.server(options=(("grpc.max_receive_message_length", MAX_BODY_BYTES), ("grpc.so_reuseport", 1)))
        add_MetricsServiceServicer_to_server(self, self._grpc)  # type: ignore[no-untyped-call]
        host = self.parameters.host
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if self.parameters.cert_path:
            chosen = self._grpc.add_secure_port(address, _grpc_credentials(self.parameters))
        else:
            chosen = self._grpc.add_insecure_port(address)
        await self._grpc.start()
        return chosen

    async def _post(self, request: web.Request) -> web.Response:
        is_json = request.content_type == _JSON
        if not is_json and request.content_type != _PROTOBUF:
            return web.Response(status=415, text=f"send {_PROTOBUF} or {_JSON}, not {request.content_type}")
        body = await request.read()
        try:
            export = await asyncio.to_thread(self._messages.parse_export, body, is_json=is_json)
        except self._messages.MalformedExport as error:
            self._malformed.inc()
            return web.Response(status=400, text=str(error))
        answer = await self._deliver(export)
        if is_json:
            return web.Response(text=self._messages.to_json(answer), content_type=_JSON)
        return web.Response(body=answer.SerializeToString(), content_type=_PROTOBUF)

    async def Export(  # noqa: N802 - the method of gRPC's MetricsServiceServicer
        self, request: ExportMetricsServiceRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> ExportMetricsServiceResponse:
        return await self._deliver(request)

    async def _deliver(self, export: ExportMetricsServiceRequest) -> ExportMetricsServiceResponse:
        self._read.inc()
        dropped, reason = 0, ""
        for resource in await asyncio.to_thread(self._messages.pages_of, export):
            name = resource.attributes.get(self.parameters.endpoint_attribute, "")
            publishers = self._publishers.get(name, {})
            if len(publishers) != 1:
                dropped += resource.points
                reason = f"'{self.parameters.endpoint_attribute}' is '{name}', which is the name of {len(publishers)} endpoints"
                continue
            (publish,) = publishers.values()
            publish(resource.page)
            self._delivered.value += resource.points
        if dropped:
            self._dropped.value += dropped
            self._warn(dropped, reason)
        return self._messages.answer(dropped, reason)

    def _warn(self, dropped: int, reason: str) -> None:
        now = self.context.clock()
        if now - self._warned_at >= _WARN_SECONDS:
            self._warned_at = now
            self.context.logger.warning("%d points of an export were dropped: %s; see endpointAttribute", dropped, reason)


def _server_tls(parameters: OtlpParameters) -> ssl.SSLContext | None:
    """Loads renewed certificates at the next handshake."""
    if not parameters.cert_path:
        return None
    files = Path(parameters.cert_path), Path(parameters.key_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=parameters.client_ca_path or None)
    if parameters.client_ca_path:
        context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(*files)
    loaded = [file.stat().st_mtime_ns for file in files]

    def renew(_socket: ssl.SSLObject, _name: str | None, used: ssl.SSLContext) -> None:
        nonlocal loaded
        with suppress(OSError):  # half written: the old certificate stays
            if (now := [file.stat().st_mtime_ns for file in files]) != loaded:
                used.load_cert_chain(*files)
                loaded = now

    context.sni_callback = renew
    return context


def _grpc_credentials(parameters: OtlpParameters) -> grpc.ServerCredentials:
    import grpc  # noqa: PLC0415

    def read() -> grpc.ServerCertificateConfiguration:
        authority = Path(parameters.client_ca_path).read_bytes() if parameters.client_ca_path else None
        pair = Path(parameters.key_path).read_bytes(), Path(parameters.cert_path).read_bytes()
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=authority)

    current = read()

    def renewed() -> grpc.ServerCertificateConfiguration:
        nonlocal current
        with suppress(OSError):  # half written: the old certificate stays
            current = read()
        return current

    return grpc.dynamic_ssl_server_credentials(current, renewed, require_client_authentication=bool(parameters.client_ca_path))
