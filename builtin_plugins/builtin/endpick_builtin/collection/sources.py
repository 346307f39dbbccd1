"""Data sources that fetch a page from each endpoint over HTTP, and the collector of served models."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, ValidationError, model_validator
from typing_extensions import TypeVar

from endpick.api import ColumnWriter, DataCollector, Duration, Endpoint, MetricsPage, Parameters, PluginContext, PollingSource, Unavailable
from endpick.api.keys import SERVED_MODELS, ServedModel
from endpick_builtin.collection.http_pages import MAX_PAGE_BYTES, HttpPages, client_tls

MaxPageBytes = Annotated[
    int, Field(alias="maxPageBytes", ge=64 * 1024, le=64 * 1024 * 1024, description="Longest page that is read, in bytes.")
]


class HttpSourceParameters(Parameters):
    """How to reach the page."""

    scheme: Annotated[Literal["http", "https"], Field(description="`http` or `https`.")] = "http"
    path: Annotated[str, Field(pattern="^/", description="Path of the page, from the root of the server.")]
    port: Annotated[int, Field(ge=0, le=65535, description="Port to ask; 0 is the endpoint's metrics port.")] = 0
    insecure_skip_verify: Annotated[
        bool, Field(alias="insecureSkipVerify", description="With https: accept any certificate, as servers known by IP address need.")
    ] = True
    ca_cert_path: Annotated[
        str, Field(alias="caCertPath", description="With https: PEM file of the authorities to trust, instead of the system's.")
    ] = ""
    client_cert_path: Annotated[str, Field(alias="clientCertPath", description="With https: PEM file of the client certificate.")] = ""
    client_key_path: Annotated[str, Field(alias="clientKeyPath", description="With https: PEM file of the client certificate's key.")] = ""
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
    """Base of the sources that fetch one page per poll over kept connections."""

    accept = "*/*"

    def __init__(self, name: str, parameters: P, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self.interval_seconds = parameters.interval or None
        self._pages: HttpPages | None = None
        self._authorities: dict[str, str] = {}

    async def start(self) -> None:
        """Load the certificates. Raises ConfigurationError if a file cannot be used."""
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
        """Close the connections."""
        if self._pages is not None:
            self._pages.close()

    async def fetch(self, endpoint: Endpoint) -> bytes:
        """Fetch the page of one endpoint. Raises Unavailable; the message names URL and reason."""
        if self._pages is None:
            raise RuntimeError(f"source '{self.name}' was polled before it was started")
        authority = self._authority_of(endpoint)
        if self._authorities.get(endpoint.name) != authority:
            self.endpoint_removed(endpoint.name)
            self._authorities[endpoint.name] = authority
        return await self._pages.get(authority, self.parameters.path)

    def endpoint_removed(self, name: str) -> None:
        """Close the idle connections to the endpoint."""
        authority = self._authorities.pop(name, None)
        if authority is not None and self._pages is not None:
            self._pages.forget(authority)

    def _authority_of(self, endpoint: Endpoint) -> str:
        if not self.parameters.port:
            return endpoint.metrics_address
        return f"{endpoint.metrics_address.rpartition(':')[0]}:{self.parameters.port}"


class MetricsSourceParameters(HttpSourceParameters):
    """Where the metrics are."""

    path: Annotated[str, Field(pattern="^/", description="Path of the metrics page, from the root of the server.")] = "/metrics"


class MetricsPageSource(HttpSource[P, MetricsPage]):
    """Base of the sources of metrics pages."""

    repeats_payload = True
    accept = "text/plain;version=0.0.4"

    def __init__(self, name: str, parameters: P, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._last: dict[str, MetricsPage] = {}

    async def poll(self, endpoint: Endpoint) -> MetricsPage:
        """Fetch one page. An unchanged page is the same object, so that the endpoint can be polled less often."""
        body = await self.fetch(endpoint)
        last = self._last.get(endpoint.name)
        if last is None or last.body != body:
            last = self._last[endpoint.name] = MetricsPage(body)
        return last

    def endpoint_removed(self, name: str) -> None:
        """Forget the page and close the connections of the endpoint."""
        super().endpoint_removed(name)
        self._last.pop(name, None)


class MetricsDataSource(MetricsPageSource[MetricsSourceParameters]):
    """Fetches the metrics page of every endpoint.

    A status other than 200, a page over `maxPageBytes` and a poll that takes over 1 s are poll errors; the columns keep their values.
    """

    default_collectors = ("core-metrics-extractor",)


class ModelsSourceParameters(HttpSourceParameters):
    """Where the list of models is."""

    path: Annotated[str, Field(pattern="^/", description="Path of the list of models, from the root of the server.")] = "/v1/models"


class ModelList(tuple[ServedModel, ...]):
    """The models that one endpoint serves, in its order."""

    __slots__ = ()


class _Entry(BaseModel):
    id: str
    parent: str | None = None


class _Answer(BaseModel):
    data: list[_Entry]


class ModelsDataSource(HttpSource[ModelsSourceParameters, ModelList]):
    """Fetches the list of models of every endpoint, in the OpenAI format: `{"data": [{"id": …, "parent": …}]}`."""

    default_collectors = ("models-data-extractor",)
    accept = "application/json"

    async def poll(self, endpoint: Endpoint) -> ModelList:
        """Fetch one list. Raises Unavailable."""
        return parse_model_list(await self.fetch(endpoint))


def parse_model_list(body: bytes) -> ModelList:
    """Parse an answer of `/v1/models`. Raises Unavailable if it is not one."""
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
        """Write the list."""
        writer.set(SERVED_MODELS, tuple(payload))
