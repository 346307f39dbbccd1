"""Resolution of a type to one candidate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from endpick.diagnostics import Code, Diagnostic, Span
from endpick.host.discovery import Candidate
from endpick.host.resolution import Reference, resolve

TYPE_SPAN = Span("c.yaml", 4, 11, 4, 14)
FROM_SPAN = Span("c.yaml", 5, 11, 5, 15)


def candidate(plugin_type="a.b", distribution="acme", **more):
    return Candidate(
        **{
            "type": plugin_type,
            "api_major": 1,
            "distribution": distribution,
            "version": "1.0",
            "target": "m:C",
            "metadata_path": f"/{distribution}",
            **more,
        }
    )


def reference(plugin_type="a.b", distribution=None):
    return Reference(plugin_type, "inst", distribution, TYPE_SPAN, FROM_SPAN, ("plugins", 0, "type"))


def fault(*args):
    outcome = resolve(*args)
    assert isinstance(outcome, Diagnostic)
    return outcome


def test_only_candidate_is_chosen():
    only = candidate()

    assert resolve(reference(), [only, candidate("other")]) is only


def test_from_chooses_in_any_spelling():
    wanted = candidate(distribution="Acme_X")

    assert resolve(reference(distribution="acme-x"), [candidate(distribution="other"), wanted]) is wanted


def test_empty_environment_is_reported():
    diagnostic = fault(reference(), [])

    assert (diagnostic.code, diagnostic.span) == (Code.E0320, TYPE_SPAN)
    assert "install endpick again" in diagnostic.help


def test_unknown_type_gets_a_suggestion():
    installed = [candidate("queue-scorer"), candidate("kv-scorer", api_major=2)]

    assert fault(reference("quue-scorer"), installed).help == "did you mean 'queue-scorer'?"
    assert fault(reference("kv-scorr"), installed).help == "`endpick list` shows what is installed"
    assert fault(reference("quue-scorer"), installed).code is Code.E0301


def test_missing_separate_plugin_names_its_distribution():
    installed = [candidate("queue-scorer")]

    assert fault(reference("kubernetes-discovery"), installed).help == "pip install endpick-kubernetes"
    assert fault(reference("precise-prefix-cache-scorer"), installed).help == "pip install endpick-kv-events"


def test_other_api_major_names_the_side_to_upgrade():
    for major, remedy in [(2, "upgrade endpick, or"), (0, "upgrade acme, or")]:
        diagnostic = fault(reference(), [candidate(api_major=major)])

        assert diagnostic.code is Code.E0322
        assert diagnostic.help.startswith(remedy)
        assert diagnostic.plugin.distribution == "acme"


def test_offer_for_our_api_major_is_chosen():
    ours = candidate()

    assert resolve(reference(), [candidate(distribution="next", api_major=2), ours]) is ours


def test_wrong_from_is_reported_at_from():
    diagnostic = fault(reference(distribution="acmee"), [candidate()])

    assert (diagnostic.code, diagnostic.span) == (Code.E0316, FROM_SPAN)
    assert diagnostic.help == "did you mean 'acme'?"
    assert fault(reference(distribution="zebra"), [candidate()]).help == "it is offered by acme"


def test_two_targets_in_one_distribution_clash():
    diagnostic = fault(reference(distribution="acme"), [candidate(target="m:A"), candidate(target="m:B")])

    assert diagnostic.code is Code.E0304
    assert diagnostic.message == "acme offers the type 'a.b' 2 times"
    assert "ask the author of acme" in diagnostic.help


def test_clash_with_builtin_names_both_choices():
    diagnostic = fault(reference(), [candidate(distribution="endpick", is_builtin=True), candidate(distribution="evil")])

    assert diagnostic.code is Code.E0315
    assert diagnostic.help == "say which one you want with `from: endpick` or `from: evil`, or uninstall evil"


def test_malformed_name_is_blamed_on_its_distribution():
    diagnostic = fault(reference("A_B"), [candidate("A_B")])

    assert diagnostic.code is Code.E0302
    assert diagnostic.annotation == "offered by acme 1.0"


candidates = st.lists(
    st.builds(
        candidate,
        st.sampled_from(["a.b", "a.c", "A_B"]),
        st.sampled_from(["acme", "evil", "endpick"]),
        api_major=st.sampled_from([1, 2]),
        target=st.sampled_from(["m:C", "m:D"]),
    ),
    max_size=6,
    unique=True,
)


@given(st.data(), candidates, st.sampled_from(["a.b", "A_B", "a.d"]), st.sampled_from([None, "acme", "endpick", "nobody"]))
def test_result_does_not_depend_on_import_path_order(data, installed, plugin_type, distribution):
    asked = reference(plugin_type, distribution)
    first, second = resolve(asked, sorted(installed)), resolve(asked, sorted(data.draw(st.permutations(installed))))

    assert first == second
    if isinstance(first, Candidate):
        assert first.is_valid
        assert first.speaks_our_api
        assert first.type == plugin_type
        assert distribution in (None, first.distribution)
        rivals = {one.distribution for one in installed if one.type == plugin_type and one.speaks_our_api}
        assert distribution is not None or rivals == {first.distribution}
