"""The kit and its fixtures as an author's pytest meets them, in a session of its own."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.long

pytest_plugins = ["pytester"]

WITHOUT = tuple(f"-pno:{plugin}" for plugin in ("randomly", "cacheprovider", "hypothesispytest", "xdist", "asyncio", "timeout"))
"""Hypothesis reads and rewrites all its modules at the end of each session, which takes as long as the rest of it; the others are those of
this project, and an author may do without."""


PLUGIN = '''
import numpy as np
from endpick.api import KV_CACHE_USAGE, Scorer

class Fair(Scorer):
    """Prefers free caches."""
    consumes = (KV_CACHE_USAGE,)
    def score(self, request, endpoints, state):
        return SCORE
'''
GOOD = PLUGIN.replace("SCORE", "np.fmax(1.0 - endpoints[KV_CACHE_USAGE], 0.0)")
FORGETFUL = PLUGIN.replace("SCORE", "1.0 - endpoints[KV_CACHE_USAGE]")

THREE_LINES = """
from acme_fair import Fair
from endpick.testing import parametrize_conformance

@parametrize_conformance([Fair]{options})
def test_conformance(check):
    check()
"""


@pytest.fixture
def author(pytester, monkeypatch):
    """`author(source, options)`: a project with an installed plugin and its conformance test; runs its pytest."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    def run(source=GOOD, options="", *arguments, tests=None, installed=True):
        pytester.makepyfile(acme_fair=source, test_plugin=tests or THREE_LINES.format(options=options))
        if installed:
            info = pytester.mkdir("acme_fair-1.0.dist-info")
            (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-fair\nVersion: 1.0\nRequires-Dist: endpick>=0.1\n")
            (info / "entry_points.txt").write_text("[endpick.plugins.v1]\nacme.fair = acme_fair:Fair\n")
        monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=":")
        return pytester.runpytest_subprocess(*WITHOUT, "-q", *arguments)

    return run


def test_three_lines_make_a_test_of_each_check(author):
    result = author(GOOD, "", "-vv")

    result.assert_outcomes(passed=result.parseoutcomes()["passed"])
    result.stdout.fnmatch_lines(
        ["*test_conformance?acme.fair-scorer_tolerates_missing_data? PASSED*", "*acme.fair-works_after_a_reload? PASSED*"]
    )


def test_a_fault_fails_one_test_with_advice_and_no_traceback(author):
    result = author(FORGETFUL)

    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(
        [
            "acme.fair: `score` answers nan for 8 of 8 endpoints when no endpoint has reported anything",
            "  help: give missing data an answer*",
            "  rule: *scorer_tolerates_missing_data?",
            "  class: acme_fair:Fair",
        ]
    )
    assert "Traceback" not in result.stdout.str()
    assert "kit.py" not in result.stdout.str()


def test_checks_are_selected_by_id(author):
    result = author(FORGETFUL, "", "-k", "missing_data")

    result.assert_outcomes(failed=1, deselected=result.parseoutcomes()["deselected"])


def test_a_declared_failure_is_expected_and_shows_its_reason(author):
    result = author(FORGETFUL, ', expected_failures={"scorer_tolerates_missing_data": "metrics always come first"}', "-rx")

    assert result.parseoutcomes()["xfailed"] == 1
    assert "failed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(["*scorer_tolerates_missing_data* - metrics always come first"])


def test_a_declared_failure_that_passes_is_a_failure(author):
    result = author(GOOD, ', expected_failures={"scorer_tolerates_missing_data": "metrics always come first"}')

    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["?XPASS(strict)? metrics always come first"])


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ('{"scorer_is_nice": "it is"}', "ValueError: there is no check 'scorer_is_nice'; the checks are *"),
        ('{"scorer_stays_in_range": " "}', "ValueError: say why 'scorer_stays_in_range' may fail"),
    ],
)
def test_an_expectation_needs_a_known_check_and_a_reason(author, expected, message):
    result = author(GOOD, f", expected_failures={expected}")

    assert result.ret != 0
    result.stdout.fnmatch_lines([f"*{message}"])


def test_a_class_without_entry_point_is_told_what_to_write(author):
    result = author(GOOD, installed=False)

    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(
        [
            "Fair: no installed entry point leads to acme_fair:Fair",
            '  help: write ?project.entry-points."endpick.plugins.v1"? "acme.fair" = "acme_fair:Fair", and install the project*',
        ]
    )


def test_a_class_the_host_refuses_fails_once_and_skips_the_rest(author):
    result = author(GOOD.replace("def score(self, request, endpoints, state)", "def score(self, request)"))

    outcomes = result.parseoutcomes()
    assert outcomes["failed"] == 1
    assert "passed" not in outcomes
    result.stdout.fnmatch_lines(["acme.fair: `score` of the plugin class Fair in * is called with (request, endpoints, state), but *"])


FIXTURES = '''
import numpy as np
import pytest
from acme_fair import Fair
from endpick.api import KV_CACHE_USAGE, Endpoints, InferenceRequest
from endpick.host.discovery import discover

CONFIG = """
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: acme.fair}]
schedulingProfiles:
  - name: default
    plugins: [{pluginRef: acme.fair}]
"""

def test_make_endpoints(make_endpoints):
    endpoints = make_endpoints({KV_CACHE_USAGE: [0.5, None]}, labels=[{"zone": "a"}])
    np.testing.assert_array_equal(endpoints[KV_CACHE_USAGE], [0.5, np.nan])
    assert [endpoint.labels.get("zone") for endpoint in endpoints] == ["a", None]
    with pytest.raises(ValueError, match="read-only"):
        endpoints[KV_CACHE_USAGE][0] = 1.0

def test_make_request(make_request):
    request = make_request("hello", model="m", headers={"x-a": "b"})
    assert (request.prompt.texts, request.model, request.headers) == ((b"hello",), "m", {"x-a": "b"})

def test_host_uses_installed_plugins(host):
    picker = host(CONFIG)
    picker.put({KV_CACHE_USAGE: [0.9, 0.1, 0.5]})
    decision = picker.ask("hello")
    assert decision.destinations == ("10.0.0.2:8000",)
    assert decision.run("default").scorers[0].answered == pytest.approx((0.1, 0.9, 0.5))

def test_isolated_plugins_hides_what_is_installed(isolated_plugins, make_distribution):
    make_distribution("acme-other", {"acme.other": "acme_other:Other"})
    assert {one.type for one in discover() if not one.is_builtin} == {"acme.other"}

def test_distributions_are_gone_after_the_test():
    assert {one.type for one in discover() if one.distribution.startswith("acme")} == {"acme.fair"}
'''


def test_fixtures_do_what_they_say(author):
    result = author(GOOD, tests=FIXTURES)

    result.assert_outcomes(passed=5)


def test_fixtures_are_documented(pytester):
    listed = pytester.runpytest_subprocess("--fixtures", "-q", "-p", "no:randomly").stdout.str()

    for fixture in ("host", "isolated_plugins", "make_distribution", "make_endpoints", "make_request"):
        section = listed.partition(f"\n{fixture} -- ")[2]
        assert section, f"{fixture} is not listed"
        assert "no docstring available" not in "\n".join(section.splitlines()[:3])


def test_session_without_the_kit_imports_none_of_it(pytester):
    pytester.makepyfile(
        "import sys\n\ndef test_nothing():\n"
        "    assert 'endpick.testing.pytest_plugin' in sys.modules\n"
        "    assert not {'numpy', 'pydantic', 'endpick.api', 'endpick.testing.kit'} & set(sys.modules)\n"
    )

    result = pytester.runpytest_subprocess("-q", "-p", "no:randomly", "-p", "no:hypothesispytest")

    result.assert_outcomes(passed=1)
