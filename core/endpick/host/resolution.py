"""Resolves a plugin type to one distribution, and applies `pluginPolicy`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from endpick.config.upstream import find_name
from endpick.diagnostics import Code, Diagnostic, DocumentPath, Label, PluginReference, Span, did_you_mean
from endpick.host.discovery import API_MAJOR, SEPARATE_PLUGINS, Candidate, find, find_installed, for_endpick, normalise


@dataclass(frozen=True, slots=True)
class Reference:
    """A `plugins:` entry, a plugin that the host adds, or a hook object."""

    type: str
    instance: str | None = None
    distribution: str | None = None  # the entry's `from:`
    span: Span | None = None  # of the `type:` value
    distribution_span: Span | None = None  # of the `from:` value
    path: DocumentPath = ()  # of the `type:` value
    labels: tuple[Label, ...] = ()

    @property
    def owner(self) -> str:
        """The name in messages: `queue-scorer` or `busy (queue-scorer)`."""
        return str(self.plugin())

    def plugin(self, candidate: Candidate | None = None) -> PluginReference:
        """Return the plugin of a diagnostic, with the distribution of the candidate if given."""
        if candidate is None:
            return PluginReference(self.type, self.instance)
        return PluginReference(self.type, self.instance, candidate.distribution, candidate.version)

    def diagnostic(
        self,
        code: Code,
        message: str,
        candidate: Candidate | None = None,
        *,
        annotation: str | None = None,
        help: str | None = None,  # noqa: A002 - as the diagnostic's field
        notes: tuple[str, ...] = (),
        span: Span | None = None,
    ) -> Diagnostic:
        """Return a diagnostic about this reference, at `span` or else at its `type:` value."""
        return Diagnostic(
            code,
            message,
            span=span or self.span,
            labels=self.labels,
            help=help,
            notes=notes,
            plugin=self.plugin(candidate),
            path=self.path,
            annotation=annotation,
        )


def resolve(reference: Reference, candidates: Sequence[Candidate]) -> Candidate | Diagnostic:
    """Return the candidate for a reference, or the diagnostic of a missing or ambiguous one."""
    offers = find(candidates, reference.type)
    if not offers:
        return _not_offered(reference, candidates)
    chosen = from_distribution(reference, offers)
    if not chosen:
        return _not_offered_by(reference, offers)
    return chosen[0] if len(chosen) == 1 else _clash(reference, chosen)


def from_distribution(reference: Reference, offers: Sequence[Candidate]) -> Sequence[Candidate]:
    """Return the offers of the distribution named in `from:`; all offers without it."""
    if reference.distribution is None:
        return offers
    wanted = normalise(reference.distribution)
    return tuple(offer for offer in offers if normalise(offer.distribution) == wanted)


def where(candidate: Candidate) -> str:
    """Describe a candidate in the notes of a clash, with its target and metadata directory."""
    return f"{candidate.origin} offers {candidate.target} at {candidate.metadata_path}"


def _not_offered(reference: Reference, candidates: Sequence[Candidate]) -> Diagnostic:
    named = [candidate for candidate in candidates if candidate.type == reference.type]
    if not candidates:
        return reference.diagnostic(
            Code.E0320,
            f"no plugin types are installed, so '{reference.type}' cannot be found",
            help="install endpick again: its built-in plugins are registered by the installation",
        )
    foreign = [candidate for candidate in named if candidate.is_valid and not candidate.speaks_our_api]
    if foreign:
        return _other_api(reference, foreign)
    malformed = [candidate for candidate in named if not candidate.is_valid]
    if malformed:
        return reference.diagnostic(
            Code.E0302,
            f"'{reference.type}' is not a valid plugin type",
            malformed[0],
            annotation=f"offered by {malformed[0].origin}",
            help=f"ask the author of {malformed[0].distribution} for an entry-point name of lower-case words joined by '-' or '.'",
        )
    separate = SEPARATE_PLUGINS.get(reference.type)
    upstream = None if separate else find_name("type", reference.type)
    if upstream is not None and upstream.is_missing:
        return reference.diagnostic(
            Code.E0323,
            f"the type '{reference.type}' is not in this release of endpick; {upstream.status}",
            help=upstream.advice or "remove it, or look for a release of endpick that has it",
        )
    close = did_you_mean(reference.type, {candidate.type for candidate in candidates if candidate.is_usable})
    return reference.diagnostic(
        Code.E0301,
        f"no installed plugin offers the type '{reference.type}'",
        help=f"pip install {separate}" if separate else (upstream and upstream.advice) or close or "`endpick list` shows what is installed",
        notes=(*(() if upstream is None else (upstream.status,)), *_shadowed_offers(reference.type)),
    )


def _shadowed_offers(plugin_type: str) -> Iterator[str]:
    installed = find_installed()
    counting = for_endpick(installed)
    for copy in installed:
        if any(entry_point.name == plugin_type for entry_point in copy.entry_points):
            first = counting[copy.key].path
            yield f"{copy.origin} at {copy.path} offers it, but {first} comes first on the import path; see `endpick doctor`"


def _other_api(reference: Reference, foreign: Sequence[Candidate]) -> Diagnostic:
    candidate = foreign[-1]
    remedy = "upgrade endpick" if candidate.api_major > API_MAJOR else f"upgrade {candidate.distribution}"
    return reference.diagnostic(
        Code.E0322,
        f"'{reference.type}' from {candidate.origin} needs plugin API {candidate.api_major}; this host provides {API_MAJOR}",
        candidate,
        help=f"{remedy}, or install a release of {candidate.distribution} for plugin API {API_MAJOR}",
    )


def _not_offered_by(reference: Reference, offers: Sequence[Candidate]) -> Diagnostic:
    by = sorted({offer.distribution for offer in offers})
    return reference.diagnostic(
        Code.E0316,
        f"'{reference.distribution}' does not offer the type '{reference.type}'",
        annotation="not installed, or without this type",
        help=did_you_mean(reference.distribution or "", by) or f"it is offered by {', '.join(by)}",
        span=reference.distribution_span,
    )


def _clash(reference: Reference, offers: Sequence[Candidate]) -> Diagnostic:
    by = sorted({offer.distribution for offer in offers})
    notes = tuple(where(offer) for offer in offers)
    if len(by) == 1:
        return reference.diagnostic(
            Code.E0304,
            f"{by[0]} offers the type '{reference.type}' {len(offers)} times",
            offers[0],
            help=f"ask the author of {by[0]} to keep one of the entry points",
            notes=notes,
        )
    choice = " or ".join(f"`from: {name}`" for name in by)
    builtin = next((offer for offer in offers if offer.is_builtin), None)
    if builtin is not None:
        others = ", ".join(name for name in by if name != builtin.distribution)
        return reference.diagnostic(
            Code.E0315,
            f"the built-in type '{reference.type}' is also offered by {others}",
            help=f"say which one you want with {choice}, or uninstall {others}",
            notes=notes,
        )
    return reference.diagnostic(
        Code.E0304,
        f"{len(by)} distributions offer the type '{reference.type}'",
        help=f"say which one you want with {choice}, or uninstall the other",
        notes=notes,
    )


@dataclass(frozen=True, slots=True)
class Policy:
    """The document's `pluginPolicy`; by default everything is allowed."""

    allow_distributions: tuple[str, ...] | None = None  # None allows all; endpick is always allowed
    deny_types: tuple[str, ...] = ()  # or patterns: `acme.*`

    def denied_by(self, name: str) -> str | None:
        """Return the pattern that denies a plugin type or hook object, or None."""
        return next((pattern for pattern in self.deny_types if fnmatchcase(name, pattern)), None)


def check_policy(reference: Reference, candidate: Candidate, policy: Policy) -> Diagnostic | None:
    """Return the diagnostic of a plugin type that the policy forbids, or None."""
    pattern = policy.denied_by(candidate.type)
    if pattern is not None:
        return reference.diagnostic(
            Code.E0307,
            f"the type '{candidate.type}' is denied by pluginPolicy",
            candidate,
            help=f"remove '{pattern}' from pluginPolicy.denyTypes, or use another plugin",
        )
    return check_distribution(reference, candidate, policy)


def check_distribution(reference: Reference, candidate: Candidate, policy: Policy) -> Diagnostic | None:
    """Return the diagnostic of a distribution that the policy forbids, or None."""
    allowed = policy.allow_distributions
    if allowed is None or candidate.is_builtin or normalise(candidate.distribution) in map(normalise, allowed):
        return None
    return reference.diagnostic(
        Code.E0307,
        f"the distribution {candidate.origin} is not allowed by pluginPolicy",
        candidate,
        annotation=f"offered by {candidate.distribution}",
        help=f"add the line `- {candidate.distribution}` to pluginPolicy.allowDistributions",
    )
