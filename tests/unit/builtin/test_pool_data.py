"""`http-pool-source` and `json-values-extractor`: a document on a server or in a file, and the values in it."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from endpick.api import ConfigurationError, PluginContext, Unavailable
from endpick.testing import make_pool
from endpick_builtin.collection.pool_data import (
    HttpPoolSource,
    JsonDocument,
    JsonValuesExtractor,
    JsonValuesParameters,
    PoolSourceParameters,
    at,
    path_of,
)
from unit.builtin.pages import serving, started

RFC_6901 = {"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4, "i\\j": 5, 'k"l': 6, " ": 7, "m~n": 8}


def source(**parameters) -> HttpPoolSource:
    return HttpPoolSource("pool", PoolSourceParameters(**parameters), PluginContext())


@pytest.mark.asyncio
async def test_a_document_of_a_server_is_read_with_its_query():
    seen = []

    async def handler(request):
        seen.append(request.path_qs)
        return web.json_response({"price": len(seen)})

    async with serving(handler) as port, started(source(url=f"http://127.0.0.1:{port}/pool?zone=a", interval="3s", timeout="2s")) as it:
        assert [await it.poll_pool(), await it.poll_pool()] == [JsonDocument({"price": 1}), JsonDocument({"price": 2})]
        assert it.interval_seconds == 3.0
        assert it.timeout_seconds == 2.0
    assert seen == ["/pool?zone=a"] * 2


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("body", "status", "message"),
    [("", 200, "is not JSON"), ("{", 200, "is not JSON"), ("[NaN]", 200, "is not JSON"), ("{}", 404, "answered 404")],
)
async def test_an_answer_that_is_no_document_is_unavailable(body, status, message):
    async def handler(request):
        return web.Response(text=body, status=status)

    async with serving(handler) as port, started(source(url=f"http://127.0.0.1:{port}/")) as it:
        with pytest.raises(Unavailable, match=message):
            await it.poll_pool()


@pytest.mark.asyncio
async def test_file_is_read_at_each_poll(tmp_path):
    path = tmp_path / "pool.json"
    async with started(source(path=str(path))) as it:
        with pytest.raises(Unavailable, match=re.escape(f"{path}: No such file")):
            await it.poll_pool()
        for value in (1, 2):
            path.write_text(json.dumps([value]))
            assert await it.poll_pool() == JsonDocument([value])
        path.write_bytes(b" " * (8 * 2**20 + 1))
        with pytest.raises(Unavailable, match="longer than maxPageBytes"):
            await it.poll_pool()


@pytest.mark.asyncio
async def test_authorities_that_cannot_be_read_end_the_start(tmp_path):
    with pytest.raises(ConfigurationError, match="nowhere"):
        await source(url="https://pool.example/", caCertPath=str(tmp_path / "nowhere")).start()


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"url": "http://a/", "path": "b"},
        {"url": "ftp://a/"},
        {"url": "http:///x"},
        {"url": "http://a/b c"},
        {"url": "http://a:0/"},
        {"url": "http://a:x/"},
    ],
)
def test_a_place_that_is_none_is_refused(parameters):
    with pytest.raises(ValidationError):
        PoolSourceParameters(**parameters)


@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        ("", RFC_6901),
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ('/k"l', 6),
        ("/ ", 7),
        ("/m~0n", 8),
    ],
)
def test_pointers_lead_where_the_rfc_says(pointer, found):
    assert at(RFC_6901, path_of(pointer)) == found


@pytest.mark.parametrize(
    "pointer", ["/foo/2", "/foo/-", "/foo/01", "/foo/-1", "/foo/x", "/foo/0/0", "/nowhere", "/foo/99999999999", "/foo/²"]
)
def test_pointers_to_nowhere_lead_to_nothing_of_json(pointer):
    assert type(at(RFC_6901, path_of(pointer))) is object


@given(
    st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)),
    st.text(),
)
def test_no_document_makes_trouble(root, pointer):
    at(root, path_of(f"/{pointer}"))


VALUES = [
    {"attributeKey": "acme/price", "pointer": "/energy/price"},
    {"attributeKey": "acme/zone", "pointer": "/zone", "type": "text"},
    {"attributeKey": "acme/open", "pointer": "/open", "type": "boolean"},
    {"attributeKey": "acme/quota", "pointer": "/quota", "perEndpoint": True},
]


class Collecting:
    def __init__(self):
        self.parameters = JsonValuesParameters(values=VALUES)
        self.price, self.zone, self.open, self.quota = keys = JsonValuesExtractor.subscriptions(self.parameters).produces
        self.table = make_pool(4, keys=keys)
        self.it = JsonValuesExtractor("values", self.parameters, PluginContext())

    def read(self, root):
        self.it.collect(JsonDocument(root), self.table.writer(None))

    def known(self):
        view = self.table.view()
        return view.pool(self.price), view.pool(self.zone), view.pool(self.open), view[self.quota].tolist()


def test_pool_and_endpoint_values_are_kept_by_key():
    it = Collecting()
    first, second, third, _ = it.table.generation.endpoints

    it.read(
        {
            "energy": {"price": 2},
            "zone": "a",
            "open": False,
            "quota": {first.name: 1, second.name.rpartition("/")[2]: 2, third.address: 3.5, "else": 9},
        }
    )

    price, zone, is_open, quota = it.known()
    assert (price, zone, is_open) == (2.0, "a", False)
    np.testing.assert_array_equal(quota, [1.0, 2.0, 3.5, np.nan])


def test_missing_or_wrong_values_stay_as_they_were():
    it = Collecting()
    it.read({"energy": {"price": 2}, "zone": "a", "open": True, "quota": {}})

    with pytest.raises(Unavailable, match="no number at '/energy/price', no boolean at '/open', no object at '/quota'"):
        it.read({"energy": {"price": True}, "zone": "b", "open": 1, "quota": [1]})

    assert it.known()[:3] == (2.0, "b", True)


@pytest.mark.parametrize("pointer", ["price", "/a~", "/a~2"])
def test_a_pointer_that_is_none_is_refused(pointer):
    with pytest.raises(ValidationError, match="pointer"):
        JsonValuesParameters(values=[{"attributeKey": "a", "pointer": pointer}])


def test_a_key_is_given_once():
    with pytest.raises(ValidationError, match="attributeKey 'a' is given 2 times"):
        JsonValuesParameters(values=[{"attributeKey": "a", "pointer": "/a"}, {"attributeKey": "a", "pointer": "/b"}])


@pytest.mark.parametrize("url", ["ftp://u:secret@h/", "http:///secret", "http://h:secret/", "secret"])
def test_a_url_that_is_none_is_not_repeated(url):
    """There may be a password or a key in it, and a refused reload is logged."""
    with pytest.raises(ValidationError) as refused:
        PoolSourceParameters(url=url)
    assert "secret" not in "; ".join(each["msg"] for each in refused.value.errors())
