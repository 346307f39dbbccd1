"""Loading plugin classes in this process."""

from __future__ import annotations

import logging
import sys
import warnings
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from endpick import __version__
from endpick.api import Scorer, Stability
from endpick.diagnostics import Code
from endpick.host import loader
from endpick.host.discovery import Candidate, unmet_requirements
from endpick.host.loader import alias_clashes, load
from endpick.host.resolution import Reference
from plugin_classes import load_class, scorer_class

SCORER = """
import numpy as np
from endpick.api import Scorer

class Plugin(Scorer):
    '''First line.

    Second line.
    '''

    def score(self, request, endpoints, state):
        return np.ones(len(endpoints))
"""


def candidate(target, plugin_type="acme.scorer"):
    return Candidate(plugin_type, 1, "acme", "1.0", target, "/site/acme-1.0.dist-info")


def load_from(target, plugin_type="acme.scorer"):
    return load(candidate(target, plugin_type), Reference(plugin_type))


def test_a_sound_class_is_loaded_with_kinds_and_summary(on_path):
    on_path("sound", SCORER)

    loading = load_from("sound:Plugin")

    assert loading.diagnostics == ()
    assert loading.loaded.kinds == (Scorer,)
    assert (loading.loaded.type, loading.loaded.summary, loading.loaded.output) == ("acme.scorer", "First line.", "")
    assert loading.loaded.schemas[0]["additionalProperties"] is False
    assert loading.loaded.load_seconds > 0


def test_docstring_of_a_compiled_class_comes_from_its_source(on_path, monkeypatch):
    on_path("compiled", SCORER)
    loaded = load_from("compiled:Plugin").loaded
    module = sys.modules["compiled"]
    monkeypatch.setattr(loaded.plugin, "__doc__", "")  # what mypyc leaves
    monkeypatch.setattr(module.__spec__, "origin", str(Path(module.__file__).with_suffix(EXTENSION_SUFFIXES[0])))

    assert loaded.summary == "First line."
    assert loaded.description == "First line.\n\nSecond line."


def test_an_inherited_docstring_is_no_summary(on_path):
    on_path("silent", SCORER.replace("'''First line.\n\n    Second line.\n    '''", ""))

    assert load_from("silent:Plugin").loaded.summary == ""


def test_a_nested_class_and_extras_in_the_target_are_fine(on_path):
    on_path("nested", SCORER + "class Outer:\n    Inner = Plugin\n")

    assert load_from("nested : Outer.Inner [fast]").loaded is not None


@pytest.mark.parametrize("target", ["", "no module", "a:b:c", "a-b:C", ":C", "a..b:C"])
def test_a_target_that_cannot_be_read_is_a_wrong_entry_point(target):
    (fault,) = load_from(target).diagnostics

    assert fault.code is Code.E0303
    assert "is not of the form 'module:attribute'" in fault.message
    assert fault.notes == ("the entry point is written in /site/acme-1.0.dist-info",)


def test_a_missing_submodule_is_a_wrong_entry_point(on_path):
    on_path("package.__init__", "")

    (fault,) = load_from("package.plugin:Plugin").diagnostics

    assert fault.code is Code.E0303
    assert "there is no module 'package.plugin'" in fault.message


def test_a_missing_package_is_a_wrong_entry_point():
    (fault,) = load_from("no_such_package.inner.plugin:Plugin").diagnostics

    assert fault.code is Code.E0303
    assert "there is no module 'no_such_package'" in fault.message


def test_package_that_fails_to_import_is_at_fault(on_path):
    on_path("halves.__init__", "from halves import other_half\nimport halves.plugin\n")

    (fault,) = load_from("halves.plugin:Plugin").diagnostics

    assert fault.code is Code.E0305
    assert "ImportError: cannot import name 'other_half'" in fault.message


def test_module_with_a_missing_submodule_is_at_fault(on_path):
    on_path("selfish.__init__", "")
    on_path("selfish.plugin", "import selfish.plugin.deeper\n")

    (fault,) = load_from("selfish.plugin:Plugin").diagnostics

    assert fault.code is Code.E0305


def test_a_syntax_error_is_told_with_its_place(on_path):
    file = on_path("crooked", "def f(:\n")

    (fault,) = load_from("crooked:Plugin").diagnostics

    assert fault.code is Code.E0305
    assert f"SyntaxError: invalid syntax ({file.name}, line 1)" in fault.message


def test_module_with_failing_getattr_is_at_fault(on_path):
    on_path("lazy", "def __getattr__(name):\n    raise LookupError('asleep')\n")
    on_path("lazy_attribute", "def __getattr__(name):\n    raise AttributeError(name)\n")

    assert load_from("lazy:Plugin").diagnostics[0].message.endswith("raised LookupError: asleep")
    assert load_from("lazy_attribute:Plugin").diagnostics[0].code is Code.E0305, "the lookup is the plugin's own code"


def test_a_long_traceback_shows_the_innermost_frames(on_path):
    on_path("deep", "def sink(n):\n    return 1 / 0 if n == 0 else sink(n - 1)\nsink(40)\n")

    (note,) = load_from("deep:Plugin").diagnostics[0].notes

    assert note.splitlines()[:2] == ["raised at, innermost last:", "(30 more frames)"]
    assert note.count(" in sink\n") == 12


def test_output_and_warnings_are_captured(on_path, capsys):
    on_path(
        "loud", "import sys, warnings\nprint('out')\nprint('err', file=sys.stderr)\nwarnings.warn('old', DeprecationWarning)\n" + SCORER
    )
    stdout, stderr, filters = sys.stdout, sys.stderr, list(warnings.filters)

    loading = load_from("loud:Plugin")

    assert (sys.stdout, sys.stderr, warnings.filters) == (stdout, stderr, filters)
    assert capsys.readouterr() == ("", "")
    printed, warned = loading.diagnostics
    assert (printed.code, printed.notes) == (Code.W0306, ("it printed:\nout\nerr",))
    assert warned.code is Code.W0307
    assert loading.loaded.output.startswith("out\nerr\nDeprecationWarning: old (")


def test_long_output_is_cut(on_path):
    on_path("endless", "print('x' * 5000)\n" + SCORER)

    (printed,) = load_from("endless:Plugin").diagnostics

    assert printed.notes[0].endswith("x… (5000 characters)")
    assert len(printed.notes[0]) < 450


def test_what_a_module_logs_while_it_is_imported_is_attributed(on_path, caplog):
    from endpick.host.importing import Attribution

    on_path("logger", "import logging\nlogging.getLogger('logger').warning('hello')\n" + SCORER)

    with caplog.filtering(Attribution()):
        load_from("logger:Plugin")
        logging.getLogger("host").warning("later")

    assert [(record.message, getattr(record, "plugin", None)) for record in caplog.records] == [
        ("hello", "acme.scorer (acme 1.0)"),
        ("later", None),
    ]


def test_a_slow_import_is_a_warning(on_path, monkeypatch):
    on_path("slow", SCORER)
    monkeypatch.setattr(loader, "SLOW_IMPORT_SECONDS", 0.0)

    (warning,) = load_from("slow:Plugin").diagnostics

    assert warning.code is Code.W0308
    assert warning.message.startswith("importing 'acme.scorer' from acme 1.0 took 0.")


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"stability": Stability.DEPRECATED}, Code.W0304),
        ({"stability": Stability.EXPERIMENTAL}, Code.W0309),
    ],
)
def test_what_its_author_says_of_a_plugin_is_a_warning(facts, code):
    loading = load_class(scorer_class(**facts))

    assert [diagnostic.code for diagnostic in loading.diagnostics] == [code]
    assert loading.loaded is not None


def installed_under(make_distribution, monkeypatch, *names):
    """The candidate of the last name; all lead to one class, for which 'acme.older' is a former name."""
    source = SCORER.replace("    def score", "    aliases = ('acme.older',)\n\n    def score")
    root = make_distribution("acme-aliased", dict.fromkeys(names, "acme_aliased:Plugin"), modules={"acme_aliased": source})
    monkeypatch.syspath_prepend(root)
    metadata = str(next(root.glob("*.dist-info")))
    return Candidate(names[-1], 1, "acme-aliased", "1.0", "acme_aliased:Plugin", metadata)


def test_former_name_is_a_warning(make_distribution, monkeypatch):
    offer = installed_under(make_distribution, monkeypatch, "acme.scorer", "acme.older")

    loading = load(offer, Reference("acme.older"))

    assert [diagnostic.code for diagnostic in loading.diagnostics] == [Code.W0303]
    assert loading.loaded.type == "acme.scorer"


def test_a_former_name_that_is_the_only_name_is_refused(make_distribution, monkeypatch):
    offer = installed_under(make_distribution, monkeypatch, "acme.older")

    (fault,) = load(offer, Reference("acme.older")).diagnostics

    assert fault.code is Code.E0312
    assert fault.message == (
        "'acme.older' is a former name by its class's `aliases`, and acme-aliased 1.0 has no entry point with the current name"
    )


def test_former_name_is_resolved_among_all_offers(on_path):
    on_path("registered", SCORER.replace("    def score", "    aliases = ('acme.older',)\n\n    def score"))
    former, present, stranger = (
        Candidate(name, 1, distribution, "1.0", "registered:Plugin", "/nowhere")
        for name, distribution in [("acme.older", "acme"), ("acme.scorer", "acme"), ("b.scorer", "b")]
    )

    loading = load(former, Reference("acme.older"), (), [stranger, former, present])

    assert loading.loaded.type == "acme.scorer"
    assert [one.code for one in load(former, Reference("acme.older"), (), [stranger, former]).diagnostics] == [Code.E0312]


def test_two_plugins_may_not_claim_one_alias():
    plugins = [
        (Reference(name), load_class(scorer_class(aliases=aliases), name).loaded)
        for name, aliases in [("a.one", ("a.old",)), ("a.two", ("a.old", "a.one")), ("a.one", ("a.old",)), ("a.three", ())]
    ]

    clashes = alias_clashes(plugins)

    assert {clash.code for clash in clashes} == {Code.E0314}
    assert [clash.message for clash in clashes] == [
        "'a.two' from acme 1.0 claims the former name 'a.old', which belongs to 'a.one' from acme 1.0",
        "'a.two' from acme 1.0 claims the former name 'a.one', which belongs to 'a.one' from acme 1.0",
    ]


def test_plugins_with_aliases_of_their_own_do_not_clash():
    plugin = load_class(scorer_class(aliases=("acme.older", "acme.oldest"))).loaded

    assert alias_clashes([(Reference("acme.scorer"), plugin), (Reference("acme.older"), plugin)]) == ()


@pytest.mark.parametrize("requirement", ["endpick>=99", "endpick<0.1", "Endpick[demo]>=99"])
def test_plugin_for_another_endpick_is_not_imported(make_distribution, monkeypatch, requirement):
    module = {"acme_other": "raise RuntimeError('imported')"}
    monkeypatch.syspath_prepend(make_distribution("acme", {"acme.scorer": "acme_other:Plugin"}, modules=module, requires=[requirement]))

    (fault,) = load_from("acme_other:Plugin").diagnostics

    assert fault.code is Code.E0306
    assert fault.message == f"'acme.scorer' from acme 1.0 needs {requirement.replace('[demo]', '')}; this is endpick {__version__}"
    assert fault.help.endswith(f"or a release of acme for endpick {__version__}")


def test_a_requirement_of_an_extra_does_not_count(make_distribution, monkeypatch):
    requires = ["endpick>=0.1", "endpick>=99; extra == 'x'"]
    monkeypatch.syspath_prepend(make_distribution("acme", {"acme.scorer": "acme_fine:Plugin"}, requires=requires))

    assert load_from("acme_fine:Plugin").diagnostics == ()


def test_unmet_requirements_are_told_with_what_they_break(on_path, monkeypatch):
    monkeypatch.setattr(loader, "unmet_of", lambda _: unmet_requirements(["never-published-by-anybody>=2"]))
    on_path("needy", "import never_published_by_anybody\n")
    on_path("tolerant", SCORER)

    (broken,) = load_from("needy:Plugin").diagnostics
    (works,) = load_from("tolerant:Plugin").diagnostics

    assert broken.code is Code.E0305
    assert broken.notes[-1] == "unmet requirement: never-published-by-anybody>=2 is not installed"
    assert works.code is Code.E0317
    assert works.help == "run `pip install acme==1.0` to install what it needs"
