"""The telemetry of a serving process: Prometheus metrics and log lines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal

from prometheus_client.metrics import Gauge

from endpick.api.access import AccessScope
from endpick.api.endpoint import Endpoint
from endpick.api.errors import Unavailable
from endpick.api.fast_metrics import Distribution, Tally
from endpick.api.metrics import LabelLimit, as_label
from endpick.api.request_control import ResponseEnd, TerminationCause
from endpick.host.breaker import BreakerState
from endpick.host.failures import describe_error
from endpick.host.instance import Instance
from endpick.host.kinds import OnFault
from endpick.host.telemetry import ResponsePace, Telemetry, Throttle
from endpick.serve.metrics import EndpickMetrics

_log = logging.getLogger("endpick.faults")
_request_log = logging.getLogger("endpick.requests")
_poll_log = logging.getLogger("endpick.data")


_NATURAL: Final = TerminationCause.NATURAL
_ERROR: Final = TerminationCause.ERROR

MAX_COMBINATIONS = 100
DETAILED_SHARE = 5  # one in 5 combinations has its own histograms, of about 75 kB; counters take 1 kB
MOST_REASONS = 100
MOST_PRIORITIES = 100
OTHER = "other"
_MOST_ATTEMPTS = 5000  # pairs of an endpoint and a target model

_Combination = tuple[str, str, str, int]
_Labels = tuple[str, str, str, str]
_Attempt = tuple[str, int, str]  # name and port of an endpoint (port 0 for none), target model


class Recorder(Telemetry):
    """The `Telemetry` of a process; binds labels once, as lookups cost more than observations."""

    def __init__(
        self,
        metrics: EndpickMetrics,
        clock: Callable[[], float],
        max_combinations: int = MAX_COMBINATIONS,
        log_interval_seconds: float = 30.0,
    ) -> None:
        self._metrics = metrics
        self._throttle = Throttle(clock, log_interval_seconds)
        self._combination = CombinationLimit(max_combinations, self._overflowed)
        self._detailed = CombinationLimit(detailed_combinations(max_combinations), lambda: None)
        self._target_model = LabelLimit(detailed_combinations(max_combinations))
        self._reason = LabelLimit(MOST_REASONS)
        self._encoding = LabelLimit(MOST_REASONS)
        self._unread: set[tuple[str, str]] = set()
        self._gateway_bodies = _BodyModeGauge(metrics.gateway_bodies, clock)
        self._models: dict[_Combination | _Labels, _ModelMetrics] = {}
        self._attempts: dict[_Attempt, Tally] = {}

    def plugin_timer(self, extension_point: str, instance: Instance) -> Distribution:
        return self._metrics.plugin_duration.labels(extension_point, instance.type, instance.name)

    def fault(self, instance: Instance, extension_point: str, problem: BaseException | str) -> None:
        is_error = isinstance(problem, BaseException)
        reason = self._reason(type(problem).__name__) if is_error else "answer"
        self._metrics.faults.labels(instance.name, instance.type, instance.distribution, instance.version, extension_point, reason).inc()
        suppressed = self._throttle.admit(f"fault/{instance.name}/{extension_point}/{reason}")
        if suppressed is not None:
            _log.error(
                "plugin fault in %s: %s",
                instance.origin,
                problem,
                exc_info=problem if isinstance(problem, BaseException) and not isinstance(problem, Unavailable) else None,
                extra={
                    "plugin": instance.name,
                    "type": instance.type,
                    "dist": instance.distribution,
                    "dist_version": instance.version,
                    "extension_point": extension_point,
                    "on_fault": instance.on_fault.value,
                    "suppressed": suppressed,
                },
            )

    def late(self, instance: Instance, extension_point: str, seconds: float) -> None:
        self._metrics.late_calls.labels(instance.name, instance.type, extension_point).inc()
        suppressed = self._throttle.admit(f"late/{instance.name}/{extension_point}")
        if suppressed is not None:
            text = "%s blocked the event loop for %.3f s, longer than --plugin-time-budget"
            _log.warning(text, instance.origin, seconds, extra={"extension_point": extension_point, "suppressed": suppressed})

    def left_out(self, instance: Instance, extension_point: str) -> None:
        self._metrics.left_out.labels(instance.name, instance.type, extension_point).inc()

    def circuit_changed(self, instance: Instance, before: BreakerState) -> None:
        breaker = instance.breaker
        self._metrics.circuits.labels(instance.name, instance.type).set(breaker.state)
        if breaker.state is BreakerState.OPEN:
            text = "%s is left out for %g s, and requests are %s meanwhile: %s"
            fate = "refused" if instance.on_fault is OnFault.REFUSE else "decided without it"
            advice = "fix the plugin, or adjust --circuit-faults and --circuit-cool-down"
            _log.error(text, instance.origin, round(breaker.seconds_left, 3), fate, breaker.reason, extra={"advice": advice})
        elif breaker.state is BreakerState.HALF_OPEN:
            _log.warning("%s is called again, after it was left out because %s", instance.origin, breaker.reason)
        elif before is BreakerState.HALF_OPEN:
            _log.info("%s has recovered", instance.origin)

    def clamped(self, instance: Instance, count: int) -> None:
        self._metrics.clamped_scores.labels(instance.name, instance.type).inc(count)
        suppressed = self._throttle.admit(f"clamped/{instance.name}")
        if suppressed is not None:
            _log.warning("scores of %s are outside 0 to 1 and are clamped", instance.origin, extra={"suppressed": suppressed})

    def undeclared_access(self, scope: AccessScope, key: str, access: Literal["read", "write"]) -> None:
        self._metrics.scope_violations.labels(scope.extension_point, scope.plugin_type, scope.instance, access).inc()
        suppressed = self._throttle.admit(f"access/{scope.instance}/{key}/{access}")
        if suppressed is not None:
            declared = "consumes" if access == "read" else "produces"
            _log.warning(
                "instance '%s' %ss data key '%s' without declaring it in `%s`",
                scope.instance,
                access,
                key,
                declared,
                extra={"suppressed": suppressed},
            )

    def poll_error(self, source: Instance, endpoint: str, problem: BaseException | str) -> None:
        self._metrics.poll_errors.labels(source.type).inc()
        self._log_data_error("no payload from %s", source, endpoint, problem)

    def collect_error(self, source: Instance, collector: Instance, endpoint: str, problem: BaseException | str) -> None:
        self._metrics.collect_errors.labels(source.type, collector.type).inc()
        self._log_data_error("%s cannot use a payload", collector, endpoint, problem)

    def gateway_body_modes(self, request_bodies: bool, response_bodies: bool, losses: Sequence[str]) -> None:
        self._gateway_bodies.saw("request", request_bodies)
        self._gateway_bodies.saw("response", response_bodies)
        if losses:
            _request_log.warning(
                "the gateway does not send all bodies: %s",
                "; ".join(losses),
                extra={"request_bodies": request_bodies, "response_bodies": response_bodies},
            )

    def unread_response(self, encoding: str, lost: str) -> None:
        labels = self._encoding(encoding), lost
        self._metrics.unread_responses.labels(*labels).inc()
        if labels not in self._unread:
            self._unread.add(labels)
            text = "the %s in responses with content-encoding %s cannot be read; install endpick[compression] for br and zstd"
            advice = "compress responses after ext_proc in the gateway, not in the model server"
            _request_log.warning(text, lost, labels[0], extra={"advice": advice})

    def request_decided(self, model: str, target_model: str, fairness_id: str, priority: int, size_bytes: int, seconds: float) -> None:
        key = (model, target_model, fairness_id, priority)
        bound = self._models.get(key) or self._bind_model(key)
        bound.requests.value += 1.0
        bound.running.value += 1.0
        bound.request_size.observe(size_bytes)
        self._metrics.request_processing.observe(seconds)

    def request_refused(self, model: str, target_model: str, fairness_id: str, priority: int, code: str) -> None:
        labels = self._combination((model, target_model, fairness_id, priority))
        self._metrics.request_errors.labels(*labels, code).inc()

    def request_scheduled(self, seconds: float, endpoint: Endpoint | None, target_model: str) -> None:
        self._metrics.scheduler_duration.observe(seconds)
        key = (endpoint.name, endpoint.port, target_model) if endpoint is not None else ("", 0, target_model)
        attempt = self._attempts.get(key) or self._bind_attempt(key)
        attempt.value += 1.0

    def request_ended(self, model: str, target_model: str, fairness_id: str, priority: int, end: ResponseEnd, pace: ResponsePace) -> None:
        key = (model, target_model, fairness_id, priority)
        bound = self._models.get(key) or self._bind_model(key)
        bound.running.value -= 1.0
        cause, status, seconds, ttft, usage = end.cause, end.status, end.duration_seconds, end.ttft_seconds, end.usage
        if cause is _NATURAL:
            bound.duration.observe_request(seconds, pace.request_id)
        if status:
            self._metrics.response_processing.observe(pace.processing_seconds)
        if pace.gaps is not None:
            bound.itl.merge(pace.gaps)
        if end.response_bytes:
            bound.response_size.observe(end.response_bytes)
        if ttft is not None:
            (bound.ttft_of_streams if pace.streaming else bound.ttft).observe_request(ttft, pace.request_id)
        if status >= 400 or cause is _ERROR:
            code = "ModelServerError" if status >= 400 else "Error"
            self.request_refused(model, target_model, fairness_id, priority, code)
        if usage is not None:
            output_tokens = usage.completion_tokens
            if usage.prompt_tokens:
                bound.input_tokens.observe(usage.prompt_tokens)
            if output_tokens:
                bound.output_tokens.observe(output_tokens)
                bound.ntpot.observe(seconds / output_tokens)
                if pace.streaming and ttft is not None and output_tokens > 1:
                    bound.tpot.observe_request((seconds - ttft) / (output_tokens - 1), pace.request_id)
            if usage.cached_tokens is not None:
                bound.cached_tokens.observe(usage.cached_tokens)

    def bodiless_ended(self, fairness_id: str, seconds: float) -> None:
        self._metrics.duration.labels(*self._detailed(("", "", fairness_id, 0))).observe(seconds)

    def _log_data_error(self, text: str, instance: Instance, endpoint: str, problem: BaseException | str) -> None:
        suppressed = self._throttle.admit(f"data/{instance.name}/{endpoint}")
        if suppressed is not None:
            reason = describe_error(problem) if isinstance(problem, BaseException) else f"answer: {problem}"
            _poll_log.warning(text, instance.origin, extra={"endpoint": endpoint, "reason": reason, "suppressed": suppressed})

    def _bind_model(self, key: _Combination) -> _ModelMetrics:
        labels = self._combination(key)
        # Kept under its labels if cut or `other`, which bounds the size of `_models`.
        kept: _Combination | _Labels = key if labels == (*key[:3], str(key[3])) else labels
        bound = self._models.get(kept)
        if bound is None:
            bound = self._models[kept] = _ModelMetrics(self._metrics, labels, self._detailed((*labels[:3], key[3])))
        return bound

    def _bind_attempt(self, attempt: _Attempt) -> Tally:
        endpoint, port, target_model = attempt
        label = OTHER if len(self._attempts) >= _MOST_ATTEMPTS else self._target_model(as_label(target_model))
        key = endpoint, port, label
        bound = self._attempts.get(key)
        if bound is None:
            namespace, _, name = endpoint.rpartition("/")
            outcome = ("success", label, name, namespace, str(port)) if port else ("failure", label, "", "", "")
            bound = self._attempts[key] = self._metrics.scheduler_attempts.labels(*outcome)
        return bound

    def _overflowed(self) -> None:
        self._metrics.overflows.inc()
        suppressed = self._throttle.admit("overflow")
        if suppressed is not None:
            _request_log.warning(
                "too many combinations of model, fairness id and priority: later ones count as `other`; see --metrics-max-combinations",
                extra={"suppressed": suppressed},
            )


def detailed_combinations(max_combinations: int) -> int:
    """Return how many label combinations get their own histograms."""
    return max(1, max_combinations // DETAILED_SHARE)


class CombinationLimit:
    """Limits label combinations to the first ones, because clients choose the values.

    Later combinations are labelled `other`, and keep their priority if it is among the first 100.
    """

    def __init__(self, maximum: int, overflowed: Callable[[], None]) -> None:
        """Make a limit of `maximum` combinations; it calls `overflowed` for each one beyond."""
        self._maximum = maximum
        self._overflowed = overflowed
        self._known: dict[_Combination, _Labels] = {}
        self.priority = LabelLimit(MOST_PRIORITIES)

    def __call__(self, combination: _Combination) -> _Labels:
        """Return the labels of a combination, each cut by `as_label`; `other` beyond the maximum."""
        labels = self._known.get(combination)
        if labels is not None:
            return labels
        model, target_model, fairness_id, priority = combination
        cut = as_label(model), as_label(target_model), as_label(fairness_id)
        if (*cut, priority) not in self._known:
            if len(self._known) >= self._maximum:
                self._overflowed()
                return OTHER, OTHER, OTHER, self.priority(str(priority))
            self._known[*cut, priority] = *cut, str(priority)
        return self._known[*cut, priority]


class _ModelMetrics:
    def __init__(self, metrics: EndpickMetrics, counted: _Labels, labels: _Labels) -> None:
        self.requests = metrics.requests.labels(*counted)
        self.running = metrics.running.labels(*counted)
        self.request_size = metrics.request_size.labels(*labels)
        self.duration = metrics.duration.labels(*labels)
        self.response_size = metrics.response_size.labels(*labels)
        self.ttft = metrics.ttft.labels(*labels, "false")
        self.ttft_of_streams = metrics.ttft.labels(*labels, "true")
        self.input_tokens = metrics.input_tokens.labels(*labels)
        self.output_tokens = metrics.output_tokens.labels(*labels)
        self.cached_tokens = metrics.cached_tokens.labels(*labels)
        self.ntpot = metrics.ntpot.labels(*labels)
        self.tpot = metrics.tpot.labels(*labels)
        self.itl = metrics.itl.labels(*labels)


MEMORY_SECONDS = 300.0  # of a gateway that does not send bodies


class _BodyModeGauge:
    """0 for a direction while any gateway does not send its bodies."""

    def __init__(self, gauge: Gauge, clock: Callable[[], float]) -> None:
        self._gauge = gauge
        self._clock = clock
        self._sent: dict[str, bool] = {}
        self._kept_until: dict[str, float] = {}

    def saw(self, direction: str, sent: bool) -> None:
        if direction not in self._sent:
            self._gauge.labels(direction).set_function(partial(self._all_sent, direction))
        elif sent and not self._sent[direction]:
            self._kept_until[direction] = self._clock() + MEMORY_SECONDS
        self._sent[direction] = sent

    def _all_sent(self, direction: str) -> bool:
        return self._sent[direction] and self._clock() >= self._kept_until.get(direction, 0.0)
