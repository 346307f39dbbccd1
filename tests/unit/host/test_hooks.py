"""Hook objects: their order, their arguments, their failures."""

from __future__ import annotations

import asyncio
import logging

import pytest
from prometheus_client import CollectorRegistry

from endpick.api import hookimpl
from endpick.api.hooks import HostServices, HostView, PluginRecord
from endpick.config.source import read_source
from endpick.diagnostics import Code, Span
from endpick.host.discovery import Candidate, discover_hook_objects
from endpick.host.hooks import HOOKS, HookConfigReport, HookRegistry, hook_faults, load_hooks
from endpick.host.resolution import Policy, Reference
from endpick.serve.decisions import DecisionRecords, RecordSettings
from endpick.serve.metrics import EndpickMetrics
from plugin_classes import load_class, scorer_class

VIEW = HostView({}, {"one": None, "two": None})


@pytest.fixture
def hooks(fixture_project, monkeypatch):
    """`hooks("hooks.first", …)`: a registry of these hook objects, and what was wrong with them."""
    root = fixture_project("hook-objects")
    monkeypatch.syspath_prepend(root)
    candidates = discover_hook_objects([str(root)])

    def load(*names, **more):
        references = [
            Reference(name, span=Span("c.yaml", line, 1, line, 2), path=("hooks", line)) for line, name in enumerate(names, start=1)
        ]
        return load_hooks(references, candidates, **more)

    return load


@pytest.fixture
def calls(fixture_project, monkeypatch):
    monkeypatch.syspath_prepend(fixture_project("hook-objects"))
    from hook_objects.recording import CALLS

    CALLS.clear()
    return CALLS


def shown(registry, *records):
    observers = DecisionRecords(registry, RecordSettings(1.0), EndpickMetrics(CollectorRegistry()), lambda: 0.0)
    for record in records:
        observers.show(record)


def sound(loaded):
    registry, faults = loaded
    assert faults == ()
    return registry


def test_empty_registry_does_nothing():
    registry = HookRegistry()

    assert registry.names == ()
    assert registry.offered() == ((), ())
    assert registry.configure(HostServices(lambda: 0.0)) == ()
    assert asyncio.run(registry.startup(VIEW)) == ()
    shown(registry, {"id": "x"})


def test_hook_objects_are_called_in_document_order(hooks, calls):
    registry = sound(hooks("hooks.first", "hooks.module", "hooks.second"))
    services = HostServices(lambda: 0.0)

    assert registry.names == ("hooks.first (hook-objects 1.0)", "hooks.module (hook-objects 1.0)", "hooks.second (hook-objects 1.0)")
    assert registry.configure(services) == ()
    assert services.clock() == 42.0
    assert calls == ["first configure", "module configure", "second configure"]


def test_tryfirst_comes_first(hooks, calls):
    sound(hooks("hooks.first", "hooks.eager")).configure(HostServices(lambda: 0.0))

    assert calls == ["eager configure", "first configure"]


@pytest.mark.asyncio
async def test_shutdown_is_in_reverse_order(hooks, calls):
    registry = sound(hooks("hooks.first", "hooks.second"))

    assert await registry.startup(VIEW) == ()
    assert await registry.shutdown(VIEW) == ()

    assert calls == ["first startup one,two", "second startup one,two", "second shutdown", "first shutdown"]


def test_plugin_is_announced_once(hooks, calls):
    registry = sound(hooks("hooks.first"))
    loaded = load_class(scorer_class()).loaded

    registry.plugin_loaded(loaded)
    registry.plugin_loaded(loaded)

    assert calls == ["first loaded acme.scorer"]


class Watching:
    """Keeps what it is told."""

    def __init__(self):
        self.records = []

    @hookimpl
    def endpick_plugin_loaded(self, record):
        self.records.append(record)

    @hookimpl
    async def endpick_config_reload(self, old, new):
        await asyncio.Event().wait()

    @hookimpl
    async def endpick_shutdown(self):
        await asyncio.Event().wait()


@pytest.fixture
def watching():
    hook_object, registry = Watching(), HookRegistry()
    assert registry.add_first(Reference("watch"), Candidate("watch", 1, "acme", "1.0", "m:C", "/p"), hook_object) is None
    return hook_object, registry


def test_plugin_record_has_type_and_origin(watching):
    hook_object, registry = watching
    loaded = load_class(scorer_class()).loaded

    registry.plugin_loaded(loaded)

    assert hook_object.records == [PluginRecord("acme.scorer", ("scorer",), "acme", "1.0", loaded.load_seconds)]


@pytest.mark.asyncio
async def test_awaited_hooks_have_deadlines(watching):
    _, registry = watching

    (veto,) = await registry.reload({}, {}, deadline_seconds=0.01)
    (late,) = await registry.shutdown(VIEW, deadline_seconds=0.01)

    assert (veto.code, late.code) == (Code.E0707, Code.E0704)
    assert "did not finish endpick_config_reload within 0.01 s" in veto.message
    assert "did not finish endpick_shutdown within 0.01 s" in late.message


def test_report_keeps_path_help_and_position(watching):
    source, _ = read_source(b"plugins:\n  - type: x\n", "c.yaml")
    (call,) = watching[1].calls("endpick_shutdown")
    report = HookConfigReport(call, source)

    report.warn(["plugins", 0, "type"], "hm", help="think")
    report.error(("plugins", 0, "nothing"), "no")
    warning, error = report.diagnostics

    assert report.position(("plugins", 0, "type")) == (2, 11)
    assert (warning.code, warning.path, warning.help) == (Code.W0503, ("plugins", 0, "type"), "think")
    assert (error.code, error.path, error.help) == (Code.E0511, ("plugins", 0, "nothing"), None)
    assert error.span == source.value_span(("plugins", 0))


@pytest.mark.asyncio
async def test_failure_does_not_stop_other_hook_objects(hooks, calls, caplog):
    registry = sound(hooks("hooks.first", "hooks.faulty", "hooks.second"))
    loaded = load_class(scorer_class()).loaded

    (start,) = await registry.startup(VIEW)
    (stop,) = await registry.shutdown(VIEW)
    (configure,) = registry.configure(HostServices(lambda: 0.0))
    with caplog.at_level(logging.WARNING):
        registry.plugin_loaded(loaded)
        shown(registry, {"id": "a"}, {"id": "b"})

    assert [call.split()[0] for call in calls] == ["first", "second", "second", "first"] + ["first", "second"] * 4
    assert start.code is Code.E0706
    assert start.message == "the hook object 'hooks.faulty' from hook-objects 1.0 failed in endpick_startup: the audit log is read-only"
    assert start.span == Span("c.yaml", 2, 1, 2, 2)
    assert (stop.code, stop.span) == (Code.E0704, Span("c.yaml", 2, 1, 2, 2))
    assert stop.message.partition(": ")[2] == "RuntimeError: cannot say goodbye"
    assert (configure.code, configure.plugin.distribution) == (Code.E0706, "hook-objects")
    assert "faulty.py" in stop.notes[0]
    messages = [record.message.rpartition(": ")[2] for record in caplog.records]
    assert messages == ["cannot remember", "cannot watch"], "an observer that keeps failing is logged once"
    assert all(record.exc_info is not None for record in caplog.records), "with the traceback of its author"


@pytest.mark.asyncio
async def test_startup_deadline_is_reported(hooks):
    (fault,) = await sound(hooks("hooks.slow")).startup(VIEW, deadline_seconds=0.01)

    assert (fault.code, fault.span) == (Code.E0703, Span("c.yaml", 1, 1, 1, 2))


@pytest.mark.asyncio
async def test_hook_object_can_refuse_a_reload(hooks):
    registry = sound(hooks("hooks.rules"))

    assert await registry.reload({"schedulingProfiles": [1]}, {"schedulingProfiles": [1], "plugins": []}) == ()
    (veto,) = await registry.reload({"schedulingProfiles": [1]}, {"schedulingProfiles": [2]})
    assert (veto.code, veto.span) == (Code.E0707, Span("c.yaml", 1, 1, 1, 2))
    assert veto.message.endswith("failed in endpick_config_reload: the house does not change its profiles during office hours")


def test_findings_before_a_failure_are_kept(hooks):
    source, _ = read_source(b"plugins: []\n", "c.yaml")
    registry = sound(hooks("hooks.faulty"))

    failure, said = registry.validate(source)

    assert (failure.code, said.code) == (Code.E0705, Code.W0503)
    assert failure.message.endswith("RuntimeError: cannot judge")
    assert (said.message, said.span) == ("a last word", source.value_span(()))


def test_registered_types_are_candidates(hooks):
    candidates, faults = sound(hooks("hooks.types")).offered()

    (candidate,) = candidates
    assert (candidate.type, candidate.target, candidate.origin) == ("hooks.offered", "hook_objects.types:Offered", "hook-objects 1.0")
    assert [fault.code for fault in faults] == [Code.E0705, Code.E0705]


def test_failure_to_register_types_is_reported(hooks):
    candidates, (fault,) = sound(hooks("hooks.faulty")).offered()

    assert candidates == ()
    assert fault.message.endswith("failed in endpick_register: RuntimeError: no types today")


@pytest.mark.parametrize(
    ("name", "code", "help_line"),
    [
        ("hooks.misspelt", Code.E0701, "did you mean 'endpick_startup'?"),
        ("hooks.arguments", Code.E0702, "it may take `host`"),
        ("hooks.wrapper", Code.E0702, "it may take `host`"),
        (
            "hooks.asynchronous",
            Code.E0702,
            "write it as a plain `def`; awaited are endpick_startup, endpick_shutdown, endpick_config_reload",
        ),
        ("hooks.none", Code.E0705, "report it to its author"),
        ("hooks.unconstructible", Code.E0705, "report it to its author"),
        ("hooks.missing", Code.E0705, "report it to its author"),
        ("something-else", Code.E0705, "`endpick doctor` lists those installed"),
    ],
)
def test_wrong_hook_object_is_left_out(hooks, name, code, help_line):
    registry, (fault,) = hooks("hooks.first", name)

    assert registry.names == ("hooks.first (hook-objects 1.0)",)
    assert (fault.code, fault.span.line) == (code, 2)
    assert help_line in fault.help


def test_faults_are_in_document_order(hooks):
    _, faults = hooks("hooks.none", "hooks.first", "hooks.misspelt", "hooks.arguments")

    assert [fault.span.line for fault in faults] == [1, 3, 4]


def test_hook_object_named_twice_is_an_error(hooks):
    registry, (fault,) = hooks("hooks.first", "hooks.first")

    assert fault.message == "the hook object hooks.first (hook-objects 1.0) is named twice"
    assert len(registry.names) == 1


def test_policy_applies_to_hook_objects(hooks):
    registry, (fault,) = hooks("hooks.first", policy=Policy(("acme",)))

    assert registry.names == ()
    assert fault.code is Code.E0307
    assert fault.help == "add the line `- hook-objects` to pluginPolicy.allowDistributions"


def test_from_chooses_the_distribution():
    candidates = [Candidate("audit", 1, name, "1.0", "nowhere:Nothing", f"/{name}") for name in ("one", "two")]

    _, (clash,) = load_hooks([Reference("audit")], candidates)
    _, (chosen,) = load_hooks([Reference("audit", distribution="Two")], candidates)
    _, (missing,) = load_hooks([Reference("audit", distribution="three")], candidates)

    assert clash.help == "say which one you want with `from: one` or `from: two`"
    assert chosen.plugin.distribution == "two"
    assert missing.message == "no installed distribution offers the hook object 'audit'"


def test_wrong_hook_name_and_arguments_are_reported():
    class Wrong:
        @hookimpl
        def endpick_register(self, catalogue): ...

        @hookimpl
        def whenever_it_rains(self): ...

    candidate = Candidate("hooks.wrong", 1, "acme", "1.0", "acme:Wrong", "/site/acme-1.0.dist-info")

    arguments, name = hook_faults(Reference("hooks.wrong"), candidate, Wrong())

    assert (arguments.code, arguments.help) == (Code.E0702, "it takes no arguments")
    assert (name.code, name.help) == (Code.E0701, f"the hooks are {', '.join(HOOKS)}")
    assert name.notes == (f"defined at {__file__}:{Wrong.whenever_it_rains.__code__.co_firstlineno}",)


def test_specname_names_the_hook():
    class Renamed:
        @hookimpl(specname="endpick_register")
        def offer(self): ...

    candidate = Candidate("hooks.renamed", 1, "acme", "1.0", "acme:Renamed", "/site/acme-1.0.dist-info")

    assert hook_faults(Reference("hooks.renamed"), candidate, Renamed()) == ()


@pytest.mark.asyncio
@pytest.mark.parametrize("thrown", [ValueError("x"), SystemExit(3)])
async def test_error_at_a_reload_refuses_it(thrown):
    class Throwing:
        @hookimpl
        def endpick_config_reload(self):
            raise thrown

    registry = HookRegistry()
    assert registry.add_first(Reference("hooks.acme"), Candidate("hooks.acme", 1, "acme", "1.0", "acme:Hooks", "/p"), Throwing()) is None

    (fault,) = await registry.reload({}, {})

    assert fault.code is Code.E0707
    assert f"failed in endpick_config_reload: {type(thrown).__name__}" in fault.message
