"""Checks of a plugin's entry point, declarations and parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from packaging.requirements import Requirement
from pydantic import ValidationError
from pydantic_core import PydanticUndefined

from endpick import __version__
from endpick.api import DataCollector, DataProducer, DataSource
from endpick.api.plugin import Parameters
from endpick.diagnostics import Diagnostic
from endpick.host.discovery import (
    API_MAJOR,
    ENTRY_POINT_GROUP_PREFIX,
    HOST_DISTRIBUTION,
    SEPARATE_PLUGINS,
    Candidate,
    normalise,
    requirements_of,
)
from endpick.host.kinds import payload_of
from endpick.host.parameters import parameters_schema
from endpick.host.resolution import where
from endpick.host.schema import own_model
from endpick.testing.bench import make_bench
from endpick.testing.factories import BUILT_IN_KEYS
from endpick.testing.plugin_under_test import Finding, PluginUnderTest, check


@check()
def loads(subject: PluginUnderTest) -> Iterator[Finding]:
    """The host can load the class: its kind, declarations, methods, signatures and parameters schema are valid."""
    for refusal in subject.refusals:
        notes = "; ".join(refusal.notes)
        yield Finding(f"{refusal.message} [{refusal.code}]", notes or f"`endpick explain {refusal.code}` says more")


GROUP = f"{ENTRY_POINT_GROUP_PREFIX}{API_MAJOR}"


@check()
def has_an_entry_point(subject: PluginUnderTest) -> Iterator[Finding]:
    """One installed entry point leads to the class; its name is the plugin type."""
    wanted = f'[project.entry-points."{GROUP}"] "{_type_to_write(subject)}" = "{subject.target}"'
    bearing = [offer for offer in subject.offers if offer.type == subject.name]
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


def _type_to_write(subject: PluginUnderTest) -> str:
    if any(offer.type == subject.name for offer in subject.offers):
        return subject.name
    return f"acme.{re.sub('(?<!^)(?=[A-Z])', '-', subject.plugin.__name__).lower()}"


@check()
def works_under_its_aliases(subject: PluginUnderTest) -> Iterator[Finding]:
    """Each former name in `aliases` has an entry point."""
    for alias in subject.plugin.aliases:
        if not any(offer.type == alias for offer in subject.offers):
            yield Finding(
                f"the alias '{alias}' has no entry point", f'add "{alias}" = "{subject.target}" to [project.entry-points."{GROUP}"]'
            )


@check()
def has_a_vendor_prefix(subject: PluginUnderTest) -> Iterator[Finding]:
    """The type starts with a vendor (`acme.queue-scorer`): types without one are endpick's."""
    if not subject.offers or any(offer.is_builtin or offer.type in SEPARATE_PLUGINS for offer in subject.offers):
        return
    if "." not in subject.name:
        yield Finding("the type has no prefix", f"call it by your name, for example 'acme.{subject.name}'")


@check()
def requires_endpick(subject: PluginUnderTest) -> Iterator[Finding]:
    """Its distribution requires a minimum version of endpick: older ones refuse it before importing it."""
    offer = subject.candidate
    if offer.is_builtin or not offer.metadata_path:
        return
    required = [need for need in map(Requirement, requirements_of(offer.distribution)) if normalise(need.name) == HOST_DISTRIBUTION]
    if not any(bound.operator in (">=", "~=", "==", ">") for need in required for bound in need.specifier):
        yield Finding(f"{offer.distribution} does not say which endpick it needs", f'add "endpick>={__version__}" to its `dependencies`')


@check()
def has_a_docstring(subject: PluginUnderTest) -> Iterator[Finding]:
    """The class has a docstring: `endpick list` and `endpick describe` show it."""
    if not subject.loaded.summary:
        yield Finding("the class has no docstring", "say in one sentence what it prefers, keeps or does, and with what formula")


@check()
def documents_its_data_keys(subject: PluginUnderTest) -> Iterator[Finding]:
    """Every declared data key is documented, and keys of plugins have a namespace."""
    plugin = subject.plugin
    for key in (*plugin.consumes, *plugin.consumes_optional, *plugin.produces):
        if not key.doc:
            yield Finding(f"the data key '{key.name}' has no `doc`", "say what it is, its unit and its range")
        if "/" not in key.name and key not in BUILT_IN_KEYS:
            yield Finding(f"the data key '{key.name}' has no namespace", f"put a name that is yours in front: 'acme.example/{key.name}'")


@check(DataSource, DataCollector)
def names_its_payload(subject: PluginUnderTest) -> Iterator[Finding]:
    """The second generic argument is the payload type of a source or collector: the host connects the two by it."""
    if payload_of(subject.plugin) is None:
        base = "PollingSource" if issubclass(subject.plugin, DataSource) else "DataCollector"
        yield Finding("it names no type of payload", f"name its class as the second generic argument: `{base}[Parameters, MetricsPage]`")


@check(DataCollector, DataProducer)
def produces_something(subject: PluginUnderTest) -> Iterator[Finding]:
    """A collector or producer declares its data keys in `produces`, for the class or for the instance."""
    for block, parameters in subject.valid_blocks():
        if not subject.plugin.subscriptions(parameters).produces and not subject.plugin.produces:
            yield Finding(f"it produces nothing with {block.origin}", "list the data keys it writes in `produces`")


def _target(offer: Candidate) -> str:
    return offer.target.replace(" ", "")


_UNKNOWN = "endpickConformanceUnknown"


@check()
def describes_its_parameters(subject: PluginUnderTest) -> Iterator[Finding]:
    """Every parameter has a description."""
    schema = parameters_schema(subject.loaded)
    definitions = schema.get("$defs", {})
    assert isinstance(definitions, Mapping)
    for owner, definition in (("", schema), *((f"{name}.", definition) for name, definition in definitions.items())):
        for name, described in definition.get("properties", {}).items():
            if not described.get("description"):
                yield Finding(f"the parameter '{owner}{name}' has no description", "add `Field(description=...)`, with unit and range")


@check(once=True)
def refuses_unknown_parameters(subject: PluginUnderTest) -> Iterator[Finding]:
    """An unknown parameter is an error: it is a typing mistake of an operator."""
    for block, _ in subject.valid_blocks():
        if isinstance(subject.judge({**block.raw, _UNKNOWN: 1}), Parameters):
            yield Finding("it accepts a parameter that does not exist", "leave `extra='forbid'` of endpick.api.Parameters as it is")


@check()
def has_valid_defaults(subject: PluginUnderTest) -> Iterator[Finding]:
    """Every default satisfies the constraints of its parameter, which pydantic does not check."""
    model = own_model(subject.plugin)
    if model is None:
        return
    base = dict(subject.blocks[0].raw)
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True, validated_data={})
        if default is PydanticUndefined:
            continue
        written = str(field.validation_alias or field.alias or name)
        try:
            model.model_validate({**base, written: default})
        except ValidationError as error:
            about = [detail for detail in error.errors() if detail["loc"][:1] == (written,)]
            for detail in about:
                yield Finding(
                    f"the default of '{written}', {default!r}, is not valid: {detail['msg']}", "correct the default or the constraint"
                )


@check()
def has_valid_examples(subject: PluginUnderTest) -> Iterator[Finding]:
    """The host accepts the defaults and every example of the parameters."""
    for block in subject.blocks:
        judged = subject.judge(block.raw)
        if not isinstance(judged, Parameters):
            for mistake in judged:
                yield Finding(
                    f"the host refuses {block.origin}: {mistake.message}",
                    "give required parameters an example, `Field(examples=[...])`, or pass `parameters=` to the kit"
                    if mistake.code.name == "E0406"
                    else "correct the example or the constraint",
                )


@check()
def keeps_parameters_immutable(subject: PluginUnderTest) -> Iterator[Finding]:
    """Parameters cannot change after they are read: they hold until the next reload."""
    model = own_model(subject.plugin)
    if model is not None and model.model_config.get("frozen") is not True:
        yield Finding("its parameters can be changed", "leave `frozen=True` of endpick.api.Parameters as it is")


@check()
def can_be_built(subject: PluginUnderTest) -> Iterator[Finding]:
    """The constructor accepts the defaults and every example, and can build a second instance, as for a reload."""
    for block, parameters in subject.valid_blocks():
        built = make_bench(subject, block.origin, parameters)
        if isinstance(built, Diagnostic):
            notes = "; ".join(" ".join(note.split()) for note in built.notes)
            yield Finding(
                f"with {block.origin}: {built.message}", notes or "a constructor raises ConfigurationError, and only for bad parameters"
            )
            continue
        second = make_bench(subject, block.origin, parameters)
        if isinstance(second, Diagnostic):
            yield Finding(
                f"a second instance cannot be built beside the first: {second.message}",
                "keep nothing in the class or the module, and register metrics in `context.registry`",
            )
            return
