"""endpick's Prometheus metrics, with llm-d's names if llm-d has the metric."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

from prometheus_client.metrics import Counter, Gauge
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from endpick import __version__
from endpick.api.fast_metrics import Counts, Distributions, Levels
from endpick.engine.reload_log import ReloadResult
from endpick.extproc.stream import GrpcStatus, PassingBody, ProtocolError, SessionFactory, StreamSession
from endpick.host.telemetry import ITL_BUCKETS
from endpick.requests.model import CloseCause

PREFIX = "llm_d_epp_"

T = TypeVar("T")

SCHEDULING_BUCKETS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
GENERAL_BUCKETS = (
    *(0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60, 120, 180, 240, 300, 360),
    *(480, 600, 900, 1200, 1800, 2700, 3600),
)
TTFT_BUCKETS = tuple(bound for bound in GENERAL_BUCKETS if bound <= 120)
NTPOT_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
REQUEST_SIZE_BUCKETS = tuple(float(2**power) for power in range(6, 31))
# 32778 is as in llm-d: dashboards that add up both need equal buckets.
RESPONSE_SIZE_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32778, 65536)
INPUT_TOKEN_BUCKETS = (*RESPONSE_SIZE_BUCKETS, 131072, 262144, 524288, 1048576)
OUTPUT_TOKEN_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

TPOT_BUCKETS = (0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 2)
REQUEST_PROCESSING_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
RESPONSE_PROCESSING_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
STREAM_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600)

MODEL_LABELS = ("model_name", "target_model_name", "fairness_id", "priority")


class _RewriteDecisions(Collector):
    """Requests with a rewritten model name; the rule's label is always `header`, as in llm-d."""

    def __init__(self, requests: Counts) -> None:
        self._requests = requests

    def collect(self) -> Iterator[CounterMetricFamily]:
        decisions: defaultdict[tuple[str, str], float] = defaultdict(float)
        for (model, target, *_), tally in tuple(self._requests.members().items()):
            if target != model:
                decisions[model, target] += tally.value
        labels = ("model_rewrite_name", "model_name", "target_model")
        family = CounterMetricFamily(PREFIX + "model_rewrite_decisions_total", "Requests whose model name was rewritten.", labels=labels)
        for models, count in decisions.items():
            family.add_metric(("header", *models), count)
        yield family


class StreamMetrics:
    """llm-d's stream metrics; optional, because they add a call to each message."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.inflight = Levels(PREFIX + "extproc_streams_inflight", "Open ext_proc streams.", (), registry).labels()
        self.duration = Distributions(
            PREFIX + "extproc_stream_duration_seconds", "Duration of ext_proc streams.", (), STREAM_BUCKETS, registry
        ).labels()
        self.ended = Counts(PREFIX + "extproc_streams_total", "ext_proc streams that ended, by gRPC status.", ("code",), registry)


class EndpickMetrics:
    """All metrics of an endpick process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

        def histogram(name: str, text: str, labels: tuple[str, ...], bounds: tuple[float, ...]) -> Distributions:
            return Distributions(PREFIX + name, text, labels, bounds, registry)

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def gauge(name: str, text: str, labels: tuple[str, ...]) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        self.requests = Counts(PREFIX + "request_total", "Requests sent to a model server.", MODEL_LABELS, registry)
        self.request_errors = counter(PREFIX + "request_error_total", "Requests that ended in an error.", (*MODEL_LABELS, "error_code"))
        self.duration = histogram(
            "request_duration_seconds", "Time from request headers to the complete response.", MODEL_LABELS, GENERAL_BUCKETS
        )
        self.request_size = histogram("request_size_bytes", "Request body size.", MODEL_LABELS, REQUEST_SIZE_BUCKETS)
        self.response_size = histogram("response_size_bytes", "Response body size.", MODEL_LABELS, RESPONSE_SIZE_BUCKETS)
        self.input_tokens = histogram(
            "request_input_tokens", "Prompt tokens reported by the model server.", MODEL_LABELS, INPUT_TOKEN_BUCKETS
        )
        self.output_tokens = histogram(
            "request_output_tokens", "Completion tokens reported by the model server.", MODEL_LABELS, OUTPUT_TOKEN_BUCKETS
        )
        self.cached_tokens = histogram(
            "request_cached_tokens", "Cached prompt tokens reported by the model server.", MODEL_LABELS, INPUT_TOKEN_BUCKETS
        )
        self.running = Levels(PREFIX + "request_running", "Requests in flight.", MODEL_LABELS, registry)
        self.ntpot = histogram("request_ntpot_seconds", "Request duration divided by completion tokens.", MODEL_LABELS, NTPOT_BUCKETS)
        self.ttft = histogram(
            "request_ttft_seconds", "Time from request headers to the first response body byte.", (*MODEL_LABELS, "streaming"), TTFT_BUCKETS
        )
        self.tpot = histogram(
            "request_streaming_tpot_seconds", "Time per output token after the first, for streamed responses.", MODEL_LABELS, TPOT_BUCKETS
        )
        self.itl = histogram("request_streaming_itl_seconds", "Time between two chunks of a streamed response.", MODEL_LABELS, ITL_BUCKETS)
        self.request_processing = histogram(
            "request_processing_duration_seconds", "Time from request headers to the decision.", (), REQUEST_PROCESSING_BUCKETS
        ).labels()
        self.response_processing = histogram(
            "response_processing_duration_seconds",
            "Time endpick spends on one response, without chunks that only pass through.",
            (),
            RESPONSE_PROCESSING_BUCKETS,
        ).labels()
        registry.register(_RewriteDecisions(self.requests))

        self.scheduler_duration = histogram(
            "scheduler_e2e_duration_seconds", "Duration of one scheduling decision.", (), SCHEDULING_BUCKETS
        ).labels()
        self.scheduler_attempts = Counts(
            PREFIX + "scheduler_attempts_total",
            "Scheduling decisions.",
            ("status", "target_model_name", "endpoint_name", "namespace", "port"),
            registry,
        )
        self.plugin_duration = histogram(
            "plugin_duration_seconds", "Duration of one plugin call.", ("extension_point", "plugin_type", "plugin_name"), SCHEDULING_BUCKETS
        )
        self.scope_violations = counter(
            PREFIX + "plugin_data_scope_violations_total",
            "Accesses to data keys the plugin did not declare.",
            ("extension_point", "plugin_type", "plugin_name", "access"),
        )
        self.poll_errors = counter(PREFIX + "datalayer_poll_errors_total", "Payloads a data source failed to fetch.", ("source_type",))
        errors = "Payloads a collector failed to extract data from."
        self.collect_errors = counter(PREFIX + "datalayer_extract_errors_total", errors, ("source_type", "extractor_type"))
        info = Gauge(PREFIX + "info", "Version of endpick.", ("commit", "build_ref"), registry=registry)
        info.labels("", __version__).set(1)

        self.faults = counter(
            "endpick_plugin_faults_total",
            "Plugin calls that raised or returned an invalid answer.",
            ("plugin_name", "plugin_type", "distribution", "version", "extension_point", "reason"),
        )
        calls = ("plugin_name", "plugin_type", "extension_point")
        self.late_calls = counter("endpick_plugin_late_calls_total", "Plugin calls longer than --plugin-time-budget.", calls)
        self.left_out = counter("endpick_plugin_left_out_total", "Plugin calls skipped because the circuit is open.", calls)
        self.circuits = gauge(
            "endpick_plugin_circuit_state",
            "State of the plugin's circuit: 0 closed, 1 half-open, 2 open (the plugin is skipped).",
            ("plugin_name", "plugin_type"),
        )
        self.hook_faults = counter("endpick_hook_faults_total", "Hook object calls that raised.", ("hook_object", "hook", "reason"))
        self.loop_stalls = counter("endpick_loop_stalls_total", "Event loop stalls.")
        self.loop_stalled_seconds = counter("endpick_loop_stalled_seconds_total", "Total duration of event loop stalls.")
        self.clamped_scores = counter("endpick_scores_clamped_total", "Scores outside 0 to 1, clamped.", ("plugin_name", "plugin_type"))
        self.plugin_info = gauge(
            "endpick_plugin_info",
            "Always 1; one series per plugin instance of the serving configuration.",
            ("plugin_name", "plugin_type", "distribution", "version"),
        )
        self.gateway_bodies = gauge(
            "endpick_gateway_sends_bodies",
            "1 if gateways send bodies of this direction; 0 if one did not in the last 5 minutes.",
            ("direction",),
        )
        self.unread_responses = counter(
            "endpick_unread_responses_total",
            "Compressed responses whose usage could not be read, or whose model name could not be restored.",
            ("encoding", "lost"),
        )
        self.overflows = Counts(
            "endpick_metric_overflows_total",
            "Requests counted under `other` because of --metrics-max-combinations.",
            (),
            registry,
        ).labels()
        self.pool_changes = counter("endpick_pool_changes_total", "Endpoints that joined, left or changed.", ("change",))
        self.pool_left_out = counter("endpick_pool_left_out_total", "Discovery updates with more endpoints than --max-endpoints.")
        self.fleet_peers = gauge("endpick_fleet_peers", "Other pickers that this one exchanges state with.", ())
        self.fleet_connected = gauge("endpick_fleet_connected", "1 while the state store carries messages.", ())
        self.ready = gauge("endpick_ready", "1 if health checks succeed; 0 also on a standby replica without --ha-leader-label.", ())
        self.phase = gauge("endpick_phase", "1 for the current phase: starting, serving, draining or finishing.", ("phase",))
        self.streams_while_draining = counter("endpick_streams_while_draining", "Streams opened and served after SIGTERM.")
        self.uncaught = counter("endpick_uncaught_errors_total", "Errors in finalizers, threads and forgotten tasks.", ("event",))
        self.reloads = counter("endpick_config_reloads_total", "Configuration reloads by outcome.", ("outcome",))
        for outcome in ReloadResult:
            self.reloads.labels(outcome.value)
        self.plan_info = gauge("endpick_plan_info", "Always 1; the label is the hash of the serving plan.", ("hash",))
        self.config_drift = gauge("endpick_config_drift", "1 if the configuration file differs from the serving configuration.", ())
        self.plugin_drift = gauge(
            "endpick_plugin_drift", "1 if the installed version of a plugin's distribution differs from the serving one.", ("distribution",)
        )


# gRPC codes in llm-d's spelling, for streams without a protocol error
CODE_OF: dict[CloseCause, str] = {
    CloseCause.END: "OK",
    CloseCause.RESET: "Canceled",
    CloseCause.DISCONNECT: "Canceled",
    CloseCause.ERROR: "Internal",
    CloseCause.DRAIN: "Unavailable",
}

_NAME_OF = {GrpcStatus.OK: "OK"}


def name_of(status: GrpcStatus) -> str:
    """Return the name of a gRPC status as llm-d writes it, such as `InvalidArgument`."""
    return _NAME_OF.get(status) or "".join(word.capitalize() for word in status.name.split("_"))


class _MeasuredSession:
    """Wraps a session, and records its duration and gRPC status when it ends."""

    __slots__ = ("_clock", "_code", "_metrics", "_opened_at", "_session")

    def __init__(self, session: StreamSession, metrics: StreamMetrics, clock: Callable[[], float]) -> None:
        self._session = session
        self._metrics = metrics
        self._clock = clock
        self._code = ""
        self._opened_at = clock()
        metrics.inflight.value += 1.0

    @property
    def waiting(self) -> Awaitable[object] | None:
        return self._session.waiting

    @property
    def finished(self) -> bool:
        return self._session.finished

    def connect(
        self, interrupt: Callable[[object], None], let_pass: Callable[[PassingBody | None], None] | None = None, traceparent: str = ""
    ) -> None:
        connect = getattr(self._session, "connect", None)
        if connect is not None:
            connect(interrupt, let_pass, traceparent)

    def receive(self, message: bytes) -> Sequence[bytes]:
        return self._replies(self._session.receive, message)

    def resume(self, result: object) -> Sequence[bytes]:
        return self._replies(self._session.resume, result)

    def fail(self, exception: BaseException) -> Sequence[bytes]:
        return self._session.fail(exception)

    def close(self, cause: CloseCause) -> None:
        if self._opened_at >= 0.0:
            self._metrics.inflight.value -= 1.0
            self._metrics.duration.observe(self._clock() - self._opened_at)
            # Resetting an answered stream is no cancellation.
            done = "OK" if self._session.finished else CODE_OF[cause]
            self._metrics.ended.labels(self._code or done).inc()
            self._opened_at = -1.0
        self._session.close(cause)

    def _replies(self, reply: Callable[[T], Sequence[bytes]], argument: T) -> Sequence[bytes]:
        try:
            return reply(argument)
        except ProtocolError as problem:
            self._code = name_of(problem.status)
            raise


def measured(factory: SessionFactory, metrics: StreamMetrics, clock: Callable[[], float]) -> SessionFactory:
    """Return a factory that wraps each session of another one, to record it in the metrics."""
    return lambda: _MeasuredSession(factory(), metrics, clock)
