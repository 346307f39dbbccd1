"""Records what happens in a serving process, as Prometheus metrics and in the log."""

from __future__ import annotations

import logging
from bisect import bisect_left
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
from endpick.host.failures import is_a, kind_of, message_of
from endpick.host.instance import Instance
from endpick.host.kinds import OnFault
from endpick.host.telemetry import ResponsePace
from endpick.host.throttle import LineBudget, Throttle
from endpick.serve.metrics import EndpickMetrics

_log = logging.getLogger("endpick.faults")
_request_log = logging.getLogger("endpick.requests")
_poll_log = logging.getLogger("endpick.data")


_NATURAL: Final = TerminationCause.NATURAL
_ERROR: Final = TerminationCause.ERROR

MAX_COMBINATIONS = 250
MOST_REASONS = 100
"""Classes of exceptions that are told apart: a plugin can make one for each that it raises."""
MOST_PRIORITIES = 100
"""Told apart by metrics of their own, beside those of the combinations that are."""
OTHER = "other"
_MOST_ATTEMPTS = 5000
"""Pairs of an endpoint and a target model; endpoints come and go, and each may serve every model."""

_Combination = tuple[str, str, str, int]
_Labels = tuple[str, str, str, str]
_Attempt = tuple[str, int, str]
"""Name and port of an endpoint, port 0 for none, and the target model."""


class Recorder:
    """The `Telemetry` of a serving process.

    Children of labelled metrics are bound on first use and kept: a label look-up costs more than the observation itself.
    """

    def __init__(
        self,
        metrics: EndpickMetrics,
        clock: Callable[[], float],
        max_combinations: int = MAX_COMBINATIONS,
        log_interval_seconds: float = 30.0,
    ) -> None:
        """Use one per process.

        Args:
            metrics: Where everything is counted.
            clock: Monotonic seconds.
            max_combinations: See `CombinationLimit`.
            log_interval_seconds: How often the same thing is logged at most.
        """
        self._metrics = metrics
        self._throttle = Throttle(clock, log_interval_seconds)
        self._data_lines = LineBudget(clock, log_interval_seconds)
        self._combination = CombinationLimit(max_combinations, self._overflowed)
        self._target_model = LabelLimit(max_combinations)
        self._reason = LabelLimit(MOST_REASONS)
        self._gateway_bodies = BodyModeGauge(metrics.gateway_bodies, clock)
        self._models: dict[_Combination | _Labels, _ModelMetrics] = {}
        self._attempts: dict[_Attempt, Tally] = {}

    def plugin_timer(self, extension_point: str, instance: Instance) -> Distribution:
        """The bound histogram of one instance at one extension point."""
        return self._metrics.plugin_duration.labels(extension_point, instance.type, instance.name)

    def fault(self, instance: Instance, extension_point: str, problem: BaseException | str) -> None:
        """Count a fault, and log it once per interval and instance."""
        reason = self._reason(kind_of(problem)) if isinstance(problem, BaseException) else "answer"
        self._metrics.faults.labels(instance.name, instance.type, instance.distribution, instance.version, extension_point, reason).inc()
        suppressed = self._throttle.admit(f"fault/{instance.name}/{extension_point}/{reason}")
        if suppressed is not None:
            _log.error(
                "plugin fault in %s: %s",
                instance.origin,
                _told(problem),
                # What is unavailable says itself why; where in the plugin it was noticed tells an operator nothing.
                exc_info=problem if isinstance(problem, BaseException) and not is_a(problem, Unavailable) else None,
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
        """Count a call that took too long, and log it once per interval and instance."""
        self._metrics.late_calls.labels(instance.name, instance.type, extension_point).inc()
        suppressed = self._throttle.admit(f"late/{instance.name}/{extension_point}")
        if suppressed is not None:
            text = "%s held the event loop for %.3f s, and all requests waited; --plugin-time-budget says how long a call may take"
            _log.warning(text, instance.origin, seconds, extra={"extension_point": extension_point, "suppressed": suppressed})

    def left_out(self, instance: Instance, extension_point: str) -> None:
        """Count a call that was not made."""
        self._metrics.left_out.labels(instance.name, instance.type, extension_point).inc()

    def circuit_changed(self, instance: Instance, before: BreakerState) -> None:
        """Show it, and log that an instance is left out from now on, is tried again, or has recovered."""
        breaker = instance.breaker
        self._metrics.circuits.labels(instance.name, instance.type).set(breaker.state)
        if breaker.state is BreakerState.OPEN:
            text = "%s is left out for %g s, and requests are %s meanwhile: %s"
            fate = "refused" if instance.on_fault is OnFault.REFUSE else "decided without it"
            advice = "mend the plugin; --circuit-faults and --circuit-cool-down say when it is left out, and for how long"
            _log.error(text, instance.origin, round(breaker.seconds_left, 3), fate, breaker.reason, extra={"advice": advice})
        elif breaker.state is BreakerState.HALF_OPEN:
            _log.warning("%s is called again, after it was left out because %s", instance.origin, breaker.reason)
        elif before is BreakerState.HALF_OPEN:
            _log.info("%s has recovered", instance.origin)

    def clamped(self, instance: Instance, count: int) -> None:
        """Count scores outside 0..1, and log them once per interval."""
        self._metrics.clamped_scores.labels(instance.name, instance.type).inc(count)
        suppressed = self._throttle.admit(f"clamped/{instance.name}")
        if suppressed is not None:
            _log.warning("scores of %s leave the range 0 to 1 and are clamped", instance.origin, extra={"suppressed": suppressed})

    def undeclared_access(self, scope: AccessScope, key: str, access: Literal["read", "write"]) -> None:
        """Count an undeclared access, and log it once per interval."""
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
        """Count a payload that a source could not get, and log it once per interval and endpoint; see `LineBudget`."""
        self._metrics.poll_errors.labels(source.type).inc()
        self._log_data_error("no payload from %s", source, endpoint, problem)

    def collect_error(self, source: Instance, collector: Instance, endpoint: str, problem: BaseException | str) -> None:
        """Count a payload that could not be used, and log it once per interval and endpoint; see `LineBudget`."""
        self._metrics.collect_errors.labels(source.type, collector.type).inc()
        self._log_data_error("%s cannot use a payload", collector, endpoint, problem)

    def gateway_body_modes(self, request_bodies: bool, response_bodies: bool, losses: Sequence[str]) -> None:
        """Show which bodies the gateway sends, and log what plugins lose by those it does not send."""
        self._gateway_bodies.saw("request", request_bodies)
        self._gateway_bodies.saw("response", response_bodies)
        if losses:
            _request_log.warning(
                "the gateway does not send all bodies: %s",
                "; ".join(losses),
                extra={"request_bodies": request_bodies, "response_bodies": response_bodies},
            )

    def request_decided(self, model: str, target_model: str, fairness_id: str, priority: int, size_bytes: int, seconds: float) -> None:
        """Count a request that goes to a model server."""
        key = (model, target_model, fairness_id, priority)
        bound = self._models.get(key) or self._bind_model(key)
        bound.requests.value += 1.0
        bound.running.value += 1.0
        # What `Distribution.observe` does, without the calls.
        processing, sizes = self._metrics.request_processing, bound.request_size
        processing.counts[0 if seconds <= processing.lowest else bisect_left(processing.bounds, seconds)] += 1
        processing.total += seconds
        sizes.counts[bisect_left(sizes.bounds, size_bytes)] += 1
        sizes.total += size_bytes

    def request_refused(self, model: str, target_model: str, fairness_id: str, priority: int, code: str) -> None:
        """Count a request that endpick answered itself."""
        labels = self._combination((model, target_model, fairness_id, priority))
        self._metrics.request_errors.labels(*labels, code).inc()

    def request_scheduled(self, seconds: float, endpoint: Endpoint | None, target_model: str) -> None:
        """Count a scheduling decision by its endpoint, and record how long it took."""
        duration = self._metrics.scheduler_duration
        duration.counts[0 if seconds <= duration.lowest else bisect_left(duration.bounds, seconds)] += 1
        duration.total += seconds
        key = (endpoint.name, endpoint.port, target_model) if endpoint is not None else ("", 0, target_model)
        attempt = self._attempts.get(key) or self._bind_attempt(key)
        attempt.value += 1.0

    def request_ended(self, model: str, target_model: str, fairness_id: str, priority: int, end: ResponseEnd, pace: ResponsePace) -> None:
        """Record sizes, times and tokens of a request that a model server answered."""
        key = (model, target_model, fairness_id, priority)
        bound = self._models.get(key) or self._bind_model(key)
        bound.running.value -= 1.0
        cause, status, seconds, ttft, usage = end.cause, end.status, end.duration_seconds, end.ttft_seconds, end.usage
        seen: list[tuple[Distribution, float]] = []
        if cause is _NATURAL:
            seen.append((bound.duration, seconds))
        if status:
            seen.append((self._metrics.response_processing, pace.processing_seconds))
        if pace.gaps is not None:
            bound.itl.merge(pace.gaps)
        if end.response_bytes:
            seen.append((bound.response_size, end.response_bytes))
        if ttft is not None:
            seen.append((bound.ttft_of_streams if pace.streaming else bound.ttft, ttft))
        if status >= 400 or cause is _ERROR:
            code = "ModelServerError" if status >= 400 else "Error"
            self.request_refused(model, target_model, fairness_id, priority, code)
        if usage is not None:
            output_tokens = usage.completion_tokens
            if usage.prompt_tokens:
                seen.append((bound.input_tokens, usage.prompt_tokens))
            if output_tokens:
                seen.append((bound.output_tokens, output_tokens))
                seen.append((bound.ntpot, seconds / output_tokens))
                if pace.streaming and ttft is not None and output_tokens > 1:
                    seen.append((bound.tpot, (seconds - ttft) / (output_tokens - 1)))
            if usage.cached_tokens is not None:
                seen.append((bound.cached_tokens, usage.cached_tokens))
        # What `Distribution.observe` does, for all of them in one go.
        for distribution, value in seen:
            distribution.counts[bisect_left(distribution.bounds, value)] += 1
            distribution.total += value

    def bodiless_ended(self, fairness_id: str, seconds: float) -> None:
        """Record how long a request without a body took, under no model."""
        self._metrics.duration.labels(*self._combination(("", "", fairness_id, 0))).observe(seconds)

    def _log_data_error(self, text: str, instance: Instance, endpoint: str, problem: BaseException | str) -> None:
        if self._data_lines.is_spent(instance.name):
            return
        suppressed = self._throttle.admit(f"data/{instance.name}/{endpoint}")
        if suppressed is not None:
            kind = kind_of(problem) if isinstance(problem, BaseException) else "answer"
            extra = {"endpoint": endpoint, "reason": f"{kind}: {_told(problem)}", "suppressed": suppressed}
            _poll_log.warning(text, instance.origin, extra=extra)
            if self._data_lines.spend(instance.name):
                advice = (
                    "the metrics page counts all of them: llm_d_epp_datalayer_poll_errors_total, llm_d_epp_datalayer_extract_errors_total"
                )
                _poll_log.warning("no more endpoints are named for %s for a while", instance.origin, extra={"advice": advice})

    def _bind_model(self, key: _Combination) -> _ModelMetrics:
        labels = self._combination(key)
        # Under its own labels a combination is kept by its own name, which is no longer than a label; others share what is kept for them.
        kept: _Combination | _Labels = key if labels == (*key[:3], str(key[3])) else labels
        bound = self._models.get(kept)
        if bound is None:
            bound = self._models[kept] = _ModelMetrics(self._metrics, labels)
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
                "metrics tell no more combinations of model, fairness id and priority apart; --metrics-max-combinations raises the limit",
                extra={"suppressed": suppressed},
            )


class CombinationLimit:
    """The labels of a request: its own for the first combinations of models, fairness id and priority, and `other` for later ones.

    Clients choose models and fairness ids. Each combination has some two hundred samples, so that the page and its writing are bounded
    only if the number of combinations is, and not that of the values of each label. Later ones are told apart by priority alone, as long
    as there are few: who speaks for the API server may give each of thousands of objectives another one every second.
    """

    def __init__(self, maximum: int, overflowed: Callable[[], None]) -> None:
        """`overflowed` is called whenever something does not get its own labels."""
        self._maximum = maximum
        self._overflowed = overflowed
        self._known: dict[_Combination, _Labels] = {}
        self.priority = PriorityLimit()

    def __call__(self, combination: _Combination) -> _Labels:
        """The labels; long strings are cut, see `as_label`."""
        labels = self._known.get(combination)
        if labels is not None:
            return labels
        model, target_model, fairness_id, priority = combination
        cut = as_label(model), as_label(target_model), as_label(fairness_id)
        if (*cut, priority) not in self._known:
            if len(self._known) >= self._maximum:
                self._overflowed()
                return OTHER, OTHER, OTHER, self.priority(priority)
            self._known[*cut, priority] = *cut, str(priority)
        return self._known[*cut, priority]


class PriorityLimit:
    """The labels of the first priorities, and `other` for later ones."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def __call__(self, priority: int) -> str:
        """The label."""
        label = self._known.get(priority)
        if label is None:
            if len(self._known) >= MOST_PRIORITIES:
                return OTHER
            label = self._known[priority] = str(priority)
        return label


def _told(problem: BaseException | str) -> str:
    return message_of(problem) if isinstance(problem, BaseException) else problem


class _ModelMetrics:
    """Bound children for one combination of model, fairness id and priority."""

    def __init__(self, metrics: EndpickMetrics, labels: _Labels) -> None:
        self.requests = metrics.requests.labels(*labels)
        self.request_size = metrics.request_size.labels(*labels)
        self.running = metrics.running.labels(*labels)
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


MEMORY_SECONDS = 300.0
"""How long `BodyModeGauge` remembers a gateway that does not send bodies, after requests of another one that does."""


class BodyModeGauge:
    """Shows 0 for a direction while any gateway does not send its bodies, whichever gateway sent the last request before a scrape."""

    def __init__(self, gauge: Gauge, clock: Callable[[], float]) -> None:
        """`gauge` has the label `direction`; `clock` gives monotonic seconds."""
        self._gauge = gauge
        self._clock = clock
        self._sent: dict[str, bool] = {}
        self._kept_until: dict[str, float] = {}

    def saw(self, direction: str, sent: bool) -> None:
        """Note whether the gateway of the latest request sends bodies of that direction."""
        if direction not in self._sent:
            self._gauge.labels(direction).set_function(partial(self._all_sent, direction))
        elif sent and not self._sent[direction]:
            self._kept_until[direction] = self._clock() + MEMORY_SECONDS
        self._sent[direction] = sent

    def _all_sent(self, direction: str) -> bool:
        return self._sent[direction] and self._clock() >= self._kept_until.get(direction, 0.0)
