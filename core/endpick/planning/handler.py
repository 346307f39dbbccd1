"""Third step of a plan: the one profile handler, which decides what profiles run and what their results mean."""

from __future__ import annotations

from endpick.api.plugin import Kind
from endpick.config import SchedulingProfile
from endpick.diagnostics import Code
from endpick.planning.definitions import add_instance
from endpick.planning.draft import Draft, DraftInstance
from endpick.planning.installed import Installed

DEFAULT_HANDLER = "single-profile-handler"


def plan_handler(draft: Draft, installed: Installed) -> str | None:
    """The name of the handler; None when there is none, or when that cannot be known."""
    profiles = draft.config.scheduling_profiles
    handlers = draft.of_kind(Kind.PROFILE_HANDLER)
    draft.used.update(handler.name for handler in handlers)
    if handlers:
        first, *others = handlers
        for other in others:
            _report_second(other, first, draft)
        if first.type == DEFAULT_HANDLER and len(profiles) > 1:
            _report_too_many_profiles(first, profiles, draft)
        return first.name
    if not draft.is_complete or draft.loaded.is_damaged(("schedulingProfiles",)):
        return None
    if len(profiles) > 1:
        _report_none(profiles, draft)
        return None
    reason = "there is one scheduling profile and no profile handler"
    draft.announce(Code.N0501, DEFAULT_HANDLER, f"added profile handler '{DEFAULT_HANDLER}': {reason}")
    return add_instance(draft, installed, DEFAULT_HANDLER, reason).name


def _report_none(profiles: tuple[SchedulingProfile, ...], draft: Draft) -> None:
    names = ", ".join(profile.name for profile in profiles)
    draft.report(
        Code.E0506,
        f"there are {len(profiles)} scheduling profiles ({names}) and no profile handler to choose among them",
        ("schedulingProfiles",),
        at_key=True,
        help="define a profile handler under `plugins:`",
    )


def _report_second(other: DraftInstance, first: DraftInstance, draft: Draft) -> None:
    assert other.spec is not None
    assert first.spec is not None
    draft.report(
        Code.E0506,
        f"'{other.name}' and '{first.name}' are both profile handlers, and there can be one",
        (*other.spec.path, "type"),
        labels=[draft.label((*first.spec.path, "type"), "the first profile handler")],
        help="remove one of them",
        plugin=other.plugin,
    )


def _report_too_many_profiles(handler: DraftInstance, profiles: tuple[SchedulingProfile, ...], draft: Draft) -> None:
    assert handler.spec is not None
    draft.report(
        Code.E0507,
        f"'{handler.name}' runs one scheduling profile, and {len(profiles)} are defined",
        (*handler.spec.path, "type"),
        labels=[draft.label((*profile.path, "name"), "one of them") for profile in profiles],
        help="use a profile handler that chooses among profiles, or remove all profiles but one",
        plugin=handler.plugin,
    )
