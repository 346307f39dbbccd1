"""What can be wrong with scheduling profiles, in words."""

from __future__ import annotations

from endpick.api.plugin import Kind
from endpick.config import ENDPICK, ProfilePlugin, SchedulingProfile
from endpick.diagnostics import Code
from endpick.planning.draft import Draft, DraftInstance
from endpick.planning.references import titles


def judge_weight(reference: ProfilePlugin, instance: DraftInstance, draft: Draft) -> None:
    """Only scorers have a weight, and it should count."""
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


def report_repetition(reference: ProfilePlugin, first: ProfilePlugin, profile: SchedulingProfile, draft: Draft) -> None:
    """An instance takes part in a profile once."""
    draft.report(
        Code.E0510,
        f"'{reference.plugin_ref}' appears twice in scheduling profile '{profile.name}'",
        (*reference.path, "pluginRef"),
        labels=[draft.label((*first.path, "pluginRef"), "first named here")],
        help="remove one of them; to run a type twice, define a second instance of it with another name",
    )


def doubt_effect(reference: ProfilePlugin, instance: DraftInstance, profile: SchedulingProfile, draft: Draft) -> None:
    """A profile runs filters, scorers and a picker; anything else in it is idle, as in llm-d."""
    assert instance.loaded is not None
    draft.report(
        Code.W0502,
        f"'{instance.name}' has no effect in scheduling profile '{profile.name}': it is {titles(instance.loaded.kinds)}",
        (*reference.path, "pluginRef"),
        help="remove it from the profile; a profile runs filters, scorers and a picker",
        plugin=instance.plugin,
    )


def report_second_picker(other: ProfilePlugin, first: ProfilePlugin, profile: SchedulingProfile, draft: Draft) -> None:
    """A profile has one picker."""
    draft.report(
        Code.E0505,
        f"scheduling profile '{profile.name}' has two pickers, '{first.plugin_ref}' and '{other.plugin_ref}'",
        (*other.path, "pluginRef"),
        labels=[draft.label((*first.path, "pluginRef"), "the first picker")],
        help="remove one of them",
    )


def report_two_pickers(other: DraftInstance, first: DraftInstance, draft: Draft) -> None:
    """Without profiles every picker that is defined would be the picker of the one profile."""
    assert other.spec is not None
    assert first.spec is not None
    draft.report(
        Code.E0505,
        f"'{other.name}' and '{first.name}' are both pickers, and a scheduling profile has one",
        (*other.spec.path, "type"),
        labels=[draft.label((*first.spec.path, "type"), "the first picker")],
        help="remove one, or say with `schedulingProfiles:` which picker belongs to which profile",
        plugin=other.plugin,
    )


def report_same_names(profiles: tuple[SchedulingProfile, ...], draft: Draft) -> None:
    """Profiles are told apart by their names."""
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
