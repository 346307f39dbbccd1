"""`shadow-profile-handler`: runs a second profile on some requests, to compare its decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from endpick.api import (
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    CycleState,
    Endpoints,
    InferenceRequest,
    PluginContext,
    ProfileHandler,
    ProfileRunResult,
    SchedulingResult,
)
from endpick.api.fast_metrics import Counts
from endpick.api.keys import PREFIX_BLOCKS, PREFIX_MATCH_BLOCKS
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.handlers.outcome import addresses, picked_by


class ShadowParameters(CamelParameters):
    """Names the two profiles, and sets how often the second one runs."""

    profile: Annotated[str, Field(min_length=1, description="Profile whose pick serves the request.")] = "default"
    shadow_profile: Annotated[str, Field(min_length=1, description="Profile that is tried.")] = "shadow"
    sample_rate: Annotated[float, Field(ge=0.0, le=1.0, description="Share of the requests on which it runs.")] = 0.1


class ShadowProfileHandler(ProfileHandler[ShadowParameters]):
    """Lets one profile decide, and runs another on a sample of the requests without any effect on them.

    Metrics compare the two on the sampled requests: how often they agree, and for each the cached prompt tokens that it expected and the
    requests that waited or ran at its pick. Records and traces of these requests name the pick of the shadow. Plugins that learn from
    sent requests learn nothing from the shadow.
    """

    consumes_optional = (PREFIX_BLOCKS, PREFIX_MATCH_BLOCKS, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE)

    @classmethod
    def required_profiles(cls, parameters: ShadowParameters) -> tuple[str, ...]:
        return parameters.profile, parameters.shadow_profile

    def __init__(self, name: str, parameters: ShadowParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        registry = context.registry
        self._compared = Counts("endpick_shadow_decisions", "Decisions of the shadow profile, by outcome.", ("outcome",), registry)
        self._cached = Counts("endpick_shadow_expected_cached_tokens", "Prompt tokens cached at the picks.", ("profile",), registry)
        self._load = Counts("endpick_shadow_requests_at_picks", "Requests that waited or ran at the picks.", ("profile",), registry)

    def pick_profiles(
        self, request: InferenceRequest, profiles: Sequence[str], results: Mapping[str, ProfileRunResult], state: CycleState
    ) -> Sequence[str]:
        own = self.parameters
        if not results:
            return (own.profile,)
        is_sampled = len(results) == 1 and self.context.random.random() < own.sample_rate
        return (own.shadow_profile,) if is_sampled else ()

    def process_results(self, request: InferenceRequest, results: Mapping[str, ProfileRunResult], state: CycleState) -> SchedulingResult:
        own = self.parameters
        picked = picked_by(results, own.profile)
        if picked is None:
            return SchedulingResult.failed(f"failed to run scheduler profile '{own.profile}'")
        if own.shadow_profile in results:
            self._compare(picked, picked_by(results, own.shadow_profile), state)
        return SchedulingResult(own.profile, {own.profile: results[own.profile]}, addresses(picked))

    def _compare(self, picked: Endpoints, shadow: Endpoints | None, state: CycleState) -> None:
        if shadow is None:
            self._compared.labels("failed").inc()
            return
        agree = picked.members[0] is shadow.members[0]
        self._compared.labels("agreed" if agree else "disagreed").inc()
        state.annotate("shadow_pick", shadow.members[0].name)
        blocks = state.get(PREFIX_BLOCKS)
        size = 0 if blocks is None else blocks.block_size_tokens
        for profile, pick in (("actual", picked), ("shadow", shadow)):
            first = pick.take([0])
            self._cached.labels(profile).value += float(np.nan_to_num(state.column(PREFIX_MATCH_BLOCKS, first))[0]) * size
            self._load.labels(profile).value += float(np.nansum(first[WAITING_QUEUE_SIZE]) + np.nansum(first[RUNNING_REQUESTS_SIZE]))
