"""The metrics port: `/metrics` in Prometheus' formats, `/healthz` and the admin API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from aiohttp import web
from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics import disable_created_metrics
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from endpick.api.discovery import MetricsAccess
from endpick.host.failures import PLUGIN_ERRORS, describe_error
from endpick.host.instance import Instance
from endpick.host.methods import ExtensionPoint
from endpick.host.telemetry import Telemetry
from endpick.serve.admin_api import AdminAPI
from endpick.transport.limits import TransportCounters
from endpick.transport.listener import ListenError, ListenSettings, listening_socket
from endpick.transport.tls import CertificateWatch, TlsSettings

_log = logging.getLogger("endpick.serve")

MAX_SAMPLES = 20_000  # per instance; more indicate a label with unbounded values


def new_host_registry() -> CollectorRegistry:
    """A registry with metrics of Python and the process."""
    disable_created_metrics()  # type: ignore[no-untyped-call] # llm-d has no `_created` gauges
    registry = CollectorRegistry()
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        registry.register(collector)
    return registry


class Exposition(Collector):
    """Joins the metrics of the host, hook objects and instances, without registries that raise.

    `collect` may run in a thread. Collectors of plugins are not thread-safe: call `gather` on the event loop first.
    """

    def __init__(
        self, host: CollectorRegistry, hooks: CollectorRegistry | None, instances: Callable[[], Iterable[Instance]], telemetry: Telemetry
    ) -> None:
        self._host = host
        self._hooks = hooks
        self._instances = instances
        self._telemetry = telemetry
        self._of_hooks: list[Metric] = []
        self._of_instances: list[tuple[Instance, list[Metric]]] = []

    def gather(self) -> None:
        """Collect the metrics of hook objects and instances."""
        self._of_hooks = self._offered_by_hooks()
        self._of_instances = [(instance, copies) for instance in self._instances() if (copies := self._offered_by(instance))]

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for family in self._host.collect():
            _join(families, family)
        own = set(families)
        for family in self._of_hooks:
            if family.name not in own:
                _join(families, family)
        for instance, copies in self._of_instances:
            for copy in copies:
                self._add(families, own, instance, copy)
        yield from families.values()

    def _offered_by_hooks(self) -> list[Metric]:
        try:
            return [] if self._hooks is None else [_copy(family) for family in self._hooks.collect()]
        except PLUGIN_ERRORS as error:
            _log.error("metrics of hook objects are left out: %s", describe_error(error), exc_info=error)
            return []

    def _offered_by(self, instance: Instance) -> list[Metric]:
        labels = {"plugin_name": instance.name, "plugin_type": instance.type}
        try:
            copies = [] if instance.registry is None else [_copy(family, labels) for family in instance.registry.collect()]
        except PLUGIN_ERRORS as error:
            self._fault(instance, error)
            return []
        if sum(len(copy.samples) for copy in copies) > MAX_SAMPLES:
            self._fault(instance, f"offers more than {MAX_SAMPLES} samples: find the label with too many values")
            return []
        return copies

    def _add(self, families: dict[str, Metric], own: set[str], instance: Instance, family: Metric) -> None:
        if family.name in own:
            self._fault(instance, f"offers the metric '{family.name}', which is endpick's own")
        elif not _join(families, family):
            first = families[family.name].type
            self._fault(instance, f"offers the metric '{family.name}' as a {family.type}, while another instance offers a {first}")

    def _fault(self, instance: Instance, problem: BaseException | str) -> None:
        self._telemetry.fault(instance, ExtensionPoint.METRICS, problem)


def _join(families: dict[str, Metric], family: Metric) -> bool:
    """Add the samples of a family; False if another type has the same name."""
    first = families.get(family.name)
    if first is None:
        families[family.name] = family
    elif first.type == family.type:
        families[family.name] = joined = Metric(first.name, first.documentation, first.type)
        joined.samples = [*first.samples, *family.samples]
    return first is None or first.type == family.type


def _copy(family: Metric, labels: Mapping[str, str] = MappingProxyType({})) -> Metric:
    """Copy a family with further labels: a collector may return the same object at each scrape."""
    copy = Metric(family.name, family.documentation, family.type)
    for sample in family.samples:
        copy.add_sample(sample.name, {**sample.labels, **labels}, float(sample.value))
    return copy


class FilteredMetrics(Collector):
    """A collector behind a filter of a hook object, and without the filter while that raises."""

    def __init__(self, collector: Collector, metrics_filter: Callable[[Collector], Collector]) -> None:
        self._collector = collector
        self._filter = metrics_filter

    def collect(self) -> Iterator[Metric]:
        try:
            yield from tuple(self._filter(self._collector).collect())
        except PLUGIN_ERRORS as error:
            _log.error("a filter of the metrics is left out: %s", describe_error(error), exc_info=error)
            yield from self._collector.collect()


class EventCounts(Collector):
    """A counter family with the label `event`, read from a mapping at each scrape."""

    def __init__(self, name: str, documentation: str, read: Callable[[], Mapping[str, int]]) -> None:
        self._name = name
        self._documentation = documentation
        self._read = read

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._documentation, labels=["event"])
        for event, count in self._read().items():
            family.add_metric([event], count)
        yield family


_SHUTDOWN_SECONDS = 1.0
_REFRESH_SECONDS = 1.0

Report = Callable[[], tuple[bool, str]]
Access = Callable[[str], Awaitable[MetricsAccess]]


class AdminServer:
    """Serves an application on the metrics port."""

    def __init__(self, application: web.Application, host: str, port: int, tls: TlsSettings | None = None) -> None:
        self._address = ListenSettings(host, port, tls)
        self._refreshing: asyncio.Task[None] | None = None
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)

    async def start(self) -> int:
        """Serve; returns the bound port. Raises ListenError, TlsError."""
        certificate = None if self._address.tls is None else CertificateWatch(self._address.tls)
        if certificate is not None:
            self._refreshing = asyncio.create_task(self._refresh(certificate))
        bound = listening_socket(self._address)
        port: int = bound.getsockname()[1]
        await self._runner.setup()
        try:
            await web.SockSite(self._runner, bound, ssl_context=None if certificate is None else certificate.context).start()
        except OSError as error:
            await self.stop()
            raise ListenError.at(self._address.host, port, error) from error
        return port

    async def stop(self) -> None:
        """Close the port, and wait up to a second for open requests."""
        if self._refreshing is not None:
            self._refreshing.cancel()
        await self._runner.cleanup()

    async def _refresh(self, certificate: CertificateWatch) -> None:
        counters = TransportCounters()
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            certificate.refresh(counters)


class MetricsPages:
    """The handlers of `/metrics` and `/healthz` on the metrics port."""

    def __init__(self, collector: Collector, gather: Callable[[], None], report: Report, access: Access | None = None) -> None:
        """Make the pages; `collector` is read in a thread, after `gather` on the event loop.

        `report` returns the readiness and the text of `/healthz`. `access` decides by the bearer token, empty for none, who may read the
        metrics; None means everyone.
        """
        self._gather = gather
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(collector)
        self._report = report
        self._access = access

    def application(self, api: AdminAPI | None = None) -> web.Application:
        """Return an application with these pages, and with the routes of the admin API if given."""
        application = web.Application()
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/healthz", self._healthz)
        if api is not None:
            api.add_to(application)
        return application

    async def _metrics(self, request: web.Request) -> web.Response:
        if self._access is not None:
            await _authorize(request, self._access)
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        self._gather()
        # In a thread: a page of 1 MB takes 50 ms.
        body = await asyncio.to_thread(encode, self._registry)
        response = web.Response(body=body, headers={"Content-Type": content_type})
        response.enable_compression()
        return response

    async def _healthz(self, _request: web.Request) -> web.Response:
        ready, text = self._report()
        return web.Response(text=text, status=200 if ready else 503)


async def _authorize(request: web.Request, access: Access) -> None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    try:
        answer = await access(token.strip() if scheme.lower() == "bearer" else "")
    except PLUGIN_ERRORS as error:
        _log.warning("a client of /metrics is refused, for its token cannot be checked: %s", describe_error(error))
        raise web.HTTPServiceUnavailable from error
    if answer is MetricsAccess.UNKNOWN:
        raise web.HTTPUnauthorized(headers={"WWW-Authenticate": "Bearer"})
    if answer is not MetricsAccess.GRANTED:
        raise web.HTTPForbidden
