"""Proxies for instances that other plugins call: each call goes through the plugin boundary of the called instance."""

from __future__ import annotations

import numpy as np

from endpick.api import DisaggregationDecider, Endpoints, InferenceRequest, Parameters, PluginContext, ScoringState
from endpick.host.boundary import Fault, Step, bind
from endpick.host.failures import FaultOfAnother
from endpick.host.instance import Instance
from endpick.host.telemetry import Telemetry


class DeciderProxy(DisaggregationDecider[Parameters]):
    """Calls a decider on behalf of the plugin whose parameters name it."""

    _step: Step

    def connect(self, instance: Instance, telemetry: Telemetry) -> None:
        """Bind the decider; done when a plan is compiled."""
        self._step = bind(instance, DisaggregationDecider, "disaggregate", telemetry)

    def disaggregate(self, request: InferenceRequest, endpoint: Endpoints, state: ScoringState) -> bool:
        """The decider's answer; False if it fails and its `onFault` is to skip.

        Raises:
            FaultOfAnother: it failed and its `onFault` is to refuse the request.
        """
        access = state._access
        caller = access.scope
        answer = self._step.run(access, request, endpoint, state)
        access.scope = caller
        if isinstance(answer, bool | np.bool_):
            return bool(answer)
        fault = answer if isinstance(answer, Fault) else self._step.fault(f"answered {type(answer).__name__}, not a bool")
        if fault.refuses:
            raise FaultOfAnother(fault)
        return False


def proxy_for(instance: Instance) -> DeciderProxy | None:
    """A proxy for an instance of a kind that is called by reference; None for all others."""
    if DisaggregationDecider not in instance.kinds:
        return None
    return DeciderProxy(instance.name, instance.plugin.parameters, PluginContext())
