"""Command lines in Go's syntax, and the flags of llm-d's endpoint picker: type, default, effect in `endpick serve`."""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import click

from endpick.cli.options import GO_BOOLEAN, POSITIVE_DURATION, QUANTITY

GIVEN = "endpick.given"  # key in `ctx.meta` for the given flags: their values as text by flag name
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class GoCommand(click.Command):
    """A command with options in Go's syntax."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Rewrite the arguments into click's syntax; `ctx.meta[GIVEN]` keeps the given flags."""
        options = options_of(self.get_params(ctx))
        rewritten: list[str] = []
        given: dict[str, str] = {}
        remaining = iter(args)
        for argument in remaining:
            name, equals, value = argument.lstrip("-").partition("=")
            if argument == "--":
                rewritten += (argument, *remaining)
            elif argument in ("-", "-h") or not argument.startswith("-"):
                rewritten.append(argument)
            else:
                known = known_name(name, options)
                if known is None:
                    raise click.UsageError(self._unknown(name, options), ctx)
                if options[known].is_flag:
                    rewritten.append(f"--{known}{equals}{value}")
                    continue
                setting = value if equals else "true" if options[known].type is GO_BOOLEAN else next(remaining, None)
                rewritten.append(f"--{known}" if setting is None else f"--{known}={setting}")
                given[known] = setting or ""
        ctx.meta[GIVEN] = given
        return super().parse_args(ctx, rewritten)

    def _unknown(self, name: str, options: Mapping[str, click.Option]) -> str:
        from endpick.config.upstream import find_name
        from endpick.diagnostics import did_you_mean

        upstream = find_name("flag", name)
        if upstream is not None:
            return f"endpick does not have --{name}; {upstream.status}{f': {upstream.advice}' if upstream.advice else ''}"
        hint = did_you_mean(f"--{name}", sorted(f"--{known}" for known in options)) or _flags_with_words_of(name, options)
        return f"no such flag: --{name}; {hint or 'see --help'}"


def removed_flags() -> dict[str, str]:
    """Return the flags that llm-d no longer accepts, with the replacement for each."""
    from endpick.config.upstream import State, upstream_names

    return {row.name: row.successor for row in upstream_names() if row.kind == "flag" and row.state is State.REMOVED}


def options_of(parameters: Iterable[click.Parameter]) -> dict[str, click.Option]:
    """Return the options of a command by name, without dashes."""
    return {name.lstrip("-"): option for option in parameters if isinstance(option, click.Option) for name in option.opts}


def _flags_with_words_of(name: str, options: Mapping[str, click.Option]) -> str | None:
    """A hint that lists the flags with every word of `name`."""
    words = set(name.split("-"))
    likely = [f"--{known}" for known in options if words <= set(known.split("-"))]
    return f"there is {', '.join(likely)}" if likely else None


def known_name(name: str, options: Mapping[str, click.Option]) -> str | None:
    """Return the flag of this name; older documents write `--configFile` for `--config-file`."""
    kebab = _HUMP.sub("-", name).lower()
    return name if name in options else kebab if kebab in options else None


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
_EVERY_REPLICA = f"{_WITH_POOL}; without it every replica serves"
_ALWAYS_ON = "always on; NOT_SERVING while endpick is not ready, when llm-d reports SERVING"
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
    LlmDFlag(
        "fairness-id-metric-label-limit", "int", "1000", Effect.NONE, "--metrics-max-combinations limits models and fairness ids together"
    ),
    LlmDFlag("feature-gates", "string", note="overrides `featureGates` of the configuration"),
    LlmDFlag("grpc-health-port", "int", "9003"),
    LlmDFlag("grpc-max-recv-msg-size", "quantity", "4Mi", note="64Mi by default"),
    LlmDFlag("grpc-max-send-msg-size", "quantity", "", Effect.NONE, "replies are split into chunks of 62 kB and have no other limit"),
    LlmDFlag("grpc-port", "int", "9002"),
    LlmDFlag("ha-enable-leader-election", "bool", "false", Effect.KUBERNETES, _EVERY_REPLICA, ("false",)),
    LlmDFlag("health-checking", "bool", "false", Effect.NONE, _ALWAYS_ON, ("true",)),
    LlmDFlag("metrics-cert-dir", "string"),
    LlmDFlag("metrics-client-ca-file", "string"),
    LlmDFlag(
        "metrics-endpoint-auth", "bool", "true", Effect.KUBERNETES, "off by default; only kubernetes-discovery asks for a token", ("false",)
    ),
    LlmDFlag("metrics-port", "int", "9090"),
    LlmDFlag("metrics-staleness-threshold", "duration", "2s"),
    LlmDFlag("plugin-state-staleness-threshold", "duration", "5m", Effect.NONE, "the state of a request ends with its stream"),
    LlmDFlag("pool-group", "string", "inference.networking.k8s.io", Effect.KUBERNETES, _WITH_POOL),
    LlmDFlag("pool-name", "string", "", note="a label of metrics; required if discovery reads Kubernetes"),
    LlmDFlag("pool-namespace", "string", "", Effect.KUBERNETES, _WITH_POOL),
    LlmDFlag("refresh-metrics-interval", "duration", "50ms", note="idle endpoints are scraped less often"),
    LlmDFlag("refresh-prometheus-metrics-interval", "duration", "5s", Effect.NONE, "pool gauges are computed at each scrape"),
    LlmDFlag("secure-serving", "bool", "true"),
    LlmDFlag("tls-cipher-suites", "strings", "", note="suites of TLS 1.2; those of TLS 1.3 cannot be chosen, as in Go"),
    LlmDFlag("tls-min-version", "string", "VersionTLS12"),
    LlmDFlag("tracing", "bool", "true", note="sends traces if OTEL_EXPORTER_OTLP_ENDPOINT is set, and `endpick[tracing]` is installed"),
    LlmDFlag("v", "int", "2", note="0 to 3 is info, 4 and more is debug; --zap-log-level and --log-level override it"),
    LlmDFlag("zap-devel", "bool", "true", note="false means JSON, unless --zap-encoder or --log-format is given"),
    LlmDFlag("zap-encoder", "string", "console"),
    LlmDFlag("zap-log-level", "string", "", note="info, error, debug, or a number as for --v; --log-level overrides it"),
    LlmDFlag("zap-stacktrace-level", "string", "", Effect.NONE, "only unexpected errors are logged with a stack"),
    LlmDFlag("zap-time-encoding", "string", "", Effect.NONE, _OWN_LOG, ("iso8601", "rfc3339", "rfc3339nano")),
)

VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        "LATENCY_MAX_BULK_SIZE": "all candidates of a request are predicted in one call",
        "LATENCY_USE_NATIVE_XGBOOST": _OVER_HTTP,
        "LATENCY_METRICS_INTERVAL_SEC": _OVER_HTTP,
        "ENABLE_EXPERIMENTAL_FLOW_CONTROL_LAYER": "write `featureGates: [flowControl]` in the configuration",
    }
)
"""Environment variables that llm-d reads and endpick does not. Both read NAMESPACE and POD_NAME."""

_TYPES: dict[str, Any] = {"bool": GO_BOOLEAN, "duration": POSITIVE_DURATION, "quantity": QUANTITY, "int": int, "string": str}


def unused_options() -> list[click.Parameter]:
    """Return hidden click options for flags without effect, which check values as llm-d does."""
    return [
        click.Option([f"--{flag.name}"], type=_TYPES[flag.kind], default=flag.default or None, expose_value=False, hidden=True)
        for flag in FLAGS
        if flag.effect is Effect.NONE
    ]


def without_effect(
    arguments: Mapping[str, str], environment: Mapping[str, str] = os.environ, *, in_kubernetes: bool = False
) -> tuple[str, ...]:
    """Return a clause for each given flag and environment variable that has no effect.

    Args:
        arguments: The command line, as text by flag name.
        environment: The environment of the process.
        in_kubernetes: True if discovery uses Kubernetes, so the flags about it have an effect.
    """
    clauses = []
    for flag in FLAGS:
        idle = flag.effect is Effect.NONE or (flag.effect is Effect.KUBERNETES and not in_kubernetes)
        if idle and flag.name in arguments and arguments[flag.name].lower() not in flag.asks_nothing:
            reason = flag.note if flag.effect is Effect.NONE or flag.asks_nothing else "discovery does not read Kubernetes"
            clauses.append(f"--{flag.name}: {reason}")
    return (*clauses, *(f"{name} (environment): {reason}" for name, reason in VARIABLES.items() if environment.get(name)))
