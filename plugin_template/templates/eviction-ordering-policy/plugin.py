"""`{{ cookiecutter.plugin_type }}`: evicts the lowest priority first."""

from __future__ import annotations

from typing import Annotated

from endpick.api import Parameters
from endpick.api.flow_control import DispatchedRequest, EvictionOrderingPolicy, SortKey
from pydantic import Field


class {{ cookiecutter.__parameters }}(Parameters):
    """Order of equal priorities."""

    newest_first: Annotated[
        bool, Field(alias="newestFirst", description="Of equal priorities, evict what was sent last.")
    ] = True


class {{ cookiecutter.__class }}(EvictionOrderingPolicy[{{ cookiecutter.__parameters }}]):
    """Evicts the lowest priority first; among equals the newest, which loses the least work."""

    def sort_key(self, dispatched: DispatchedRequest) -> SortKey:
        """Sort key of a request: the smallest is evicted first."""
        at = dispatched.dispatched_at
        return (dispatched.request.priority, -at if self.parameters.newest_first else at)
