"""Which endpoints' labels satisfy a condition: asked once per membership of the pool, because labels never change in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from endpick.api import BoolArray, Endpoints


class LabelMask:
    """Remembers the answer for the rows of the latest generation of the endpoint table."""

    def __init__(self, holds: Callable[[Mapping[str, str]], bool]) -> None:
        """`holds` says whether an endpoint with these labels is kept."""
        self._holds = holds
        self._generation: object = None
        self._mask: BoolArray = np.empty(0, dtype=np.bool_)

    def of(self, endpoints: Endpoints) -> BoolArray:
        """True for each endpoint whose labels satisfy the condition. Shape `(len(endpoints),)`."""
        generation = endpoints.generation
        if generation is not self._generation:
            self._mask = np.array([self._holds(endpoint.labels) for endpoint in generation.endpoints], dtype=np.bool_)
            self._generation = generation
        return self._mask if endpoints.is_whole else self._mask[endpoints.rows]
