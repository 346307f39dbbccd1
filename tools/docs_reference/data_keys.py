"""reference/data-keys.md: the data keys that endpick defines."""

from __future__ import annotations

from collections import defaultdict

import endpick.api.keys
from docs_reference.builtin import builtin_plugins
from docs_reference.markdown import code, listed, table
from docs_reference.markdown import page as markdown_page
from endpick.api import DataKey, Scope

_SCOPES = {
    Scope.ENDPOINT: "One value per endpoint, kept until overwritten. Read with `endpoints[KEY]` (numbers) or `endpoints.objects(KEY)`.",
    Scope.POOL: "One value for the whole pool. Read with `endpoints.pool(KEY)`.",
    Scope.REQUEST: "One value per request. Read with `state.get(KEY)`.",
    Scope.CANDIDATE: "One number per request and candidate endpoint. Read with `state.column(KEY, endpoints)`.",
}


def page() -> str:
    """The page."""
    keys = {name: value for name, value in vars(endpick.api.keys).items() if isinstance(value, DataKey)}
    writers = defaultdict(list)
    for loaded in builtin_plugins():
        for key in loaded.plugin.produces:
            writers[key.name].append(loaded.type)
    rows = (
        (
            code(key.name),
            code(name),
            key.scope.value,
            code(key.type.__name__),
            key.doc,
            listed(writers[key.name]),
        )
        for name, key in sorted(keys.items(), key=lambda item: (list(Scope).index(item[1].scope), item[1].name))
    )
    return markdown_page(
        "Data keys",
        "Data about endpoints and requests that plugins share. Constants are in `endpick.api.keys`.",
        table(("key", "constant", "scope", "type", "meaning", "written by"), rows),
        "## Scopes",
        "\n".join(f"- `{scope.value}`: {text}" for scope, text in _SCOPES.items()),
        "Numbers are float64, NaN until first reported; objects are None. [`Endpoints`](api.md#endpoints) has their ages. "
        "`customMetrics` of [core-metrics-extractor](plugins/core-metrics-extractor.md) defines keys without code.",
    )
