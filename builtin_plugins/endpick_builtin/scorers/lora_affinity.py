"""`lora-affinity-scorer`: prefer servers that have the adapter loaded, then those with room for it."""

from __future__ import annotations

import numpy as np

from endpick.api import (
    LORA_ADAPTERS,
    Category,
    Endpoints,
    FloatArray,
    InferenceRequest,
    LoraAdapters,
    PluginMeta,
    Scorer,
    ScoringState,
)

RUNNING = 1.0
ROOM = 0.8
WAITING = 0.6
FULL = 0.0


class LoraAffinityScorer(Scorer):
    """Prefer endpoints that run the requested LoRA adapter.

    score = 1 where the requested model is a running adapter; else 0.8 where fewer adapters run and wait than fit; else 0.6 where it is
    waiting to be loaded; else 0. An endpoint that has not reported adapters scores 0. As in llm-d, a request for a base model is rated
    the same way: no server lists it as an adapter.
    """

    meta = PluginMeta(type="lora-affinity-scorer", api=">=1.0,<2", consumes=(LORA_ADAPTERS,), category=Category.AFFINITY)

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """See the class."""
        model = request.model
        return np.array([_affinity(model, adapters) for adapters in endpoints.objects(LORA_ADAPTERS)], dtype=np.float64)


def _affinity(model: str, adapters: LoraAdapters | None) -> float:
    if adapters is None:
        return FULL
    if model in adapters.running:
        return RUNNING
    if len(adapters.running) + len(adapters.waiting) < adapters.max_adapters:
        return ROOM
    return WAITING if model in adapters.waiting else FULL
