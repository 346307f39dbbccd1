"""`{{ cookiecutter.plugin_type }}`: evicts the lowest priority first."""

from __future__ import annotations

from typing import Annotated

from endpick.api import Parameters
from endpick.api.flow_control import DispatchedRequest, EvictionOrderingPolicy, SortKey
from pydantic import Field


class {{ cookiecutter.__parameters }}(Parameters):
    """What comes first among equals."""

    newest_first: Annotated[
        bool, Field(alias="newestFirst", description="Of equal priorities, evict what was sent last.")
    ] = True


class {{ cookiecutter.__class }}(EvictionOrderingPolicy[{{ cookiecutter.__parameters }}]):
    """Evict the lowest priority first and, of equals, the newest, which has the least work to lose."""

    def sort_key(self, dispatched: DispatchedRequest) -> SortKey:
        """Rate a request: the smallest number is evicted first."""
        at = dispatched.dispatched_at
        return (dispatched.request.priority, -at if self.parameters.newest_first else at)
