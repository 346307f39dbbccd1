"""reference/data-keys.md: the data keys that endpick defines."""

from __future__ import annotations

from collections import defaultdict

import endpick.api
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
    keys = {name: value for name in endpick.api.__all__ if isinstance(value := getattr(endpick.api, name), DataKey)}
    readers, writers = defaultdict(list), defaultdict(list)
    for loaded in builtin_plugins():
        for key in (*loaded.plugin.consumes, *loaded.plugin.consumes_optional):
            readers[key.name].append(loaded.type)
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
            listed(readers[key.name]),
        )
        for name, key in sorted(keys.items(), key=lambda item: (list(Scope).index(item[1].scope), item[1].name))
    )
    return markdown_page(
        "Data keys",
        "Look up here the names under which data about endpoints and requests is shared, who writes each, and who reads it.",
        table(("key", "in endpick.api", "scope", "type", "meaning", "written by", "read by"), rows),
        "## Scopes",
        "\n".join(f"- `{scope.value}`: {text}" for scope, text in _SCOPES.items()),
        "Numbers are float64 and NaN until first reported; objects are None. `endpoints.age(KEY)` gives the seconds since each value was "
        "written; `endpoints.derived(KEY, function)` keeps what follows from a column until a value of it changes. "
        "Keys of other distributions carry a namespace, such as `acme.example/gpu-temperature`; `customMetrics` of "
        "[core-metrics-extractor](plugins/core-metrics-extractor.md) makes keys of your own without code.",
    )
