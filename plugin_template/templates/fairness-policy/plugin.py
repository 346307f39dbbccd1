"""`{{ cookiecutter.plugin_type }}`: serves the flow with the fewest waiting requests."""

from __future__ import annotations

from typing import Annotated

from endpick.api import Parameters
from endpick.api.flow_control import Band, FairnessPolicy, Flow
from pydantic import Field


class {{ cookiecutter.__parameters }}(Parameters):
    """Parameters of the policy."""

    patience_seconds: Annotated[
        float,
        Field(alias="patienceSeconds", ge=0, description="A request that waits longer goes first, from any flow."),
    ] = 5.0


class {{ cookiecutter.__class }}(FairnessPolicy[{{ cookiecutter.__parameters }}]):
    """Serve the flow with the fewest waiting requests, after requests older than `patienceSeconds`.

    It scans all flows of the band for every dispatch; for thousands of flows, sort them in `flow_changed`.
    """

    def choose(self, band: Band) -> Flow | None:
        """Return the flow to serve next."""
        before = self.context.clock() - self.parameters.patience_seconds

        def rank(flow: Flow) -> tuple[bool, float]:
            head = flow.head
            late = head is not None and head.enqueued_at < before
            return (False, head.enqueued_at) if late and head else (True, len(flow))

        return min(band.flows, key=rank, default=None)
