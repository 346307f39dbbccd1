"""What kubernetes-discovery does when the API server forgets, resets, is silent, refuses or is away."""

from __future__ import annotations

import logging

import pytest
from aiohttp import web

from endpick_kubernetes import follower
from integration.kubernetes.api_server import NEW, PODS, POOLS, ApiServer, kubeconfig, pod, pool, serving, status
from integration.kubernetes.conftest import discovering, eventually, following, ready

pytestmark = [pytest.mark.long, pytest.mark.asyncio]

ONE = {"a-rank-0": "10.0.0.1:8000"}
TWO = {**ONE, "b-rank-0": "10.0.0.2:8000"}


@pytest.fixture
def one(server) -> ApiServer:
    """A pool with one Pod."""
    pool(server)
    pod(server, "a", "10.0.0.1")
    return server


async def watching(server: ApiServer, times: int = 1) -> None:
    """Wait until Pods have been watched this often."""
    await eventually(lambda: len(server.watched(PODS)) >= times, lambda: f"Pods were watched {len(server.watched(PODS))} times")
    await eventually(lambda: any(watch.path == PODS for watch in server.watches), lambda: "no watch is open")


async def test_bookmarks_keep_the_version_fresh(one, tmp_path):
    async with following(one, tmp_path) as followed:
        await watching(one)
        first = one.watched(PODS)[0]
        one.version = 500
        one.bookmark(PODS)
        one.end_watches(PODS)
        await watching(one, 2)
        one.compacted = 400
        one.end_watches(PODS, cut=True)
        await watching(one, 3)
        pod(one, "b", "10.0.0.2")
        await followed.becomes(TWO)

        assert one.watched(PODS) == [first, "500", "500"]
        assert all(asked.query["allowWatchBookmarks"] == "true" for asked in one.asked if asked.is_watch)
        assert one.lists(PODS) == 1
        assert followed.outcomes("pods", "broken") == 1


@pytest.mark.parametrize("inside", [True, False], ids=["event", "status"])
async def test_expired_version_leads_to_a_list(one, tmp_path, inside):
    async with following(one, tmp_path) as followed:
        await watching(one)
        missed = one.version + 1
        one.mute = True
        pod(one, "b", "10.0.0.2")
        one.mute = False
        if inside:
            one.compacted = missed
        else:
            one.instead = lambda request: status(410, "Expired") if request.query.get("resourceVersion") == str(missed - 1) else None
        one.history.clear()
        one.end_watches(PODS, cut=True)
        await followed.becomes(TWO)
        assert one.lists(PODS) == 2
        assert followed.outcomes("pods", "expired") == 1


async def test_list_starts_over_if_its_next_page_has_expired(one, tmp_path):
    pod(one, "b", "10.0.0.2")
    one.page_objects = 1
    expired = iter([True])
    one.instead = lambda request: status(410, "Expired") if request.query.get("continue") and next(expired, False) else None
    async with following(one, tmp_path) as followed:
        assert followed.members() == TWO
        assert one.lists(PODS) == 2


async def test_pool_stays_while_the_server_is_away(one, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    async with serving(one) as url:
        port = int(url.rpartition(":")[2])
        going = discovering(one, kubeconfig(tmp_path / "k", url))
        followed = await going.__aenter__()
        await ready(followed)
        await watching(one)
    try:
        await eventually(lambda: "pods cannot be watched, trying again" in caplog.text, lambda: caplog.text)
        assert followed.members() == ONE
        pod(one, "b", "10.0.0.2")
        one.compacted = one.version
        async with serving(one, port):
            await followed.becomes(TWO)
        assert "pods are followed again" in caplog.text
    finally:
        await going.__aexit__(None, None, None)


@pytest.mark.parametrize(
    "refusal",
    [
        lambda: status(403, "Forbidden"),
        lambda: status(500, "InternalError"),
        lambda: web.Response(text="<html>", content_type="text/html"),
        lambda: web.Response(text="<html>", content_type="text/html", status=503),
    ],
    ids=["403", "500", "html", "503"],
)
async def test_refused_list_is_repeated(one, tmp_path, refusal):
    wrong = iter([True] * 3)
    one.instead = lambda request: refusal() if request.path == PODS and "watch" not in request.query and next(wrong, False) else None
    async with following(one, tmp_path) as followed:
        assert followed.members() == ONE
        assert one.lists(PODS) == 4


async def test_retry_after_is_respected(one, tmp_path):
    busy = iter([True])
    one.instead = lambda request: (
        status(429, "TooManyRequests", {"Retry-After": "1"}) if request.path == PODS and next(busy, False) else None
    )
    async with following(one, tmp_path) as followed:
        assert followed.members() == ONE
    came = [asked.at for asked in one.asked if asked.path == PODS][:2]
    assert came[1] - came[0] >= 1


async def test_event_before_an_error_counts(one, tmp_path):
    async with following(one, tmp_path) as followed:
        await watching(one)
        one.say(PODS, b'{"type": "DELETED", "object": {"metadata"', b': {"name": "a", "resourceVersion": "900"}}}\n')
        await followed.becomes({})
        one.say(PODS, {"type": "ERROR", "object": {"code": 500, "reason": "InternalError", "message": "etcd"}})
        await watching(one, 2)
        assert one.watched(PODS)[1] == "900"
        one.say(PODS, b'{"type": "ADDED", "object":')
        one.end_watches(PODS, cut=True)
        await watching(one, 3)
        assert one.watched(PODS)[2] == "900"


async def test_long_silence_leads_to_a_list(one, tmp_path, monkeypatch):
    monkeypatch.setattr(follower, "_SILENT_WATCHES_BEFORE_LIST", 2)
    one.mute = True
    async with following(one, tmp_path, watchTimeout="1s") as followed:
        await watching(one)
        pod(one, "b", "10.0.0.2")
        await followed.becomes(TWO)
        assert followed.outcomes("pods", "silent") == 1
        assert one.lists(PODS) == 2


async def test_expired_token_is_read_again(one, tmp_path):
    token = tmp_path / "token"
    token.write_text("first\n")
    valid = {"first"}
    one.instead = lambda request: (
        None if request.headers.get("Authorization", "").removeprefix("Bearer ") in valid else status(401, "Unauthorized")
    )
    async with serving(one) as url:
        file = kubeconfig(tmp_path / "k", url, tokenFile="token")
        async with discovering(one, file) as followed:
            await ready(followed)
            await watching(one)
            token.write_text("second")
            valid = {"second"}
            one.end_watches(PODS, cut=True)
            await watching(one, 2)
            pod(one, "b", "10.0.0.2")
            await followed.becomes(TWO)
            assert {asked.token for asked in one.asked} == {"first", "second"}


async def test_custom_resource_installed_later_is_found(one, tmp_path, monkeypatch):
    monkeypatch.setattr(follower, "_NOT_INSTALLED_PAUSE_SECONDS", 0.05)
    path = f"{NEW}/inferenceobjectives"
    del one.objects[path]
    async with following(one, tmp_path) as followed:
        assert followed.table.rules.objectives == {}
        one.objects[path] = {}
        one.put(path, "batch", spec={"priority": -1, "poolRef": {"name": "pool"}})
        await eventually(lambda: followed.table.rules.objectives == {"batch": -1}, lambda: "it was not found")


ROLE = "; the Role needs the verb `list` for {} in namespace default"
REFUSALS = [  # path, status, reason, what keeps the discovery from being ready
    (PODS, 403, "Forbidden", "pods cannot be listed: {}" + ROLE.format("pods")),
    (POOLS, 403, "Forbidden", "inferencepools cannot be listed: {}" + ROLE.format("inferencepools.inference.networking.k8s.io")),
    (PODS, 401, "Unauthorized", "pods cannot be listed: {}; the API server does not accept the credentials"),
    (POOLS, 404, "NotFound", "inferencepools cannot be listed: {}"),
    (PODS, 500, "InternalError", "pods cannot be listed: {}"),
]


@pytest.mark.parametrize(("path", "code", "reason", "says"), REFUSALS)
async def test_obstacle_to_readiness_is_named_until_it_is_gone(one, tmp_path, path, code, reason, says):
    def refused(request: web.Request) -> web.Response | None:
        if request.path == path:
            return status(code, reason)
        return status(403, "Forbidden") if "objectives" in request.path else None  # they are optional

    one.instead = refused
    async with serving(one) as url, discovering(one, kubeconfig(tmp_path / "kubeconfig", url)) as followed:
        expected = says.format(f"{code} {reason}: as the test wants it")
        await eventually(lambda: followed.obstacles() == expected, followed.obstacles)
        one.instead = lambda _request: None
        await ready(followed)
        assert followed.obstacles() == ""
