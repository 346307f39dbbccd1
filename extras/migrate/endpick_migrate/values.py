"""Reads the values of the Helm charts of llm-d and of the Gateway API Inference Extension."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from endpick_migrate.sources import MOUNT, RELEASE, Input, Path, Start, at, dotted, environment_of, flags_of, word

_DEFAULT_FILE = "default-plugins.yaml"
_MADE_BY_THE_CHART = (_DEFAULT_FILE, "payload-agnostic.yaml")
_DEEPEST = 4  # of a chart's values under the keys of its parents


class _Layout(NamedTuple):
    """Paths in a chart's values; `selector` and `ports` apply if it creates no InferencePool."""

    picker: Path
    around: Path
    creates_pool: Path
    selector: Path
    ports: Path
    engine: Path

    def under(self, parent: Path) -> _Layout:
        return _Layout(*((*parent, *part) for part in self))


_EXTENSION = ("inferenceExtension",)
_STANDALONE = (*_EXTENSION, "endpointsServer")
_ROUTER = _Layout(
    ("router", "epp"),
    ("router",),
    ("router", "inferencePool", "create"),
    ("router", "modelServers", "matchLabels"),
    ("router", "modelServers", "targetPorts"),
    ("router", "modelServers", "type"),
)
_LIBRARY = _Layout(*(part[1:] for part in _ROUTER))
_LAYOUTS = (
    (_ROUTER, "router"),
    (
        _Layout(
            _EXTENSION,
            _EXTENSION,
            (*_STANDALONE, "createInferencePool"),
            (*_STANDALONE, "endpointSelector"),
            (*_STANDALONE, "targetPorts"),
            ("inferencePool", "modelServerType"),
        ),
        "inferenceExtension",
    ),
    (_LIBRARY, "epp"),
)


def starts_of_values(source: Input) -> Iterator[Start]:
    """Yield the start of each chart whose values the document has, also under keys of parent charts."""
    for parent, layout in _found(source.data, ()):
        yield _start(source, layout.under(parent))


def _found(data: object, path: Path) -> Iterator[tuple[Path, _Layout]]:
    if not isinstance(data, Mapping) or len(path) > _DEEPEST:
        return
    layout = next((layout for layout, key in _LAYOUTS if isinstance(data.get(key), Mapping)), None)
    if layout is not None:
        yield path, layout
        return
    for name, value in data.items():
        yield from _found(value, (*path, name))


def _start(source: Input, layout: _Layout) -> Start:
    name = word(source.get(*layout.picker, "pluginsConfigFile") or _DEFAULT_FILE)
    arguments = [*_pool(source, layout), "--zap-encoder=json", f"--config-file={MOUNT}/{name}", *_chart_flags(source, layout)]
    place = (*layout.picker, "pluginsCustomConfig")
    given = source.mapping(*place)
    notes = tuple(_notes(source, layout, name, given, arguments))
    configs = {dotted((*place, file)): text for file, text in given.items()}
    return Start(tuple(arguments), environment_of(source, *layout.picker, "env"), notes, configs)


def _pool(source: Input, layout: _Layout) -> Iterator[str]:
    if source.get(*layout.creates_pool) is not False:
        yield f"--pool-name={RELEASE}"
        return
    selector = source.get(*layout.selector)
    text = ",".join(f"{key}={value}" for key, value in selector.items()) if isinstance(selector, Mapping) else word(selector or "")
    yield f"--endpoint-selector={text}"
    ports = source.get(*layout.ports)
    listed = ports if isinstance(ports, list) else [] if ports is None else word(ports).split(",")
    numbers = [word(at(port, "number") if isinstance(port, Mapping) else port) for port in listed]
    yield f"--endpoint-target-ports={','.join(numbers) or '8000'}"


def _chart_flags(source: Input, layout: _Layout) -> Iterator[str]:
    if source.whole(*layout.picker, "replicas") > 1:
        yield "--ha-enable-leader-election"
    health = source.get(*layout.picker, "grpcHealthPort")
    if health:
        yield f"--grpc-health-port={health}"
    yield from flags_of(source, *layout.picker, "flags")
    yield f"--tracing={word(source.get(*layout.around, 'tracing', 'enabled') or False)}"
    if source.get(*layout.around, "monitoring", "prometheus", "auth", "enabled") is False:
        yield "--metrics-endpoint-auth=false"


def _notes(source: Input, layout: _Layout, name: str, given: Mapping[str, object], arguments: Iterable[str]) -> Iterator[str]:
    prefix, engine = dotted(layout.picker), word(source.get(*layout.engine) or "vllm")
    predicts = source.get(*layout.around, "latencyPredictor", "enabled")
    if f"--pool-name={RELEASE}" in arguments:
        yield f"{RELEASE}: the name of the Helm release and of the InferencePool, which values do not contain"
    if name in given:
        yield f"put `{prefix}.pluginsCustomConfig.{name}` into {MOUNT}/{name}"
    elif name in _MADE_BY_THE_CHART:
        same = name == _DEFAULT_FILE and engine == "vllm" and not predicts
        advice = "; without --config-file endpick serves the same default" if same else ": mount its ConfigMap"
        yield f"the chart creates {MOUNT}/{name}{advice}"
    else:
        yield f"{MOUNT}/{name} is not among `{prefix}.pluginsCustomConfig`"
    for other in given:
        if other != name:
            yield f"`{prefix}.pluginsCustomConfig.{other}` is not the file that `{prefix}.pluginsConfigFile` names here"
    if engine != "vllm":
        yield f"model servers are of type {engine}: that is `defaultEngine` of core-metrics-extractor in the configuration"
    if predicts:
        yield "the latency predictor of the chart is a separate server, which must run next to endpick"
    if source.get(*layout.around, "tokenizer", "enabled"):
        yield "the tokenizer of the chart is a separate server (vllm launch render), which must run next to endpick"
