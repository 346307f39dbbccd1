"""Finds the API server, connects to it with lightkube and interprets its errors."""

from __future__ import annotations

import os

from httpx2 import AsyncHTTPTransport, HTTPStatusError, Request, Response, Timeout
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import DEFAULT_KUBECONFIG, SERVICE_ACCOUNT, SingleConfig
from lightkube.core.exceptions import ConfigError
from lightkube.generic_resource import GenericNamespacedResource, create_api_info

from endpick.api import ConfigurationError

_TIMEOUT = Timeout(30.0, connect=3.0)  # seconds; watches read without a limit


class _BookmarkTransport(AsyncHTTPTransport):
    """Asks for bookmarks on every watch; lightkube does not. They keep the version of a quiet collection from expiring."""

    async def handle_async_request(self, request: Request) -> Response:
        if "watch" in request.url.params:
            request.url = request.url.copy_merge_params({"allowWatchBookmarks": "true"})
        return await super().handle_async_request(request)


def resource(group: str, version: str, kind: str) -> type[GenericNamespacedResource]:
    """A lightkube resource class with mappings as objects, not registered process-wide as by `create_namespaced_resource`."""
    return type(kind, (GenericNamespacedResource,), {"_api_info": create_api_info(group, version, kind, f"{kind.lower()}s")})


def connect(kubeconfig: str, service_account: str = SERVICE_ACCOUNT) -> tuple[AsyncClient, str]:
    """Open a client to the API server; also returns its URL. Reads files.

    Uses the first of: `kubeconfig`, `$KUBECONFIG`, the Pod's service account, `~/.kube/config`.

    Raises:
        ConfigurationError: No API server is configured, or its credentials are unusable.
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
        # `from None`: a YAML error quotes the line, which may hold a token.
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
    """The HTTP status, also of an error event in a watch; 0 without an answer."""
    if isinstance(error, ApiError):
        return error.status.code or 0
    return error.response.status_code if isinstance(error, HTTPStatusError) else 0


def describe(error: Exception) -> str:
    """One line for logs."""
    if isinstance(error, ApiError):
        return f"{status_of(error)} {error}"
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
