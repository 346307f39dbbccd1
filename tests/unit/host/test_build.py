"""Building instances."""

from __future__ import annotations

import logging

import pytest

from endpick.api import ConfigurationError, DataKey, Filter, Parameters, PluginContext, Scorer, Subscriptions
from endpick.config.source import read_source
from endpick.diagnostics import Code, Diagnostic, PluginReference
from endpick.host.instance import Instance, build, instance_logger, subscriptions_of
from endpick.host.kinds import OnFault
from endpick.host.parameters import ParameterSource
from endpick.host.resolution import Reference
from plugin_classes import load_class, scorer_class

READ, WRITTEN = DataKey("acme/read", float), DataKey("acme/written", float)
SOURCE, _ = read_source(b"plugins:\n  - type: acme.scorer\n    parameters: {a: 1}\n  - type: acme.scorer\n", "c.yaml")


def place(index=0):
    path = ("plugins", index)
    reference = Reference("acme.scorer", f"inst-{index}", span=SOURCE.value_span((*path, "type")), path=(*path, "type"))
    return ParameterSource(reference, (*path, "parameters"), SOURCE)


def built(plugin, on_fault=None, **more):
    return build(load_class(plugin).loaded, "inst", Parameters(), on_fault, PluginContext(), **more)


def test_instance_has_origin_kinds_and_keys():
    instance = built(scorer_class(consumes=(READ,), produces=(WRITTEN,)))

    assert isinstance(instance, Instance)
    assert (instance.name, instance.type, instance.distribution, instance.version) == ("inst", "acme.scorer", "acme", "1.0")
    assert instance.kinds == (Scorer,)
    assert (instance.plugin.name, instance.plugin.parameters, type(instance.plugin.context)) == ("inst", Parameters(), PluginContext)
    assert instance.scope.instance == "inst"
    assert instance.origin == "inst (acme.scorer, acme 1.0)"
    assert instance.scope.readable == {"acme/read", "acme/written"}
    assert instance.scope.writable == {"acme/written"}


def test_on_fault_defaults_to_the_kinds():
    class Both(scorer_class(), Filter):
        def filter(self, request, endpoints, state):
            return endpoints

    assert built(scorer_class()).on_fault is OnFault.SKIP
    assert built(Both).on_fault is OnFault.REFUSE
    assert built(Both, OnFault.SKIP).on_fault is OnFault.SKIP


@pytest.mark.parametrize(
    ("raised", "message", "help_line"),
    [
        (ConfigurationError("no file /etc/acme"), "cannot work with its parameters: no file /etc/acme", "correct the parameters"),
        (ZeroDivisionError("division by zero"), "failed while it was built: ZeroDivisionError: division by zero", "fault of acme"),
        (SystemExit(3), "failed while it was built: SystemExit: 3", "fault of acme"),
    ],
)
def test_constructor_error_is_reported_at_the_parameters(raised, message, help_line):
    class Raising(scorer_class()):
        def __init__(self, name, parameters, context):
            raise raised

    diagnostic = built(Raising, place=place())
    without_block = built(Raising, place=place(1))

    assert isinstance(diagnostic, Diagnostic)
    assert diagnostic.code is Code.E0403
    assert message in diagnostic.message
    assert help_line in diagnostic.help
    assert diagnostic.path == ("plugins", 0, "parameters")
    assert diagnostic.plugin == PluginReference("acme.scorer", "inst-0", "acme", "1.0")
    assert diagnostic.span == SOURCE.key_span(("plugins", 0, "parameters"))
    assert without_block.span == SOURCE.value_span(("plugins", 1, "type"))
    assert bool(diagnostic.notes) == (not isinstance(raised, ConfigurationError))


def test_subscriptions_may_depend_on_parameters_and_may_fail():
    class Telling(scorer_class()):
        @classmethod
        def subscriptions(cls, parameters):
            return Subscriptions(consumes=(READ,))

    class NullTelemetry(Telling):
        @classmethod
        def subscriptions(cls, parameters):
            return None

    class Raising(Telling):
        @classmethod
        def subscriptions(cls, parameters):
            raise LookupError("which?")

    assert subscriptions_of(load_class(Telling).loaded, Parameters()) == Subscriptions(consumes=(READ,))
    assert built(Telling).subscriptions.consumes == (READ,)
    assert "answered None, not Subscriptions" in built(NullTelemetry).message
    assert built(NullTelemetry, place=place()).span == SOURCE.key_span(("plugins", 0, "parameters"))
    assert "LookupError: which?" in built(Raising).message


def test_given_subscriptions_are_used():
    class Raising(scorer_class()):
        @classmethod
        def subscriptions(cls, parameters):
            raise LookupError

    given = Subscriptions(produces=(WRITTEN,))

    assert built(Raising, subscriptions=given).subscriptions is given


@pytest.mark.parametrize(
    ("kind", "name", "value", "wanted"),
    [
        (scorer_class, "tolerated_age_seconds", float("nan"), "a number of seconds or None"),
        (scorer_class, "tolerated_age_seconds", "1", "a number of seconds or None"),
        (scorer_class, "tolerated_age_seconds", -1.0, "a number of seconds or None"),
    ],
)
def test_wrong_attribute_is_reported_for_class_and_instance(kind, name, value, wanted):
    plain = kind()

    class Late(plain):
        def __init__(self, instance, parameters, context):
            super().__init__(instance, parameters, context)
            setattr(self, name, value)

    (fault,) = load_class(type("Wrong", (plain,), {name: value})).diagnostics
    assert fault.code is Code.E0318
    assert wanted in fault.message
    diagnostic = built(Late)
    assert diagnostic.code is Code.E0403
    assert wanted in diagnostic.message


def test_log_records_carry_the_instance(caplog):
    loaded = load_class(scorer_class()).loaded
    logger = instance_logger(loaded, "inst")
    assert logger.name == "endpick.plugin.inst"

    logger.warning("hello")
    logging.getLogger("endpick.plugin.an-instance-of-no-test").warning("nobody")

    assert [getattr(record, "plugin", None) for record in caplog.records] == ["inst (acme.scorer, acme 1.0)", None]
