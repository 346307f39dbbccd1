"""`{{ cookiecutter.plugin_type }}`: serves the flow with the fewest waiting requests."""

from __future__ import annotations

from typing import Annotated

from endpick.api import Parameters
from endpick.api.flow_control import Band, FairnessPolicy, Flow
from pydantic import Field


class {{ cookiecutter.__parameters }}(Parameters):
    """The longest preference for small flows."""

    patience_seconds: Annotated[
        float,
        Field(alias="patienceSeconds", ge=0, description="A request that waits longer goes first, whatever its flow."),
    ] = 5.0


class {{ cookiecutter.__class }}(FairnessPolicy[{{ cookiecutter.__parameters }}]):
    """Serves the flow with the fewest waiting requests; requests waiting longer than `patienceSeconds` go first.

    Scans every flow of the band for each dispatch. For thousands of flows, keep them in order in
    `flow_changed` instead.
    """

    def choose(self, band: Band) -> Flow | None:
        """Choose the flow to serve next."""
        before = self.context.clock() - self.parameters.patience_seconds

        def rank(flow: Flow) -> tuple[bool, float]:
            head = flow.head
            late = head is not None and head.enqueued_at < before
            return (False, head.enqueued_at) if late and head else (True, len(flow))

        return min(band.flows, key=rank, default=None)
