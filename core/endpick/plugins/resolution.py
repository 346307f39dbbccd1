"""From a plugin type to the one distribution that provides it, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from endpick.diagnostics import Code, Diagnostic, did_you_mean
from endpick.plugins.discovery import Candidate, find
from endpick.plugins.metadata import normalise
from endpick.plugins.reference import Reference
from endpick.versions import API_MAJOR


def resolve(reference: Reference, candidates: Sequence[Candidate]) -> Candidate | Diagnostic:
    """The candidate to load for a reference. Never decides by the order of the import path."""
    offers = find(candidates, reference.type)
    if not offers:
        return _nobody_offers(reference, candidates)
    if reference.distribution is not None:
        wanted = normalise(reference.distribution)
        chosen = tuple(offer for offer in offers if normalise(offer.distribution) == wanted)
        if not chosen:
            return _not_offered_by(reference, offers)
        offers = chosen
    return offers[0] if len(offers) == 1 else _clash(reference, offers)


def where(candidate: Candidate) -> str:
    """A candidate as clashes list it: distribution, version, target and path."""
    return f"{candidate.origin} offers {candidate.target} at {candidate.metadata_path}"


def _nobody_offers(reference: Reference, candidates: Sequence[Candidate]) -> Diagnostic:
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
    return reference.diagnostic(
        Code.E0301,
        f"no installed plugin offers the type '{reference.type}'",
        help=did_you_mean(reference.type, _usable_types(candidates)) or "`endpick list` shows what is installed",
        notes=tuple(_shadowed_note(candidate) for candidate in named),
    )


def _usable_types(candidates: Iterable[Candidate]) -> set[str]:
    return {candidate.type for candidate in candidates if candidate.is_valid and candidate.speaks_our_api}


def _shadowed_note(candidate: Candidate) -> str:
    return (
        f"{candidate.origin} at {candidate.metadata_path} offers it, but {candidate.shadowed_by} comes first on the import path; "
        "see `endpick doctor`"
    )


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
