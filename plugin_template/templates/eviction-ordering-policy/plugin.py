"""`{{ cookiecutter.plugin_type }}`: evicts the lowest priority first."""

from __future__ import annotations

from typing import Annotated

from endpick.api import Parameters
from endpick.api.flow_control import DispatchedRequest, EvictionOrderingPolicy, SortKey
from pydantic import Field


class {{ cookiecutter.__parameters }}(Parameters):
    """Parameters of the policy."""

    newest_first: Annotated[
        bool, Field(alias="newestFirst", description="Of equal priorities, evict the newest request first.")
    ] = True


class {{ cookiecutter.__class }}(EvictionOrderingPolicy[{{ cookiecutter.__parameters }}]):
    """Evict the lowest priority first; of equal priorities, the newest request, which loses the least work."""

    def sort_key(self, dispatched: DispatchedRequest) -> SortKey:
        """Return the sort key: the smallest is evicted first."""
        at = dispatched.dispatched_at
        return (dispatched.request.priority, -at if self.parameters.newest_first else at)
