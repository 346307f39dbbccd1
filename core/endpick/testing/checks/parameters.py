"""Checks of a plugin's parameters: what `endpick describe`, editors and operators meet first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import ValidationError
from pydantic_core import PydanticUndefined

from endpick.api.plugin import Parameters
from endpick.diagnostics import Diagnostic
from endpick.plugins.parameters import parameters_schema
from endpick.plugins.schema import has_own_model
from endpick.testing.bench import make_bench
from endpick.testing.check import Finding, check
from endpick.testing.subject import Subject

_UNKNOWN = "endpickConformanceUnknown"


@check()
def describes_its_parameters(subject: Subject) -> Iterator[Finding]:
    """Every parameter has a description."""
    schema = parameters_schema(subject.loaded)
    definitions = schema.get("$defs", {})
    assert isinstance(definitions, Mapping)
    for owner, one in (("", schema), *((f"{name}.", definition) for name, definition in definitions.items())):
        for name, described in one.get("properties", {}).items():
            if not described.get("description"):
                yield Finding(f"the parameter '{owner}{name}' has no description", "add `Field(description=...)`, with unit and range")


@check()
def refuses_unknown_parameters(subject: Subject) -> Iterator[Finding]:
    """A parameter that does not exist is an error, never ignored: it is a typing mistake of an operator."""
    for block, _ in subject.valid_blocks():
        if isinstance(subject.judge({**block.raw, _UNKNOWN: 1}), Parameters):
            yield Finding("it accepts a parameter that does not exist", "leave `extra='forbid'` of endpick.api.Parameters as it is")
            return


@check()
def has_valid_defaults(subject: Subject) -> Iterator[Finding]:
    """The default of every parameter satisfies the parameter's own constraints, which pydantic does not look at."""
    meta = subject.plugin.meta
    if not has_own_model(meta):
        return
    base = dict(subject.blocks[0].raw)
    for name, field in meta.parameters.model_fields.items():
        default = field.get_default(call_default_factory=True, validated_data={})
        if default is PydanticUndefined:
            continue
        written = str(field.validation_alias or field.alias or name)
        try:
            meta.parameters.model_validate({**base, written: default})
        except ValidationError as error:
            about = [detail for detail in error.errors() if detail["loc"][:1] == (written,)]
            for detail in about:
                yield Finding(
                    f"the default of '{written}', {default!r}, is not valid: {detail['msg']}", "correct the default or the constraint"
                )


@check()
def has_valid_examples(subject: Subject) -> Iterator[Finding]:
    """The defaults, and every example of the parameters, are accepted by the host."""
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
def keeps_parameters_immutable(subject: Subject) -> Iterator[Finding]:
    """Parameters cannot be changed once they are read: what a configuration says holds until the next reload."""
    if subject.plugin.meta.parameters.model_config.get("frozen") is not True:
        yield Finding("its parameters can be changed", "leave `frozen=True` of endpick.api.Parameters as it is")


@check()
def can_be_built(subject: Subject) -> Iterator[Finding]:
    """The constructor accepts the defaults and every example, and builds a second instance beside the first, as for a reload."""
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
