"""Parameter schemas that plugins bring along: behaviours 34 and 35."""

from __future__ import annotations

import socket
import threading


def test_behaviour_34_remote_reference_is_not_fetched(make_distribution, config_with, validate):
    asked = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/limit.json"
        module = (
            "import numpy as np\n"
            "from endpick.api import Scorer\n"
            "class Remote(Scorer):\n"
            f"    parameters_schema = {{'properties': {{'limit': {{'$ref': '{url}'}}}}}}\n"
            "    def score(self, request, endpoints, state):\n"
            "        return np.ones(len(endpoints))\n"
        )
        path = [make_distribution("far-away", {"remote": "far_away:Remote"}, modules={"far_away": module})]
        verdict = validate(config_with("type: remote\nparameters: {limit: 3}"), path=path)
        try:
            server.accept()[0].close()
            asked.set()
        except TimeoutError:
            pass
    error = verdict.the_only_error()

    assert not asked.is_set()
    assert (verdict.exit_code, error["code"], verdict.pointed_at(error)) == (4, "E0404", "remote")
    assert error["message"] == f"the parameter schema of 'remote' from far-away 1.0 refers to another document, '{url}'"


def test_behaviour_35_an_invalid_schema_is_blamed_on_the_plugin(fixture_project, config_with, validate):
    path = [fixture_project("schemas")]

    invalid = validate(config_with("type: schema.invalid\nparameters: {limit: 3}"), path=path)
    dangling = validate(config_with("schema.dangling"), path=path)

    for verdict in (invalid, dangling):
        error = verdict.the_only_error()
        assert (verdict.exit_code, error["code"]) == (4, "E0405")
        assert "the configuration is not to blame" in error["help"]
        assert error["plugin"]["distribution"] == "schemas"
    assert "is invalid at $.properties.limit.type" in invalid.errors[0]["message"]
    assert "refers to '#/$defs/limit', which it does not contain" in dangling.errors[0]["message"]


def test_a_given_schema_judges_parameters_with_positions(fixture_project, config_with, validate):
    config = config_with("type: schema.given\nparameters:\n  limit: 0\n  mode: fsat\n  lmit: 1")

    verdict = validate(config, path=[fixture_project("schemas")])

    assert verdict.exit_code == 3
    assert [(one["code"], verdict.pointed_at(one)) for one in verdict.diagnostics] == [
        ("E0401", "0"),
        ("E0401", "fsat"),
        ("E0402", "lmit"),
    ]
    assert [one["help"] for one in verdict.errors] == [None, "did you mean 'fast'?", None]


def test_a_deprecated_parameter_is_a_warning_at_its_key(fixture_project, config_with, validate):
    verdict = validate(config_with("type: schema.given\nparameters: {limit: 2, old: x}"), path=[fixture_project("schemas")])
    (warning,) = verdict.diagnostics

    assert verdict.exit_code == 0
    assert (warning["code"], verdict.pointed_at(warning)) == ("W0401", "old")
