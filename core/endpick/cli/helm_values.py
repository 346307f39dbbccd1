"""Derives how Helm charts start llm-d's endpoint picker from their values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

MOUNT = "/config"
"""Folder in which the charts mount the configuration."""
RELEASE = "RELEASE_NAME"
"""Placeholder for the name of the release, which values do not contain."""
_DEFAULT_FILE = "default-plugins.yaml"
_MADE_BY_THE_CHART = (_DEFAULT_FILE, "payload-agnostic.yaml")


@dataclass(frozen=True, slots=True)
class Start:
    """How llm-d's endpoint picker is started."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Layout:
    """Paths of names in the values of a chart. `selector` and `ports` apply if the chart creates no InferencePool."""

    picker: tuple[str, ...]
    around: tuple[str, ...]
    creates_pool: tuple[str, ...]
    selector: tuple[str, ...]
    ports: tuple[str, ...]
    engine: tuple[str, ...]


_EXTENSION = ("inferenceExtension",)
_STANDALONE = (*_EXTENSION, "endpointsServer")
_LAYOUTS = (
    _Layout(
        ("router", "epp"),
        ("router",),
        ("router", "inferencePool", "create"),
        ("router", "modelServers", "matchLabels"),
        ("router", "modelServers", "targetPorts"),
        ("router", "modelServers", "type"),
    ),
    _Layout(
        _EXTENSION,
        _EXTENSION,
        (*_STANDALONE, "createInferencePool"),
        (*_STANDALONE, "endpointSelector"),
        (*_STANDALONE, "targetPorts"),
        ("inferencePool", "modelServerType"),
    ),
)


def start_of_values(document: Mapping[str, object]) -> Start | None:
    """The start made by the charts of llm-d or the Gateway API Inference Extension; None for other documents."""
    if isinstance(document.get("epp"), Mapping):  # values of llm-d's library chart
        document = {"router": document}
    layout = next((each for each in _LAYOUTS if isinstance(document.get(each.around[0]), Mapping)), None)
    if layout is None:
        return None
    picker, around = at(document, *layout.picker), at(document, *layout.around)
    name = str(at(picker, "pluginsConfigFile") or _DEFAULT_FILE)
    arguments = [
        *_pool(document, layout),
        "--zap-encoder=json",
        f"--config-file={MOUNT}/{name}",
        *_flags(picker, around),
    ]
    return Start(tuple(arguments), environment_of(at(picker, "env")), tuple(_notes(document, layout, name, arguments)))


def _pool(document: Mapping[str, object], layout: _Layout) -> Iterator[str]:
    if at(document, *layout.creates_pool) is not False:
        yield f"--pool-name={RELEASE}"
        return
    selector, ports = at(document, *layout.selector), at(document, *layout.ports)
    text = ",".join(f"{key}={value}" for key, value in selector.items()) if isinstance(selector, Mapping) else str(selector or "")
    yield f"--endpoint-selector={text}"
    numbers = [str(at(port, "number") if isinstance(port, Mapping) else port) for port in _list(ports)]
    yield f"--endpoint-target-ports={','.join(numbers) or '8000'}"


def _flags(picker: object, around: object) -> Iterator[str]:
    replicas = at(picker, "replicas")
    if isinstance(replicas, int) and replicas > 1:
        yield "--ha-enable-leader-election"
    health = at(picker, "grpcHealthPort")
    if health:
        yield f"--grpc-health-port={health}"
    flags = at(picker, "flags")
    yield from (f"--{flag}={_word(value)}" for flag, value in flags.items()) if isinstance(flags, Mapping) else ()
    yield f"--tracing={_word(at(around, 'tracing', 'enabled') or False)}"
    if at(around, "monitoring", "prometheus", "auth", "enabled") is False:
        yield "--metrics-endpoint-auth=false"


def _notes(document: Mapping[str, object], layout: _Layout, name: str, arguments: Iterable[str]) -> Iterator[str]:
    prefix, engine = ".".join(layout.picker), str(at(document, *layout.engine) or "vllm")
    custom = at(document, *layout.picker, "pluginsCustomConfig")
    if f"--pool-name={RELEASE}" in arguments:
        yield f"{RELEASE}: the name of the Helm release and of the InferencePool, which values do not contain"
    if isinstance(custom, Mapping) and name in custom:
        yield f"put `{prefix}.pluginsCustomConfig.{name}` into {MOUNT}/{name}"
    elif name in _MADE_BY_THE_CHART:
        predicts = at(document, *layout.around, "latencyPredictor", "enabled")
        same = name == _DEFAULT_FILE and engine == "vllm" and not predicts
        advice = "; without --config-file endpick serves the same default" if same else ": mount its ConfigMap"
        yield f"the chart creates {MOUNT}/{name}{advice}"
    else:
        yield f"{MOUNT}/{name} is not among `{prefix}.pluginsCustomConfig`"
    if engine != "vllm":
        yield f"model servers are of type {engine}: that is `defaultEngine` of core-metrics-extractor in the configuration"
    if at(document, *layout.around, "latencyPredictor", "enabled"):
        yield "the latency predictor of the chart is a separate server, which must run next to endpick"
    if at(document, *layout.around, "tokenizer", "enabled"):
        yield "the tokenizer of the chart is a separate server (vllm launch render), which must run next to endpick"


def at(data: object, *path: str) -> object:
    """The value at a path; None if a name is missing."""
    for name in path:
        data = data.get(name) if isinstance(data, Mapping) else None
    return data


def environment_of(entries: object) -> dict[str, str]:
    """The environment variables of a container."""
    given = [one for one in _list(entries) if isinstance(one, Mapping)]
    return {str(one.get("name")): str(one.get("value", "set elsewhere")) for one in given}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
