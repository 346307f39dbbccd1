"""The plugin types a plan may use: each type is resolved, checked against policy and lock, and imported once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from endpick.config import EndpointPickerConfig
from endpick.diagnostics import Diagnostic
from endpick.host.discovery import Candidate, find
from endpick.host.loader import LoadedPlugin, Loading, load
from endpick.host.lock import LockCheck
from endpick.host.requirements import UnmetRequirement, unmet_of
from endpick.host.resolution import Policy, Reference, check_policy, resolve


@dataclass
class PluginCatalog:
    """The installed plugin types, the operator's policy, and the types loaded so far.

    If `imports_third_parties` is False, only built-in types are imported; all others are unknown, without an error.
    """

    candidates: Sequence[Candidate]
    policy: Policy = field(default_factory=Policy)
    lock: LockCheck = field(default_factory=LockCheck)
    imports_third_parties: bool = True
    _loadings: dict[Candidate, Loading] = field(default_factory=dict)
    _reported: set[Candidate] = field(default_factory=set)
    _unmet: dict[str, tuple[UnmetRequirement, ...]] = field(default_factory=dict)

    def get(self, reference: Reference) -> Loading:
        """The plugin for a reference. Mistakes of the plugin itself are reported for the first reference only."""
        candidate = self._load(reference)
        if isinstance(candidate, Loading):
            return candidate
        loading = self._loadings[candidate]
        if candidate in self._reported:
            return Loading(loading.loaded)
        self._reported.add(candidate)
        return loading

    def peek(self, plugin_type: str) -> LoadedPlugin | None:
        """The plugin of a type without diagnostics; None if it cannot be loaded."""
        candidate = self._load(Reference(plugin_type))
        return None if isinstance(candidate, Loading) else self._loadings[candidate].loaded

    def offers(self, plugin_type: str) -> bool:
        """True when a distribution offers the type; it may still fail to load."""
        return bool(find(self.candidates, plugin_type))

    def types_that_produce(self, key: str) -> tuple[str, ...]:
        """Types that declare to produce a data key, sorted; types that cannot be loaded are left out."""
        loaded = ((plugin_type, self.peek(plugin_type)) for plugin_type in sorted({one.type for one in self.candidates}))
        return tuple(
            plugin_type for plugin_type, one in loaded if one is not None and any(produced.name == key for produced in one.plugin.produces)
        )

    def _load(self, reference: Reference) -> Candidate | Loading:
        candidate = resolve(reference, self.candidates)
        if isinstance(candidate, Diagnostic):
            return Loading(None, (candidate,))
        forbidden = check_policy(reference, candidate, self.policy) or self.lock.fault(reference, candidate)
        if forbidden is not None:
            return Loading(None, (forbidden,))
        if not candidate.is_builtin and not self.imports_third_parties:
            return Loading(None)
        if candidate not in self._loadings:
            self._loadings[candidate] = load(candidate, reference, self._unmet_by(candidate), self.candidates)
        return candidate

    def _unmet_by(self, candidate: Candidate) -> tuple[UnmetRequirement, ...] | None:
        """Looked up once per distribution; None leaves it to `load`."""
        if candidate.is_builtin:
            return None
        if candidate.distribution not in self._unmet:
            self._unmet[candidate.distribution] = unmet_of(candidate.distribution)
        return self._unmet[candidate.distribution]


def policy_of(config: EndpointPickerConfig) -> Policy:
    """The document's `pluginPolicy`."""
    given = config.plugin_policy
    return Policy() if given is None else Policy(given.allow_distributions, given.deny_types)
