"""Where the API server is, and with what we show who we are: from a kubeconfig file, or as every Pod finds it."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from endpick.api import ConfigurationError
from endpick_builtin.kubernetes.kubeconfig import merged, read_kubeconfig

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts the token, the authority and the namespace of a Pod's service account."""
_MOST_TOKEN_BYTES = 64 * 1024
"""No server takes a header of so many."""


@dataclass(frozen=True, slots=True)
class Access:
    """How one API server is reached.

    Attributes:
        server: URL, without a slash at its end.
        tls: For https; None for http.
        http2_tls: The same for connections that offer HTTP/2.
        token: Bearer token; empty where a client certificate, or nothing, says who we are.
        token_file: Where the token stands, if it is a file that is renewed; None for one that stays.
        namespace: The one to use where the configuration names none.
        found_in: For messages: what said all this.
    """

    server: str
    tls: ssl.SSLContext | None
    http2_tls: ssl.SSLContext | None
    token: str
    token_file: Path | None
    namespace: str
    found_in: str


def find_access(kubeconfig: str, environment: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT) -> Access:
    """The first that there is: `kubeconfig`, the files of `KUBECONFIG`, the service account of this Pod, `~/.kube/config`. Reads files.

    Args:
        kubeconfig: Path of a file; empty to look for one.
        environment: Of the process.
        service_account: Folder of the service account.

    Raises:
        ConfigurationError: none of them is there, or the first of them cannot be used.
    """
    named = kubeconfig or environment.get("KUBECONFIG", "")
    home = Path(environment.get("HOME", "/nonexistent")) / ".kube" / "config"
    if named:
        paths = [Path(kubeconfig)] if kubeconfig else [Path(path) for path in named.split(os.pathsep) if path]
        return _of_kubeconfig(paths)
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return _in_cluster(environment, service_account)
    if home.is_file():
        return _of_kubeconfig([home])
    raise ConfigurationError(
        "no API server is known: this is no Pod (KUBERNETES_SERVICE_HOST is not set), and there is no kubeconfig; "
        "name one with --kubeconfig, the parameter `kubeconfig`, or KUBECONFIG"
    )


def read_token(path: Path) -> str:
    """The token in a file, which is renewed while the picker runs.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is no text.
    """
    with path.open("rb") as file:
        return file.read(_MOST_TOKEN_BYTES).decode().strip()


def _in_cluster(environment: Mapping[str, str], folder: Path) -> Access:
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "443")
    token_file = folder / "token"
    try:
        token = read_token(token_file)
        tls, http2_tls = (ssl.create_default_context(cafile=str(folder / "ca.crt")) for _ in range(2))
    except (OSError, UnicodeDecodeError) as problem:  # errors of TLS are among the former
        raise ConfigurationError(
            f"the service account in {folder} cannot be used: {problem}; the Pod needs `automountServiceAccountToken: true`"
        ) from problem
    namespace_file = folder / "namespace"
    namespace = namespace_file.read_text().strip() if namespace_file.is_file() else ""
    server = f"https://{_bracketed(host)}:{port}"
    return Access(server, tls, _with_http2(http2_tls), token, token_file, namespace, f"the service account in {folder}")


def _of_kubeconfig(paths: list[Path]) -> Access:
    found_in = os.pathsep.join(map(str, paths))
    entry = merged([read_kubeconfig(path) for path in paths], found_in)
    token_file = entry.file("user", "tokenFile")
    token = entry.text("user", "token")
    if token_file is not None and not token:
        try:
            token = read_token(token_file)
        except (OSError, UnicodeDecodeError) as problem:
            reason = getattr(problem, "strerror", None) or problem
            raise ConfigurationError(f"{found_in}: tokenFile {token_file} cannot be read: {reason}") from problem
    if not token.isprintable():
        raise ConfigurationError(f"{found_in}: the token holds a line end, or another character that no header has")
    server = entry.text("cluster", "server").rstrip("/")
    _require_address(server, found_in)
    tls, http2_tls = (entry.tls(), _with_http2(entry.tls())) if server.startswith("https://") else (None, None)
    return Access(server, tls, http2_tls, token, token_file, entry.namespace, found_in)


def _require_address(server: str, found_in: str) -> None:
    """Its text is not repeated: a password may be in it."""
    try:
        parts = urlsplit(server)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigurationError(f"{found_in}: `server` of the cluster must be an URL of http or https")
    if "@" in parts.netloc:
        raise ConfigurationError(f"{found_in}: `server` of the cluster names a user; give a token or a certificate under `users` instead")
    if parts.query or parts.fragment:
        raise ConfigurationError(
            f"{found_in}: `server` of the cluster has a query or a fragment; paths are appended to it, so leave them out"
        )


def _with_http2(tls: ssl.SSLContext) -> ssl.SSLContext:
    tls.set_alpn_protocols(["h2", "http/1.1"])
    return tls


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
