"""Instruments that feed Prometheus and the log: what a serving process uses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal

from endpick.api.access import AccessScope
from endpick.api.labels import LabelLimit
from endpick.api.requests import ResponseEnd, TerminationCause
from endpick.observability.gateway_bodies import GatewayBodies
from endpick.observability.metrics import EndpickMetrics
from endpick.observability.throttle import Throttle
from endpick.plugins.instance import Instance

_log = logging.getLogger("endpick.faults")
_request_log = logging.getLogger("endpick.requests")
_poll_log = logging.getLogger("endpick.data")


class Recorder:
    """The `Instruments` of a serving process.

    Children of labelled metrics are bound on first use and kept: a label look-up costs more than the observation itself.
    """

    def __init__(self, metrics: EndpickMetrics, clock: Callable[[], float], log_interval_seconds: float = 30.0) -> None:
        """Use one per process; `clock` gives monotonic seconds."""
        self._metrics = metrics
        self._throttle = Throttle(clock, log_interval_seconds)
        self._label = LabelLimit()
        self._gateway_bodies = GatewayBodies(metrics.gateway_bodies, clock)
        self._models: dict[tuple[str, str, str, int], _ModelMetrics] = {}
        self._attempts: dict[tuple[str | None, str], Callable[[], None]] = {}

    def plugin_timer(self, extension_point: str, instance: Instance) -> Callable[[float], None]:
        """The bound histogram of one instance at one extension point."""
        return self._metrics.plugin_duration.labels(extension_point, instance.type, instance.name).observe

    def fault(self, instance: Instance, extension_point: str, problem: BaseException | str) -> None:
        """Count a fault, and log it once per interval and instance."""
        reason = type(problem).__name__ if isinstance(problem, BaseException) else "answer"
        self._metrics.faults.labels(instance.name, instance.type, instance.distribution, instance.version, extension_point, reason).inc()
        suppressed = self._throttle.admit(f"fault/{instance.name}/{extension_point}/{reason}")
        if suppressed is not None:
            _log.error(
                "plugin fault in %s: %s",
                instance.origin,
                problem,
                exc_info=problem if isinstance(problem, BaseException) else None,
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

    def clamped(self, instance: Instance, count: int) -> None:
        """Count scores outside 0..1, and log them once per interval."""
        self._metrics.clamped_scores.labels(instance.name, instance.type).inc(count)
        suppressed = self._throttle.admit(f"clamped/{instance.name}")
        if suppressed is not None:
            _log.warning("scores of %s leave the range 0 to 1 and are clamped", instance.origin, extra={"suppressed": suppressed})

    def undeclared_access(self, scope: AccessScope, key: str, access: Literal["read", "write"]) -> None:
        """Count an undeclared access, and log it once per interval."""
        self._metrics.scope_violations.labels("", "", scope.instance, access).inc()
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
        """Count a payload that did not come, and log it once per interval and endpoint."""
        self._metrics.poll_errors.labels(source.type).inc()
        self._log_data_error("no payload from %s", source, endpoint, problem)

    def collect_error(self, source: Instance, collector: Instance, endpoint: str, problem: BaseException | str) -> None:
        """Count a payload that could not be used, and log it once per interval and endpoint."""
        self._metrics.collect_errors.labels(source.type, collector.type).inc()
        self._log_data_error("%s cannot use a payload", collector, endpoint, problem)

    def gateway_delivers(self, request_bodies: bool, response_bodies: bool, losses: Sequence[str]) -> None:
        """Show which bodies come, and say what is lost by those that do not."""
        self._gateway_bodies.saw("request", request_bodies)
        self._gateway_bodies.saw("response", response_bodies)
        if losses:
            _request_log.warning(
                "the gateway keeps bodies to itself: %s",
                "; ".join(losses),
                extra={"request_bodies": request_bodies, "response_bodies": response_bodies},
            )

    def request_decided(self, model: str, target_model: str, fairness_id: str, priority: int, size_bytes: int) -> None:
        """A request goes to a model server."""
        bound = self._model(model, target_model, fairness_id, priority)
        bound.requests()
        bound.request_size(size_bytes)
        bound.running_up()

    def request_refused(self, model: str, target_model: str, fairness_id: str, priority: int, code: str) -> None:
        """Endpick answered the request itself."""
        labels = self._labels(model, target_model, fairness_id, priority)
        self._metrics.request_errors.labels(*labels, code).inc()

    def request_scheduled(self, seconds: float, destination: str | None, target_model: str) -> None:
        """Scheduling took this long and came to this."""
        self._metrics.scheduler_duration.observe(seconds)
        key = (destination, target_model)
        attempt = self._attempts.get(key)
        if attempt is None:
            attempt = self._attempts[key] = self._bind_attempt(destination, self._label(target_model))
        attempt()

    def request_ended(self, model: str, target_model: str, fairness_id: str, priority: int, streaming: bool, end: ResponseEnd) -> None:
        """A request that went to a model server is over."""
        bound = self._model(model, target_model, fairness_id, priority)
        bound.running_down()
        bound.duration(end.duration_seconds)
        if end.response_bytes:
            bound.response_size(end.response_bytes)
        if end.ttft_seconds is not None:
            bound.ttft[streaming](end.ttft_seconds)
        if end.status >= 400 or end.cause is TerminationCause.ERROR:
            code = "ModelServerError" if end.status >= 400 else "Error"
            self.request_refused(model, target_model, fairness_id, priority, code)
        if end.usage is None:
            return
        if end.usage.prompt_tokens:
            bound.input_tokens(end.usage.prompt_tokens)
        if end.usage.completion_tokens:
            bound.output_tokens(end.usage.completion_tokens)
            bound.ntpot(end.duration_seconds / end.usage.completion_tokens)
        if end.usage.cached_tokens is not None:
            bound.cached_tokens(end.usage.cached_tokens)

    def _log_data_error(self, text: str, instance: Instance, endpoint: str, problem: BaseException | str) -> None:
        suppressed = self._throttle.admit(f"data/{instance.name}/{endpoint}")
        if suppressed is not None:
            kind = type(problem).__name__ if isinstance(problem, BaseException) else "answer"
            extra = {"endpoint": endpoint, "reason": f"{kind}: {problem}", "suppressed": suppressed}
            _poll_log.warning(text, instance.origin, extra=extra)

    def _labels(self, model: str, target_model: str, fairness_id: str, priority: int) -> tuple[str, str, str, str]:
        return self._label(model), self._label(target_model), self._label(fairness_id), str(priority)

    def _model(self, model: str, target_model: str, fairness_id: str, priority: int) -> _ModelMetrics:
        key = (model, target_model, fairness_id, priority)
        bound = self._models.get(key)
        if bound is None:
            labels = self._labels(*key)
            bound = _ModelMetrics(self._metrics, labels)
            if "other" not in labels:
                self._models[key] = bound
        return bound

    def _bind_attempt(self, destination: str | None, target_model: str) -> Callable[[], None]:
        if destination is None:
            return self._metrics.scheduler_attempts.labels("failure", target_model, "", "", "").inc
        _host, _, port = destination.rpartition(":")
        return self._metrics.scheduler_attempts.labels("success", target_model, destination, "", port).inc


class _ModelMetrics:
    """Bound children for one combination of model, fairness id and priority."""

    def __init__(self, metrics: EndpickMetrics, labels: tuple[str, str, str, str]) -> None:
        running = metrics.running.labels(*labels)
        self.requests = metrics.requests.labels(*labels).inc
        self.request_size = metrics.request_size.labels(*labels).observe
        self.running_up, self.running_down = running.inc, running.dec
        self.duration = metrics.duration.labels(*labels).observe
        self.response_size = metrics.response_size.labels(*labels).observe
        self.ttft = {streaming: metrics.ttft.labels(*labels, str(streaming).lower()).observe for streaming in (False, True)}
        self.input_tokens = metrics.input_tokens.labels(*labels).observe
        self.output_tokens = metrics.output_tokens.labels(*labels).observe
        self.cached_tokens = metrics.cached_tokens.labels(*labels).observe
        self.ntpot = metrics.ntpot.labels(*labels).observe
