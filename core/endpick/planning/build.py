"""Builds what a plan describes: one object per instance, in the order of the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from endpick.api.plugin import PluginContext
from endpick.diagnostics import Diagnostic, sort_diagnostics
from endpick.planning.plan import Plan, PlannedInstance
from endpick.plugins.build import build
from endpick.plugins.instance import Instance


@dataclass(frozen=True, slots=True)
class Built:
    """The instances of a plan by name, in the order of the plan."""

    instances: Mapping[str, Instance]


def build_plan(
    plan: Plan, context_for: Callable[[PlannedInstance], PluginContext], carried: Mapping[str, Instance] | None = None
) -> Built | tuple[Diagnostic, ...]:
    """Construct every instance; all that refuse to be built are reported, at their `parameters:`.

    Args:
        plan: What to build.
        context_for: Clock, randomness, logger and registry of an instance.
        carried: Instances of an earlier plan to take over instead of building anew, by name; from `carry_over`.
    """
    built: dict[str, Instance] = {}
    faults: list[Diagnostic] = []
    for planned in plan.instances:
        known = (carried or {}).get(planned.name)
        result = known or build(
            planned.loaded,
            planned.name,
            planned.parameters,
            planned.on_fault,
            context_for(planned),
            subscriptions=planned.subscriptions,
            place=planned.place,
        )
        if isinstance(result, Diagnostic):
            faults.append(result)
        else:
            built[planned.name] = result
    return sort_diagnostics(faults) if faults else Built(built)


def carry_over(old: Plan, built: Built, new: Plan) -> dict[str, Instance]:
    """The instances that a new plan can take over with all they have learnt: same name, same plugin, same parameters.

    What the host does when they fail may change; the plugin itself knows nothing of that.
    """
    carried = {}
    for planned in new.instances:
        before = old.by_name.get(planned.name)
        if (
            before is not None
            and before.loaded.plugin is planned.loaded.plugin
            and before.parameters == planned.parameters
            and before.subscriptions == planned.subscriptions
        ):
            carried[planned.name] = replace(built.instances[planned.name], on_fault=planned.on_fault)
    return carried
