"""Connects to the API server, and follows one collection: list, watch, list again."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Generic, TypeVar

from httpx2 import AsyncHTTPTransport, HTTPStatusError, Request, Response, Timeout
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import DEFAULT_KUBECONFIG, SERVICE_ACCOUNT, SingleConfig
from lightkube.core.exceptions import ConfigError
from lightkube.core.resource import api_info
from lightkube.generic_resource import GenericNamespacedResource, create_api_info
from prometheus_client.metrics import Counter, Gauge

from endpick.api import ConfigurationError
from endpick_kubernetes.parameters import Object

_TIMEOUT = Timeout(30.0, connect=3.0)  # seconds; watches have no limit


class _BookmarkTransport(AsyncHTTPTransport):
    """Asks for bookmarks, which keep the version of a quiet collection from expiring."""

    async def handle_async_request(self, request: Request) -> Response:
        if "watch" in request.url.params:
            request.url = request.url.copy_merge_params({"allowWatchBookmarks": "true"})
        return await super().handle_async_request(request)


def resource(group: str, version: str, kind: str) -> type[GenericNamespacedResource]:
    """Make a resource class; unlike `create_namespaced_resource`, it is not registered process-wide."""
    return type(kind, (GenericNamespacedResource,), {"_api_info": create_api_info(group, version, kind, f"{kind.lower()}s")})


POD = resource("", "v1", "Pod")


def connect(kubeconfig: str, service_account: str = SERVICE_ACCOUNT) -> tuple[AsyncClient, str]:
    """Open a client to the API server, and return it with the server's URL; reads files.

    Tries `kubeconfig`, `$KUBECONFIG`, the service account, `~/.kube/config`. Raises ConfigurationError if none is usable.
    """
    path = kubeconfig or os.environ.get("KUBECONFIG", "")
    in_cluster = not path and "KUBERNETES_SERVICE_HOST" in os.environ
    if not path and not in_cluster and not os.path.isfile(os.path.expanduser(DEFAULT_KUBECONFIG)):  # noqa: PTH111, PTH113
        raise ConfigurationError(
            "no API server is known: KUBERNETES_SERVICE_HOST is not set (this is not a Pod) and there is no kubeconfig; "
            "name one with --kubeconfig, the parameter `kubeconfig`, or KUBECONFIG"
        )
    source = f"the service account in {service_account}" if in_cluster else f"kubeconfig {path or DEFAULT_KUBECONFIG}"
    try:
        found = KubeConfig.from_service_account(service_account) if in_cluster else KubeConfig.from_file(path or DEFAULT_KUBECONFIG)
        config = found.get()
        assert config is not None
        return _client(config), config.cluster.server
    except Exception as error:
        advice = "; the Pod needs `automountServiceAccountToken: true`" if in_cluster else ""
        # `from None`: YAML errors quote the line, which may hold a token.
        raise ConfigurationError(f"{source} cannot be used: {_without_content(error)}{advice}") from None


def _client(config: SingleConfig) -> AsyncClient:
    user = config.user
    if user is None:
        raise ConfigError("the current context names no user")
    if user.token_file is not None:
        user.token_file = str(config.abs_file(user.token_file))
    tls = verify_cluster(config.cluster, user, config.abs_file)
    return AsyncClient(config, timeout=_TIMEOUT, transport=_BookmarkTransport(verify=tls))


def _without_content(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"invalid YAML at line {mark.line + 1}, column {mark.column + 1}"
    if isinstance(error, KeyError):
        return f"missing entry {error}"
    return str(error) if isinstance(error, (ConfigError, OSError)) else f"{type(error).__name__}: {error}"


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error or error event; 0 without an answer."""
    if isinstance(error, ApiError):
        return error.status.code or 0
    return error.response.status_code if isinstance(error, HTTPStatusError) else 0


def describe(error: Exception) -> str:
    """Describe an error in one line, for logs."""
    if isinstance(error, ApiError):
        return f"{status_of(error)} {error}"
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


T = TypeVar("T")

_PAGE_OBJECTS = 100  # about 1 MB of Pods, decoded in one step
_FIRST_PAUSE_SECONDS = 0.05
# A server that has just started answers 403 and 429.
_QUICK_PAUSE_SECONDS = 0.2
_QUICK_FAILURES = 50
_NOT_INSTALLED_PAUSE_SECONDS = 30.0  # missing or forbidden custom resource
# A watch from a future version (storage restored from a backup) stays silent.
_SILENT_WATCHES_BEFORE_LIST = 6


@dataclass(frozen=True, slots=True)
class Collection(Generic[T]):
    """The objects to follow.

    `read` returns None to ignore an object; `name` selects a single one; unless `required`, the kind may be missing or forbidden.
    """

    title: str
    resource: type[GenericNamespacedResource]
    read: Callable[[Object], T | None]
    labels: str = ""
    name: str = ""
    required: bool = True


@dataclass(frozen=True, slots=True)
class Connection:
    """The client, metrics and log that all followers of one discovery share."""

    client: AsyncClient
    namespace: str
    random: Random
    logger: logging.Logger
    steps: Counter
    synced: Gauge
    watch_seconds: float
    longest_pause_seconds: float
    obstacles: dict[str, str] = field(default_factory=dict)  # why a collection is not known yet, by title


class Follower(Generic[T]):
    """Keeps a copy of one collection up to date."""

    def __init__(self, collection: Collection[T], connection: Connection, changed: Callable[[], None]) -> None:
        """`changed` is called after the first list and when `objects` or `installed` differ."""
        self.objects: dict[str, T] = {}
        self.synced = False  # listed once, or unavailable
        self.installed = False
        self.title = collection.title
        self._collection = collection
        self._connection = connection
        self._changed = changed
        self._selectors: dict[str, Any] = {
            "namespace": connection.namespace,
            # lightkube renders a key without a value as it is.
            "labels": {collection.labels: None} if collection.labels else None,
            "fields": {"metadata.name": collection.name} if collection.name else None,
        }
        self._version = ""  # empty: list before the next watch
        self._events = 0
        self._failures = 0
        self._trouble = ""

    async def run(self) -> None:
        """Follow until cancelled; raises ConfigurationError if the first list is refused as invalid (400, 422)."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                self._count("silent")
            except Exception as error:  # the copy stays, and the follower tries again
                await asyncio.sleep(self._pause_after(error))

    async def _list(self) -> None:
        found: dict[str, T] = {}
        listing = self._connection.client.list(self._collection.resource, chunk_size=_PAGE_OBJECTS, **self._selectors)
        async for item in listing:
            kept = self._collection.read(item)
            if kept is not None:
                found[item["metadata"]["name"]] = kept
        self._version = listing.resourceVersion
        self._count("listed")
        self._recovered()
        self._become(found, installed=True)

    async def _watch(self) -> None:
        """Watch until several watches in a row had no events."""
        connection, silent = self._connection, 0
        while silent < _SILENT_WATCHES_BEFORE_LIST:
            before = self._events
            seconds = connection.watch_seconds * connection.random.uniform(0.8, 1.0)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    # The server's own timeout is longer: lightkube hides the end of a watch.
                    async for kind, item in connection.client.watch(
                        self._collection.resource,
                        server_timeout=round(2 * seconds + 1),
                        resource_version=self._version,
                        **self._selectors,
                    ):
                        self._apply(kind, item)
            silent = silent + 1 if self._events == before else 0
        self._version = ""

    def _apply(self, kind: str, item: Object) -> None:
        self._events += 1
        self._version = item["metadata"]["resourceVersion"]
        self._recovered()
        if kind == "BOOKMARK":
            return
        name = item["metadata"]["name"]
        kept = None if kind == "DELETED" else self._collection.read(item)
        if kept == self.objects.get(name):
            return
        if kept is None:
            del self.objects[name]
        else:
            self.objects[name] = kept
        self._changed()

    def _become(self, objects: dict[str, T], *, installed: bool) -> None:
        self._connection.obstacles.pop(self.title, None)
        if self.synced and objects == self.objects and installed == self.installed:
            return
        self.objects, self.installed, self.synced = objects, installed, True
        self._connection.synced.labels(self.title).set(1)
        self._changed()

    def _pause_after(self, error: Exception) -> float:
        connection, status = self._connection, status_of(error)
        if status in (400, 422) and not self.synced:
            raise ConfigurationError(f"the API server refuses to list {self.title}: {describe(error)}") from error
        if status == 410:
            self._version = ""
            self._count("expired")
            connection.logger.info("%s: listing again: %s", self.title, describe(error))
        else:
            self._log_once(describe(error) + self._advice(status), status)
        if not self._collection.required and (status == 404 or (status == 403 and not self.synced)):
            self._count("absent")
            self._version = ""
            self._become({}, installed=False)
            return _NOT_INSTALLED_PAUSE_SECONDS
        if status != 410:
            self._count("broken")
        longest = connection.longest_pause_seconds
        if not status or self._failures < _QUICK_FAILURES:
            longest = min(longest, _QUICK_PAUSE_SECONDS)
        pause = min(longest, _FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures, 16)) * connection.random.uniform(0.5, 1.0)
        self._failures += 1
        return max(pause, _retry_after(error))

    def _advice(self, status: int) -> str:
        if status == 401:
            return "; the API server does not accept the credentials"
        if status != 403:
            return ""
        info, verb = api_info(self._collection.resource), "watch" if self._version else "list"
        name = ".".join(filter(None, (info.plural, info.resource.group)))
        return f"; the Role needs the verb `{verb}` for {name} in namespace {self._connection.namespace}"

    def _log_once(self, trouble: str, status: int) -> None:
        done = "watched" if self._version else "listed"
        if not self.synced:
            self._connection.obstacles[self.title] = f"{self.title} cannot be {done}: {trouble}"
        if trouble == self._trouble:
            return
        self._trouble = trouble
        level = logging.INFO if status == 404 and not self._collection.required else logging.WARNING
        self._connection.logger.log(level, "%s cannot be %s, trying again: %s", self.title, done, trouble)

    def _recovered(self) -> None:
        self._failures = 0
        if self._trouble:
            self._trouble = ""
            self._connection.logger.info("%s are followed again", self.title)

    def _count(self, outcome: str) -> None:
        self._connection.steps.labels(self.title, outcome).inc()


def _retry_after(error: Exception) -> float:
    response = getattr(error, "response", None)
    value = response.headers.get("Retry-After", "") if response is not None else ""
    return min(float(value), 60.0) if value.isdigit() else 0.0
