"""The options of `endpick serve`, by what they are about; those of llm-d's without effect stand in `llm_d_flags` alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from endpick.cli.go_flags import boolean
from endpick.cli.quantities import DURATION, POSITIVE_DURATION, QUANTITY

Command = Callable[..., None]

_PORT = click.IntRange(0, 65535)
_COUNT = click.IntRange(1, 2**31 - 1)
"""What both transports can count to."""

CONFIGURATION = (
    click.option("--config-file", help="The configuration, as llm-d spells it; the same as CONFIG."),
    click.option("--config-text", help="The configuration itself instead of a file."),
    click.option(
        "--endpoints",
        "endpoints_file",
        type=click.Path(path_type=Path),
        help="Discover the endpoints of this file, if CONFIG names no discovery; the file is watched.",
    ),
    boolean("--legacy-metrics", default=False, help="Repeat llm-d's metrics under their names of before August 2026, too."),
    boolean("--watch-config", default=False, help="Reload when CONFIG changes; SIGHUP reloads in any case."),
    boolean("--locked", default=False, help="Refuse every plugin that differs from the lock file."),
    click.option("--lock-file", type=click.Path(path_type=Path), default=Path("endpick.lock.json"), help="See `endpick lock`."),
    boolean("--allow-experimental-plugins", default=False, help="Do not warn of plugins whose authors call them experimental."),
)
"""Which document is served, with which plugins."""

PORTS = (
    click.option("--host", default="", help="Address to listen on; default every interface."),
    click.option("--grpc-port", type=_PORT, default=9002, show_default=True, help="Port of ext_proc; 0 takes any free one."),
    click.option("--grpc-health-port", type=_PORT, default=9003, show_default=True, help="Port of the gRPC health service."),
    click.option("--metrics-port", type=_PORT, default=9090, show_default=True, help="Port of /metrics and /healthz."),
    click.option(
        "--transport",
        type=click.Choice(["h2", "grpcio"]),
        default="h2",
        show_default=True,
        help="HTTP/2 implementation: endpick's own, or grpcio, which is slower.",
    ),
    boolean("--reuse-port", default=False, help="Share the ext_proc port with other processes that say so, too (SO_REUSEPORT)."),
    boolean("--health-checking", default=True, help="Always on: the ext_proc port answers health checks in any case."),
    boolean("--secure-serving", default=True, help="TLS on the ext_proc port; --secure-serving=false for plain text."),
    click.option("--cert-path", type=click.Path(path_type=Path), help="Folder with tls.crt and tls.key; without it a self-signed pair."),
    click.option("--client-ca-file", type=click.Path(path_type=Path), help="Ask gateways for a certificate signed by this authority."),
    boolean("--enable-cert-reload", default=True, help="Use new certificates when their files change."),
    click.option(
        "--tls-min-version",
        type=click.Choice(["VersionTLS12", "VersionTLS13", "1.2", "1.3"]),
        default="VersionTLS12",
        show_default=True,
        help="Oldest TLS version; only with --transport h2.",
    ),
    click.option(
        "--tls-cipher-suites", multiple=True, help="Suites of TLS 1.2 by their IANA names, separated by commas; only with --transport h2."
    ),
    click.option(
        "--metrics-cert-dir", type=click.Path(path_type=Path), help="TLS on the metrics port, with tls.crt and tls.key of this folder."
    ),
    click.option(
        "--metrics-client-ca-file",
        type=click.Path(path_type=Path),
        help="TLS on the metrics port, for clients with a certificate of this authority.",
    ),
)
"""Where it listens, and how connections are encrypted."""

ENDPOINTS = (
    click.option(
        "--pool-name", help="Label of the pool's gauges, `endpick` if not given; the InferencePool where discovery asks Kubernetes."
    ),
    click.option(
        "--pool-namespace",
        envvar="NAMESPACE",
        default="",
        help="Namespace of the pool; else the environment's NAMESPACE, or endpick's own.",
    ),
    click.option("--kubeconfig", default="", help="Where the Kubernetes API is; default $KUBECONFIG, else the service account of the Pod."),
    click.option("--pool-group", default="", help="API group of the InferencePool; else inference.networking.k8s.io."),
    click.option("--endpoint-selector", default="", help="Label selector of the pods, where there is no InferencePool."),
    click.option("--endpoint-target-ports", multiple=True, help="Ports of each such pod, separated by commas."),
    boolean(
        "--ha-enable-leader-election",
        default=False,
        help="One of several replicas serves, by a Lease of the pool's namespace; the others stand by, and health says NOT_SERVING.",
    ),
    boolean("--disable-endpoint-subset-filter", default=False, help="Ignore the gateway's choice of endpoints (its subset hint)."),
    boolean(
        "--emit-endpoint-scores",
        default=False,
        help="Tell the gateway what each candidate scored: dynamic metadata `x-gateway-destination-endpoint-scores`.",
    ),
    click.option(
        "--max-endpoints",
        type=_COUNT,
        default=4096,
        show_default=True,
        help="Endpoints of the pool; more that are discovered are left out.",
    ),
    click.option("--discovery-timeout", type=DURATION, default="60s", show_default=True, help="How long to wait for the first endpoints."),
    click.option(
        "--refresh-metrics-interval", type=POSITIVE_DURATION, default="50ms", show_default=True, help="How often endpoints are scraped."
    ),
    click.option(
        "--idle-metrics-interval",
        type=POSITIVE_DURATION,
        default="1s",
        show_default=True,
        help="Longest time between two scrapes of an endpoint with nothing to do; shorter where a plugin wants fresher data.",
    ),
    click.option(
        "--metrics-staleness-threshold",
        type=POSITIVE_DURATION,
        default="2s",
        show_default=True,
        help="Older values do not count in the pool's gauges.",
    ),
)
"""Which endpoints there are, and how fresh what is known of them."""

LIMITS = (
    click.option(
        "--drain-timeout",
        type=DURATION,
        default="30s",
        show_default=True,
        help="How long new requests are still served after SIGTERM, while health says that endpick is going. It ends as soon as no gateway "
        "is connected, and at a second signal.",
    ),
    click.option(
        "--finish-timeout",
        type=DURATION,
        default="30s",
        show_default=True,
        help="How long streams may finish after --drain-timeout; another signal, or 30 s more, end the process at once.",
    ),
    click.option("--grpc-max-recv-msg-size", type=QUANTITY, default="64Mi", show_default=True, help="Largest ext_proc message."),
    click.option(
        "--grpc-max-envelope-size",
        type=QUANTITY,
        default="256Ki",
        show_default=True,
        help="What one ext_proc message may hold beside its body: headers, attributes, metadata.",
    ),
    click.option("--max-request-body", type=QUANTITY, default="32Mi", show_default=True, help="Largest request body; more is refused."),
    click.option(
        "--large-body",
        type=QUANTITY,
        default="1Mi",
        show_default=True,
        help="A request body of more bytes is parsed by a process of its own.",
    ),
    click.option(
        "--large-body-structure",
        type=QUANTITY,
        default="32Ki",
        show_default=True,
        help="So is one of more structure: 1 for each comma, 2 for each quote, 16 for each object or list.",
    ),
    click.option(
        "--large-body-timeout", type=POSITIVE_DURATION, default="10s", show_default=True, help="How long parsing a large body may take."
    ),
    click.option(
        "--large-body-memory",
        type=QUANTITY,
        default="1Gi",
        show_default=True,
        help="How much memory parsing a large body may take beside the body.",
    ),
    click.option(
        "--large-body-queue",
        type=QUANTITY,
        default="256Mi",
        show_default=True,
        help="How many bytes of large bodies may wait, 256 of them at most; requests beyond are refused.",
    ),
    click.option(
        "--max-memory",
        type=QUANTITY,
        help="What the process may use, by default the limit of its container, or the machine's memory; near it, requests are refused.",
    ),
    click.option(
        "--max-held",
        type=QUANTITY,
        default="512Mi",
        show_default=True,
        help="What undecided requests may hold, all together.",
    ),
    click.option("--grpc-max-connections", type=_COUNT, default=1024, show_default=True, help="ext_proc connections; more are closed."),
    click.option(
        "--grpc-handshake-timeout",
        type=POSITIVE_DURATION,
        default="10s",
        show_default=True,
        help="How long a TLS handshake may take, and after it as long again the client's first SETTINGS.",
    ),
    click.option(
        "--grpc-max-header-size", type=QUANTITY, default="16Ki", show_default=True, help="Header list of one stream, packed and unpacked."
    ),
    click.option(
        "--max-name-length",
        type=click.IntRange(1, 65536),
        default=1024,
        show_default=True,
        help="Characters of a model, a cache salt or a fairness id; requests with longer ones are refused.",
    ),
    click.option(
        "--grpc-max-early-messages",
        type=_COUNT,
        default=64,
        show_default=True,
        help="Messages of one stream that may come while its decision is awaited.",
    ),
    click.option("--grpc-health-max-connections", type=_COUNT, default=64, show_default=True, help="Connections to --grpc-health-port."),
    click.option("--metrics-max-connections", type=_COUNT, default=32, show_default=True, help="Connections to --metrics-port."),
    click.option(
        "--metrics-header-timeout",
        type=POSITIVE_DURATION,
        default="10s",
        show_default=True,
        help="How long a request to --metrics-port may take to arrive.",
    ),
    click.option(
        "--metrics-idle-timeout",
        type=POSITIVE_DURATION,
        default="75s",
        show_default=True,
        help="When a connection to --metrics-port that asks nothing is closed.",
    ),
    click.option("--metrics-max-request", type=QUANTITY, default="16Ki", show_default=True, help="Largest request to --metrics-port."),
    click.option(
        "--metrics-max-held",
        type=QUANTITY,
        default="64Mi",
        show_default=True,
        help="What pages may hold that scrapers have not taken, all together.",
    ),
    click.option("--grpc-max-concurrent-streams", type=_COUNT, default=4096, show_default=True, help="Requests under way per connection."),
    click.option("--grpc-max-connection-age", type=POSITIVE_DURATION, help="When a gateway is asked to connect anew; default never."),
    click.option(
        "--grpc-max-connection-age-grace",
        type=POSITIVE_DURATION,
        default="60s",
        show_default=True,
        help="How long streams of a connection that has its age may finish.",
    ),
    click.option(
        "--grpc-keepalive-time", type=POSITIVE_DURATION, default="60s", show_default=True, help="Silence after which a gateway gets a PING."
    ),
    click.option(
        "--grpc-keepalive-timeout",
        type=POSITIVE_DURATION,
        default="20s",
        show_default=True,
        help="How long it may take to answer the PING.",
    ),
    click.option(
        "--plugin-time-budget",
        type=POSITIVE_DURATION,
        default="50ms",
        show_default=True,
        help="A call of a plugin that holds the event loop for longer is late.",
    ),
    click.option(
        "--circuit-faults",
        type=_COUNT,
        default=20,
        show_default=True,
        help="So many faults, or 3 late calls, leave a plugin out, if they are half of its calls, or of the time.",
    ),
    click.option(
        "--circuit-cool-down",
        type=POSITIVE_DURATION,
        default="5s",
        show_default=True,
        help="How long a plugin is left out; twice as long, up to 5m, each time that it fails right after.",
    ),
    click.option(
        "--stall-limit",
        type=POSITIVE_DURATION,
        default="10s",
        show_default=True,
        help="An event loop that stands still for so long makes health fail for as long; a tenth of it is logged, with the stack.",
    ),
)
"""What one client, one request and one plugin may take."""

OBSERVATION = (
    click.option(
        "--decision-sampling",
        type=click.FloatRange(0, 1),
        default=0.01,
        show_default=True,
        help="Ratio of decisions shown to hook objects that watch them.",
    ),
    click.option(
        "--metrics-max-combinations",
        type=click.IntRange(1),
        default=250,
        show_default=True,
        help="Combinations of model, target model, fairness id and priority that metrics tell apart; later ones count as `other`.",
    ),
    click.option(
        "--metrics-max-samples",
        type=_COUNT,
        default=100_000,
        show_default=True,
        help="Samples that one instance, or one collector of a hook object, may show on a page; one with more is left out of it.",
    ),
    boolean("--enable-grpc-stream-metrics", default=False, help="Show llm-d's metrics of ext_proc streams, too."),
    click.option(
        "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Default info; goes before llm-d's flags for it."
    ),
    click.option("--log-format", type=click.Choice(["auto", "text", "json"]), help="Default auto: text on a terminal, else JSON."),
    click.option("--v", "verbosity", type=int, default=2, show_default=True, help="0 to 3 for info, 4 and more for debug."),
    click.option("--zap-log-level", help="debug, info, error, or a number as for --v; goes before --v."),
    click.option(
        "--zap-encoder", type=click.Choice(["console", "json"]), help="Form of the log: text or JSON; --log-format goes before it."
    ),
    boolean("--zap-devel", default=True, help="false: JSON, unless --zap-encoder or --log-format says otherwise."),
)
"""What is told of the process."""


def serve_options(command: Command) -> Command:
    """Add all of them, in the order in which the reference shows them."""
    for option in reversed((*CONFIGURATION, *PORTS, *ENDPOINTS, *LIMITS, *OBSERVATION)):
        command = option(command)
    return command
