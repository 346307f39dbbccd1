"""Hook objects: their order, their arguments, their failures."""

from __future__ import annotations

import asyncio

import pytest

from endpick.api import hookimpl
from endpick.api.hooks import HostServices, HostView
from endpick.config.source import read_source
from endpick.diagnostics import Code
from endpick.host.discovery import Candidate, discover_hook_objects
from endpick.host.environment import Lock, check_lock
from endpick.host.hooks import HOOKS, Hooks, hook_faults, load_hooks, running_hook_object, title
from endpick.host.resolution import Policy

VIEW = HostView({}, {"one": None, "two": None})
ACME = Candidate("hooks.acme", 1, "acme", "1.0", "acme:Hooks", "/site/acme-1.0.dist-info")


@pytest.fixture
def hooks(installed_hooks, monkeypatch):
    """`hooks("hooks.first", …)`: these hook objects, and what was wrong with them."""

    def load(*names, **more):
        roots = installed_hooks(*names)
        for root in roots:
            monkeypatch.syspath_prepend(root)
        return load_hooks(discover_hook_objects(map(str, roots)), **more)

    return load


@pytest.fixture
def calls(fixture_project, monkeypatch):
    monkeypatch.syspath_prepend(fixture_project("hook-objects"))
    from hook_objects.recording import CALLS

    CALLS.clear()
    return CALLS


def sound(loaded):
    found, faults = loaded
    assert faults == ()
    return found


def configured(hooks):
    return hooks.call("endpick_configure", services=HostServices(lambda: 0.0))


def test_without_hook_objects_nothing_is_called():
    hooks = Hooks()

    assert (hooks.names, configured(hooks)) == ((), ())
    assert asyncio.run(hooks.call_awaited("endpick_started", host=VIEW)) == ()
    assert not hooks.implements("endpick_decided")
    assert hooks.running("endpick_decided") is None


def test_hook_objects_are_called_by_name(hooks, calls):
    loaded = sound(hooks("hooks.second", "hooks.module", "hooks.first"))
    services = HostServices(lambda: 0.0)

    assert loaded.names == ("hooks.first (watchers 1.0)", "hooks.module (watchers 1.0)", "hooks.second (watchers 1.0)")
    assert loaded.call("endpick_configure", services=services) == ()
    assert services.clock() == 42.0
    assert calls == ["first configure", "module configure", "second configure"]


def test_pluggys_orders_and_wrappers_work(hooks, calls):
    configured(sound(hooks("hooks.eager", "hooks.first", "hooks.late", "hooks.around", "hooks.second")))

    assert calls == ["around begins", "eager configure", "first configure", "second configure", "late configure", "around ends"]


def test_own_objects_come_first(hooks, calls):
    class Own:
        @hookimpl
        def endpick_configure(self):
            calls.append("own configure")

    loaded = sound(hooks("hooks.first"))
    loaded.register(Own(), "own")

    assert configured(loaded) == ()
    assert calls == ["own configure", "first configure"]
    assert loaded.names == ("hooks.first (watchers 1.0)",), "which a plan shows, wherever it is made"


@pytest.mark.asyncio
async def test_stopping_is_in_reverse_order(hooks, calls):
    class Own:
        @hookimpl
        def endpick_stopping(self):
            calls.append("own stopping")

    loaded = sound(hooks("hooks.first", "hooks.eager", "hooks.second"))
    loaded.register(Own(), "own")

    assert await loaded.call_awaited("endpick_started", host=VIEW) == ()
    assert await loaded.call_awaited("endpick_stopping", host=VIEW) == ()

    assert calls == [
        *("first started one,two", "second started one,two"),
        *("eager stopping", "second stopping", "first stopping", "own stopping"),
    ]


@pytest.mark.asyncio
async def test_failure_does_not_stop_other_hook_objects(hooks, calls):
    loaded = sound(hooks("hooks.faulty", "hooks.first", "hooks.second", "hooks.around"))

    (start,) = await loaded.call_awaited("endpick_started", host=VIEW)
    (reload,) = await loaded.call_awaited("endpick_reloaded", host=VIEW)
    (stop,) = await loaded.call_awaited("endpick_stopping", host=VIEW)
    (configure,) = configured(loaded)
    (decided,) = loaded.call("endpick_decided", record={"id": "a"})

    assert [call.split()[0] for call in calls] == [
        "first",
        "second",
        "second",
        "first",
        "around",
        "first",
        "second",
        "around",
        "first",
        "second",
    ]
    assert start.message == "the hook object 'hooks.faulty' from watchers 1.0 failed in endpick_started: the audit log is read-only"
    messages = [failure.message.rpartition(": ")[2] for failure in (reload, stop, configure, decided)]
    assert messages == ["cannot follow", "cannot say goodbye", "cannot configure", "cannot watch"]
    diagnostic = configure.diagnostic(Code.E0706)
    assert (diagnostic.code, diagnostic.plugin.distribution, diagnostic.span) == (Code.E0706, "watchers", None)
    assert "faulty.py:" in diagnostic.notes[0]
    assert "pluggy" not in diagnostic.notes[0]


def test_raising_wrapper_stops_no_other_and_is_named_with_its_place(hooks, calls):
    loaded = sound(hooks("hooks.faulty-wrapper", "hooks.around", "hooks.faulty", "hooks.first"))

    faulty, wrapper = configured(loaded)

    assert calls == ["around begins", "first configure", "around ends"]
    assert faulty.message.endswith("'hooks.faulty' from watchers 1.0 failed in endpick_configure: RuntimeError: cannot configure")
    assert wrapper.message.endswith("'hooks.faulty-wrapper' from watchers 1.0 failed in endpick_configure: RuntimeError: cannot wrap")
    assert "faulty.py:" in wrapper.diagnostic(Code.E0706).notes[0]
    assert "hooks.py" not in wrapper.diagnostic(Code.E0706).notes[0]


@pytest.mark.asyncio
async def test_wrapper_that_does_not_yield_once_is_named(hooks, calls):
    loaded = sound(hooks("hooks.faulty-wrapper", "hooks.first"))

    (stop,) = await loaded.call_awaited("endpick_stopping", host=VIEW)
    (decided,) = loaded.call("endpick_decided", record={"id": "a"})
    (start,) = await loaded.call_awaited("endpick_started", host=VIEW)

    assert calls == ["first stopping", "first decided a", "first started one,two"]
    assert "'hooks.faulty-wrapper' from watchers 1.0 failed in endpick_stopping: RuntimeError: the wrapper defined at" in stop.message
    assert stop.message.endswith(" does not yield")
    assert decided.message.endswith(" yields twice")
    assert start.message.endswith(": SystemExit: cannot begin")


def test_old_style_wrappers_work():
    class Old:
        @hookimpl(hookwrapper=True)
        def endpick_decided(self):
            outcome = yield
            told.append(outcome.get_result())

    hooks, told = Hooks(), []
    hooks.register(Old(), "old")

    assert hooks.call("endpick_decided", record={}) == ()
    assert told == [[]]


@pytest.mark.asyncio
async def test_awaited_hooks_have_deadlines(hooks):
    loaded = sound(hooks("hooks.slow"))

    (start,) = await loaded.call_awaited("endpick_started", 0.01, host=VIEW)
    (stop,) = await loaded.call_awaited("endpick_stopping", 0.01, host=VIEW)

    assert start.message.endswith("'hooks.slow' from watchers 1.0 did not finish endpick_started within 0.01 s")
    assert stop.late_seconds == 0.01


@pytest.mark.asyncio
@pytest.mark.filterwarnings("error")
async def test_end_during_a_hook_leaves_no_coroutine(hooks):
    starting = asyncio.ensure_future(sound(hooks("hooks.slow", "hooks.first")).call_awaited("endpick_started", host=VIEW))
    await asyncio.sleep(0)
    starting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await starting


@pytest.mark.parametrize("thrown", [ValueError("x"), SystemExit(3)])
def test_every_error_of_a_plugin_is_contained(thrown):
    class Throwing:
        @hookimpl
        def endpick_decided(self):
            raise thrown

    hooks = Hooks()
    hooks.register(Throwing(), "throwing")

    (failure,) = hooks.call("endpick_decided", record={})

    assert f"failed in endpick_decided: {type(thrown).__name__}" in failure.message


def test_what_the_host_must_not_swallow_passes():
    class Interrupted:
        @hookimpl
        def endpick_decided(self):
            raise KeyboardInterrupt

    hooks = Hooks()
    hooks.register(Interrupted(), "interrupted")

    with pytest.raises(KeyboardInterrupt):
        hooks.call("endpick_decided", record={})
    assert hooks.running("endpick_decided") is None


def test_running_object_is_named():
    class Observer:
        @hookimpl
        def endpick_decided(self):
            told.append((hooks.running("endpick_decided"), running_hook_object()))

    hooks, told = Hooks(), []
    hooks.register(Observer(), "observer")

    assert hooks.call("endpick_decided", record={}) == ()
    (((name, seconds), spoke),) = told
    assert name == title(spoke)
    assert name.startswith("the hook object 'observer' from endpick ")
    assert 0 <= seconds < 5


def test_findings_have_their_place_and_their_author(hooks):
    source, _ = read_source(b"plugins:\n  - type: x\n  - {type: y, name: z}\n", "c.yaml")

    error, warning = sound(hooks("hooks.rules")).validate(source)

    assert (error.code, error.path, error.help) == (Code.E0511, ("plugins", 0, "type"), "add `name:`")
    assert error.span == source.value_span(("plugins", 0, "type"))
    assert error.notes == ("said by the hook object 'hooks.rules' from watchers 1.0",)
    assert (warning.code, warning.message, warning.plugin.distribution) == (Code.W0503, "the name on line 3 is short", "watchers")


def test_wrapper_may_report_findings():
    class Strict:
        @hookimpl(wrapper=True)
        def endpick_validate(self, report):
            yield
            report.error(("nothing",), "no")

    source, _ = read_source(b"plugins: []\n", "c.yaml")
    hooks = Hooks()
    hooks.register(Strict(), "strict")

    (finding,) = hooks.validate(source)

    assert (finding.plugin.type, finding.span) == ("strict", source.value_span(()))


def test_findings_before_a_failure_are_kept(hooks):
    source, _ = read_source(b"plugins: []\n", "c.yaml")

    said, failure = sound(hooks("hooks.faulty")).validate(source)

    assert (failure.code, said.code) == (Code.E0705, Code.W0503)
    assert failure.message.endswith("RuntimeError: cannot judge")
    assert (said.message, said.span) == ("a last word", source.value_span(()))


@pytest.mark.parametrize(
    ("name", "code", "help_line"),
    [
        ("hooks.misspelt", Code.E0701, "did you mean 'endpick_started'?"),
        ("hooks.arguments", Code.E0702, "it may take `host`"),
        ("hooks.wrapper", Code.E0702, "write it as a generator that yields once"),
        ("hooks.asynchronous", Code.E0702, "write it as a plain `def`; awaited are endpick_started, endpick_reloaded, endpick_stopping"),
        ("hooks.none", Code.E0705, "uninstall watchers or add 'hooks.none' to pluginPolicy.denyTypes"),
        ("hooks.unconstructible", Code.E0705, "report it to the author of watchers"),
        ("hooks.missing", Code.E0705, "report it to the author of watchers"),
    ],
)
def test_wrong_hook_object_is_left_out(hooks, name, code, help_line):
    loaded, (fault,) = hooks("hooks.first", name)

    assert loaded.names == ("hooks.first (watchers 1.0)",)
    assert (fault.code, fault.plugin.type) == (code, name)
    assert help_line in fault.help


def test_faults_are_in_the_order_of_names(hooks):
    _, faults = hooks("hooks.none", "hooks.first", "hooks.misspelt", "hooks.arguments")

    assert [fault.plugin.type for fault in faults] == ["hooks.arguments", "hooks.misspelt", "hooks.none"]


def test_the_same_object_twice_is_an_error(hooks):
    loaded, (fault,) = hooks("hooks.eager", "hooks.eager-again")

    assert fault.message.endswith("cannot be loaded: another entry point leads to the same object")
    assert loaded.names == ("hooks.eager-again (watchers 1.0)",)


def test_two_objects_of_one_name_both_work(hooks, calls, make_distribution):
    root = make_distribution("rivals", {"hooks.first": "hook_objects.recording:SECOND"}, group="endpick.hooks.v1", modules={})
    (rival,) = discover_hook_objects([str(root)])
    loaded, faults = load_hooks([rival, Candidate("hooks.first", 1, "acme", "1.0", "hook_objects.recording:FIRST", "/site")])

    assert faults == ()
    assert loaded.names == ("hooks.first (acme 1.0)", "hooks.first (rivals 1.0)")
    assert configured(loaded) == ()
    assert calls == ["first configure", "second configure"]


def test_forbidden_distribution_is_not_imported(hooks, monkeypatch):
    imported = []
    monkeypatch.setattr("endpick.host.hooks.import_target", lambda _, candidate: imported.append(candidate))

    loaded, (fault,) = hooks("hooks.first", policy=Policy(("acme",)))

    assert (loaded.names, imported) == ((), [])
    assert fault.code is Code.E0307
    assert fault.help == "add the line `- watchers` to pluginPolicy.allowDistributions"


def test_denied_object_is_left_out(hooks):
    loaded = sound(hooks("hooks.first", "hooks.missing", policy=Policy(None, ("hooks.mis*",))))

    assert loaded.names == ("hooks.first (watchers 1.0)",)


def test_distribution_that_is_not_locked_is_not_imported(hooks):
    loaded, (fault,) = hooks("hooks.first", lock=check_lock(Lock(), [Candidate("x", 1, "watchers", "1.0", "x", "/nowhere")]))

    assert (loaded.names, fault.code) == ((), Code.E0308)


def test_wrong_hook_name_and_arguments_are_reported():
    class Wrong:
        @hookimpl
        def endpick_doctor(self, catalogue): ...

        @hookimpl
        def whenever_it_rains(self): ...

    arguments, name = hook_faults(ACME, Wrong())

    assert (arguments.code, arguments.help) == (Code.E0702, "it may take `report`")
    assert (name.code, name.help) == (Code.E0701, f"the hooks are {', '.join(HOOKS)}")
    assert name.notes == (f"defined at {__file__}:{Wrong.whenever_it_rains.__code__.co_firstlineno}",)


def test_further_arguments_may_have_defaults():
    class Optional:
        @hookimpl
        def endpick_decided(self, record, depth=3):
            told.append((record, depth))

    told, hooks = [], Hooks()
    assert hook_faults(ACME, Optional()) == ()
    hooks.register(Optional(), "optional")

    assert hooks.call("endpick_decided", record={"id": "a"}) == ()
    assert told == [({"id": "a"}, 3)]


def test_specname_names_the_hook():
    class Renamed:
        @hookimpl(specname="endpick_stopping")
        async def goodbye(self):
            await asyncio.sleep(0)

    assert hook_faults(ACME, Renamed()) == ()
