"""What the polling sources share that fetch one page from each endpoint over HTTP."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Annotated, Literal, Self

import aiohttp
from pydantic import Field, model_validator
from typing_extensions import TypeVar
from yarl import URL

from endpick.api import ConfigurationError, Duration, Endpoint, Parameters, PluginContext, PollingSource, Unavailable

MAX_PAGE_BYTES = 8 * 1024 * 1024
"""A page that is longer is refused unread: nobody's metrics are, and reading it would starve the rest."""


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
        self._session: aiohttp.ClientSession | None = None
        self._urls: dict[str, URL] = {}

    async def start(self) -> None:
        """Open the connection pool.

        Raises:
            ConfigurationError: a certificate file does not work.
        """
        connector = aiohttp.TCPConnector(limit=0, ssl=self._tls() if self.parameters.scheme == "https" else True)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # the host limits the whole poll
            headers={"Accept": self.accept, "Accept-Encoding": "identity", "User-Agent": "endpick"},
        )

    async def stop(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def endpoint_removed(self, name: str) -> None:
        """Forget where the endpoint's page was."""
        self._urls.pop(name, None)

    async def fetch(self, endpoint: Endpoint) -> bytes:
        """The page of one endpoint.

        Raises:
            Unavailable: it cannot be had; the message names the URL and the reason.
        """
        if self._session is None:
            raise RuntimeError(f"source '{self.name}' was asked before it was started")
        url = self._url_of(endpoint)
        try:
            async with self._session.get(url) as response:
                if response.status != 200:
                    raise Unavailable(f"GET {url} answered {response.status}")
                return await _body_of(response)
        except (aiohttp.ClientError, OSError) as problem:
            raise Unavailable(f"GET {url}: {_reason(problem)}") from problem

    def _url_of(self, endpoint: Endpoint) -> URL:
        url = self._urls.get(endpoint.name)
        if url is None or url.authority != self._authority_of(endpoint):
            url = URL(f"{self.parameters.scheme}://{self._authority_of(endpoint)}{self.parameters.path}", encoded=True)
            self._urls[endpoint.name] = url
        return url

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


def _reason(problem: aiohttp.ClientError | OSError) -> str:
    """What the system said of a connection that did not come about, rather than what asyncio and aiohttp made of it."""
    if isinstance(problem, aiohttp.ClientConnectorError):
        cause = problem.os_error
        if cause.errno and not isinstance(cause, ssl.SSLError):
            return os.strerror(cause.errno).lower()
    return str(problem)


async def _body_of(response: aiohttp.ClientResponse) -> bytes:
    """Read chunk by chunk, so that a page that is too long is given up early, however it is compressed."""
    chunks: list[bytes] = []
    size = response.content_length or 0
    if size <= MAX_PAGE_BYTES:
        size = 0
        while size <= MAX_PAGE_BYTES and (chunk := await response.content.readany()):
            chunks.append(chunk)
            size += len(chunk)
    if size > MAX_PAGE_BYTES:
        raise Unavailable(f"the page at {response.url} is longer than {MAX_PAGE_BYTES // 2**20} MiB")
    return b"".join(chunks)
