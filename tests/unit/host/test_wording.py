"""Every diagnostic of the host as users read it.

Set ENDPICK_UPDATE_GOLDEN=1 to update the golden files, then review the difference.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from endpick.api.plugin import Parameters
from endpick.cli.doctor_checks import Environment, examine
from endpick.config.source import read_source
from endpick.diagnostics import Code, Diagnostic, render_text
from endpick.host import loader
from endpick.host.discovery import Candidate, discover, unmet_requirements
from endpick.host.environment import Lock, LockedDistribution, check_lock, load_lock
from endpick.host.hooks import load_hooks
from endpick.host.instance import subscriptions_of
from endpick.host.loader import alias_clashes, load
from endpick.host.parameters import ParameterSource, check_parameters, deprecated_parameters
from endpick.host.resolution import Policy, Reference, check_policy, resolve
from offered_hooks import HOOK_OBJECTS
from plugin_classes import load_class, scorer_class

GOLDEN = Path(__file__).parent / "golden"
PROJECTS = ("broken-import", "chatty", "evil-scorers", "exits", "future-api", "good-scorers", "hook-objects", "misfits")
PROJECTS += ("later-endpick", "missing-dependency", "renamed", "schemas", "shadowing", "unmet-requirement")


class Site:
    """Every fixture project installed, and a document that asks for one plugin."""

    def __init__(self, roots):
        self.roots = [str(root) for root in roots]
        self.candidates = discover(self.roots)
        self.source = None

    def reference(self, plugin_type, distribution=None, parameters=None):
        lines = [f"  - type: {plugin_type}", "    name: busy"]
        lines += [f"    from: {distribution}"] if distribution else []
        lines += [f"    parameters: {parameters}"] if parameters else []
        self.source, _ = read_source("\n".join(["plugins:", *lines, ""]).encode(), "config.yaml")
        path = ("plugins", 0)
        from_span = self.source.value_span((*path, "from")) if distribution else None
        return Reference(plugin_type, "busy", distribution, self.source.value_span((*path, "type")), from_span, (*path, "type"))

    def resolved(self, plugin_type, distribution=None):
        return resolve(self.reference(plugin_type, distribution), self.candidates)

    def loaded(self, plugin_type):
        candidate = self.resolved(plugin_type)
        return load(candidate, self.reference(plugin_type))

    def place(self):
        return ParameterSource(self.reference("acme.scorer", parameters="{a: 1}"), ("plugins", 0, "parameters"), self.source)

    def hooks(self, name, policy=None):
        return load_hooks([Candidate(name, 1, "watchers", "1.0", HOOK_OBJECTS[name], "/site/watchers-1.0.dist-info")], policy)

    def text(self, outcome):
        found = outcome if isinstance(outcome, tuple) else (outcome,)
        assert all(isinstance(one, Diagnostic) for one in found)
        text = render_text(found, {"config.yaml": self.source.text} if self.source else None)
        for root in self.roots:
            text = text.replace(root, f"<{Path(root).name}>")
        for name in ("click", "endpick"):
            text = text.replace(f"{name} {metadata.version(name)}", f"{name} <version>")
        return text


@pytest.fixture
def site(fixture_project, monkeypatch):
    roots = [fixture_project(name) for name in PROJECTS]
    monkeypatch.setattr(sys, "path", [*map(str, roots), *sys.path])
    return Site(roots)


def _twice(site):
    good = next(one for one in site.candidates if one.type == "acme.zone")
    return resolve(site.reference("acme.zone"), [good, replace(good, target="good_scorers:Region")])


def _target(target):
    return lambda site: load(replace(site.resolved("acme.zone"), target=target), site.reference("acme.zone")).diagnostics


def _policy(policy):
    return lambda site: check_policy(site.reference("acme.zone"), site.resolved("acme.zone"), policy)


def _lock(*pins):
    def case(site):
        candidate = site.resolved("acme.zone")
        return check_lock(Lock(pins), [candidate]).fault(site.reference("acme.zone"), candidate)

    return case


def _slow(site):
    candidate = site.resolved("acme.zone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "SLOW_IMPORT_SECONDS", -1.0)
        (warning,) = load(candidate, site.reference("acme.zone")).diagnostics
    return replace(warning, message=warning.message.rpartition(" took ")[0])


def _unmet_and_broken(site):
    candidate = site.resolved("missing.dependency")
    return load(candidate, site.reference("missing.dependency"), unmet_requirements(["thermodynamics>=2"])).diagnostics


def _aliases(site):
    reference = site.reference("acme.one")
    plugins = [load_class(scorer_class(aliases=("acme.old",)), name).loaded for name in ("acme.one", "acme.two")]
    return alias_clashes([(reference, plugin) for plugin in plugins])


def _given(parameters):
    def case(site):
        loaded = site.loaded("schema.given").loaded
        reference = site.reference("schema.given", parameters=parameters)
        raw, path = site.source.data["plugins"][0].get("parameters", {}), ("plugins", 0, "parameters")
        place = ParameterSource(reference, path, site.source)
        outcome = check_parameters(loaded, raw, place)
        return outcome if isinstance(outcome, tuple) else deprecated_parameters(loaded, raw, place)

    return case


def _constructor(raised):
    class Raising(scorer_class()):
        @classmethod
        def subscriptions(cls, parameters):
            raise raised

    def case(site):
        diagnostic = subscriptions_of(load_class(Raising).loaded, Parameters(), site.place())
        return replace(diagnostic, notes=tuple(note.partition("\n")[0] for note in diagnostic.notes))

    return case


def _validator_crashes(site):
    from pydantic import model_validator

    class Crashing(Parameters):
        @model_validator(mode="before")
        @classmethod
        def _crash(cls, data):
            raise KeyError("a")

    place = site.place()
    (diagnostic,) = check_parameters(load_class(scorer_class(parameters=Crashing)).loaded, {}, place)
    return replace(diagnostic, notes=tuple(note.partition("\n")[0] for note in diagnostic.notes))


def _house_rules(site):
    hooks, _ = site.hooks("hooks.rules")
    source, _ = read_source(b"plugins:\n  - type: queue-scorer\n  - type: queue-scorer\n    name: q\n", "config.yaml")
    site.source = source
    return hooks.validate(source)


def _faulty(method):
    def case(site):
        hooks, _ = site.hooks("hooks.faulty")
        return method(hooks, site)

    return case


CASES = {
    "resolution-unknown": lambda site: site.resolved("wholly.unknown"),
    "resolution-near": lambda site: site.resolved("acme.zome"),
    "resolution-empty": lambda site: resolve(site.reference("acme.zone"), []),
    "resolution-clash": lambda site: site.resolved("acme.latency"),
    "resolution-builtin": lambda site: resolve(
        site.reference("queue-scorer"),
        [
            replace(one, distribution=name, is_builtin=name == "endpick")
            for one in site.candidates
            if one.type == "queue-scorer"
            for name in ("endpick", "x", "y")
        ],
    ),
    "resolution-from": lambda site: site.resolved("acme.latency", "good-scorer"),
    "resolution-from-far": lambda site: site.resolved("acme.latency", "zebra"),
    "resolution-major": lambda site: site.resolved("future.scorer"),
    "resolution-name": lambda site: site.resolved("Misfit_Name"),
    "resolution-twice": _twice,
    "policy-denied": _policy(Policy(None, ("acme.*",))),
    "policy-not-allowed": _policy(Policy(("acme",))),
    "lock-version": _lock(LockedDistribution("good-scorers", "0.9", "")),
    "lock-unknown": _lock(),
    "lock-gone": lambda site: check_lock(Lock((LockedDistribution("gone", "1.0", ""),)), ()).diagnostics(),
    "lock-missing": lambda site: load_lock(Path("no-such-lock.json")),
    "import-module": lambda site: site.loaded("misfit.no-module").diagnostics,
    "import-attribute": lambda site: site.loaded("misfit.no-attribute").diagnostics,
    "import-target": lambda site: (
        load(replace(site.resolved("acme.zone"), target="good_scorers:"), site.reference("acme.zone")).diagnostics
    ),
    "import-raises": lambda site: site.loaded("broken.import").diagnostics,
    "import-dependency": lambda site: site.loaded("missing.dependency").diagnostics,
    "import-dependency-unmet": _unmet_and_broken,
    "import-exits": lambda site: site.loaded("exits.politely").diagnostics,
    "import-chatty": lambda site: site.loaded("chatty").diagnostics,
    "import-slow": _slow,
    "contract-function": lambda site: site.loaded("misfit.not-a-class").diagnostics,
    "contract-class": lambda site: site.loaded("misfit.not-a-plugin").diagnostics,
    "contract-kind": lambda site: site.loaded("misfit.no-kind").diagnostics,
    "contract-abstract": lambda site: site.loaded("misfit.abstract").diagnostics,
    "contract-keys": lambda site: site.loaded("misfit.no-keys").diagnostics,
    "contract-misspelt": lambda site: site.loaded("misfit.misspelt").diagnostics,
    "contract-misspelt-method": lambda site: site.loaded("misfit.misspelt-method").diagnostics,
    "alias-only": lambda site: site.loaded("misfit.formerly").diagnostics,
    "contract-signature": lambda site: site.loaded("misfit.bad-signature").diagnostics,
    "contract-async": lambda site: site.loaded("misfit.async").diagnostics,
    "requirements-endpick": lambda site: site.loaded("later.scorer").diagnostics,
    "requirements": lambda site: load(site.resolved("acme.zone"), site.reference("acme.zone"), unmet_requirements(["a>=2"])).diagnostics,
    "aliases": _aliases,
    "alias": lambda site: site.loaded("renamed.old").diagnostics,
    "deprecated": lambda site: site.loaded("renamed.retired").diagnostics,
    "experimental": lambda site: site.loaded("renamed.trial").diagnostics,
    "schema-invalid": lambda site: site.loaded("schema.invalid").diagnostics,
    "schema-dangling": lambda site: site.loaded("schema.dangling").diagnostics,
    "schema-remote": lambda site: site.loaded("schema.remote").diagnostics,
    "parameters-missing": _given(None),
    "parameters-unknown": _given("{limit: 1, colour: red}"),
    "parameters-value": _given("{limit: 012, mode: fsat}"),
    "parameters-deprecated": _given("{limit: 1, old: x}"),
    "parameters-crash": _validator_crashes,
    "build-raises": _constructor(OSError("disk on fire")),
    "build-answers": lambda site: subscriptions_of(load_class(_subscribes_to_nothing()).loaded, Parameters(), site.place()),
    "hook-name": lambda site: site.hooks("hooks.misspelt")[1],
    "hook-arguments": lambda site: site.hooks("hooks.arguments")[1],
    "hook-wrapper": lambda site: site.hooks("hooks.wrapper")[1],
    "hook-none": lambda site: site.hooks("hooks.none")[1],
    "hook-constructor": lambda site: site.hooks("hooks.unconstructible")[1],
    "hook-module": lambda site: site.hooks("hooks.missing")[1],
    "hook-async": lambda site: site.hooks("hooks.asynchronous")[1],
    "hook-policy": lambda site: site.hooks("hooks.first", Policy(()))[1],
    "hook-findings": _house_rules,
    "hook-configure": _faulty(lambda hooks, site: hooks.call("endpick_configure", services=None)[0].diagnostic(Code.E0706)),
    "hook-wrapping": lambda site: site.hooks("hooks.faulty-wrapper")[0].call("endpick_configure", services=None)[0].diagnostic(Code.E0706),
    "hook-validate": _faulty(lambda hooks, site: hooks.validate(read_source(b"plugins: []\n", "config.yaml")[0])),
    "doctor": lambda site: examine(Environment.at(site.roots)),
}


def _subscribes_to_nothing():
    class NullTelemetry(scorer_class()):
        @classmethod
        def subscriptions(cls, parameters):
            return None

    return NullTelemetry


@pytest.mark.parametrize("name", CASES)
def test_wording(name, site):
    text = site.text(CASES[name](site))
    golden = GOLDEN / f"{name}.txt"

    if os.environ.get("ENDPICK_UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_there_is_no_golden_file_without_a_case():
    assert {file.stem for file in GOLDEN.glob("*.txt")} == set(CASES)
