"""Names in the document to the instances they mean; a place in the document takes an instance of one kind."""

from __future__ import annotations

from endpick.api.plugin import Kind
from endpick.config import PluginRef
from endpick.diagnostics import Code, DocumentPath, did_you_mean
from endpick.planning.draft import Draft, DraftInstance

_ARTICLE = {Kind.ENDPOINT_DISCOVERY: "an", Kind.ADMITTER: "an"}


def title(kind: Kind) -> str:
    """A kind as messages name it: `a data source`."""
    return f"{_ARTICLE.get(kind, 'a')} {kind.replace('-', ' ')}"


def titles(kinds: tuple[Kind, ...]) -> str:
    """All that an instance is: `a filter and a scorer`."""
    return " and ".join(title(kind) for kind in kinds)


def look_up(name: str, path: DocumentPath, draft: Draft, code: Code = Code.E0501) -> DraftInstance | None:
    """The instance a name at `path` refers to; reports a name that nothing has, unless a faulty entry may have defined it."""
    instance = draft.instances.get(name)
    if instance is None:
        if not draft.loaded.may_define(name):
            report_unknown(name, path, draft, code)
        return None
    draft.used.add(name)
    return instance


def look_up_kind(reference: PluginRef, kind: Kind, draft: Draft) -> DraftInstance | None:
    """As `look_up`, for a place that takes one kind only; an instance whose kind is unknown passes."""
    path = (*reference.path, "pluginRef")
    instance = look_up(reference.plugin_ref, path, draft)
    if instance is not None and not instance.may_be_a(kind):
        report_wrong_kind(instance, kind, path, draft)
        return None
    return instance


def report_unknown(name: str, path: DocumentPath, draft: Draft, code: Code = Code.E0501) -> None:
    """The name belongs to no instance."""
    defined = list(draft.instances)
    listed = f"defined are {', '.join(defined)}" if defined else "no instance is defined under `plugins:`"
    draft.report(
        code,
        f"'{name}' is not an instance defined under plugins",
        path,
        help=did_you_mean(name, defined) or f"add it under `plugins:`; {listed}",
        notes=(listed,) if did_you_mean(name, defined) else (),
    )


def report_wrong_kind(instance: DraftInstance, kind: Kind, path: DocumentPath, draft: Draft) -> None:
    """The instance cannot do what its place asks for."""
    assert instance.loaded is not None
    fitting = [other.name for other in draft.of_kind(kind)]
    draft.report(
        Code.E0503,
        f"'{instance.name}' is {titles(instance.loaded.kinds)}; {title(kind)} is needed here",
        path,
        help=f"of that kind are {', '.join(fitting)}" if fitting else f"define {title(kind)} under `plugins:`",
        plugin=instance.plugin,
    )
