"""Headers removed from a request, from the plugin to the gateway's reply."""

from __future__ import annotations

import json

import pytest

from endpick._proto.ext_proc_pb2 import HeaderMutation
from endpick.api import PreRequest, ProfileHandler, SchedulingResult
from endpick.extproc.messages import mutation
from endpick.requests.headers import HeadersForUpstream
from endpick.requests.model import IncomingRequest
from endpick.testing.host import host_of

CONFIG = """
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: acme.handler}, {type: acme.headers}]
"""


class Handler(ProfileHandler):
    """Takes one header away, and sets one that it takes away as well."""

    def pick_profiles(self, request, profiles, results, state):
        return () if results else profiles

    def process_results(self, request, results, state):
        picked = results["default"].picked
        return SchedulingResult("default", results, (picked.members[0].address,), {"x-set": "1"}, removed_headers=("x-Gone", "x-set"))


class Headers(PreRequest):
    """Takes another away."""

    def before_request(self, request, result, headers, state):
        headers.remove("X-Also-Gone")
        headers.set("x-again", "2")
        headers.remove("x-again")


def names_of(answer: HeaderMutation) -> tuple[dict[str, bytes], list[str]]:
    return {option.header.key: option.header.raw_value for option in answer.set_headers}, list(answer.remove_headers)


def test_decision_lists_removed_headers() -> None:
    with host_of(CONFIG, {"acme.handler": Handler, "acme.headers": Headers}) as host:
        host.put(1)
        decided = host.picker.decide(incoming())

        assert decided.set_headers == {"x-set": "1"}
        assert decided.remove_headers == ("x-Gone", "x-set", "x-also-gone", "x-again")
        assert names_of(mutation({}, decided.set_headers, decided.remove_headers))[1] == ["x-gone", "x-also-gone", "x-again"]


def incoming():
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}).encode()
    return IncomingRequest({":path": "/v1/chat/completions", ":method": "POST", "x-request-id": "r"}, body, None, 0.0)


def test_header_set_later_is_not_removed() -> None:
    headers = HeadersForUpstream({"x-a": "1"}, ("x-b",))
    headers.remove("x-a")
    headers.set("x-b", "2")

    assert names_of(mutation({"own": "0"}, headers._values, headers._removed)) == ({"own": b"0", "x-b": b"2"}, ["x-a"])


@pytest.mark.parametrize("name", ["content-length", "x-gateway-destination-endpoint", ":path"])
def test_owned_headers_cannot_be_removed(name: str) -> None:
    with pytest.raises(ValueError, match="belongs to endpick"):
        HeadersForUpstream({}).remove(name)


@pytest.mark.parametrize("name", ["content-length", "transfer-encoding"])
def test_protected_names_are_not_removed(name: str) -> None:
    assert names_of(mutation({}, {}, (name, "x-ok")))[1] == ["x-ok"]


@pytest.mark.parametrize("removed", [["x"], (7,), "x"])
def test_result_checks_removed_headers(removed) -> None:
    with pytest.raises(TypeError, match="removed_headers"):
        SchedulingResult("default", {}, ("127.0.0.1:1",), removed_headers=removed)
