"""Hypothesis strategies for property tests of plugins, as in `@given(endpoints(WAITING_QUEUE_SIZE))`; needs `hypothesis`."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from endpick.api import keys
from endpick.api.data import AnyKey
from endpick.api.endpoint import Endpoint
from endpick.api.endpoints import Endpoints
from endpick.api.request import InferenceRequest
from endpick.api.scheduling import ScoredEndpoints
from endpick.testing.factories import make_pool, make_request

_WORDS = st.text(string.ascii_lowercase, min_size=1, max_size=8)

_PLAUSIBLE: Mapping[AnyKey, st.SearchStrategy[object]] = {
    keys.KV_CACHE_USAGE: st.floats(0.0, 1.0),
    **dict.fromkeys((keys.WAITING_QUEUE_SIZE, keys.RUNNING_REQUESTS_SIZE, keys.INFLIGHT_REQUESTS), st.integers(0, 1000).map(float)),
    **dict.fromkeys((keys.INFLIGHT_TOKENS, keys.CACHE_NUM_BLOCKS), st.integers(0, 1_000_000).map(float)),
    keys.CACHE_BLOCK_SIZE: st.sampled_from((16.0, 32.0, 64.0, 128.0)),
    keys.LORA_ADAPTERS: st.builds(keys.LoraAdapters, st.frozensets(_WORDS), st.frozensets(_WORDS), st.integers(0, 8)),
    keys.SERVED_MODELS: st.lists(st.builds(keys.ServedModel, _WORDS)).map(tuple),
}


def values(key: AnyKey) -> st.SearchStrategy[object]:
    """Generate plausible values of a data key; any finite number for numeric keys of plugins.

    Raises:
        ValueError: The key holds objects without a strategy: use `endpoints(..., values={key: strategy})`.
    """
    if key in _PLAUSIBLE:
        return _PLAUSIBLE[key]
    if key.is_number:
        return st.floats(allow_nan=False, allow_infinity=False, width=32).map(float)
    raise ValueError(f"there is no strategy for what '{key.name}' holds; give endpoints() one: values={{key: ...}}")


@st.composite
def endpoints(
    draw: st.DrawFn,
    *columns: AnyKey,
    values: Mapping[AnyKey, st.SearchStrategy[object]] | None = None,
    min_size: int = 1,
    max_size: int = 12,
    reported: bool | None = None,
    labels: Mapping[str, st.SearchStrategy[str]] | None = None,
) -> Endpoints:
    """Generate views of endpoints with these columns.

    `values` replaces strategies by key. `reported`: True, every value is present; False, none; None, any may be missing. `labels` are
    strategies by label name; any label may be missing.
    """
    size = draw(st.integers(min_size, max_size))
    made = {key: draw(st.lists(_cell(key, values or {}, reported), min_size=size, max_size=size)) for key in columns}
    named = st.fixed_dictionaries({}, optional=dict(labels or {}))
    return make_pool(made or size, labels=draw(st.lists(named, min_size=size, max_size=size)) if labels else ()).view()


@st.composite
def narrowed_endpoints(draw: st.DrawFn, *columns: AnyKey, min_size: int = 1, max_size: int = 12) -> Endpoints:
    """Generate views as `endpoints` does, after a filter has dropped some endpoints."""
    view: Endpoints = draw(endpoints(*columns, min_size=min_size, max_size=max_size))
    keep = draw(st.sets(st.integers(0, len(view) - 1), min_size=min_size))
    return view.take(sorted(keep))


@st.composite
def scored_endpoints(draw: st.DrawFn, *columns: AnyKey, min_size: int = 1, max_size: int = 12) -> ScoredEndpoints:
    """Generate candidates with totals from 0 to 10, as pickers get them.

    Equal totals are common.
    """
    view: Endpoints = draw(endpoints(*columns, min_size=min_size, max_size=max_size))
    total = st.one_of(st.sampled_from((0.0, 0.5, 1.0)), st.floats(0.0, 10.0))
    return ScoredEndpoints(view, np.array(draw(st.lists(total, min_size=len(view), max_size=len(view))), dtype=np.float64))


@st.composite
def requests(draw: st.DrawFn, *, headers: Mapping[str, st.SearchStrategy[str]] | None = None) -> InferenceRequest:
    """Generate requests with any number of prompts.

    They come with and without model, output limit and these headers, which are strategies by header name.
    """
    texts = draw(st.lists(st.text(max_size=200), max_size=3))
    request = make_request(tuple(texts), model=draw(st.one_of(st.just(""), _WORDS)))
    return replace(
        request,
        headers=draw(st.fixed_dictionaries({}, optional=dict(headers or {}))),
        streaming=draw(st.booleans()),
        max_output_tokens=draw(st.none() | st.integers(0, 100_000)),
        priority=draw(st.integers(-10, 10)),
        fairness_id=draw(_WORDS),
        cache_salt=draw(st.sampled_from(("", "salt"))),
    )


def single_endpoints() -> st.SearchStrategy[Endpoint]:
    """Generate single endpoints with IPv4 and IPv6 addresses, for sources and collectors."""
    address = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)
    return st.builds(Endpoint, _WORDS.map("default/{}".format), address, st.integers(1, 65535))


def _cell(key: AnyKey, given: Mapping[AnyKey, st.SearchStrategy[object]], reported: bool | None) -> st.SearchStrategy[object]:
    if reported is False:
        return st.none()
    value = given[key] if key in given else values(key)
    return value if reported else st.none() | value
