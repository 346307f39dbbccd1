"""Plans a piece of a document with the plugins of the zoo, and finds what a test wants to know of the outcome."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from textwrap import dedent

from endpick.config import load_config
from endpick.diagnostics import Diagnostic, Span, render_text
from endpick.host.hooks import Hooks
from endpick.host.planning.plan import Plan, PlanOutcome
from endpick.host.planning.planner import make_plan
from endpick.host.planning.pool import NO_POOL, PoolSettings
from unit.host.planning.zoo import HOOK_OBJECTS, candidates


@dataclass(frozen=True)
class Result:
    """An outcome together with the text it was made from."""

    outcome: PlanOutcome
    text: str

    @property
    def plan(self) -> Plan:
        assert self.outcome.plan is not None, render_text(self.outcome.diagnostics, {"config.yaml": self.text})
        return self.outcome.plan

    @property
    def found(self) -> list[tuple[str, str]]:
        """Each diagnostic as its code and the text that its span covers, in order."""
        return [(one.code.name, self.quote(one.span)) for one in self.outcome.diagnostics]

    def one(self, code: str) -> Diagnostic:
        (diagnostic,) = [one for one in self.outcome.diagnostics if one.code.name == code]
        return diagnostic

    def quote(self, span: Span | None) -> str:
        if span is None:
            return ""
        lines = self.text.splitlines()[span.line - 1 : span.end_line]
        lines[-1] = lines[-1][: span.end_column - 1]
        lines[0] = lines[0][span.column - 1 :]
        return "\n".join(lines)

    def announced(self, word: str) -> list[str]:
        return [one.message for one in self.plan.announcements if word in one.message]


def plan(
    body: str,
    *,
    version: str = "endpick/v1alpha1",
    without: Iterable[str] = (),
    pool: PoolSettings = NO_POOL,
    hook_objects: Iterable[str] = (),
    hooks: Hooks | None = None,
) -> Result:
    """Plan a document of which only the interesting part is given; line 3 is the first of `body`."""
    text = f"apiVersion: {version}\nkind: EndpointPickerConfig\n{dedent(body).lstrip()}"
    loaded = load_config(text=text, name="config.yaml")
    installed = [HOOK_OBJECTS[name] for name in hook_objects]
    return Result(make_plan(loaded, candidates(without), hooks=hooks, hook_objects=installed, pool=pool), text)
