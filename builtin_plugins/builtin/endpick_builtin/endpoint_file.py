"""Reads a file of endpoints in llm-d's format, and finds all its mistakes."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from endpick.api import Endpoint

DEFAULT_NAMESPACE = "default"
KNOWN_FIELDS = ("name", "namespace", "address", "port", "labels")

_TEXT = "tag:yaml.org,2002:str"
_INTEGER = "tag:yaml.org,2002:int"
_NULL = "tag:yaml.org,2002:null"
_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake or remark, with its line."""

    line: int
    message: str
    endpoint: str = ""  # `namespace/name` of its entry, if known

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}"


@dataclass(frozen=True, slots=True)
class EntryRules:
    """Valid entries of a file.

    Attributes:
        host_of: Checks an address; raises ValueError.
        wanted: Describes a valid address, for messages.
        metrics_of: Metrics address for host, port and labels; empty for the endpoint's own. Raises ValueError.
    """

    host_of: Callable[[str], str]
    wanted: str
    metrics_of: Callable[[str, int, Mapping[str, str]], str]


def ip_address(text: str) -> str:
    """Normalize an IP address; raises ValueError, also for unusual IPv6 zones."""
    address = str(ipaddress.ip_address(text if len(text) <= _LONGEST else ""))
    _, percent, zone = address.partition("%")
    if percent and not _ZONE.fullmatch(zone):
        raise ValueError("the zone of an IPv6 address is a number, or the name of an interface")
    return address


MODEL_SERVERS = EntryRules(ip_address, "an IP address such as 10.0.0.7", lambda *_: "")


@dataclass(frozen=True, slots=True)
class EndpointFile:
    """The content of a file.

    Attributes:
        endpoints: Valid entries; of two with one name the last. None if the whole file is unusable.
        mistakes: In file order.
        remarks: Harmless oddities: unknown fields, repeated names.
    """

    endpoints: tuple[Endpoint, ...] | None
    mistakes: tuple[Mistake, ...] = ()
    remarks: tuple[Mistake, ...] = ()


def read_endpoint_file(content: bytes, rules: EntryRules = MODEL_SERVERS) -> EndpointFile:
    """Read YAML or JSON: `endpoints:`, a list of `{name, namespace, address, port, labels}`."""
    yaml = YAML(typ="safe", pure=True, plug_ins=[])
    yaml.composer.warn_double_anchors = False
    try:
        root = yaml.compose(content.decode())
    except UnicodeDecodeError as problem:
        return _unusable(content.count(b"\n", 0, problem.start) + 1, "the file is not UTF-8")
    except MarkedYAMLError as problem:
        return _unusable(problem.problem_mark.line + 1 if problem.problem_mark else 1, f"not valid YAML: {problem.problem}")
    except YAMLError as problem:
        return _unusable(1, f"not valid YAML: {problem}")
    except RecursionError:
        return _unusable(1, "the file is nested too deeply")
    if not isinstance(root, MappingNode):
        return _unusable(1, "the file must be a mapping with the key `endpoints`")
    try:
        return _read_pool(root, rules)
    except RecursionError:
        return _unusable(1, "mappings merge each other too deeply")


def _read_pool(root: MappingNode, rules: EntryRules) -> EndpointFile:
    entries = _fields_of(root).get("endpoints")
    if entries is None:
        return _unusable(_line(root), "the key `endpoints` is missing; write `endpoints: []` for a pool without endpoints")
    if entries.tag == _NULL:
        return EndpointFile(())
    if not isinstance(entries, SequenceNode):
        return _unusable(_line(entries), "`endpoints` must be a list")
    return _read_entries(entries.value, rules)


def _read_entries(entries: list[Node], rules: EntryRules) -> EndpointFile:
    found: dict[str, Endpoint] = {}
    mistakes: list[Mistake] = []
    remarks: list[Mistake] = []
    for node in entries:
        if not isinstance(node, MappingNode):
            mistakes.append(Mistake(_line(node), "an endpoint must be a mapping with name, address and port"))
            continue
        entry = _Entry(node, rules)
        endpoint = entry.read()
        mistakes += entry.mistakes
        remarks += entry.remarks
        if endpoint is not None:
            if endpoint.name in found:
                remarks.append(Mistake(_line(node), f"'{endpoint.name}' is named a second time; this entry wins", endpoint.name))
            found[endpoint.name] = endpoint
    return EndpointFile(tuple(found.values()), tuple(mistakes), tuple(remarks))


class _Entry:
    def __init__(self, node: MappingNode, rules: EntryRules) -> None:
        self._node = node
        self._rules = rules
        self._fields = _fields_of(node)
        name, namespace = _named(self._fields.get("name")), self._fields.get("namespace")
        self.name = f"{_named(namespace) or DEFAULT_NAMESPACE}/{name}" if name else ""
        self.mistakes: list[Mistake] = []
        self.remarks = [
            Mistake(
                _line(value), f"'{field}' is not a field of an endpoint and is ignored; fields are {', '.join(KNOWN_FIELDS)}", self.name
            )
            for field, value in self._fields.items()
            if field not in KNOWN_FIELDS
        ]

    def read(self) -> Endpoint | None:
        if not self.name:
            self._wrong(self._fields.get("name"), "`name` must be text that is not empty")
        namespace = self._fields.get("namespace")
        if namespace is not None and _named(namespace) is None and namespace.tag != _NULL:
            self._wrong(namespace, "`namespace` must be text")
        host, port, labels = self._host(), self._port(), self._labels()
        metrics = self._metrics(host, port, labels)
        return None if self.mistakes else Endpoint(self.name, host, port, MappingProxyType(labels), metrics)

    def _host(self) -> str:
        node = self._fields.get("address")
        try:
            return self._rules.host_of(_text(node) or "")
        except ValueError:
            shown = f", not '{node.value}'" if isinstance(node, ScalarNode) else ""
            self._wrong(node, f"`address` must be {self._rules.wanted}{shown}")
            return ""

    def _port(self) -> int:
        # llm-d accepts quoted text only.
        node = self._fields.get("port")
        digits = node.value if isinstance(node, ScalarNode) and node.tag in (_TEXT, _INTEGER) else ""
        if digits.isascii() and digits.isdigit() and len(digits) <= 5 and 1 <= int(digits) <= 65535:
            return int(digits)
        shown = f", not '{node.value}'" if isinstance(node, ScalarNode) else ""
        self._wrong(node, f'`port` must be "1" to "65535"{shown}')
        return 0

    def _metrics(self, host: str, port: int, labels: Mapping[str, str]) -> str:
        if self.mistakes:
            return ""
        try:
            return self._rules.metrics_of(host, port, labels)
        except ValueError as problem:
            self._wrong(self._fields.get("labels"), str(problem))
            return ""

    def _labels(self) -> dict[str, str]:
        node = self._fields.get("labels")
        if node is None or node.tag == _NULL:
            return {}
        if not isinstance(node, MappingNode):
            self._wrong(node, "`labels` must be a mapping of text to text")
            return {}
        labels = {}
        for label, value in _fields_of(node).items():
            text = _text(value)
            if text is None:
                self._wrong(value, f"label '{label}' must be text; put the value in quotes")
            else:
                labels[label] = text
        return labels

    def _wrong(self, node: Node | None, message: str) -> None:
        where = f" of '{self.name}'" if self.name else ""
        self.mistakes.append(Mistake(_line(node or self._node), message.replace("` must", f"`{where} must", 1), self.name))


def _fields_of(node: MappingNode) -> dict[str, Node]:
    """Return the values of a mapping by scalar key, with those that it merges (`<<`)."""
    own: dict[str, Node] = {}
    merged: dict[str, Node] = {}
    for key, value in node.value:
        if key.tag == _MERGE:
            for base in value.value if isinstance(value, SequenceNode) else (value,):  # the first of a list wins
                if isinstance(base, MappingNode):
                    merged = _fields_of(base) | merged
        elif isinstance(key, ScalarNode):
            own[key.value] = value
    return merged | own


def _text(node: Node | None) -> str | None:
    return node.value if isinstance(node, ScalarNode) and node.tag == _TEXT else None


def _named(node: Node | None) -> str | None:
    """A text without unpaired surrogates."""
    text = _text(node)
    try:
        (text or "").encode()
    except UnicodeEncodeError:
        return None
    return text


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _unusable(line: int, message: str) -> EndpointFile:
    return EndpointFile(None, (Mistake(line, message),))


_ZONE = re.compile(r"[0-9A-Za-z._-]{1,32}", re.ASCII)
_LONGEST = 80
