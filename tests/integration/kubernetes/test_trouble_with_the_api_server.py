"""What kubernetes-discovery does when the API server forgets, resets, is silent, refuses, or answers what is no answer."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from endpick_builtin.kubernetes import access
from endpick_builtin.kubernetes.client import LINES_AT_ONCE, Event
from endpick_builtin.kubernetes.following import Follower
from endpick_builtin.kubernetes.patience import Patience
from endpick_builtin.kubernetes.watch_states import Pauses
from integration.kubernetes.api_server import HTML, NEW, PODS, ApiServer, kubeconfig, pod, pool, serving, status
from integration.kubernetes.conftest import discovering, eventually, following, ready

ONE = {"a-rank-0": "10.0.0.1:8000"}
TWO = {**ONE, "b-rank-0": "10.0.0.2:8000"}


@pytest.fixture
def one(server) -> ApiServer:
    pool(server)
    pod(server, "a", "10.0.0.1")
    return server


async def watching(server: ApiServer, times: int = 1) -> None:
    """Wait until Pods have been watched so often."""
    await eventually(lambda: len(server.watched(PODS)) >= times, lambda: f"Pods were watched {len(server.watched(PODS))} times")
    await eventually(lambda: any(watch.path == PODS for watch in server.watches), lambda: "no watch is open")


@pytest.mark.asyncio
async def test_bookmarks_keep_the_version_fresh_so_that_a_watch_goes_on_without_a_list(one, tmp_path):
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
        assert one.lists(PODS) == 1
        assert (followed.outcomes("pods", "ended"), followed.outcomes("pods", "broken")) == (1, 1)


@pytest.mark.parametrize("inside", [True, False], ids=["inside the stream", "as the status"])
@pytest.mark.asyncio
async def test_a_version_that_the_server_has_forgotten_is_listed_anew(one, tmp_path, inside):
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


@pytest.mark.asyncio
async def test_a_list_whose_next_page_has_expired_begins_again(one, tmp_path):
    pod(one, "b", "10.0.0.2")
    one.page_objects = 1
    expired = iter([True])
    one.instead = lambda request: status(410, "Expired") if request.query.get("continue") and next(expired, False) else None
    async with following(one, tmp_path) as followed:
        assert followed.members() == TWO
        assert one.lists(PODS) == 2


@pytest.mark.asyncio
async def test_a_server_that_goes_and_comes_back_is_followed_again_and_the_pool_stays_meanwhile(one, tmp_path, caplog):
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
        lambda: status(429, "TooManyRequests", {"Retry-After": "0"}),
        lambda: status(500, "InternalError"),
        lambda: web.Response(text=HTML, content_type="text/html"),
        lambda: web.Response(text=HTML, content_type="text/html", status=503),
        lambda: web.Response(status=302, headers={"Location": "/login"}),
        lambda: web.Response(text="{", content_type="application/json"),
        lambda: web.Response(text="[]", content_type="application/json"),
        lambda: web.json_response({"items": 5, "metadata": {}}),
        lambda: web.json_response({"message": 5}, status=404),
    ],
)
@pytest.mark.asyncio
async def test_what_is_no_list_is_asked_for_again_and_changes_nothing(one, tmp_path, refusal):
    wrong = iter([True] * 3)
    one.instead = lambda request: refusal() if request.path == PODS and "watch" not in request.query and next(wrong, False) else None
    async with following(one, tmp_path) as followed:
        assert followed.members() == ONE
        assert one.lists(PODS) == 4


@pytest.mark.asyncio
async def test_retry_after_is_heeded(one, tmp_path):
    busy = iter([True, True])
    one.instead = lambda request: (
        status(429, "TooManyRequests", {"Retry-After": "1"}) if request.path == PODS and next(busy, False) else None
    )
    async with following(one, tmp_path) as followed:
        assert followed.members() == ONE
    came = [asked.at for asked in one.asked if asked.path == PODS][:3]
    assert came[1] - came[0] >= 1
    assert came[2] - came[1] >= 1


@pytest.mark.parametrize(
    "line",
    [b"no JSON\n", b"[1]\n", b'{"type": 5, "object": {}}\n', b'{"type": "ADDED"}\n', b"x" * 70_000 + b"\n"],
)
@pytest.mark.asyncio
async def test_what_is_no_event_makes_it_list_again(one, tmp_path, line):
    async with following(one, tmp_path) as followed:
        await watching(one)
        one.mute = True
        pod(one, "b", "10.0.0.2")
        one.mute = False
        one.say(PODS, line)
        await followed.becomes(TWO)
        assert followed.outcomes("pods", "malformed") == 1


@pytest.mark.asyncio
async def test_an_event_that_comes_in_two_pieces_and_one_before_an_error_count(one, tmp_path):
    async with following(one, tmp_path) as followed:
        await watching(one)
        one.say(PODS, b'{"type": "DELETED", "object": {"metadata"', b': {"name": "a", "resourceVersion": "900"}}}\n')
        await followed.becomes({})
        one.say(PODS, {"type": "ERROR", "object": {"code": 500, "reason": "InternalError", "message": "etcd"}})
        await watching(one, 2)
        assert one.watched(PODS)[1] == "900"
        one.say(PODS, b'{"type": "ADDED", "object":')
        one.end_watches(PODS)
        await watching(one, 3)
        assert one.watched(PODS)[2] == "900"


@pytest.mark.asyncio
async def test_a_watch_that_is_silent_for_long_ends_in_a_list(one, tmp_path):
    one.mute = True
    async with following(one, tmp_path, watchTimeout="1s") as followed:
        await watching(one)
        pod(one, "b", "10.0.0.2")
        await followed.becomes(TWO)
        assert followed.outcomes("pods", "quiet") == Patience().quiet_watches - 1
        assert followed.outcomes("pods", "silent") == 1
        assert one.lists(PODS) == 2


@pytest.mark.asyncio
async def test_a_watch_that_does_not_end_at_its_time_is_given_up(one, tmp_path):
    one.endless = True
    async with following(one, tmp_path, patience=Patience(grace_seconds=0.2), watchTimeout="1s") as followed:
        await watching(one)
        one.mute = True
        pod(one, "b", "10.0.0.2")
        await followed.becomes(TWO)
        assert followed.outcomes("pods", "silent") == 1


@pytest.mark.asyncio
async def test_a_token_that_has_expired_is_read_again(one, tmp_path):
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


@pytest.mark.asyncio
async def test_a_token_file_is_read_again_from_time_to_time(one, tmp_path):
    token = tmp_path / "token"
    token.write_text("first\n")
    often = Patience(token_seconds=0.0)
    async with serving(one) as url, discovering(one, kubeconfig(tmp_path / "k", url, tokenFile="token"), often) as followed:
        await ready(followed)
        await watching(one)
        token.write_text("second")
        one.end_watches(PODS)
        await watching(one, 2)
        assert one.asked[-1].token == "second"


@pytest.mark.asyncio
async def test_watches_that_end_at_once_are_not_begun_in_a_hot_loop(one, tmp_path):
    def empty(request: web.Request) -> web.Response | None:
        return web.Response(content_type="application/json") if request.path == PODS and "watch" in request.query else None

    one.instead = empty
    async with following(one, tmp_path, patience=Patience(first_pause_seconds=0.05), longestPause="50ms") as followed:
        await eventually(lambda: followed.outcomes("pods", "broken") >= 3, lambda: "the watches do not count as broken")
        assert one.lists(PODS) == 1


def ever_ending(*lines: str) -> Callable[[web.Request], web.Response | None]:
    def answer(request: web.Request) -> web.Response | None:
        body = "".join(f"{line}\n" for line in lines)
        return web.Response(text=body, content_type="application/json") if request.path == PODS and "watch" in request.query else None

    return answer


BOOKMARK = '{"type": "BOOKMARK", "object": {"metadata": {}}}'
GONE = '{"type": "ERROR", "object": {"code": 410, "message": "gone"}}'


@pytest.mark.asyncio
async def test_watches_that_bring_little_and_end_at_once_are_not_begun_in_a_hot_loop(one, tmp_path):
    one.instead = ever_ending(BOOKMARK)
    async with following(one, tmp_path, patience=Patience(first_pause_seconds=0.01)) as followed:
        await eventually(lambda: followed.outcomes("pods", "broken") >= 2, lambda: "the watches do not count as broken")
        assert followed.outcomes("pods", "ended") == 5
        assert one.lists(PODS) == 1


@pytest.mark.asyncio
async def test_versions_that_expire_at_once_for_ever_are_not_listed_in_a_hot_loop(one, tmp_path, monkeypatch):
    waits: list[float] = []
    after = Pauses.after

    def noted(self: Pauses, *told: object, **known: object) -> float:
        waits.append(after(self, *told, **known))
        return waits[-1]

    monkeypatch.setattr(Pauses, "after", noted)
    one.instead = ever_ending(BOOKMARK, GONE)
    async with following(one, tmp_path, patience=Patience(first_pause_seconds=0.01)) as followed:
        await eventually(lambda: followed.outcomes("pods", "expired") >= 10, lambda: "the watches do not expire")
        assert sum(wait > 0 for wait in waits) >= 3


@pytest.mark.asyncio
async def test_a_list_without_an_end_is_given_up(one, tmp_path, monkeypatch):
    monkeypatch.setattr("endpick_builtin.kubernetes.following._MOST_PAGES", 20)

    def endless(request: web.Request) -> web.Response | None:
        if request.path != PODS or "watch" in request.query:
            return None
        return web.json_response({"metadata": {"resourceVersion": "1", "continue": "more"}, "items": []})

    async with following(one, tmp_path) as followed:
        one.instead = endless
        one.compacted = one.version + 1
        one.end_watches(PODS)
        await eventually(lambda: followed.outcomes("pods", "malformed") >= 1, lambda: "the list is not given up")
        await followed.becomes(ONE)


@pytest.mark.asyncio
async def test_a_line_that_comes_in_thousands_of_pieces_is_put_together_once(one, tmp_path):
    async with following(one, tmp_path) as followed:
        await watching(one)
        line = json.dumps({"type": "BOOKMARK", "object": {"metadata": {"name": "x" * 200_000}}}).encode() + b"\n"
        one.say(PODS, *(line[at : at + 100] for at in range(0, len(line), 100)))
        pod(one, "b", "10.0.0.2")
        await followed.becomes(TWO)
        assert one.lists(PODS) == 1


@pytest.mark.asyncio
async def test_a_custom_resource_that_is_installed_later_is_found(one, tmp_path):
    path = f"{NEW}/inferenceobjectives"
    del one.objects[path]
    async with following(one, tmp_path, patience=Patience(absent_pause_seconds=0.05)) as followed:
        assert followed.table.rules.objectives == {}
        one.objects[path] = {}
        one.put(path, "batch", spec={"priority": -1, "poolRef": {"name": "pool"}})
        await eventually(lambda: followed.table.rules.objectives == {"batch": -1}, lambda: "it was not found")


def test_the_service_account_is_where_kubernetes_puts_it():
    assert Path("/var/run/secrets/kubernetes.io/serviceaccount") == access.SERVICE_ACCOUNT


@pytest.mark.asyncio
async def test_pods_beyond_the_most_are_left_out_and_looked_for_again_when_there_may_be_room(one, tmp_path):
    one.page_objects = 1
    pod(one, "b", "10.0.0.2")
    pod(one, "c", "10.0.0.3")
    async with following(one, tmp_path, watchTimeout=1, maxObjects=2) as followed:
        assert followed.members() == TWO
        one.delete(PODS, "a")
        await followed.becomes({"b-rank-0": "10.0.0.2:8000", "c-rank-0": "10.0.0.3:8000"})
        pod(one, "d", "10.0.0.4")
        one.delete(PODS, "b")
        await followed.becomes({"c-rank-0": "10.0.0.3:8000", "d-rank-0": "10.0.0.4:8000"})


@pytest.mark.asyncio
async def test_the_parameters_say_how_much_of_rules_and_of_a_list_is_taken(one, tmp_path, caplog):
    for name in ("a", "b"):
        rule = {"matches": [{"model": {"value": name}}], "targets": [{"modelRewrite": "n", "weight": 1}]}
        one.put(f"{NEW}/inferencemodelrewrites", name, spec={"poolRef": {"name": "pool"}, "rules": [rule]})
    async with following(one, tmp_path, maxRuleParts=3) as followed:
        await eventually(lambda: set(followed.table.rules.rewrites) == {"a"}, lambda: f"{followed.table.rules.rewrites}")
        assert "raise maxRuleParts" in caplog.text
    pod(one, "b", "10.0.0.2", annotations={"long": "x" * 1_200_000})
    async with following(one, tmp_path) as followed:
        assert set(followed.table.rules.rewrites) == {"a", "b"}
        assert len(followed.members()) == 2
    async with serving(one) as url, discovering(one, kubeconfig(tmp_path / "kubeconfig", url), maxListBytes=2**20):
        await eventually(lambda: "raise maxListBytes" in caplog.text, lambda: "the list was taken")


@pytest.mark.asyncio
async def test_labels_of_a_pod_without_an_end_are_kept_in_part(one, tmp_path):
    pod(one, "b", "10.0.0.2", labels={"app": "vllm", **{f"label-{number}": "x" * 63 for number in range(1000)}})
    async with following(one, tmp_path) as followed:
        kept = next(endpoint.labels for endpoint in followed.table.view() if endpoint.name == "default/b-rank-0")
        assert kept["app"] == "vllm"
        assert 100 < len(kept) < 250


@pytest.mark.asyncio
async def test_events_that_come_together_are_taken_some_at_a_time(one, tmp_path, monkeypatch):
    taken: list[int] = []
    apply = Follower._apply

    def noted(self: Follower, events: list[Event]) -> None:
        taken.append(len(events))
        apply(self, events)

    monkeypatch.setattr(Follower, "_apply", noted)
    async with following(one, tmp_path) as followed:
        await watching(one)
        item = {"metadata": {"name": "a", "resourceVersion": "900"}}
        one.say(PODS, b"".join(json.dumps({"type": "BOOKMARK", "object": item}).encode() + b"\n" for _ in range(1000)))
        pod(one, "b", "10.0.0.2")
        await followed.becomes(TWO)
        assert sum(taken) >= 1000
        assert max(taken) <= LINES_AT_ONCE
