"""The flags of llm-d's endpoint picker: type, default, and effect in `endpick serve`."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import click

from endpick.cli.go_flags import GO_BOOLEAN, POSITIVE_DURATION, QUANTITY


class Effect(enum.StrEnum):
    """The effect of an llm-d flag in endpick."""

    SAME = "as in llm-d"
    KUBERNETES = "with Kubernetes"
    """Describes Kubernetes resources; no effect without the discovery that reads them."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class LlmDFlag:
    """One flag.

    Attributes:
        name: Without dashes.
        kind: llm-d's type.
        default: llm-d's default as written on the command line; empty for none.
        effect: The effect in endpick.
        note: The difference to llm-d, or why it has no effect.
        asks_nothing: Values for which a missing effect makes no difference.
    """

    name: str
    kind: str
    default: str = ""
    effect: Effect = Effect.SAME
    note: str = ""
    asks_nothing: tuple[str, ...] = ()


_WITH_POOL = "used by the discovery that reads Kubernetes"
_NO_TRACES = "endpick sends no traces"
_OVER_HTTP = "latencies are predicted by the server at PREDICTION_SERVER_URL"
_OWN_LOG = "endpick always logs ISO 8601 times"

FLAGS = (
    LlmDFlag("allow-experimental-plugins", "bool", "false", note="without it, experimental plugins start with one warning that names them"),
    LlmDFlag("cert-path", "string"),
    LlmDFlag("config-file", "string"),
    LlmDFlag("config-text", "string"),
    LlmDFlag("disable-endpoint-subset-filter", "bool", "false"),
    LlmDFlag("drain-timeout", "duration", "30s", note="ends early when no gateway is connected"),
    LlmDFlag("emit-endpoint-scores", "bool", "false"),
    LlmDFlag("enable-cert-reload", "bool", "false", note="on by default"),
    LlmDFlag("enable-grpc-stream-metrics", "bool", "false"),
    LlmDFlag(
        "enable-pprof", "bool", "true", Effect.NONE, "Go's profiles do not exist for Python; py-spy reads a running endpick", ("false",)
    ),
    LlmDFlag("endpoint-selector", "string", "", Effect.KUBERNETES, _WITH_POOL),
    LlmDFlag("endpoint-target-ports", "ints", "", Effect.KUBERNETES, _WITH_POOL),
    LlmDFlag("grpc-health-port", "int", "9003"),
    LlmDFlag("grpc-max-recv-msg-size", "quantity", "4Mi", note="64Mi by default"),
    LlmDFlag("grpc-max-send-msg-size", "quantity", "", Effect.NONE, "replies are split into chunks of 62 kB and have no other limit"),
    LlmDFlag("grpc-port", "int", "9002"),
    LlmDFlag(
        "ha-enable-leader-election",
        "bool",
        "false",
        Effect.KUBERNETES,
        "used by the discovery that reads Kubernetes; without it every replica serves",
        ("false",),
    ),
    LlmDFlag("health-checking", "bool", "false", note="always on; NOT_SERVING while endpick is not ready, when llm-d reports SERVING"),
    LlmDFlag("metrics-cert-dir", "string"),
    LlmDFlag("metrics-client-ca-file", "string"),
    LlmDFlag("metrics-endpoint-auth", "bool", "true", Effect.NONE, "clients of /metrics need no token", ("false",)),
    LlmDFlag("metrics-port", "int", "9090"),
    LlmDFlag("metrics-staleness-threshold", "duration", "2s"),
    LlmDFlag("pool-group", "string", "inference.networking.k8s.io", Effect.KUBERNETES, _WITH_POOL),
    LlmDFlag("pool-name", "string", "", note="a label of metrics; required if discovery reads Kubernetes"),
    LlmDFlag("pool-namespace", "string", "", Effect.KUBERNETES, _WITH_POOL),
    LlmDFlag("refresh-metrics-interval", "duration", "50ms", note="idle endpoints are scraped less often"),
    LlmDFlag("refresh-prometheus-metrics-interval", "duration", "5s", Effect.NONE, "pool gauges are computed at each scrape"),
    LlmDFlag("secure-serving", "bool", "true"),
    LlmDFlag("tls-cipher-suites", "strings", "", note="suites of TLS 1.2; those of TLS 1.3 cannot be chosen, as in Go"),
    LlmDFlag("tls-min-version", "string", "VersionTLS12"),
    LlmDFlag("tracing", "bool", "true", Effect.NONE, _NO_TRACES, ("false",)),
    LlmDFlag("v", "int", "2", note="0 to 3 is info, 4 and more is debug; --zap-log-level and --log-level override it"),
    LlmDFlag("zap-devel", "bool", "true", note="false means JSON, unless --zap-encoder or --log-format is given"),
    LlmDFlag("zap-encoder", "string", "console"),
    LlmDFlag("zap-log-level", "string", "", note="info, error, debug, or a number as for --v; --log-level overrides it"),
    LlmDFlag("zap-stacktrace-level", "string", "", Effect.NONE, "only unexpected errors are logged with a stack"),
    LlmDFlag("zap-time-encoding", "string", "", Effect.NONE, _OWN_LOG, ("iso8601", "rfc3339", "rfc3339nano")),
)

_METRIC_NAMES = "name metrics with the parameter `engineConfigs` of core-metrics-extractor"
_METRICS_PAGE = "use the parameters `scheme`, `path`, `port` and `insecureSkipVerify` of metrics-data-source"

REMOVED: Mapping[str, str] = MappingProxyType(
    {
        **{f"model-server-metrics-{part}": _METRICS_PAGE for part in ("scheme", "path", "port", "https-insecure-skip-verify")},
        **{f"{what}-metric": _METRIC_NAMES for what in ("total-queued-requests", "total-running-requests", "lora-info", "cache-info")},
        "kv-cache-usage-percentage-metric": _METRIC_NAMES,
    }
)
"""Flags that llm-d refuses, with their replacements."""

VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        "OTEL_EXPORTER_OTLP_ENDPOINT": _NO_TRACES,
        "OTEL_TRACES_EXPORTER": _NO_TRACES,
        "OTEL_TRACES_SAMPLER": _NO_TRACES,
        "OTEL_TRACES_SAMPLER_ARG": _NO_TRACES,
        "OTEL_SERVICE_NAME": _NO_TRACES,
        "OTEL_RESOURCE_ATTRIBUTES": _NO_TRACES,
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": _NO_TRACES,
        "OTEL_EXPORTER_OTLP_INSECURE": _NO_TRACES,
        "OTEL_EXPORTER_OTLP_CERTIFICATE": _NO_TRACES,
        "LATENCY_MAX_BULK_SIZE": "all candidates of a request are predicted in one call",
        "LATENCY_USE_NATIVE_XGBOOST": _OVER_HTTP,
        "LATENCY_METRICS_INTERVAL_SEC": _OVER_HTTP,
        "ENABLE_EXPERIMENTAL_FLOW_CONTROL_LAYER": "write `featureGates: [flowControl]` in the configuration",
    }
)
"""Environment variables that llm-d reads and endpick does not. Both read NAMESPACE and POD_NAME."""

_TYPES: Mapping[str, click.ParamType[Any]] = {
    "bool": GO_BOOLEAN,
    "duration": POSITIVE_DURATION,
    "quantity": QUANTITY,
    "int": click.INT,
    "string": click.STRING,
}


def unused_options() -> list[click.Parameter]:
    """Hidden click options for the flags without effect; their values are checked as in llm-d."""
    return [
        click.Option([f"--{flag.name}"], type=_TYPES[flag.kind], default=flag.default or None, expose_value=False, hidden=True)
        for flag in FLAGS
        if flag.effect is Effect.NONE
    ]


def without_effect(
    arguments: Mapping[str, str], environment: Mapping[str, str] = os.environ, *, in_kubernetes: bool = False
) -> tuple[str, ...]:
    """A clause for each given flag and environment variable that has no effect.

    Args:
        arguments: The command line, as text by flag name.
        environment: The environment of the process.
        in_kubernetes: True if discovery uses Kubernetes, so the flags about it have an effect.
    """
    return tuple(_clauses(arguments, environment, in_kubernetes))


def _clauses(arguments: Mapping[str, str], environment: Mapping[str, str], in_kubernetes: bool) -> Iterator[str]:
    for flag in FLAGS:
        idle = flag.effect is Effect.NONE or (flag.effect is Effect.KUBERNETES and not in_kubernetes)
        if idle and flag.name in arguments and arguments[flag.name].lower() not in flag.asks_nothing:
            reason = flag.note if flag.effect is Effect.NONE or flag.asks_nothing else "discovery does not read Kubernetes"
            yield f"--{flag.name}: {reason}"
    for name, reason in VARIABLES.items():
        if environment.get(name):
            yield f"{name} (environment): {reason}"
