"""`decode-filter`, `prefill-filter`, `encode-filter`: endpoints that do one part of the work, by their role label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from endpick.api import BoolArray, Endpoints, Filter, InferenceRequest, Parameters, PluginContext, PluginMeta, ScoringState
from endpick_builtin.filters.label_mask import LabelMask

ROLE_LABEL = "llm-d.ai/role"


class RoleFilter(Filter):
    """Keeps endpoints whose role is one of `roles`."""

    roles: ClassVar[frozenset[str]]
    keeps_unlabelled: ClassVar[bool] = False

    def __init__(self, name: str, parameters: Parameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._mask = LabelMask(self._keeps)

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> BoolArray:
        """See the class."""
        return self._mask.of(endpoints)

    def _keeps(self, labels: Mapping[str, str]) -> bool:
        role = labels.get(ROLE_LABEL)
        return self.keeps_unlabelled if role is None else role in self.roles


class DecodeFilter(RoleFilter):
    """Keep endpoints that decode: role decode, prefill-decode, both or encode-prefill-decode, and those without a role label."""

    meta = PluginMeta(type="decode-filter", api=">=1.0,<2")
    roles = frozenset({"decode", "prefill-decode", "both", "encode-prefill-decode"})
    keeps_unlabelled = True


class PrefillFilter(RoleFilter):
    """Keep endpoints that prefill: role prefill, encode-prefill, prefill-decode, both or encode-prefill-decode."""

    meta = PluginMeta(type="prefill-filter", api=">=1.0,<2")
    roles = frozenset({"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"})


class EncodeFilter(RoleFilter):
    """Keep endpoints that encode: role encode, encode-prefill or encode-prefill-decode."""

    meta = PluginMeta(type="encode-filter", api=">=1.0,<2")
    roles = frozenset({"encode", "encode-prefill", "encode-prefill-decode"})
