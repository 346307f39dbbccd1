"""The plugin types a plan may draw on: one import per type, policy and lock judged before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from endpick.config import EndpointPickerConfig
from endpick.diagnostics import Diagnostic
from endpick.host.discovery import Candidate, find
from endpick.host.loader import LoadedPlugin, Loading, load, unmet_of
from endpick.host.metadata import UnmetRequirement
from endpick.host.resolution import Policy, Reference, check_policy, resolve

if TYPE_CHECKING:
    from endpick.host.lock_check import LockCheck


@dataclass
class PluginCatalog:
    """What is installed, what the operator allows of it, and what has been loaded so far.

    With a `lock` nothing is imported that differs from it. `imports_third_parties` is False for checks that must not run
    strangers' code: their types then stay unknown, without an error.
    """

    candidates: Sequence[Candidate]
    policy: Policy = field(default_factory=Policy)
    lock: LockCheck | None = None
    imports_third_parties: bool = True
    _loadings: dict[Candidate, Loading] = field(default_factory=dict)
    _told: set[Candidate] = field(default_factory=set)
    _unmet: dict[str, tuple[UnmetRequirement, ...]] = field(default_factory=dict)

    def get(self, reference: Reference) -> Loading:
        """The plugin a reference asks for.

        What is wrong with the reference is said each time, what is wrong with the plugin itself only the first time.
        """
        loading = self._load(reference)
        if not isinstance(loading, Candidate):
            return loading
        told = loading in self._told
        self._told.add(loading)
        return Loading(self._loadings[loading].loaded) if told else self._loadings[loading]

    def peek(self, plugin_type: str) -> LoadedPlugin | None:
        """The plugin of a type, to look at what it declares; None when it cannot be had, whatever the reason."""
        loading = self._load(Reference(plugin_type))
        return self._loadings[loading].loaded if isinstance(loading, Candidate) else None

    def _load(self, reference: Reference) -> Candidate | Loading:
        """The candidate whose loading is known now, or the reason why there is none."""
        candidate = resolve(reference, self.candidates)
        if isinstance(candidate, Diagnostic):
            return Loading(None, (candidate,))
        forbidden = check_policy(reference, candidate, self.policy)
        if forbidden is None and self.lock is not None:
            forbidden = self.lock.plugin(reference, candidate)
        if forbidden is not None:
            return Loading(None, (forbidden,))
        if not candidate.is_builtin and not self.imports_third_parties:
            return Loading(None)
        if candidate not in self._loadings:
            loading = load(candidate, reference, self._unmet_by(candidate), self.candidates)
            unchecked = None if self.lock is None else self.lock.loaded(reference, candidate)
            self._loadings[candidate] = loading if unchecked is None else Loading(None, (unchecked,))
        return candidate

    def _unmet_by(self, candidate: Candidate) -> tuple[UnmetRequirement, ...]:
        """Those of endpick itself are not looked up, because it runs: where one matters, an import fails and says which."""
        distribution = candidate.distribution
        if distribution not in self._unmet:
            self._unmet[distribution] = () if candidate.is_builtin else unmet_of(distribution)
        return self._unmet[distribution]

    def offers(self, plugin_type: str) -> bool:
        """Whether a distribution offers a type; it may still fail to load."""
        return bool(find(self.candidates, plugin_type))


def policy_of(config: EndpointPickerConfig) -> Policy:
    """The document's `pluginPolicy` in the host's terms."""
    given = config.plugin_policy
    return Policy() if given is None else Policy(given.allow_distributions, given.deny_types)


def types_that_produce(key: str, installed: PluginCatalog) -> tuple[str, ...]:
    """Types that declare the key, sorted; types that the policy forbids or that do not load are left out."""
    looked_at = ((plugin_type, installed.peek(plugin_type)) for plugin_type in sorted({one.type for one in installed.candidates}))
    return tuple(
        plugin_type
        for plugin_type, loaded in looked_at
        if loaded is not None and any(produced.name == key for produced in loaded.plugin.produces)
    )
