"""What a document may ask for and this version does not do: read and checked as llm-d's, and said to have no effect."""

from __future__ import annotations

from collections.abc import Iterator

from endpick.diagnostics import Code, DocumentPath
from endpick.planning.draft import Draft
from endpick.planning.references import look_up


def warn_ignored(draft: Draft) -> None:
    """A warning for each such part; the instances it names must be defined all the same."""
    if draft.config.gates["flowControl"]:
        given = draft.config.flow_control is not None
        draft.report(
            Code.W0204,
            "this version of endpick has no flow control: requests are not queued",
            ("flowControl",) if given else ("featureGates",),
            at_key=True,
            help="remove the feature gate 'flowControl'; flowControl.saturationDetector is used without it",
        )
    for name, path in _other_pickers(draft):
        look_up(name, path, draft)
        draft.report(
            Code.W0204,
            f"this version of endpick does not talk to other endpoint pickers, so '{path[1]}' has no effect",
            path[:2],
            at_key=True,
            help=f"remove '{path[1]}'",
        )


def _other_pickers(draft: Draft) -> Iterator[tuple[str, DocumentPath]]:
    layer = draft.config.data_layer
    if layer is not None and layer.peer_discovery is not None:
        yield layer.peer_discovery.plugin_ref, ("dataLayer", "peerDiscovery", "pluginRef")
    if layer is not None and layer.cross_replica_syncer_plugin_ref is not None:
        yield layer.cross_replica_syncer_plugin_ref, ("dataLayer", "crossReplicaSyncerPluginRef")
