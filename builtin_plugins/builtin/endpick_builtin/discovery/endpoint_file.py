"""Reads a file of endpoints in llm-d's format, and finds everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from endpick.api import Endpoint, Limit
from endpick_builtin.addresses import ip_address

DEFAULT_NAMESPACE = "default"
KNOWN_FIELDS = ("name", "namespace", "address", "port", "labels")
MAX_FILE_BYTES = 1024 * 1024
"""Unless `maxFileBytes` says otherwise: as much as a ConfigMap may hold."""
MANY_FIELDS = Limit(
    "MOST_FIELDS",
    "endpoints stay as they are: with all that `<<` and aliases repeat, their file has more fields than maxFileBytes has bytes "
    "(MOST_FIELDS); write it without aliases, or raise maxFileBytes",
)

_TEXT = "tag:yaml.org,2002:str"
_INTEGER = "tag:yaml.org,2002:int"
_NULL = "tag:yaml.org,2002:null"
_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True, slots=True)
class Mistake:
    """Something in the file that cannot be used."""

    line: int
    message: str
    endpoint: str = ""
    """`namespace/name` of the entry it is in, where that can be read."""

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}"


@dataclass(frozen=True, slots=True)
class EntryRules:
    """What the entries of a file may say.

    Attributes:
        host_of: An address as endpoints have it; raises ValueError for what is none.
        wanted: What an address must be, as the message about such a one says it.
        metrics_of: `host:port` of the metrics, given host, port and labels; empty for the endpoint's own address. Raises ValueError.
    """

    host_of: Callable[[str], str]
    wanted: str
    metrics_of: Callable[[str, int, Mapping[str, str]], str]


MODEL_SERVERS = EntryRules(ip_address, "an IP address such as 10.0.0.7", lambda *_: "")


@dataclass(frozen=True, slots=True)
class EndpointFile:
    """What a file says.

    Attributes:
        endpoints: Every entry without a mistake, in file order; of two with one name the last. None when the file as a whole is unusable.
        mistakes: Every mistake, in file order; an entry may have several.
        remarks: What is odd but harmless: unknown fields, names given twice.
        exceeds: The limit for which the file as a whole is unusable.
    """

    endpoints: tuple[Endpoint, ...] | None
    mistakes: tuple[Mistake, ...] = ()
    remarks: tuple[Mistake, ...] = ()
    exceeds: Limit | None = None


def read_endpoint_file(content: bytes, rules: EntryRules = MODEL_SERVERS, most_fields: int = MAX_FILE_BYTES) -> EndpointFile:
    """Read YAML or JSON: `endpoints:`, a list of `{name, namespace, address, port, labels}`.

    Args:
        content: Of the file.
        rules: For what its entries stand for.
        most_fields: Of all mappings, counted each time that one is read or merged into another: aliases let a short file say very much.
    """
    yaml = YAML(typ="safe", pure=True, plug_ins=[])
    yaml.composer.warn_double_anchors = False  # YAML allows it, and a file may do so in each of its lines
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
        return _read_pool(root, _Fields(most_fields), rules)
    except _TooMuchError as problem:
        message = f"with all that `<<` and aliases repeat, the file has more than {most_fields} fields"
        return replace(_unusable(problem.line, message), exceeds=MANY_FIELDS)
    except RecursionError:
        return _unusable(1, "mappings merge each other too deeply")


def _read_pool(root: MappingNode, fields: _Fields, rules: EntryRules) -> EndpointFile:
    entries = fields.of(root).get("endpoints")
    if entries is None:
        return _unusable(_line(root), "the key `endpoints` is missing; write `endpoints: []` for a pool without endpoints")
    if entries.tag == _NULL:
        return EndpointFile(())
    if not isinstance(entries, SequenceNode):
        return _unusable(_line(entries), "`endpoints` must be a list")
    return _read_entries(entries.value, fields, rules)


def _read_entries(entries: list[Node], fields: _Fields, rules: EntryRules) -> EndpointFile:
    found: dict[str, Endpoint] = {}
    mistakes: list[Mistake] = []
    remarks: list[Mistake] = []
    for node in entries:
        if not isinstance(node, MappingNode):
            mistakes.append(Mistake(_line(node), "an endpoint must be a mapping with name, address and port"))
            continue
        entry = _Entry(node, fields, rules)
        endpoint = entry.read()
        mistakes += entry.mistakes
        remarks += entry.remarks
        if endpoint is not None:
            if endpoint.name in found:
                remarks.append(Mistake(_line(node), f"'{endpoint.name}' is named a second time; this entry wins", endpoint.name))
            found[endpoint.name] = endpoint
    return EndpointFile(tuple(found.values()), tuple(mistakes), tuple(remarks))


class _Entry:
    """One entry of the list while it is read."""

    def __init__(self, node: MappingNode, fields: _Fields, rules: EntryRules) -> None:
        self._node = node
        self._rules = rules
        self._all_fields = fields
        self._fields = fields.of(node)
        name, namespace = _named(self._fields.get("name")), self._fields.get("namespace")
        self.name = f"{_named(namespace) or DEFAULT_NAMESPACE}/{name}" if name else ""
        self.mistakes: list[Mistake] = []
        self.remarks = [
            Mistake(_line(value), f"'{field}' is no field of an endpoint and is ignored; fields are {', '.join(KNOWN_FIELDS)}", self.name)
            for field, value in self._fields.items()
            if field not in KNOWN_FIELDS
        ]

    def read(self) -> Endpoint | None:
        """The endpoint; None when `mistakes` says why there is none."""
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
        """llm-d takes quoted text only; an integer means the same and is welcome."""
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
        for label, value in self._all_fields.of(node).items():
            text = _text(value)
            if text is None:
                self._wrong(value, f"label '{label}' must be text; put the value in quotes")
            else:
                labels[label] = text
        return labels

    def _wrong(self, node: Node | None, message: str) -> None:
        where = f" of '{self.name}'" if self.name else ""
        self.mistakes.append(Mistake(_line(node or self._node), message.replace("` must", f"`{where} must", 1), self.name))


class _TooMuchError(Exception):
    """The mappings of the file have more fields than are read."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class _Fields:
    """The values of the mappings of one file by key, each mapping read once."""

    def __init__(self, most: int) -> None:
        self._known: dict[int, dict[str, Node]] = {}
        self._most = most
        self._read = 0

    def of(self, node: MappingNode) -> dict[str, Node]:
        """With what the mapping merges (`<<`) underneath; keys that are no scalars are passed over."""
        fields = self._known.get(id(node))
        if fields is None:
            self._known[id(node)] = {}  # what a mapping that merges itself finds
            fields = self._known[id(node)] = self._fields(node)
        self._count(len(fields) + 1, node)
        return fields

    def _count(self, fields: int, node: Node) -> None:
        self._read += fields
        if self._read > self._most:
            raise _TooMuchError(_line(node))

    def _fields(self, node: MappingNode) -> dict[str, Node]:
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                for base in _merged_mappings(value):
                    self._count(len(merged), node)
                    merged = self.of(base) | merged
            elif isinstance(key, ScalarNode):
                own[key.value] = value
        return merged | own


def _merged_mappings(node: Node) -> Iterator[MappingNode]:
    """The mappings named by one `<<`; the first of a list wins."""
    nodes = node.value if isinstance(node, SequenceNode) else [node]
    return (each for each in nodes if isinstance(each, MappingNode))


def _text(node: Node | None) -> str | None:
    return node.value if isinstance(node, ScalarNode) and node.tag == _TEXT else None


def _named(node: Node | None) -> str | None:
    """A text that can be told to others; half a surrogate pair is none."""
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
