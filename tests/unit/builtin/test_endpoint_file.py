"""Endpoint files: what is read, and what is refused and where."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endpick_builtin.endpoint_file import EndpointFile, read_endpoint_file
from unit.builtin.endpoint_files import EXPECTED, GOOD, entry, listing, read, shown


def test_a_good_file_is_read_whole():
    contents = read(GOOD)
    assert shown(contents.endpoints) == EXPECTED
    assert (contents.mistakes, contents.remarks) == ((), ())
    assert [endpoint.metrics_address for endpoint in contents.endpoints] == ["10.0.0.1:8000", "10.0.0.2:9000"]


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_json_is_as_good_as_yaml(indent):
    document = {
        "endpoints": [
            {"name": "a", "address": "10.0.0.1", "port": "8000", "labels": {"llm-d.ai/role": "decode"}},
            {"name": "b", "namespace": "prod", "address": "10.0.0.2", "port": "9000"},
        ]
    }
    assert shown(read(json.dumps(document, indent=indent)).endpoints) == EXPECTED


@pytest.mark.parametrize("text", [GOOD.replace("\n", "\r\n"), "\ufeff" + GOOD, "---\n" + GOOD + "...\n", "# comment\n\n" + GOOD])
def test_how_the_text_is_dressed_does_not_matter(text):
    assert shown(read(text).endpoints) == EXPECTED


def test_an_anchor_may_be_given_again_and_nothing_warns_of_it():
    entries = "".join(f"- {{name: &again e{at}, address: 10.0.0.1, port: '8000', labels: {{a: *again}}}}\n" for at in range(3))
    contents = read(f"endpoints:\n{entries}")
    assert contents.endpoints is not None
    assert [dict(endpoint.labels) for endpoint in contents.endpoints] == [{"a": "e0"}, {"a": "e1"}, {"a": "e2"}]


@pytest.mark.parametrize("port", ["8000", '"8000"', "'08000'", "+8000"])
def test_a_port_is_text_or_a_number(port):
    contents = read(listing(entry(port=port)))
    if port == "+8000":
        assert "`port` of 'default/a' must be" in contents.mistakes[0].message
    else:
        assert [endpoint.port for endpoint in contents.endpoints] == [8000]


def test_ipv6_is_accepted_and_shown_in_brackets():
    assert [endpoint.address for endpoint in read(listing(entry(address='"2001:DB8::7"'))).endpoints] == ["[2001:db8::7]:8000"]


@pytest.mark.parametrize("more", [", namespace:", ", namespace: ''", ", labels:", ", labels: {}", ", namespace: default"])
def test_empty_fields_are_as_good_as_none(more):
    assert shown(read(listing(entry(more=more))).endpoints) == [("default/a", "10.0.0.1:8000", {})]


def test_anchors_and_merges_are_followed():
    text = """\
base: &base {address: 10.0.0.1, port: "8000", labels: {zone: x}}
endpoints:
- <<: *base
  name: a
- <<: [{address: 10.0.0.9}, *base]
  name: b
  labels: {zone: y}
"""
    assert shown(read(text).endpoints) == [("default/a", "10.0.0.1:8000", {"zone": "x"}), ("default/b", "10.0.0.9:8000", {"zone": "y"})]


def test_last_of_one_name_wins_with_a_warning():
    contents = read(listing(entry(), entry("b"), entry(address="10.0.0.9")))
    assert [endpoint.host for endpoint in contents.endpoints] == ["10.0.0.9", "10.0.0.1"]
    assert [str(remark) for remark in contents.remarks] == ["line 4: 'default/a' is named a second time; this entry wins"]


def test_one_name_in_two_namespaces_is_two_endpoints():
    assert len(read(listing(entry(), entry(more=", namespace: other"))).endpoints) == 2


def test_an_unknown_field_is_remarked_at_its_line():
    contents = read(GOOD + "  adress: 10.0.0.3\n")
    assert len(contents.endpoints) == 2
    assert [str(remark) for remark in contents.remarks] == [
        "line 10: 'adress' is not a field of an endpoint and is ignored; fields are name, namespace, address, port, labels"
    ]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (entry("''"), "`name` must be text that is not empty"),
        (entry("7"), "`name` must be text that is not empty"),
        ('- {address: 10.0.0.1, port: "8000"}\n', "`name` must be text that is not empty"),
        (
            entry(address="gpu.example"),
            "`address` of 'default/a' must be an IP address such as 10.0.0.7, not 'gpu.example'",
        ),
        (entry(address="10.0.0.256"), "`address` of 'default/a' must be an IP address such as 10.0.0.7, not '10.0.0.256'"),
        (entry(address="010.0.0.1"), "`address` of 'default/a' must be an IP address such as 10.0.0.7, not '010.0.0.1'"),
        (entry(address="10.0.0.1:8000"), "`address` of 'default/a' must be an IP address such as 10.0.0.7, not '10.0.0.1:8000'"),
        ('- {name: a, port: "8000"}\n', "`address` of 'default/a' must be an IP address such as 10.0.0.7"),
        (entry(port="'0'"), "`port` of 'default/a' must be \"1\" to \"65535\", not '0'"),
        (entry(port="65536"), "`port` of 'default/a' must be \"1\" to \"65535\", not '65536'"),
        (entry(port="http"), "`port` of 'default/a' must be \"1\" to \"65535\", not 'http'"),
        (entry(port="80.0"), "`port` of 'default/a' must be \"1\" to \"65535\", not '80.0'"),
        (entry(port="8_000"), "`port` of 'default/a' must be \"1\" to \"65535\", not '8_000'"),
        (entry(port="'\uff18\uff10'"), "`port` of 'default/a' must be \"1\" to \"65535\", not '\uff18\uff10'"),
        (entry(port="[8000]"), '`port` of \'default/a\' must be "1" to "65535"'),
        ("- {name: a, address: 10.0.0.1}\n", '`port` of \'default/a\' must be "1" to "65535"'),
        (entry(more=", labels: [x]"), "`labels` of 'default/a' must be a mapping of text to text"),
        (entry(more=", labels: {gpus: 8}"), "label 'gpus' must be text; put the value in quotes"),
        (entry(more=", labels: {a: }"), "label 'a' must be text; put the value in quotes"),
        (entry(more=", namespace: 7"), "`namespace` of 'default/a' must be text"),
        ("- 10.0.0.1:8000\n", "an endpoint must be a mapping with name, address and port"),
        ("-\n", "an endpoint must be a mapping with name, address and port"),
    ],
)
def test_wrong_entry_is_named_and_others_are_read(bad, message):
    contents = read(listing(entry("first"), bad, entry("last")))
    assert [endpoint.name for endpoint in contents.endpoints] == ["default/first", "default/last"]
    assert [str(mistake) for mistake in contents.mistakes] == [f"line 3: {message}"]


def test_an_entry_with_three_mistakes_has_three_mistakes():
    contents = read('endpoints:\n- name: a\n  address: nowhere\n  port: "0"\n  labels:\n    x: 1\n')
    assert [mistake.line for mistake in contents.mistakes] == [3, 4, 6]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the file must be a mapping with the key `endpoints`"),
        ("- a\n", "line 1: the file must be a mapping with the key `endpoints`"),
        ("\n\nendpoint: []\n", "line 3: the key `endpoints` is missing; write `endpoints: []` for a pool without endpoints"),
        ("endpoints: {a: b}\n", "line 1: `endpoints` must be a list"),
        ("endpoints: 7\n", "line 1: `endpoints` must be a list"),
        ("endpoints:\n- {name: a\n", "line 3: not valid YAML: expected ',' or '}', but got '<stream end>'"),
        ("endpoints: *nobody\n", "line 1: not valid YAML: found undefined alias 'nobody'"),
        ("endpoints: []\n---\nendpoints: []\n", "line 2: not valid YAML: but found another document"),
        ("endpoints: " + "[\n " * 4_000, "line 1: the file is nested too deeply"),
    ],
)
def test_a_file_that_makes_no_sense_has_one_mistake(text, message):
    contents = read(text)
    assert contents.endpoints is None
    assert [str(mistake) for mistake in contents.mistakes] == [message]


def test_a_file_that_is_not_utf8_is_refused_at_the_line():
    assert [str(mistake) for mistake in read_endpoint_file(b"endpoints:\n- name: caf\xe9\n").mistakes] == ["line 2: the file is not UTF-8"]


@pytest.mark.parametrize("text", ["endpoints: []\n", "endpoints:\n", "endpoints: null\n", "endpoints:\n# - name: a\n"])
def test_an_empty_pool_is_a_pool(text):
    assert read(text) == EndpointFile(())


def test_a_list_of_aliases_is_not_blown_up():
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{chr(98 + level)}: &{chr(98 + level)} [{', '.join([f'*{chr(97 + level)}'] * 9)}]\n" for level in range(12)
    )
    contents = read(bomb + "endpoints: *m\n")
    assert contents.endpoints == ()
    assert len(contents.mistakes) == 9


def test_a_mapping_that_merges_itself_is_refused():
    contents = read("endpoints:\n- &a\n  <<: *a\n  name: a\n  address: 10.0.0.1\n  port: 1\n")
    assert contents.endpoints is None


@given(st.one_of(st.binary(max_size=60), st.text("endpoints:- {}[]&*a<\n\t'\"#!|>%@", max_size=60).map(str.encode)))
@settings(max_examples=60, deadline=None)
def test_no_content_whatever_raises(content):
    contents = read_endpoint_file(content)
    assert contents.endpoints is not None or contents.mistakes
