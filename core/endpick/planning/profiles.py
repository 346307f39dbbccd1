"""Second step of a plan: scheduling profiles, what is missing from them, and the handler that runs them."""

from __future__ import annotations

from collections.abc import Iterable

from endpick.api.plugin import Kind
from endpick.config import ENDPICK, ProfilePlugin, SchedulingProfile
from endpick.diagnostics import Code
from endpick.planning.definitions import add_instance
from endpick.planning.draft import Draft, DraftInstance
from endpick.planning.installed import Installed
from endpick.planning.plan import PlannedProfile, WeightedScorer
from endpick.planning.references import look_up, titles

DEFAULT_PROFILE = "default"
DEFAULT_HANDLER = "single-profile-handler"
DEFAULT_PICKER = "max-score-picker"
DEFAULT_WEIGHT = 1.0

_PROFILE_KINDS = (Kind.FILTER, Kind.SCORER, Kind.PICKER)


def plan_profiles(draft: Draft, installed: Installed) -> tuple[PlannedProfile, ...]:
    """Every scheduling profile, each with a picker; of no use when the draft has errors."""
    given = draft.config.scheduling_profiles
    if not given and not draft.loaded.is_damaged(("schedulingProfiles",)):
        return (_default_profile(draft, installed),)
    _same_names(given, draft)
    return tuple(_profile(profile, draft, installed) for profile in given)


def plan_handler(draft: Draft, installed: Installed) -> str | None:
    """The one profile handler; None when there is none, or when that cannot be known."""
    handlers = draft.of_kind(Kind.PROFILE_HANDLER)
    draft.used.update(handler.name for handler in handlers)
    profiles = draft.config.scheduling_profiles
    if handlers:
        for other in handlers[1:]:
            _second_handler(other, handlers[0], draft)
        if handlers[0].loaded is not None and handlers[0].loaded.type == DEFAULT_HANDLER and len(profiles) > 1:
            _too_many_profiles(handlers[0], profiles, draft)
        return handlers[0].name
    if not draft.is_complete or draft.loaded.is_damaged(("schedulingProfiles",)):
        return None
    if len(profiles) > 1:
        names = ", ".join(profile.name for profile in profiles)
        draft.report(
            Code.E0506,
            f"there are {len(profiles)} scheduling profiles ({names}) and no profile handler to choose among them",
            ("schedulingProfiles",),
            at_key=True,
            help="define a profile handler under `plugins:`",
        )
        return None
    reason = "there is one scheduling profile and no profile handler"
    draft.announce(Code.N0501, DEFAULT_HANDLER, f"added profile handler '{DEFAULT_HANDLER}': {reason}")
    return add_instance(draft, installed, DEFAULT_HANDLER, reason).name


def _default_profile(draft: Draft, installed: Installed) -> PlannedProfile:
    """What llm-d does without profiles: one with everything that can take part in one."""
    members = [
        instance
        for instance in draft.instances.values()
        if instance.spec is not None and any(instance.is_a(kind) for kind in _PROFILE_KINDS)
    ]
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
        assert other.path is not None
        assert pickers[0].path is not None
        draft.report(
            Code.E0505,
            f"'{other.name}' and '{pickers[0].name}' are both pickers, and a scheduling profile has one",
            (*other.path, "type"),
            labels=[draft.label((*pickers[0].path, "type"), "the first picker")],
            help="remove one, or say with `schedulingProfiles:` which picker belongs to which profile",
            plugin=other.plugin,
        )
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
            _twice(reference, first, profile, draft)
            continue
        _check_weight(reference, instance, draft)
        if not any(instance.is_a(kind) for kind in _PROFILE_KINDS):
            _no_effect(reference, instance, profile, draft)
        if instance.is_a(Kind.FILTER):
            filters.append(instance.name)
        if instance.is_a(Kind.SCORER):
            given = reference.weight is not None
            scorers.append(WeightedScorer(instance.name, DEFAULT_WEIGHT if reference.weight is None else reference.weight, given))
        if instance.is_a(Kind.PICKER):
            pickers.append(reference)
    for other in pickers[1:]:
        _second_picker(other, pickers[0], profile, draft)
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


def _check_weight(reference: ProfilePlugin, instance: DraftInstance, draft: Draft) -> None:
    if reference.weight is None:
        return
    path = (*reference.path, "weight")
    if instance.is_a(Kind.SCORER):
        if reference.weight == 0:
            draft.report(
                Code.W0501,
                f"the weight 0 makes the scores of '{instance.name}' count for nothing",
                path,
                help="remove the scorer from the profile, or give it another weight",
                plugin=instance.plugin,
            )
        return
    assert instance.loaded is not None
    # llm-d reads such a file and ignores the weight, so a file written for llm-d must start here too.
    code = Code.E0504 if draft.config.api_version == ENDPICK else Code.W0501
    draft.report(
        code,
        f"'{instance.name}' is {titles(instance.loaded.kinds)}, and only scorers have a weight",
        path,
        help="remove the weight",
        plugin=instance.plugin,
    )


def _twice(reference: ProfilePlugin, first: ProfilePlugin, profile: SchedulingProfile, draft: Draft) -> None:
    draft.report(
        Code.E0510,
        f"'{reference.plugin_ref}' appears twice in scheduling profile '{profile.name}'",
        (*reference.path, "pluginRef"),
        labels=[draft.label((*first.path, "pluginRef"), "first named here")],
        help="remove one of them; to run a type twice, define a second instance of it with another name",
    )


def _no_effect(reference: ProfilePlugin, instance: DraftInstance, profile: SchedulingProfile, draft: Draft) -> None:
    assert instance.loaded is not None
    draft.report(
        Code.W0502,
        f"'{instance.name}' has no effect in scheduling profile '{profile.name}': it is {titles(instance.loaded.kinds)}",
        (*reference.path, "pluginRef"),
        help="remove it from the profile; a profile runs filters, scorers and a picker",
        plugin=instance.plugin,
    )


def _second_picker(other: ProfilePlugin, first: ProfilePlugin, profile: SchedulingProfile, draft: Draft) -> None:
    draft.report(
        Code.E0505,
        f"scheduling profile '{profile.name}' has two pickers, '{first.plugin_ref}' and '{other.plugin_ref}'",
        (*other.path, "pluginRef"),
        labels=[draft.label((*first.path, "pluginRef"), "the first picker")],
        help="remove one of them",
    )


def _second_handler(other: DraftInstance, first: DraftInstance, draft: Draft) -> None:
    assert other.path is not None
    assert first.path is not None
    draft.report(
        Code.E0506,
        f"'{other.name}' and '{first.name}' are both profile handlers, and there can be one",
        (*other.path, "type"),
        labels=[draft.label((*first.path, "type"), "the first profile handler")],
        help="remove one of them",
        plugin=other.plugin,
    )


def _too_many_profiles(handler: DraftInstance, profiles: tuple[SchedulingProfile, ...], draft: Draft) -> None:
    path = ("schedulingProfiles",) if handler.path is None else (*handler.path, "type")
    draft.report(
        Code.E0507,
        f"'{handler.name}' runs one scheduling profile, and {len(profiles)} are defined",
        path,
        labels=[draft.label((*profile.path, "name"), "one of them") for profile in profiles],
        help="use a profile handler that chooses among profiles, or remove all profiles but one",
        plugin=handler.plugin,
    )


def _same_names(profiles: tuple[SchedulingProfile, ...], draft: Draft) -> None:
    first: dict[str, SchedulingProfile] = {}
    for profile in profiles:
        earlier = first.setdefault(profile.name, profile)
        if earlier is not profile:
            draft.report(
                Code.E0508,
                f"two scheduling profiles are called '{profile.name}'",
                (*profile.path, "name"),
                labels=[draft.label((*earlier.path, "name"), "first defined here")],
                help="give one of them another name",
            )
