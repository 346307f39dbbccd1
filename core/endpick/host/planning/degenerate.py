"""Warns of scheduling profiles that are valid but decide in a way their author can hardly want."""

from __future__ import annotations

from endpick.api import Picker, Scorer
from endpick.api.keys import PREFIX_MATCH_BLOCKS
from endpick.diagnostics import Code, DocumentPath
from endpick.host.planning.builder import DraftInstance, PlanBuilder
from endpick.host.planning.plan import PlannedProfile

_LOAD_SCORERS = "queue-scorer or active-request-scorer"


def doubt_decisions(profile: PlannedProfile, path: DocumentPath, builder: PlanBuilder, *, emptied: bool) -> None:
    """Add at most one warning at `path`: no scorers although some are defined, ignored scores, or scores without load."""
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
    elif emptied and any(one.name not in builder.used for one in builder.configured(Scorer)):
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
    return keys is not None and any(
        key.name.partition("@")[0] == PREFIX_MATCH_BLOCKS.name for key in (*keys.consumes, *keys.consumes_optional)
    )


def _listed(instances: list[DraftInstance]) -> str:
    return ", ".join(f"'{instance.name}'" for instance in instances)
