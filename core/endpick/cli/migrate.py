"""`endpick migrate`: converts a start of llm-d's endpoint picker into an `endpick serve` command."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from endpick.cli.console import STANDARD_INPUT
from endpick.cli.llm_d_flags import FLAGS, VARIABLES, Effect, GoBoolean, known_name, options_of, removed_flags
from endpick.diagnostics import ExitCode, did_you_mean

_SHOWN = {flag.name: flag for flag in FLAGS}


@click.command("migrate", short_help="Convert llm-d's arguments, Deployment or Helm values.")
@click.argument("source", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(source: str | None, arguments: tuple[str, ...]) -> None:
    """Print the `endpick serve` command equivalent to llm-d's endpoint picker, and the differences.

    SOURCE is a file with a Deployment, with values of llm-d's Helm charts, or with a list of arguments; `-` reads standard input. Or
    give the arguments themselves: `endpick migrate -- --pool-name=chat --v=4`. Exit code 0: the command can be used as printed. 3: an
    argument is unknown, or removed by llm-d.
    """
    if source is None or (source.startswith("-") and source != STANDARD_INPUT):
        start = Start((*([] if source is None else [source]), *arguments), {})
    else:
        start = _read(source)
    flags, wrong = _flags(start.arguments)
    click.echo(_command_line(flags))
    for line in (*start.notes, *_differences(flags), *_variables(start.environment)):
        click.echo(f"# {' '.join(line.split())}")
    for line in wrong:
        click.echo(f"error: {line}", err=True)
    sys.exit(ExitCode.CONFIG_INVALID if wrong else ExitCode.OK)


def _read(source: str) -> Start:
    from endpick.config.load import documents_of

    try:
        documents = documents_of(_content(source))
    except (OSError, ValueError) as problem:
        raise click.UsageError(f"{source} cannot be read: {problem}") from problem
    for document in documents:
        start = _start_of(document)
        if start is not None:
            return start
    raise click.UsageError(f"{source} contains no Deployment of llm-d's endpoint picker, no chart values and no list of arguments")


def _content(source: str) -> str:
    return sys.stdin.buffer.read().decode() if source == STANDARD_INPUT else Path(source).read_text(encoding="utf-8")


def _start_of(document: object) -> Start | None:
    if isinstance(document, list):
        return Start(tuple(map(str, document)))
    if not isinstance(document, Mapping):
        return None
    values = start_of_values(document)
    if values is not None:
        return values
    containers = at(document, "spec", "template", "spec", "containers")
    for container in containers if isinstance(containers, list) else ():
        command, given = at(container, "command"), at(container, "args")
        arguments = [*_words(command)[1:], *_words(given)]
        if {word.lstrip("-").partition("=")[0] for word in arguments} & (_SHOWN.keys() | removed_flags().keys()):
            return Start(tuple(arguments), environment_of(at(container, "env")))
    return None


def _words(value: object) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else []


def _flags(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    from endpick.cli.serve import command as serve

    options = options_of(serve)
    flags: dict[str, str] = {}
    wrong: list[str] = []
    remaining = iter(arguments)
    for word in remaining:
        name, equals, value = word.lstrip("-").partition("=")
        known = known_name(name, options) if word.startswith("-") else None
        if known is not None:
            alone = isinstance(options[known].type, GoBoolean)
            setting = value if equals else "true" if alone else next(remaining, "")
            flags[known] = setting
        elif name in removed_flags():
            wrong.append(f"llm-d has removed --{name}: {removed_flags()[name]}")
            if not equals and not name.endswith("skip-verify"):
                next(remaining, None)
        else:
            wrong.append(f"'{word}' is not a flag of llm-d; {did_you_mean(f'--{name}', [f'--{one}' for one in _SHOWN]) or 'leave it out'}")
    return flags, wrong


def _command_line(flags: Mapping[str, str]) -> str:
    idle = {flag.name for flag in FLAGS if flag.effect is Effect.NONE}
    kept = [shlex.quote(f"--{name}={value}") for name, value in flags.items() if name not in idle]
    return " \\\n  ".join(("endpick serve", *kept))


def _differences(flags: Iterable[str]) -> Iterator[str]:
    for name in flags:
        flag = _SHOWN.get(name)
        if flag is not None and flag.note:
            yield f"--{name}{' is left out' if flag.effect is Effect.NONE else ''}: {flag.note}"


def _variables(environment: Mapping[str, str]) -> Iterator[str]:
    for name in environment:
        if name in VARIABLES:
            yield f"{name} (environment) has no effect: {VARIABLES[name]}"
        elif name in ("NAMESPACE", "POD_NAME"):
            yield f"{name} (environment) has the same meaning in endpick: keep it"


MOUNT = "/config"  # mount path of the charts
RELEASE = "RELEASE_NAME"  # values do not contain the release's name
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
    """Paths in a chart's values; `selector` and `ports` apply if it creates no InferencePool."""

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
    """The start made by the charts of llm-d or the Gateway API Inference Extension, if any."""
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
        *_chart_flags(picker, around),
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


def _chart_flags(picker: object, around: object) -> Iterator[str]:
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
    """The value at a path, if any."""
    for name in path:
        data = data.get(name) if isinstance(data, Mapping) else None
    return data


def environment_of(entries: object) -> dict[str, str]:
    """A container's environment variables."""
    given = [one for one in _list(entries) if isinstance(one, Mapping)]
    return {str(one.get("name")): str(one.get("value", "set elsewhere")) for one in given}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
