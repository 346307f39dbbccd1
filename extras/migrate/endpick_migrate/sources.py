"""Reads the start of llm-d's endpoint picker, and records every part of the input that is not carried over."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

MOUNT = "/config"  # mount path of the charts
RELEASE = "RELEASE_NAME"  # values do not contain the release's name
Path = tuple[str | int, ...]

_OF_A_POD = (
    r"resources|affinity|tolerations|nodeSelector|volumes|volumeMounts|ports|\w*[pP]robe|securityContext|serviceAccount\w*|replicas"
    r"|\w*[aA]nnotations|\w*[lL]abels|terminationGracePeriodSeconds|extraContainerPorts"
)
_KUBERNETES = "a part of the Kubernetes manifest; keep it there"
_REASONS = (
    (r"(^|\.)(image|imagePullPolicy|imagePullSecrets|registry|repository|tag|hub)(\.|$)", "endpick has its own image"),
    (r"(^|\.)(proxy|sidecar|httpRoute|gateway|provider|istio|gke)(\.|$)", "the gateway and its proxy stay as they are"),
    (r"(^|\.)(inferencePool|extraServicePorts|service|modelServers|pool)(\.|$)", "not a part of the endpoint picker; keep it"),
    (r"(^|\.)(monitoring|tracing)(\.|$)", "set the OTEL_ variables of the container, and scrape /metrics at --metrics-port"),
    (r"(^|\.)(latencyPredictor|tokenizer)(\.|$)", "a separate server"),
    (r"(^|\.)envFrom(\.|$)", "variables from elsewhere; see the environment variables of `endpick serve`"),
    (r"^(apiVersion|kind|metadata|spec|status)(\.|$)", _KUBERNETES),
    (rf"(^|\.)({_OF_A_POD})(\.|$)", _KUBERNETES),
)  # fmt: skip


class MigrationError(ValueError):
    """Raised for an input of an unexpected shape; the message has the place."""


class Input:
    """A document that records the paths that were read."""

    def __init__(self, data: object) -> None:
        self.data = data
        self._read: set[Path] = set()

    def get(self, *path: str | int) -> object:
        """Return the value at a path, or None, and record the path as read."""
        self._read.add(path)
        return at(self.data, *path)

    def mapping(self, *path: str | int) -> Mapping[str, object]:
        """Return the mapping at a path, empty if absent; raises MigrationError for another type."""
        return cast("Mapping[str, object]", self._checked(path, Mapping, "a mapping") or {})

    def sequence(self, *path: str | int) -> Sequence[object]:
        """Return the list at a path, empty if absent; raises MigrationError for another type."""
        return cast("Sequence[object]", self._checked(path, list, "a list") or ())

    def whole(self, *path: str | int) -> int:
        """Return the whole number at a path, 0 if absent; raises MigrationError for another type."""
        return cast("int", self._checked(path, int, "a whole number") or 0)

    def _checked(self, path: Path, kind: type, words: str) -> object:
        value = self.get(*path)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise MigrationError(f"{dotted(path)} is not {words}: {str(value)[:40]!r}")
        return value

    def leftovers(self) -> Iterator[str]:
        """Yield a line for each part that nothing read, as large as possible."""
        for path in _unread(self.data, (), self._read):
            shown = dotted(path)
            reason = next((why for pattern, why in _REASONS if re.search(pattern, shown)), "`endpick migrate` does not know it")
            yield f"{shown} is not carried over: {reason}"


def _unread(data: object, path: Path, read: set[Path]) -> Iterator[Path]:
    if path in read or data in (None, {}, []):
        return
    if not any(seen[: len(path)] == path for seen in read):
        yield path
        return
    children = data.items() if isinstance(data, Mapping) else enumerate(data) if isinstance(data, list) else ()
    for name, value in children:
        yield from _unread(value, (*path, name), read)


def at(data: object, *path: str | int) -> object:
    """Return the value at a path, or None."""
    for name in path:
        if isinstance(data, Mapping):
            data = data.get(name)
        elif isinstance(data, list) and isinstance(name, int) and name < len(data):
            data = data[name]
        else:
            return None
    return data


def dotted(path: Path) -> str:
    """Format a path as `spec.containers[0].args`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


@dataclass(slots=True)
class Start:
    """How llm-d's endpoint picker is started; `configs` are embedded configurations by place."""

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)  # None: set elsewhere
    notes: tuple[str, ...] = ()
    configs: Mapping[str, object] = field(default_factory=dict)


def environment_of(source: Input, *path: str | int) -> dict[str, str | None]:
    """Return the variables of a list of `name` and `value`, or of a mapping; None for references."""
    given = source.get(*path)
    if isinstance(given, Mapping):
        return {str(name): str(value) for name, value in given.items()}
    found: dict[str, str | None] = {}
    for index, entry in enumerate(source.sequence(*path)):
        name = at(entry, "name")
        if not isinstance(name, str):
            raise MigrationError(f"{dotted((*path, index))} has no name")
        value = at(entry, "value")
        found[name] = None if value is None else word(value)
    return found


def flags_of(source: Input, *path: str | int) -> Iterator[str]:
    """Yield the flags of a mapping, of a list of words, or of a list of `name` and `value`."""
    given = source.get(*path)
    if isinstance(given, Mapping):
        yield from (f"--{flag}={word(value)}" for flag, value in given.items())
        return
    for index, entry in enumerate(source.sequence(*path)):
        if isinstance(entry, Mapping) and isinstance(entry.get("name"), str):
            yield f"--{entry['name'].lstrip('-')}={word(entry.get('value', True))}"
        elif isinstance(entry, Mapping):
            yield from (f"--{str(flag).lstrip('-')}={word(value)}" for flag, value in entry.items())
        elif isinstance(entry, list):
            raise MigrationError(f"{dotted((*path, index))} is a list, not a flag")
        else:
            yield word(entry)


def word(value: object) -> str:
    """Format a value as on a command line: booleans in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def containers_of(source: Input, flags: Iterable[str]) -> Iterator[Start]:
    """Yield the start in each container with a flag of llm-d, at any depth of the document."""
    known = set(flags)
    for path in _container_paths(source.data, ()):
        given = [*_words(at(source.data, *path, "command")), *_words(at(source.data, *path, "args"))]
        if {flag.lstrip("-").partition("=")[0] for text in given for flag in text.split()} & known:
            yield _container(source, path)


def _container(source: Input, path: Path) -> Start:
    command, arguments = ([word(item) for item in source.sequence(*path, part)] for part in ("command", "args"))
    source.get(*path, "name")
    environment = environment_of(source, *path, "env")
    if command and command[0].rpartition("/")[2] in ("sh", "bash", "ash"):
        raise MigrationError(f"{dotted((*path, 'command'))} is a shell script; give its arguments: endpick migrate -- --pool-name=...")
    texts = (*command[1:], *arguments)
    return Start(tuple(re.sub(r"\$\((\w+)\)", lambda found: environment.get(found[1]) or found[0], text) for text in texts), environment)


def _words(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _container_paths(data: object, path: Path) -> Iterator[Path]:
    if isinstance(data, Mapping):
        for name, value in data.items():
            if name == "containers" and isinstance(value, list):
                yield from ((*path, name, index) for index in range(len(value)))
            else:
                yield from _container_paths(value, (*path, name))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _container_paths(value, (*path, index))


def config_map(source: Input) -> Start | None:
    """Return a start with the configurations in a ConfigMap, or None if there are none."""
    if at(source.data, "kind") != "ConfigMap":
        return None
    found = {}
    data = at(source.data, "data")
    for name, value in data.items() if isinstance(data, Mapping) else ():
        if isinstance(value, str) and "EndpointPickerConfig" in value:
            found[dotted(("data", name))] = source.get("data", name)
    source.get("metadata", "name")
    notes = tuple(f"mount the ConfigMap, so that `{place}` is {MOUNT}/{place.partition('.')[2]}" for place in found)
    return Start(notes=notes, configs=found) if found else None


def inference_service(source: Input, flags: Iterable[str]) -> Start | None:
    """Return the start of KServe's LLMInferenceService, whose scheduler is llm-d's endpoint picker."""
    if at(source.data, "kind") != "LLMInferenceService":
        return None
    scheduler = ("spec", "router", "scheduler")
    started = next(iter(containers_of(source, flags)), Start())
    name, namespace = word(source.get("metadata", "name") or "NAME"), source.get("metadata", "namespace")
    arguments = list(started.arguments)
    if not any(text.lstrip("-").partition("=")[0] == "pool-name" for text in arguments):
        pool = source.get(*scheduler, "pool", "ref", "name") or f"{name}-inference-pool"
        arguments[:0] = [f"--pool-name={pool}", *([f"--pool-namespace={namespace}"] if namespace else [])]
    configs, notes = {}, []
    inline, reference = source.get(*scheduler, "config", "inline"), source.get(*scheduler, "config", "ref", "name")
    if inline is not None:
        configs[dotted((*scheduler, "config", "inline"))] = inline
        arguments.append(f"--config-file={MOUNT}/config.yaml")
        notes.append(f"put `{dotted((*scheduler, 'config', 'inline'))}` into {MOUNT}/config.yaml")
    if reference is not None:
        key = source.get(*scheduler, "config", "ref", "key") or "config.yaml"
        arguments.append(f"--config-file={MOUNT}/{key}")
        notes.append(f"mount the ConfigMap {reference} at {MOUNT}")
    if source.whole(*scheduler, "replicas") > 1:
        arguments.append("--ha-enable-leader-election")
    return Start(tuple(arguments), started.environment, tuple(notes), configs)
