"""Checks of what a plugin says about itself."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.specifiers import SpecifierSet

from endpick.api.plugin import Kind
from endpick.plugins.discovery import Candidate
from endpick.plugins.resolution import where
from endpick.testing.check import Finding, check
from endpick.testing.pools import BUILT_IN_KEYS
from endpick.testing.subject import Subject
from endpick.versions import API_MAJOR, ENTRY_POINT_GROUP_PREFIX

GROUP = f"{ENTRY_POINT_GROUP_PREFIX}{API_MAJOR}"


@check()
def has_an_entry_point(subject: Subject) -> Iterator[Finding]:
    """One installed entry point leads to the class, under the plugin's own type."""
    wanted = f'[project.entry-points."{GROUP}"] "{subject.name}" = "{subject.target}"'
    bearing = [offer for offer in subject.offers if offer.type == subject.name and not offer.shadowed_by]
    leading = [offer for offer in bearing if _target(offer) == subject.target]
    if len(bearing) > 1:
        offers = "; ".join(where(offer) for offer in bearing)
        yield Finding(f"the type is offered {len(bearing)} times: {offers}", "uninstall the others, or give your plugin another type")
    elif bearing and not leading:
        offer = bearing[0]
        yield Finding(
            f"the entry point '{offer.type}' of {offer.origin} leads to {offer.target}, not to {subject.target}", f"write {wanted}"
        )
    elif bearing and not bearing[0].speaks_our_api:
        offer = bearing[0]
        yield Finding(f"the entry point is in the group of plugin API {offer.api_major}", f"write {wanted}, and install the project again")
    elif not bearing:
        others = [offer for offer in subject.offers if _target(offer) == subject.target]
        names = f"; it is installed as {', '.join(repr(other.type) for other in others)} only" if others else ""
        yield Finding(
            f"no installed entry point leads to {subject.target}{names}", f"write {wanted}, and install the project (`pip install -e .`)"
        )


@check()
def works_under_its_aliases(subject: Subject) -> Iterator[Finding]:
    """Each former name in `meta.aliases` has an entry point of its own."""
    for alias in subject.plugin.meta.aliases:
        if not any(offer.type == alias for offer in subject.offers):
            yield Finding(
                f"the alias '{alias}' has no entry point", f'add "{alias}" = "{subject.target}" to [project.entry-points."{GROUP}"]'
            )


@check()
def has_a_vendor_prefix(subject: Subject) -> Iterator[Finding]:
    """The type begins with who makes it (`acme.queue-scorer`): types without prefix are endpick's own."""
    if not subject.offers or any(offer.is_builtin for offer in subject.offers):
        return
    if "." not in subject.name:
        yield Finding("the type has no prefix", f"call it by your name, for example 'acme.{subject.name}'")


@check()
def accepts_no_future_api(subject: Subject) -> Iterator[Finding]:
    """`meta.api` excludes the next major version of the plugin API, which nobody can have tried yet."""
    api = subject.plugin.meta.api
    if SpecifierSet(api).contains(f"{API_MAJOR + 1}.0"):
        yield Finding(f"`meta.api` is '{api}', which includes plugin API {API_MAJOR + 1}", f"write '>={API_MAJOR}.0,<{API_MAJOR + 1}'")


@check()
def has_a_docstring(subject: Subject) -> Iterator[Finding]:
    """The class has a docstring of its own: `endpick list` and `endpick describe` show it."""
    if not subject.loaded.summary:
        yield Finding("the class has no docstring", "say in one sentence what it prefers, keeps or does, and with what formula")


@check()
def documents_its_data_keys(subject: Subject) -> Iterator[Finding]:
    """Every declared data key says what it holds, and keys that are not endpick's own have a namespace."""
    meta = subject.plugin.meta
    for key in (*meta.consumes, *meta.consumes_optional, *meta.produces):
        if not key.doc:
            yield Finding(f"the data key '{key.name}' has no `doc`", "say what it is, its unit and its range")
        if "/" not in key.name and key not in BUILT_IN_KEYS:
            yield Finding(f"the data key '{key.name}' has no namespace", f"put a name that is yours in front: 'acme.example/{key.name}'")


@check(Kind.DATA_SOURCE, Kind.DATA_COLLECTOR)
def names_its_payload(subject: Subject) -> Iterator[Finding]:
    """`meta.payload` names the type a source gives, or a collector takes: the host connects the two by it."""
    if subject.plugin.meta.payload is None:
        yield Finding("`meta.payload` is missing", "name the class of the payload, for example `payload=MetricsPage`")


@check(Kind.DATA_COLLECTOR, Kind.DATA_PRODUCER)
def produces_something(subject: Subject) -> Iterator[Finding]:
    """A collector or producer declares what it writes in `meta.produces`."""
    for block, parameters in subject.valid_blocks():
        if not subject.plugin.subscriptions(parameters).produces:
            yield Finding(f"it produces nothing with {block.origin}", "list the data keys it writes in `meta.produces`")


def _target(offer: Candidate) -> str:
    return offer.target.replace(" ", "")
