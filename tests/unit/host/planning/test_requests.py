"""Parsers, the saturation detector and endpoint discovery: named, filled in, or refused."""

from __future__ import annotations

import pytest

from endpick.api import Admitter, CandidateFilter, ResponseObserver
from endpick.host.kinds import OnFault
from endpick.host.planning.pool import PoolSettings
from unit.host.planning.planned import plan


def test_parsers_are_filled_in_as_far_as_they_are_installed() -> None:
    assert plan("").plan.parsers == ("openai-parser", "passthrough-parser")
    assert plan("", without=["openai-parser"]).plan.parsers == ("passthrough-parser",)


def test_named_parsers_are_all_there_is_and_keep_their_order() -> None:
    result = plan("""
        plugins: [{type: openai-parser}, {type: csv-parser}]
        requestHandler: {parsers: [{pluginRef: csv-parser}, {pluginRef: openai-parser}]}
        """)

    assert result.plan.parsers == ("csv-parser", "openai-parser")


def test_a_second_parser_of_a_type_is_skipped_with_a_warning() -> None:
    result = plan("""
        plugins: [{type: csv-parser}, {type: csv-parser, name: again}]
        requestHandler: {parsers: [{pluginRef: csv-parser}, {pluginRef: again}]}
        """)

    assert result.plan.parsers == ("csv-parser",)
    assert result.found == [("W0502", "again")]
    assert "'csv-parser' is of the same type" in result.one("W0502").message


def test_parsers_behind_a_fallback_are_skipped_with_a_warning() -> None:
    result = plan("""
        plugins: [{type: csv-parser}]
        requestHandler: {parsers: [{pluginRef: passthrough-parser}, {pluginRef: csv-parser}]}
        """)

    assert result.plan.parsers == ("passthrough-parser",)
    assert result.found == [("W0502", "csv-parser")]
    assert "'passthrough-parser' takes every path" in result.one("W0502").message


def test_a_defined_default_parser_is_used_with_its_parameters() -> None:
    result = plan("plugins: [{type: passthrough-parser}]")

    assert result.plan.by_name["passthrough-parser"].path == ("plugins", 0)
    assert result.plan.parsers == ("openai-parser", "passthrough-parser")


def test_a_parser_may_be_named_by_its_type_without_being_defined() -> None:
    result = plan("requestHandler: {parsers: [{pluginRef: csv-parser}]}")

    assert result.plan.parsers == ("csv-parser",)
    assert "config.yaml:3:40" in result.announced("csv-parser")[0]


def test_what_is_named_by_its_type_must_be_of_the_right_kind() -> None:
    result = plan("requestHandler: {parsers: [{pluginRef: plain-scorer}]}")

    assert result.found == [("E0503", "plain-scorer")]
    assert "a parser is needed here" in result.one("E0503").message


def test_an_unknown_parser_is_refused() -> None:
    assert plan("requestHandler: {parsers: [{pluginRef: nobody}]}").found == [("E0501", "nobody")]


def test_the_deprecated_parser_field_still_works() -> None:
    result = plan("plugins: [{type: csv-parser}]\nparser: {pluginRef: csv-parser}")

    assert result.plan.parsers == ("csv-parser",)
    assert [code for code, _ in result.found] == ["W0203"]


def test_the_detector_is_the_one_named_or_the_default_or_none() -> None:
    named = "plugins: [{type: modest-detector}]\nflowControl: {saturationDetector: {pluginRef: modest-detector}}"

    assert plan(named).plan.detector == "modest-detector"
    assert plan("").plan.detector == "utilization-detector"
    assert plan("", without=["utilization-detector"]).plan.detector is None


def test_a_detector_must_be_one() -> None:
    result = plan("plugins: [{type: doorman}]\nsaturationDetector: {pluginRef: doorman}")

    assert ("E0503", "doorman") in result.found


def test_failing_endpoints_are_left_out_by_default() -> None:
    (announcement,) = [one for one in plan("").plan.announcements if one.subject == "endpoint-health"]

    assert plan("").plan.on_request[CandidateFilter] == ("endpoint-health",)
    assert plan("").plan.by_name["endpoint-health"].on_fault is OnFault.SKIP, "nobody asked for it"
    assert announcement.message.startswith("added candidate filter 'endpoint-health': a model server that fails at once")


def test_default_candidate_filter_is_added_once() -> None:
    named = "plugins: [{name: mine, type: endpoint-health}]"

    assert plan(named).plan.on_request[CandidateFilter] == ("mine",)
    assert plan("plugins: [{type: plain-scorer}]\ndataLayer: {injectDefaults: false}").plan.on_request[CandidateFilter] == ()
    assert plan("", without=["endpoint-health"]).plan.on_request[CandidateFilter] == ()


def test_discovery_is_what_the_document_names() -> None:
    assert plan("").plan.discovery is None
    assert (
        plan("plugins: [{type: file-discovery}]\ndataLayer: {discovery: {endpoints: {pluginRef: file-discovery}}}").plan.discovery
        == "file-discovery"
    )


def test_discovery_must_be_an_endpoint_discovery() -> None:
    result = plan("plugins: [{type: doorman}]\ndataLayer: {discovery: {endpoints: {pluginRef: doorman}}}")

    assert result.found == [("E0503", "doorman")]
    assert "an endpoint discovery is needed here" in result.one("E0503").message


def test_on_request_instances_are_in_document_order() -> None:
    result = plan("plugins: [{type: doorman, name: b}, {type: diary}, {type: doorman, name: a}]")

    assert result.plan.on_request[Admitter] == ("b", "a")
    assert result.plan.on_request[ResponseObserver] == ("diary",)
    assert result.found == []


def test_a_type_that_a_faulty_entry_may_define_is_not_added() -> None:
    result = plan("""
        plugins: [{name: picky-parser}]
        requestHandler: {parsers: [{pluginRef: picky-parser}]}
        """)

    assert [code for code, _ in result.found] == ["E0202"]


def test_pool_flags_add_a_discovery() -> None:
    pool = PoolSettings(name="vllm", namespace="models", kubeconfig="/k")
    result = plan("", pool=pool)

    assert result.plan.discovery == "kubernetes-discovery"
    parameters = result.plan.by_name["kubernetes-discovery"].parameters
    assert parameters.model_dump(by_alias=True, exclude_defaults=True) == {
        "poolName": "vllm",
        "poolNamespace": "models",
        "kubeconfig": "/k",
    }
    assert "--pool-name vllm is given" in result.announced("kubernetes-discovery")[0]

    selected = plan("", pool=PoolSettings(selector="app=vllm", target_ports=(8000, 8001))).plan
    assert selected.by_name["kubernetes-discovery"].parameters.endpoint_target_ports == (8000, 8001)


@pytest.mark.parametrize(("gates", "follows"), [("", True), ("featureGates: [haPopulateNonLeaderDatastore=false]", False)])
def test_leader_election_is_asked_for_with_the_pool_of_flags(gates: str, follows: bool) -> None:
    parameters = plan(gates, pool=PoolSettings(name="vllm", leader_election=True)).plan.by_name["kubernetes-discovery"].parameters
    assert (parameters.leader_election, parameters.populate_followers) == (True, follows)
    assert not plan(gates, pool=PoolSettings(name="vllm")).plan.by_name["kubernetes-discovery"].parameters.leader_election


def test_ignored_leader_election_flag_gets_a_warning() -> None:
    document = """
        plugins: [{{type: kubernetes-discovery, parameters: {{poolName: vllm{more}}}}}]
        dataLayer: {{discovery: {{endpoints: {{pluginRef: kubernetes-discovery}}}}}}
        """
    pool = PoolSettings(leader_election=True)
    warned = plan(document.format(more=""), pool=pool).found
    assert [code for code, _ in warned] == ["W0204"]
    assert plan(document.format(more=", leaderElection: true"), pool=pool).found == []
    assert plan(document.format(more=""), pool=PoolSettings()).found == []
    labelled = PoolSettings(leader_election=True, leader_label="a.b/c=d")
    assert [code for code, _ in plan(document.format(more=", leaderElection: true"), pool=labelled).found] == ["W0204"]
    assert plan(document.format(more=", leaderElection: true, leaderLabel: a.b/c=e"), pool=labelled).found == []


def test_leader_label_of_another_discovery_gets_a_warning() -> None:
    document = """
        plugins: [{type: file-discovery, parameters: {path: endpoints.yaml}}]
        dataLayer: {discovery: {endpoints: {pluginRef: file-discovery}}}
        """
    pool = PoolSettings(name="vllm", leader_election=True, leader_label="a.b/c=d")
    assert plan(document, pool=pool).one("W0204").help == "remove the flag"
    unlabelled = plan(document, pool=PoolSettings(name="vllm", leader_election=True)).found
    assert "W0204" not in [code for code, _ in unlabelled]
    parameters = plan("", pool=pool).plan.by_name["kubernetes-discovery"].parameters
    assert (parameters.leader_election, parameters.leader_label) == (True, "a.b/c=d")


def test_named_discovery_wins_over_pool_flags() -> None:
    named = "plugins: [{type: file-discovery}]\ndataLayer: {discovery: {endpoints: {pluginRef: file-discovery}}}"

    assert plan(named, pool=PoolSettings(name="vllm")).plan.discovery == "file-discovery"
    assert plan("", pool=PoolSettings(kubeconfig="/k")).plan.discovery is None
