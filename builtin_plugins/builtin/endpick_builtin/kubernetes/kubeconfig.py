"""Reads kubeconfig files: the cluster and the user of the current context, and the TLS context that follows from them."""

from __future__ import annotations

import base64
import binascii
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent

from endpick.api import ConfigurationError

Part: TypeAlias = Literal["cluster", "user"]

MOST_BYTES = 1024 * 1024
_DEEPEST = 50
_REFUSED = {
    "exec": "it runs a program, which endpick does not",
    "auth-provider": "Kubernetes has removed such providers",
    "username": "Kubernetes has removed passwords",
    "proxy-url": "endpick asks the API server directly",
    "as": "endpick acts as itself only",
    "tls-server-name": "endpick checks the certificate against the host of `server`",
}
"""Fields that would change what is asked, or as whom, and that endpick does not follow: passing over them could do harm."""


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """One file; relative paths in it start at its folder."""

    path: Path
    content: Mapping[str, object]

    def named(self, kind: str, name: str) -> Mapping[str, object] | None:
        """The entry of a list (`clusters`, `users`, `contexts`) that has this name."""
        entries = self.content.get(kind)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, Mapping) and entry.get("name") == name:
                inner = entry.get(kind.removesuffix("s"))
                return inner if isinstance(inner, Mapping) else {}
        return None


@dataclass(frozen=True, slots=True)
class Entry:
    """Cluster and user of one context, each with the folder at which its relative paths start."""

    cluster: Mapping[str, object]
    cluster_folder: Path
    user: Mapping[str, object]
    user_folder: Path
    namespace: str
    found_in: str

    def text(self, part: Part, field: str) -> str:
        """A field of the cluster or the user; empty where it is missing.

        Raises:
            ConfigurationError: it is no text.
        """
        value = (self.cluster if part == "cluster" else self.user).get(field, "")
        if not isinstance(value, str):
            raise ConfigurationError(f"{self.found_in}: `{field}` of the {part} must be text")
        return value

    def file(self, part: Part, field: str) -> Path | None:
        """The path that a field names, or None."""
        value = self.text(part, field)
        return (self.cluster_folder if part == "cluster" else self.user_folder) / value if value else None

    def pem(self, part: Part, field: str) -> str:
        """A certificate or key, from the field `<field>-data` or from the file that `<field>` names; empty where neither is there.

        Raises:
            ConfigurationError: it cannot be read.
        """
        data, path = self.text(part, f"{field}-data"), self.file(part, field)
        try:
            if data:
                return base64.b64decode(data, validate=True).decode()
            return "" if path is None else _read(path).decode()
        except (OSError, binascii.Error, UnicodeDecodeError) as problem:
            raise ConfigurationError(f"{self.found_in}: `{field}` of the {part} cannot be read: {problem}") from problem

    def tls(self) -> ssl.SSLContext:
        """What the server's certificate is checked against, and the client's certificate if there is one.

        Raises:
            ConfigurationError: they cannot be used.
        """
        authority = self.pem("cluster", "certificate-authority")
        certificate, key = self.pem("user", "client-certificate"), self.pem("user", "client-key")
        try:
            context = ssl.create_default_context(cadata=authority or None)
            if certificate:
                _load_pair(context, certificate, key)
        except (ssl.SSLError, ValueError) as problem:
            raise ConfigurationError(f"{self.found_in}: its certificates cannot be used: {problem}") from problem
        if self.cluster.get("insecure-skip-tls-verify") is True:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _load_pair(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Python reads a pair from a file only: from one that other users cannot read, and that is gone afterwards."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(f"{certificate}\n{key}\n")
        file.flush()
        # A key that is encrypted would make Python ask for the password at the terminal.
        context.load_cert_chain(file.name, password=lambda: "")


class _WithoutAliases(Composer):
    """Refuses aliases, which no tool writes into a kubeconfig: with them a few lines can say more than is read in a year."""

    def __init__(self, loader: object = None) -> None:
        super().__init__(loader)
        self.warn_double_anchors = False

    def compose_node(self, parent: object, index: object) -> object:
        if self.parser.check_event(AliasEvent):
            mark = self.parser.peek_event().start_mark
            raise MarkedYAMLError(problem="it uses an alias (`*`); write out what it stands for", problem_mark=mark)
        return super().compose_node(parent, index)


def _read(path: Path) -> bytes:
    """As much as tells that it is too long; raises OSError for what is no file, such as a pipe that nothing is written to."""
    with path.open("rb") as file:
        return file.read(MOST_BYTES + 1)


def read_kubeconfig(path: Path) -> Kubeconfig:
    """Read one file.

    Raises:
        ConfigurationError: it cannot be read, or is no kubeconfig.
    """
    try:
        raw = _read(path)
        if len(raw) > MOST_BYTES:
            raise ConfigurationError(f"kubeconfig {path} is longer than 1 MiB")
        yaml = YAML(typ="safe", pure=True, plug_ins=[])
        yaml.Composer = _WithoutAliases
        yaml.max_depth = _DEEPEST
        content = yaml.load(raw)
    except OSError as problem:
        raise ConfigurationError(f"kubeconfig {path} cannot be read: {problem.strerror}") from problem
    except (YAMLError, ValueError) as problem:
        raise ConfigurationError(f"kubeconfig {path} cannot be used: {_without_content(problem)}") from None
    if not isinstance(content, Mapping):
        raise ConfigurationError(f"kubeconfig {path} is no mapping")
    return Kubeconfig(path, content)


def _without_content(problem: Exception) -> str:
    """What is wrong, and where; a parser's own message quotes the line, in which there may be a token."""
    mark = getattr(problem, "problem_mark", None)
    parts = (getattr(problem, "context", None), getattr(problem, "problem", None))
    said = ", ".join(filter(None, parts)) or "it is no YAML text"
    return str(said) if mark is None else f"{said} (line {mark.line + 1}, column {mark.column + 1})"


def merged(files: Sequence[Kubeconfig], found_in: str) -> Entry:
    """What the current context names; of several files that define the same, the first counts.

    Raises:
        ConfigurationError: there is no current context, it names what is not there, or it asks for what endpick does not do.
    """
    current = next((file.content["current-context"] for file in files if file.content.get("current-context")), None)
    if not isinstance(current, str):
        raise ConfigurationError(f"{found_in}: there is no `current-context`; choose one with `kubectl config use-context`")
    context, _ = _find(files, "contexts", current, found_in)
    cluster, cluster_folder = _find(files, "clusters", str(context.get("cluster", "")), found_in)
    user_name = str(context.get("user", ""))
    user, user_folder = _find(files, "users", user_name, found_in) if user_name else ({}, Path())
    for field, why in _REFUSED.items():
        if cluster.get(field) or user.get(field):
            raise ConfigurationError(f"{found_in}: `{field}` cannot be used: {why}; use a token, a token file or a client certificate")
    return Entry(cluster, cluster_folder, user, user_folder, str(context.get("namespace", "")), found_in)


def _find(files: Sequence[Kubeconfig], kind: str, name: str, found_in: str) -> tuple[Mapping[str, object], Path]:
    for file in files:
        entry = file.named(kind, name)
        if entry is not None:
            return entry, file.path.parent
    raise ConfigurationError(f"{found_in}: there is no '{name}' in `{kind}`")
