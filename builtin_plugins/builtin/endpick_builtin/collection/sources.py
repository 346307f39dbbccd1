"""Sources that poll each endpoint or follow endpoint changes, and their collectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BaseModel, FailFast, Field, ValidationError, model_validator
from typing_extensions import TypeVar

from endpick.api import (
    ColumnWriter,
    DataCollector,
    Duration,
    Endpoint,
    EndpointChange,
    EndpointEvent,
    EndpointEventSource,
    MetricsPage,
    Parameters,
    PluginContext,
    PollingSource,
    Stability,
    Unavailable,
)
from endpick.api.keys import SERVED_MODELS, TOPOLOGY, ServedModel, Topology
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.collection.http_pages import MAX_PAGE_BYTES, HttpPages, client_tls

MaxPageBytes = Annotated[int, Field(ge=64 * 1024, le=64 * 1024 * 1024, description="Longest page that is read, in bytes.")]


class HttpSourceParameters(CamelParameters):
    """Locates a page of each endpoint, and sets how it is polled."""

    scheme: Annotated[Literal["http", "https"], Field(description="`http` or `https`.")] = "http"
    path: Annotated[str, Field(pattern="^/", description="Path of the page, from the root of the server.")]
    port: Annotated[int, Field(ge=0, le=65535, description="Port to ask; 0 is the endpoint's metrics port.")] = 0
    insecure_skip_verify: Annotated[bool, Field(description="With https: accept any certificate, as servers known by IP address need.")] = (
        True
    )
    ca_cert_path: Annotated[str, Field(description="With https: PEM file of the authorities to trust, instead of the system's.")] = ""
    client_cert_path: Annotated[str, Field(description="With https: PEM file of the client certificate.")] = ""
    client_key_path: Annotated[str, Field(description="With https: PEM file of the client certificate's key.")] = ""
    interval: Annotated[
        Duration, Field(ge=0, description="Time between two polls of an endpoint, 50ms or more; 0 follows `--refresh-metrics-interval`.")
    ] = 0.0
    max_page_bytes: MaxPageBytes = MAX_PAGE_BYTES

    @model_validator(mode="after")
    def _certificate_has_its_key(self) -> Self:
        if bool(self.client_cert_path) != bool(self.client_key_path):
            raise ValueError("clientCertPath and clientKeyPath belong together: give both or neither")
        return self


P = TypeVar("P", bound=HttpSourceParameters)
Payload = TypeVar("Payload")


class HttpSource(PollingSource[P, Payload]):
    """Base of sources that fetch one page per poll over kept connections."""

    accept = "*/*"

    def __init__(self, name: str, parameters: P, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self.interval_seconds = parameters.interval or None
        self._pages: HttpPages | None = None
        self._authorities: dict[str, str] = {}

    async def start(self) -> None:
        parameters = self.parameters
        tls = None
        if parameters.scheme == "https":
            if parameters.insecure_skip_verify and parameters.ca_cert_path:
                self.context.logger.warning("caCertPath has no effect while insecureSkipVerify is true, its default")
            tls = client_tls(
                parameters.ca_cert_path,
                parameters.client_cert_path,
                parameters.client_key_path,
                verify=not parameters.insecure_skip_verify,
            )
        self._pages = HttpPages(self.accept, parameters.max_page_bytes, tls)

    async def stop(self) -> None:
        if self._pages is not None:
            self._pages.close()

    async def fetch(self, endpoint: Endpoint) -> bytes:
        if self._pages is None:
            raise RuntimeError(f"source '{self.name}' was polled before it was started")
        authority = self._authority_of(endpoint)
        if self._authorities.get(endpoint.name) != authority:
            self.endpoint_removed(endpoint.name)
            self._authorities[endpoint.name] = authority
        return await self._pages.get(authority, self.parameters.path)

    def endpoint_removed(self, name: str) -> None:
        authority = self._authorities.pop(name, None)
        if authority is not None and self._pages is not None:
            self._pages.forget(authority)

    def _authority_of(self, endpoint: Endpoint) -> str:
        if not self.parameters.port:
            return endpoint.metrics_address
        return f"{endpoint.metrics_address.rpartition(':')[0]}:{self.parameters.port}"


class MetricsSourceParameters(HttpSourceParameters):
    """Locates the metrics page of each endpoint."""

    path: Annotated[str, Field(pattern="^/", description="Path of the metrics page, from the root of the server.")] = "/metrics"


class MetricsPageSource(HttpSource[P, MetricsPage]):
    """Base of sources that fetch metrics pages."""

    repeats_payload = True
    accept = "text/plain;version=0.0.4"

    def __init__(self, name: str, parameters: P, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._last: dict[str, MetricsPage] = {}

    async def poll(self, endpoint: Endpoint) -> MetricsPage:
        body = await self.fetch(endpoint)
        last = self._last.get(endpoint.name)
        if last is None or last.body != body:
            last = self._last[endpoint.name] = MetricsPage(body)
        return last

    def endpoint_removed(self, name: str) -> None:
        super().endpoint_removed(name)
        self._last.pop(name, None)


class MetricsDataSource(MetricsPageSource[MetricsSourceParameters]):
    """Fetches the metrics page of every endpoint.

    A status other than 200, a page over `maxPageBytes` or a poll over 1 s is a poll error; the columns keep their values.
    """

    default_collectors = ("core-metrics-extractor",)


class ModelsSourceParameters(HttpSourceParameters):
    """Locates the list of models of each endpoint."""

    path: Annotated[str, Field(pattern="^/", description="Path of the list of models, from the root of the server.")] = "/v1/models"


class ModelList(tuple[ServedModel, ...]):
    """The models that one endpoint serves, in the order in which it lists them."""

    __slots__ = ()


class _Entry(BaseModel):
    id: str
    parent: str | None = None


class _Answer(BaseModel):
    data: Annotated[list[_Entry], FailFast()]


class ModelsDataSource(HttpSource[ModelsSourceParameters, ModelList]):
    """Fetches the list of models of every endpoint, in the OpenAI format: `{"data": [{"id": …, "parent": …}]}`."""

    default_collectors = ("models-data-extractor",)
    accept = "application/json"

    async def poll(self, endpoint: Endpoint) -> ModelList:
        return parse_model_list(await self.fetch(endpoint))


def parse_model_list(body: bytes) -> ModelList:
    """Parse a response of `/v1/models`; raises Unavailable if it is malformed."""
    try:
        answer = _Answer.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the answer"
        raise Unavailable(f"the list of models cannot be read: {where}: {first['msg']}") from error
    return ModelList(ServedModel(entry.id, entry.parent or "") for entry in answer.data)


class ModelsDataExtractor(DataCollector[Parameters, ModelList]):
    """Keeps each endpoint's list of models under `served-models`."""

    produces = (SERVED_MODELS,)
    default_source = "models-data-source"

    def collect(self, payload: ModelList, writer: ColumnWriter) -> None:
        writer.set(SERVED_MODELS, tuple(payload))


class EndpointNotificationSource(EndpointEventSource[Parameters, EndpointEvent]):
    """Notifies its collectors when an endpoint joins the pool, changes its labels, or leaves.

    An endpoint with a new address leaves and joins. A reload announces every endpoint again.
    """

    def notify(self, event: EndpointEvent) -> EndpointEvent:
        return event


class TopologyParameters(CamelParameters):
    """The labels that hold an endpoint's location."""

    hostname: Annotated[str, Field(min_length=1, description="Label that holds the host.")] = "kubernetes.io/hostname"
    rack: Annotated[str, Field(min_length=1, description="Label that holds the rack.")] = "topology.kubernetes.io/rack"
    zone: Annotated[str, Field(min_length=1, description="Label that holds the zone.")] = "topology.kubernetes.io/zone"
    region: Annotated[str, Field(min_length=1, description="Label that holds the region.")] = "topology.kubernetes.io/region"


class TopologyExtractor(DataCollector[TopologyParameters, EndpointEvent]):
    """Reads host, rack, zone and region of an endpoint from its labels. A missing label leaves its part empty."""

    produces = (TOPOLOGY,)
    default_source = "endpoint-notification-source"
    stability = Stability.EXPERIMENTAL

    def collect(self, payload: EndpointEvent, writer: ColumnWriter) -> None:
        if payload.change is EndpointChange.REMOVED:
            return
        labels, names = payload.endpoint.labels, self.parameters
        places = (labels.get(label, "") for label in (names.hostname, names.rack, names.zone, names.region))
        writer.set(TOPOLOGY, Topology(*places))


class KubernetesNotificationParameters(CamelParameters):
    """Names the kind of objects to watch, as llm-d does."""

    group: Annotated[str, Field(description="API group; empty for the core group.")] = ""
    version: Annotated[str, Field(min_length=1, description="API version.", examples=["v1"])]
    kind: Annotated[str, Field(min_length=1, description="Kind of the objects.", examples=["Pod"])]


class KubernetesNotificationSource(EndpointEventSource[KubernetesNotificationParameters, Mapping[str, object]]):
    """Accepts llm-d's configuration of a watch on Kubernetes objects, and delivers nothing.

    Logs a warning at start.
    """

    async def start(self) -> None:
        kind = "/".join(filter(None, (self.parameters.group, self.parameters.version, self.parameters.kind)))
        self.context.logger.warning("no objects of kind %s are watched: without Kubernetes the source has nothing to deliver", kind)

    def notify(self, event: EndpointEvent) -> None:
        """Deliver nothing: endpoints are not Kubernetes objects."""
