"""What plugins are given in place of the instances that their parameters name: the boundary around calls from plugin to plugin."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from endpick.api import DisaggregationDecider, Endpoints, InferenceRequest, Parameters, PluginContext, ScoringState
from endpick.host.boundary import Fault, Step, bind
from endpick.host.failures import FaultOfAnother, kind_of
from endpick.host.instance import Instance
from endpick.host.kinds import Kind
from endpick.host.telemetry import Telemetry


class DeciderStandIn(DisaggregationDecider[Parameters]):
    """Calls a decider as the host calls plugins: timed, confined to the data keys of the decider, its faults its own."""

    _step: Step

    def connect(self, instance: Instance, telemetry: Telemetry) -> None:
        """Say whom to call, and where to report the calls; done when a plan is compiled, before its first request."""
        self._step = bind(instance, DisaggregationDecider, "disaggregate", telemetry)

    def disaggregate(self, request: InferenceRequest, endpoint: Endpoints, state: ScoringState) -> bool:
        """What the decider says; False when it fails and is to be skipped.

        Raises:
            FaultOfAnother: it fails and the request is to be refused.
        """
        answer = self._step.run(state._access, request, endpoint, state)
        if type(answer) is bool or type(answer) is np.bool_:  # not `isinstance`, which asks the answer
            return bool(answer)
        fault = answer if type(answer) is Fault else self._step.fault(f"answered {kind_of(answer)}, not a bool")
        if fault.refuses:
            raise FaultOfAnother(fault)
        return False


_OF_KIND: Mapping[Kind, type[DeciderStandIn]] = {DisaggregationDecider: DeciderStandIn}
"""A row for each kind that the table of kinds calls `by_reference`."""


def stand_in_for(instance: Instance) -> DeciderStandIn | None:
    """A new one for an instance that others may name; None for all others."""
    kind = next((kind for kind in instance.kinds if kind in _OF_KIND), None)
    return None if kind is None else _OF_KIND[kind](instance.name, instance.plugin.parameters, PluginContext())
