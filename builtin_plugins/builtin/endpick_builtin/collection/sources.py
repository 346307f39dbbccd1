"""Data sources: pages fetched from each endpoint over HTTP, and the models it says it serves."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, FailFast, Field, ValidationError, model_validator
from typing_extensions import TypeVar

from endpick.api import (
    SERVED_MODELS,
    ColumnWriter,
    ConfigurationError,
    DataCollector,
    Duration,
    Endpoint,
    Limits,
    MetricsPage,
    PageLayout,
    Parameters,
    PluginContext,
    PollingSource,
    ServedModel,
    Unavailable,
)
from endpick_builtin.collection.http_pages import HttpPages
from endpick_builtin.collection.json_answers import refuse_too_many_parts
from endpick_builtin.collection.long_answers import LONG_BYTES
from endpick_builtin.collection.page_limits import MAX_PAGE_BYTES, PAGE_BYTES, SOURCE_LIMITS, PageSize, stretch_of


class HttpSourceParameters(Parameters):
    """How to reach the page."""

    scheme: Annotated[Literal["http", "https"], Field(description="`http` or `https`.")] = "http"
    path: Annotated[str, Field(pattern="^/", description="Path of the page, from the root of the server.")]
    port: Annotated[int, Field(ge=0, le=65535, description="Port to ask instead of the endpoint's metrics port; 0 keeps that one.")] = 0
    insecure_skip_verify: Annotated[
        bool, Field(alias="insecureSkipVerify", description="With https: accept any certificate, as servers known by IP address need.")
    ] = True
    ca_cert_path: Annotated[
        str, Field(alias="caCertPath", description="With https: PEM file of the authorities to trust, instead of the system's.")
    ] = ""
    client_cert_path: Annotated[str, Field(alias="clientCertPath", description="With https: PEM file of the certificate to show.")] = ""
    client_key_path: Annotated[str, Field(alias="clientKeyPath", description="With https: PEM file of that certificate's key.")] = ""
    interval: Annotated[
        Duration, Field(ge=0, description="Time between two polls of an endpoint, 50ms or more; 0 follows `--refresh-metrics-interval`.")
    ] = 0.0
    max_page_bytes: PAGE_BYTES = MAX_PAGE_BYTES

    @model_validator(mode="after")
    def _certificate_has_its_key(self) -> Self:
        if bool(self.client_cert_path) != bool(self.client_key_path):
            raise ValueError("clientCertPath and clientKeyPath belong together: give both or neither")
        return self


P = TypeVar("P", bound=HttpSourceParameters)
Payload = TypeVar("Payload")


class HttpSource(PollingSource[P, Payload]):
    """Fetches one page per poll, over connections that are kept open."""

    accept = "*/*"
    """Value of the `Accept` header."""

    def __init__(self, name: str, parameters: P, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self.interval_seconds = parameters.interval or None
        self._limits = Limits(context, SOURCE_LIMITS)
        self._longest = PageSize(parameters.max_page_bytes)
        self.timeout_seconds *= stretch_of(parameters.max_page_bytes)
        self._pages: HttpPages | None = None
        self._asked: dict[str, str] = {}

    async def start(self) -> None:
        """Open the connection pool.

        Raises:
            ConfigurationError: a certificate file does not work.
        """
        tls = self._tls() if self.parameters.scheme == "https" else None
        self._pages = HttpPages(tls, self.accept, self._limits, self._longest)

    async def stop(self) -> None:
        """Close the connections."""
        if self._pages is not None:
            await self._pages.close()
            self._pages = None

    async def fetch(self, endpoint: Endpoint) -> bytes:
        """The page of one endpoint.

        Raises:
            Unavailable: it cannot be had; the message names the URL and the reason.
        """
        if self._pages is None:
            raise RuntimeError(f"source '{self.name}' was asked before it was started")
        authority = self._authority_of(endpoint)
        if self._asked.get(endpoint.name) != authority:
            self.endpoint_removed(endpoint.name)
            self._asked[endpoint.name] = authority
        return await self._pages.get(authority, self.parameters.path)

    def endpoint_removed(self, name: str) -> None:
        """Close what is kept open to where the endpoint's page was."""
        authority = self._asked.pop(name, None)
        if authority is not None and self._pages is not None:
            self._pages.forget(authority)

    def _authority_of(self, endpoint: Endpoint) -> str:
        if not self.parameters.port:
            return endpoint.metrics_address
        return f"{endpoint.metrics_address.rpartition(':')[0]}:{self.parameters.port}"

    def _tls(self) -> ssl.SSLContext:
        parameters = self.parameters
        try:
            tls = ssl.create_default_context(cafile=parameters.ca_cert_path or None)
            if parameters.client_cert_path:
                tls.load_cert_chain(Path(parameters.client_cert_path), Path(parameters.client_key_path))
        except OSError as problem:
            given = ", ".join(filter(None, (parameters.ca_cert_path, parameters.client_cert_path, parameters.client_key_path)))
            raise ConfigurationError(f"source '{self.name}' cannot use its certificate files ({given}): {problem}") from problem
        if parameters.insecure_skip_verify:
            if parameters.ca_cert_path:
                self.context.logger.warning("caCertPath has no effect while insecureSkipVerify is true, its default")
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        return tls


class MetricsSourceParameters(HttpSourceParameters):
    """Where the metrics are."""

    path: Annotated[str, Field(pattern="^/", description="Path of the metrics page, from the root of the server.")] = "/metrics"


class MetricsPageSource(HttpSource[P, MetricsPage]):
    """What the sources of metrics pages share. Nothing is parsed here: collectors look up what they want in the `MetricsPage`."""

    repeats_payload = True
    accept = "text/plain;version=0.0.4"

    def __init__(self, name: str, parameters: P, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._last: dict[str, MetricsPage] = {}
        self._layouts: dict[str, PageLayout] = {}

    async def poll(self, endpoint: Endpoint) -> MetricsPage:
        """One scrape. An idle server's page is the one before, object and all, so that what was read of it need not be read again."""
        body = await self.fetch(endpoint)
        last = self._last.get(endpoint.name)
        if last is not None and last.body == body:
            return last
        layout = self._layouts.get(endpoint.name)
        if layout is None:
            layout = self._layouts[endpoint.name] = PageLayout()
        page = MetricsPage(body, layout)
        if len(body) <= LONG_BYTES:
            self._last[endpoint.name] = page
        else:
            self._last.pop(endpoint.name, None)  # a hundred servers with pages of 8 MiB would take most of the memory there is
        return page

    def endpoint_removed(self, name: str) -> None:
        """Forget its page, too."""
        super().endpoint_removed(name)
        self._last.pop(name, None)
        self._layouts.pop(name, None)


class MetricsDataSource(MetricsPageSource[MetricsSourceParameters]):
    """Asks every endpoint for its metrics page.

    Anything but status 200, and a page over `maxPageBytes`, is a poll error; the columns keep their values and grow older. A poll may take
    1 s, and with a `maxPageBytes` over 8 MiB as much longer; long pages are read one after the other, 64 MiB a second.
    """

    default_collectors = ("core-metrics-extractor",)


class ModelsSourceParameters(HttpSourceParameters):
    """Where the list of models is."""

    path: Annotated[str, Field(pattern="^/", description="Path of the list of models, from the root of the server.")] = "/v1/models"


class ModelList(tuple[ServedModel, ...]):
    """The payload: what one endpoint serves, in its own order."""

    __slots__ = ()


_MODELS_PART_BYTES = 40
"""Of the longest list of models, for each part that `refuse_too_many_parts` counts: some thousand models, of which each takes a while."""


class _Entry(BaseModel):
    id: str
    parent: str | None = None


class _Answer(BaseModel):
    # One mistake will do: of hundreds of thousands each would be made an object of its own.
    data: Annotated[list[_Entry], FailFast()]


class ModelsDataSource(HttpSource[ModelsSourceParameters, ModelList]):
    """Asks every endpoint for its list of models, in the OpenAI format: `{"data": [{"id": …, "parent": …}]}`."""

    default_collectors = ("models-data-extractor",)
    accept = "application/json"

    async def poll(self, endpoint: Endpoint) -> ModelList:
        """One look at the list."""
        body = await self.fetch(endpoint)
        refuse_too_many_parts(body, self._limits, endpoint.name, self._longest, _MODELS_PART_BYTES)
        return model_list_of(body)


def model_list_of(body: bytes) -> ModelList:
    """Read an answer of `/v1/models`.

    Raises:
        Unavailable: it is no such answer.
    """
    try:
        answer = _Answer.model_validate_json(body)
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the answer"
        raise Unavailable(f"the list of models cannot be read: {where}: {first['msg']}") from problem
    return ModelList(ServedModel(entry.id, entry.parent or "") for entry in answer.data)


class ModelsDataExtractor(DataCollector[Parameters, ModelList]):
    """Keeps each endpoint's list of models under `served-models`."""

    produces = (SERVED_MODELS,)
    default_source = "models-data-source"

    def collect(self, payload: ModelList, writer: ColumnWriter) -> None:
        """Keep the list as it is."""
        writer.set(SERVED_MODELS, tuple(payload))
