"""Metadata: the gateway's subset hint, and what endpick returns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick._proto.ext_proc_pb2 import ProcessingRequest
from endpick.extproc.messages import as_struct, destination_metadata, subset_hint
from endpick.extproc.session import Session
from unit.extproc.conversation import NotedDirector, request_body, request_headers, talk, with_metadata


def hint(value: object) -> dict[str, dict[str, object]]:
    return {"envoy.lb.subset_hint": {"x-gateway-destination-endpoint-subset": value}}


def read(metadata: dict[str, dict[str, object]] | None) -> tuple[str, ...] | None:
    return subset_hint(with_metadata(ProcessingRequest(), metadata))


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (None, None),
        ({}, None),
        ({"envoy.lb": {"x-gateway-destination-endpoint-subset": ["10.0.0.1:1"]}}, None),
        ({"envoy.lb.subset_hint": {"another": ["10.0.0.1:1"]}}, None),
        (hint([]), ()),
        (hint(""), ()),
        (hint(["10.0.0.3:8080"]), ("10.0.0.3:8080",)),
        (hint("10.0.0.2:8080,10.0.0.3:8080"), ("10.0.0.2:8080", "10.0.0.3:8080")),
        (hint("  10.0.0.2:8080 ,  ,  10.0.0.3:8080  "), ("10.0.0.2:8080", "10.0.0.3:8080")),
        (hint(["10.0.0.2:8080, 10.0.0.3:8080", "10.0.0.1"]), ("10.0.0.2:8080", "10.0.0.3:8080", "10.0.0.1")),
        (hint(["10.0.0.1:8080", 12345]), ("10.0.0.1:8080",)),
        (hint([12345]), ()),
        (hint(12345), None),
        (hint(None), None),
    ],
)
def test_subset_hint_is_a_list_or_a_string(metadata, expected):
    assert read(metadata) == expected


def test_subset_hint_of_the_headers_is_kept():
    director = NotedDirector()
    talk(Session(director), request_headers(metadata=hint(["10.0.0.3:8080"])), request_body(b"{}"), request_body(b"", end=True))
    assert director.asked[0].subset == ("10.0.0.3:8080",)


def test_subset_hint_may_come_with_the_body():
    message = ProcessingRequest.FromString(request_body(b"{}", end=True))
    director = NotedDirector()
    talk(Session(director), request_headers(), with_metadata(message, hint([])).SerializeToString())
    assert director.asked[0].subset == ()


def test_plugin_metadata_cannot_replace_the_destination():
    struct = destination_metadata("10.0.0.1:1", {"envoy.lb": {"x-gateway-destination-endpoint": "6.6.6.6:6", "a": "b"}})
    assert dict(struct["envoy.lb"]) == {"x-gateway-destination-endpoint": "10.0.0.1:1", "a": "b"}


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.dictionaries(st.text(max_size=5), st.text() | st.booleans() | st.floats(allow_nan=False), min_size=1, max_size=3),
        max_size=3,
    )
)
def test_metadata_keeps_its_types(metadata):
    struct = as_struct(metadata)
    assert {namespace: dict(struct[namespace]) for namespace in struct} == metadata
    for namespace, entries in metadata.items():
        for key, value in entries.items():
            expected = {str: "string_value", bool: "bool_value", float: "number_value"}[type(value)]
            assert struct[namespace].fields[key].WhichOneof("kind") == expected
