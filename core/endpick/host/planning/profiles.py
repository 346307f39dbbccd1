"""Resolves scheduling profiles and the profile handler; warns of unlikely profiles."""

from __future__ import annotations

from collections.abc import Iterable

from endpick.api import Category, Filter, Picker, ProfileHandler, Scorer
from endpick.api.keys import PREFIX_MATCH_BLOCKS
from endpick.config import ENDPICK, ProfilePlugin, SchedulingProfile
from endpick.diagnostics import Code, Diagnostic, DocumentPath
from endpick.host.instance import profiles_of
from endpick.host.kinds import KINDS, titles
from endpick.host.loader import LoadedPlugin
from endpick.host.planning.builder import DraftInstance, PlanBuilder, add_instance, look_up, report_same_names
from endpick.host.planning.plan import PlannedProfile, WeightedScorer


def _judge_weight(reference: ProfilePlugin, instance: DraftInstance, builder: PlanBuilder) -> None:
    if reference.weight is None:
        return
    path = (*reference.path, "weight")
    if instance.is_a(Scorer):
        if reference.weight == 0:
            builder.report(
                Code.W0501,
                f"the weight 0 makes the scores of '{instance.name}' count for nothing",
                path,
                help="remove the scorer from the profile, or give it another weight",
                plugin=instance.plugin,
            )
        return
    assert instance.loaded is not None
    # llm-d ignores such a weight, so files written for it must load.
    code = Code.E0504 if builder.config.api_version == ENDPICK else Code.W0501
    builder.report(
        code,
        f"'{instance.name}' is {titles(instance.loaded.kinds)}, and only scorers have a weight",
        path,
        help="remove the weight",
        plugin=instance.plugin,
    )


def _warn_no_effect(reference: ProfilePlugin, instance: DraftInstance, profile: SchedulingProfile, builder: PlanBuilder) -> None:
    assert instance.loaded is not None
    places = [KINDS[kind].named_at for kind in instance.loaded.kinds if KINDS[kind].named_at]
    instead = f"name it at `{places[0]}` instead" if places else "remove it from the profile"
    builder.report(
        Code.W0502,
        f"'{instance.name}' has no effect in scheduling profile '{profile.name}': it is {titles(instance.loaded.kinds)}",
        (*reference.path, "pluginRef"),
        help=f"{instead}; a profile runs filters, scorers and a picker",
        plugin=instance.plugin,
    )


DEFAULT_PROFILE = "default"
DEFAULT_PICKER = "max-score-picker"
DEFAULT_WEIGHT = 1.0

_PROFILE_KINDS = tuple(kind for kind, row in KINDS.items() if row.in_profile)


def plan_profiles(builder: PlanBuilder) -> tuple[PlannedProfile, ...]:
    """Return the scheduling profiles, each with a picker."""
    given = builder.config.scheduling_profiles
    if not given and not builder.loaded.is_damaged(("schedulingProfiles",)):
        return (_default_profile(builder),)
    report_same_names(given, "scheduling profiles", Code.E0508, builder)
    return tuple(_profile(profile, builder) for profile in given)


def warn_fallbacks(profiles: Iterable[PlannedProfile], builder: PlanBuilder) -> None:
    """Warn once of each picker that names fallback endpoints."""
    for name in dict.fromkeys(profile.picker for profile in profiles):
        picker = builder.instances.get(name)
        most = getattr(picker and picker.parameters, "max_num_of_endpoints", 1)
        if picker is None or picker.spec is None or most <= 1:
            continue
        builder.report(
            Code.W0507,
            f"'{name}' names up to {most} endpoints, and some gateways read only one address",
            (*picker.spec.path, "parameters", "maxNumOfEndpoints"),
            help="use `endpick up`, or in Envoy an EDS cluster with the policy override_host and a retry_policy;"
            " an ORIGINAL_DST cluster answers every request with 503",
            plugin=picker.plugin,
        )


def _default_profile(builder: PlanBuilder) -> PlannedProfile:
    members = [instance for instance in builder.instances.values() if any(instance.is_a(kind) for kind in _PROFILE_KINDS)]
    builder.used.update(member.name for member in members)
    named = ", ".join(member.name for member in members) or "no instance"
    builder.announce(
        DEFAULT_PROFILE,
        f"added scheduling profile '{DEFAULT_PROFILE}' with {named}: the document has no schedulingProfiles, "
        "so every filter, scorer and picker it defines takes part",
    )
    pickers = [member for member in members if member.is_a(Picker)]
    for other in pickers[1:]:
        assert pickers[0].path is not None
        builder.report_instance(
            other,
            Code.E0505,
            f"'{other.name}' and '{pickers[0].name}' are both pickers, and a scheduling profile has one",
            "remove one, or say with `schedulingProfiles:` which picker belongs to which profile",
            [builder.label((*pickers[0].path, "type"), "the first picker")],
        )
    scorers = [WeightedScorer(member.name, DEFAULT_WEIGHT, weight_given=False) for member in members if member.is_a(Scorer)]
    _announce_weights(DEFAULT_PROFILE, scorers, builder)
    return PlannedProfile(
        DEFAULT_PROFILE,
        tuple(member.name for member in members if member.is_a(Filter)),
        tuple(scorers),
        pickers[0].name if pickers else _default_picker(DEFAULT_PROFILE, builder),
    )


def _profile(profile: SchedulingProfile, builder: PlanBuilder) -> PlannedProfile:
    filters, scorers, pickers = [], [], []
    unknown = False
    seen: dict[str, ProfilePlugin] = {}
    for reference in profile.plugins:
        path = (*reference.path, "pluginRef")
        instance = look_up(reference.plugin_ref, path, builder)
        if instance is None or instance.loaded is None:
            unknown = True
            continue
        first = seen.setdefault(instance.name, reference)
        if first is not reference:
            builder.report(
                Code.E0510,
                f"'{instance.name}' appears twice in scheduling profile '{profile.name}'",
                path,
                labels=[builder.label((*first.path, "pluginRef"), "first named here")],
                help="remove one of them; to run a type twice, define a second instance of it with another name",
            )
            continue
        _judge_weight(reference, instance, builder)
        if not any(instance.is_a(kind) for kind in _PROFILE_KINDS):
            _warn_no_effect(reference, instance, profile, builder)
        if instance.is_a(Filter):
            filters.append(instance.name)
        if instance.is_a(Scorer):
            given = reference.weight is not None
            scorers.append(WeightedScorer(instance.name, DEFAULT_WEIGHT if reference.weight is None else reference.weight, given))
        if instance.is_a(Picker):
            pickers.append(reference)
    for other in pickers[1:]:
        builder.report(
            Code.E0505,
            f"scheduling profile '{profile.name}' has two pickers, '{pickers[0].plugin_ref}' and '{other.plugin_ref}'",
            (*other.path, "pluginRef"),
            labels=[builder.label((*pickers[0].path, "pluginRef"), "the first picker")],
            help="remove one of them",
        )
    if pickers:
        picker = pickers[0].plugin_ref
    elif unknown or builder.loaded.is_damaged(profile.path):
        picker = ""
    else:
        picker = _default_picker(profile.name, builder)
    _announce_weights(profile.name, scorers, builder)
    planned = PlannedProfile(profile.name, tuple(filters), tuple(scorers), picker)
    if not unknown and not builder.loaded.is_damaged(profile.path):
        _warn_odd_profile(planned, (*profile.path, "name"), builder, emptied=not profile.plugins)
    return planned


def _default_picker(profile: str, builder: PlanBuilder) -> str:
    pickers = builder.of_kind(Picker)
    if pickers:
        builder.used.add(pickers[0].name)
        builder.announce(profile, f"added picker '{pickers[0].name}' to profile '{profile}': the profile names no picker")
        return pickers[0].name
    reason = f"scheduling profile '{profile}' names no picker"
    builder.announce(profile, f"added picker '{DEFAULT_PICKER}' to profile '{profile}': no picker is defined")
    return add_instance(builder, DEFAULT_PICKER, reason).name


def _announce_weights(profile: str, scorers: Iterable[WeightedScorer], builder: PlanBuilder) -> None:
    for scorer in scorers:
        if not scorer.weight_given:
            builder.announce(profile, f"weight {scorer.weight:g} for '{scorer.instance}' in profile '{profile}': none is given")


DEFAULT_HANDLER = "single-profile-handler"


def plan_handler(builder: PlanBuilder) -> str | None:
    """Return the profile handler; None if it is missing or unknown."""
    profiles = builder.config.scheduling_profiles
    handlers = builder.of_kind(ProfileHandler)
    builder.used.update(handler.name for handler in handlers)
    if handlers:
        first, *others = handlers
        for other in others:
            assert first.path is not None
            labels = [builder.label((*first.path, "type"), "the first profile handler")]
            message = f"'{other.name}' and '{first.name}' are both profile handlers, and there can be one"
            builder.report_instance(other, Code.E0506, message, "remove one of them", labels)
        if first.loaded is not None:
            _judge_number_of_profiles(first, first.loaded, profiles, builder)
            _judge_required_profiles(first, first.loaded, builder)
        return first.name
    if not builder.is_complete or builder.loaded.is_damaged(("schedulingProfiles",)):
        return None
    if len(profiles) > 1:
        builder.report(
            Code.E0506,
            f"there are {len(profiles)} scheduling profiles ({', '.join(profile.name for profile in profiles)}) "
            "and no profile handler to choose among them",
            ("schedulingProfiles",),
            at_key=True,
            help="define a profile handler under `plugins:`",
        )
        return None
    return add_instance(builder, DEFAULT_HANDLER, "there is one scheduling profile and no profile handler", "profile handler").name


def _judge_number_of_profiles(
    handler: DraftInstance, loaded: LoadedPlugin, profiles: tuple[SchedulingProfile, ...], builder: PlanBuilder
) -> None:
    assert issubclass(loaded.plugin, ProfileHandler)
    most = loaded.plugin.most_profiles
    if most is None or len(profiles) <= most:
        return
    single = most == 1
    builder.report_instance(
        handler,
        Code.E0507,
        f"'{handler.name}' runs {'one scheduling profile' if single else f'{most} scheduling profiles'}, and {len(profiles)} are defined",
        f"use a profile handler that chooses among more profiles, or remove all profiles but {'one' if single else most}",
        [builder.label((*profile.path, "name"), "one of them") for profile in profiles],
    )


def _judge_required_profiles(handler: DraftInstance, loaded: LoadedPlugin, builder: PlanBuilder) -> None:
    if handler.spec is None or handler.parameters is None or builder.loaded.is_damaged(("schedulingProfiles",)):
        return
    required, optional = profiles_of(loaded, handler.parameters, handler.place)
    if isinstance(required, Diagnostic) or isinstance(optional, Diagnostic):
        builder.diagnostics += [keys for keys in (required, optional) if isinstance(keys, Diagnostic)]
        return
    defined = [profile.name for profile in builder.config.scheduling_profiles] or [DEFAULT_PROFILE]
    ends = (
        (required, Code.E0509, "requires", f"; defined is {', '.join(defined)}"),
        (optional, Code.W0520, "would run", ", or remove the decider of that stage"),
    )
    for names, code, verb, end in ends:
        for name in names:
            if name not in defined:
                message = f"'{handler.name}' {verb} scheduling profile '{name}', which is not defined"
                builder.report_instance(handler, code, message, f"add a profile with `name: {name}` under `schedulingProfiles:`{end}")


_LOAD_SCORERS = "queue-scorer or active-request-scorer"


def _warn_odd_profile(profile: PlannedProfile, path: DocumentPath, builder: PlanBuilder, *, emptied: bool) -> None:
    picker = builder.instances.get(profile.picker)
    counting = [builder.instances[scorer.instance] for scorer in profile.scorers if scorer.weight]
    if picker is None or picker.loaded is None or any(scorer.loaded is None for scorer in counting):
        return
    if not _uses_scores(picker):
        if counting:
            builder.report(
                Code.W0506,
                f"the picker '{picker.name}' of scheduling profile '{profile.name}' ignores the scores of {_listed(counting)}",
                path,
                help="use max-score-picker or weighted-random-picker, or remove the scorers",
            )
    elif emptied and any(scorer.name not in builder.used for scorer in builder.configured(Scorer)):
        builder.report(
            Code.W0504,
            f"scheduling profile '{profile.name}' names no scorer, although some are defined, so '{picker.name}' picks at random",
            path,
            help=f"name scorers in the profile, such as {_LOAD_SCORERS}, or random-picker if that is meant",
        )
    elif counting and not profile.filters and all(_reads_prefixes(scorer) for scorer in counting):
        builder.report(
            Code.W0505,
            f"scheduling profile '{profile.name}' rates nothing but cached prefixes, so prompts that begin alike all go to one server",
            path,
            help=f"add a scorer that looks at load, such as {_LOAD_SCORERS}",
        )


def _uses_scores(picker: DraftInstance) -> bool:
    assert picker.loaded is not None
    plugin = picker.loaded.plugin
    return not issubclass(plugin, Picker) or plugin.uses_scores


def _reads_prefixes(scorer: DraftInstance) -> bool:
    keys = scorer.subscriptions
    assert scorer.loaded is not None
    plugin = scorer.loaded.plugin
    balances = issubclass(plugin, Scorer) and plugin.category is Category.BALANCE
    return (
        keys is not None
        and not balances
        and any(key.name.partition("@")[0] == PREFIX_MATCH_BLOCKS.name for key in (*keys.consumes, *keys.consumes_optional))
    )


def _listed(instances: list[DraftInstance]) -> str:
    return ", ".join(f"'{instance.name}'" for instance in instances)
