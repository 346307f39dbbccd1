"""Second step of a plan: scheduling profiles, and what is missing from them."""

from __future__ import annotations

from collections.abc import Iterable

from endpick.api.plugin import Kind
from endpick.config import ProfilePlugin, SchedulingProfile
from endpick.diagnostics import Code
from endpick.planning import profile_mistakes as mistakes
from endpick.planning.definitions import add_instance
from endpick.planning.draft import Draft
from endpick.planning.installed import Installed
from endpick.planning.plan import PlannedProfile, WeightedScorer
from endpick.planning.references import look_up

DEFAULT_PROFILE = "default"
DEFAULT_PICKER = "max-score-picker"
DEFAULT_WEIGHT = 1.0

_PROFILE_KINDS = (Kind.FILTER, Kind.SCORER, Kind.PICKER)


def plan_profiles(draft: Draft, installed: Installed) -> tuple[PlannedProfile, ...]:
    """Every scheduling profile, each with a picker; of no use when the draft has errors."""
    given = draft.config.scheduling_profiles
    if not given and not draft.loaded.is_damaged(("schedulingProfiles",)):
        return (_default_profile(draft, installed),)
    mistakes.report_same_names(given, draft)
    return tuple(_profile(profile, draft, installed) for profile in given)


def _default_profile(draft: Draft, installed: Installed) -> PlannedProfile:
    """What llm-d does without profiles: one with everything that can take part in one."""
    members = [instance for instance in draft.instances.values() if any(instance.is_a(kind) for kind in _PROFILE_KINDS)]
    draft.used.update(member.name for member in members)
    named = ", ".join(member.name for member in members) or "nobody"
    draft.announce(
        Code.N0501,
        DEFAULT_PROFILE,
        f"added scheduling profile '{DEFAULT_PROFILE}' with {named}: the document has no schedulingProfiles, "
        "so every filter, scorer and picker it defines takes part",
    )
    pickers = [member for member in members if member.is_a(Kind.PICKER)]
    for other in pickers[1:]:
        mistakes.report_two_pickers(other, pickers[0], draft)
    scorers = [WeightedScorer(member.name, DEFAULT_WEIGHT, weight_given=False) for member in members if member.is_a(Kind.SCORER)]
    _announce_weights(DEFAULT_PROFILE, scorers, draft)
    return PlannedProfile(
        DEFAULT_PROFILE,
        tuple(member.name for member in members if member.is_a(Kind.FILTER)),
        tuple(scorers),
        pickers[0].name if pickers else _default_picker(DEFAULT_PROFILE, draft, installed),
    )


def _profile(profile: SchedulingProfile, draft: Draft, installed: Installed) -> PlannedProfile:
    filters, scorers, pickers = [], [], []
    unknown = False
    seen: dict[str, ProfilePlugin] = {}
    for reference in profile.plugins:
        path = (*reference.path, "pluginRef")
        instance = look_up(reference.plugin_ref, path, draft)
        if instance is None or instance.loaded is None:
            unknown = True
            continue
        first = seen.setdefault(instance.name, reference)
        if first is not reference:
            mistakes.report_repetition(reference, first, profile, draft)
            continue
        mistakes.judge_weight(reference, instance, draft)
        if not any(instance.is_a(kind) for kind in _PROFILE_KINDS):
            mistakes.doubt_effect(reference, instance, profile, draft)
        if instance.is_a(Kind.FILTER):
            filters.append(instance.name)
        if instance.is_a(Kind.SCORER):
            given = reference.weight is not None
            scorers.append(WeightedScorer(instance.name, DEFAULT_WEIGHT if reference.weight is None else reference.weight, given))
        if instance.is_a(Kind.PICKER):
            pickers.append(reference)
    for other in pickers[1:]:
        mistakes.report_second_picker(other, pickers[0], profile, draft)
    if pickers:
        picker = pickers[0].plugin_ref
    elif unknown or draft.loaded.is_damaged(profile.path):
        picker = ""
    else:
        picker = _default_picker(profile.name, draft, installed)
    _announce_weights(profile.name, scorers, draft)
    return PlannedProfile(profile.name, tuple(filters), tuple(scorers), picker)


def _default_picker(profile: str, draft: Draft, installed: Installed) -> str:
    """The first picker that is defined anywhere, as in llm-d, or else `max-score-picker`."""
    pickers = draft.of_kind(Kind.PICKER)
    if pickers:
        draft.used.add(pickers[0].name)
        draft.announce(Code.N0501, profile, f"added picker '{pickers[0].name}' to profile '{profile}': the profile names no picker")
        return pickers[0].name
    reason = f"scheduling profile '{profile}' names no picker"
    draft.announce(Code.N0501, profile, f"added picker '{DEFAULT_PICKER}' to profile '{profile}': no picker is defined")
    return add_instance(draft, installed, DEFAULT_PICKER, reason).name


def _announce_weights(profile: str, scorers: Iterable[WeightedScorer], draft: Draft) -> None:
    for scorer in scorers:
        if not scorer.weight_given:
            draft.announce(Code.N0501, profile, f"weight {scorer.weight:g} for '{scorer.instance}' in profile '{profile}': none is given")
