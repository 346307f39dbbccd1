"""Who may load code into the host: `pluginPolicy`, judged before anything is imported.

A policy keeps out what is installed by accident or under a squatted name. It is no defence against an installed package that
is malicious: such a package runs when Python starts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from endpick.diagnostics import Code, Diagnostic
from endpick.plugins.discovery import Candidate
from endpick.plugins.metadata import normalise
from endpick.plugins.reference import Reference


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator allows; the default allows everything that is installed."""

    allow_distributions: tuple[str, ...] | None = None
    """Distributions that may be imported; None allows all. endpick itself is always allowed: its code runs already."""

    deny_types: tuple[str, ...] = ()
    """Plugin types, or patterns of them such as `acme.*`, that may not be used, whoever offers them."""

    def denies_type(self, plugin_type: str) -> str | None:
        """The entry of `denyTypes` that forbids a type."""
        return next((pattern for pattern in self.deny_types if fnmatchcase(plugin_type, pattern)), None)

    def allows_distribution(self, candidate: Candidate) -> bool:
        """Whether the candidate's distribution may be imported."""
        allowed = self.allow_distributions
        return allowed is None or candidate.is_builtin or normalise(candidate.distribution) in _normalised(allowed)


def check_policy(reference: Reference, candidate: Candidate, policy: Policy) -> Diagnostic | None:
    """Why the policy forbids a candidate, or None when it may be imported."""
    pattern = policy.denies_type(candidate.type)
    if pattern is not None:
        return reference.diagnostic(
            Code.E0307,
            f"the type '{candidate.type}' is denied by pluginPolicy",
            candidate,
            help=f"remove '{pattern}' from pluginPolicy.denyTypes, or use another plugin",
        )
    if not policy.allows_distribution(candidate):
        return reference.diagnostic(
            Code.E0307,
            f"the distribution {candidate.origin} is not allowed by pluginPolicy",
            candidate,
            annotation=f"offered by {candidate.distribution}",
            help=f"add the line `- {candidate.distribution}` to pluginPolicy.allowDistributions",
        )
    return None


def _normalised(names: Iterable[str]) -> set[str]:
    return {normalise(name) for name in names}
