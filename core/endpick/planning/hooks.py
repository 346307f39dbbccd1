"""The hook objects that a document names: loaded before any plugin, asked for their opinion when all else is well."""

from __future__ import annotations

from collections.abc import Sequence

from endpick.config import EndpointPickerConfig, SourceMap
from endpick.diagnostics import Diagnostic
from endpick.plugins.discovery import Candidate
from endpick.plugins.hook_objects import discover_hook_objects
from endpick.plugins.hooks import HookRegistry, load_hooks
from endpick.plugins.lock import Lock
from endpick.plugins.policy import Policy
from endpick.plugins.reference import Reference


def load_named_hooks(
    config: EndpointPickerConfig,
    source: SourceMap,
    policy: Policy,
    installed: Sequence[Candidate] | None = None,
    lock: Lock | None = None,
) -> tuple[HookRegistry, tuple[Diagnostic, ...]]:
    """The document's hook objects, in its order; what is installed is looked up only when it names any."""
    references = [
        Reference(
            type=spec.name,
            distribution=spec.from_,
            span=source.value_span((*spec.path, "name")),
            distribution_span=source.value_span((*spec.path, "from")) if spec.from_ else None,
            path=(*spec.path, "name"),
            labels=source.labels_for((*spec.path, "name")),
        )
        for spec in config.hooks
    ]
    if not references:
        return HookRegistry(), ()
    return load_hooks(references, discover_hook_objects() if installed is None else installed, policy, lock)
