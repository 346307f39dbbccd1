"""State stores and a real Valkey server: pickers that learn, and what becomes of it when the server does not do as it should."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from contextlib import asynccontextmanager

import pytest

from endpick.api import ConfigurationError, PluginContext
from endpick.fleet import link as link_module
from endpick.fleet.link import FleetLink
from endpick.host.instance import build
from endpick.host.planning.plan import FleetPlan
from endpick_builtin.fleet import local
from endpick_builtin.fleet.local import FileStateStore, FileStoreParameters, LocalStateStore, LocalStoreParameters
from endpick_builtin.fleet.stores import RedisParameters, RedisStateStore, ValkeyParameters, ValkeyStateStore
from integration.fleet.valkeys import partition, valkey
from plugin_classes import load_class
from unit.builtin.pages import make_certificate
from unit.fleet.learners import Learner

__all__ = ("valkey",)
pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(link_module, "SILENCE_SECONDS", 0.6)
    monkeypatch.setattr(link_module, "_RETRY_SECONDS", 0.05)
    monkeypatch.setattr("endpick.fleet.exchange.HEARTBEAT_SECONDS", 0.1)


class Picker(Learner):
    """A learner that is linked with others."""

    def __init__(self, store):
        super().__init__(clock=asyncio.get_running_loop().time)
        self.link = FleetLink(self.exchange)
        loaded = load_class(type(store), "store").loaded
        assert loaded is not None
        self.store = build(loaded, "store", store.parameters, None, PluginContext())

    async def __aenter__(self):
        learning = self.plugin
        await self.store.plugin.start()
        await self.link.start(FleetPlan("store", 0.01, 0.3), {"store": self.store, "counting": self.instance})
        assert self.plugin is learning
        return self

    async def __aexit__(self, *_):
        await self.link.stop()
        await self.store.plugin.stop()

    async def knows(self, *words):
        async with asyncio.timeout(10):
            while not self.plugin.words.issuperset(words):  # noqa: ASYNC110 - it happens in other tasks
                await asyncio.sleep(0.01)


def store(server, **parameters):
    return ValkeyStateStore("store", ValkeyParameters(url=server.url, **parameters), PluginContext())


def in_folder(folder):
    return LocalStateStore("store", LocalStoreParameters(folder=folder), PluginContext())


@pytest.fixture(params=["valkey", "local"])
def make_store(request, valkey, tmp_path):
    """Makes a store for each picker."""
    return (lambda: store(valkey)) if request.param == "valkey" else (lambda: in_folder(tmp_path / "fleet"))


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - it happens in other tasks
            await asyncio.sleep(0.01)


@asynccontextmanager
async def two(make_store):
    async with Picker(make_store()) as one, Picker(make_store()) as other:
        await until(lambda: one.exchange.peers and other.exchange.peers)
        yield one, other


async def test_pickers_of_one_fleet_share(make_store):
    async with two(make_store) as (one, other):
        one.plugin.learn("a")
        await other.knows("a")


async def test_fleets_with_other_names_share_nothing(valkey):
    async with two(lambda: store(valkey)) as (one, other), Picker(store(valkey, fleet="another")) as stranger:
        one.plugin.learn("a")
        await other.knows("a")
        assert stranger.exchange.peers == ()


async def test_a_late_joiner_gets_what_was_learnt_before(make_store):
    async with Picker(make_store()) as one:
        await until(lambda: one.link.is_connected)
        one.plugin.learn("early")
        async with Picker(make_store()) as late:
            await late.knows("early")


async def test_the_last_picker_leaves_its_state_to_the_next(make_store):
    async with Picker(make_store()) as one:
        one.plugin.learn("kept")
    async with Picker(make_store()) as next_one:
        assert next_one.plugin.words == {"kept"}, "before it serves"


@pytest.mark.parametrize("trouble", ["killed", "paused", "flushed"])
async def test_trouble_of_the_store_is_told_and_heals(valkey, trouble):
    async with two(lambda: store(valkey)) as (one, other):
        if trouble == "killed":
            await asyncio.to_thread(valkey.stop)
            await until(lambda: one.link.remarks() and other.link.remarks())
            one.plugin.learn("meanwhile")
            await asyncio.to_thread(valkey.start)
        elif trouble == "paused":
            with valkey.paused():
                await until(lambda: one.link.remarks() and other.link.remarks())
                one.plugin.learn("meanwhile")
        else:
            valkey.command("FLUSHALL")
            one.plugin.learn("meanwhile")
        await other.knows("meanwhile")
        await until(lambda: not one.link.remarks() and not other.link.remarks())
        other.plugin.learn("after")
        await one.knows("after")


async def test_what_was_learnt_before_the_store_was_there_is_told(valkey):
    await asyncio.to_thread(valkey.stop)
    async with Picker(store(valkey)) as one, Picker(store(valkey)) as other:
        await until(lambda: one.link.remarks() and other.link.remarks())
        one.plugin.learn("alone")
        one.exchange.drain()
        await asyncio.to_thread(valkey.start)
        await other.knows("alone")


async def test_a_full_store_still_carries_messages(valkey, caplog):
    valkey.command("CONFIG", "SET", "maxmemory", "1")
    async with two(lambda: store(valkey)) as (one, other):
        one.plugin.learn("a")
        await other.knows("a")
        await until(lambda: "no snapshot is kept for other pickers" in caplog.text)
        assert one.link.is_connected
        assert other.link.is_connected


async def test_a_wrong_password_is_named(valkey, tmp_path, monkeypatch):
    valkey.command("CONFIG", "SET", "requirepass", "right")
    monkeypatch.setenv("VALKEY_PASSWORD", "wrong")
    async with Picker(store(valkey)) as one:
        await until(lambda: "invalid username-password pair" in "".join(one.link.remarks()))
    monkeypatch.setenv("OTHER_PASSWORD", "right")
    async with Picker(store(valkey, passwordEnv="OTHER_PASSWORD")) as one:
        await until(lambda: one.link.is_connected)
    (tmp_path / "password").write_text("right\n")
    async with Picker(store(valkey, passwordFile=tmp_path / "password")) as one:
        await until(lambda: one.link.is_connected)


async def test_nobody_at_the_address_is_named(tmp_path):
    nowhere = RedisStateStore("store", RedisParameters(address="127.0.0.1:1"), PluginContext())
    async with Picker(nowhere) as one:
        await until(lambda: "redis://127.0.0.1:1/0" in "".join(one.link.remarks()))


@pytest.mark.parametrize("scheme", ["valkeys", "rediss"])
async def test_an_encrypted_connection_needs_a_certificate_that_is_trusted(valkey, tmp_path, scheme):
    certificate, key = make_certificate(tmp_path, "server")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    async with partition(valkey, tls) as line:
        url = line.url.replace("valkeys", scheme)
        trusting, doubting = (
            ValkeyStateStore("store", ValkeyParameters(url=url, **ca), PluginContext()) for ca in ({"caFile": certificate}, {})
        )
        async with Picker(trusting) as one, Picker(doubting) as other:
            await until(lambda: one.link.is_connected)
            await until(lambda: "certificate verify failed" in "".join(other.link.remarks()))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://localhost", "not 'http://'"),
        ("valkey://:secret@localhost", "keep the password out of it"),
        ("valkey:localhost", "it names no host"),
        ("valkey://localhost:none", "'none'"),
    ],
)
async def test_an_unusable_url_is_refused(url, problem):
    with pytest.raises(ValueError, match=problem):
        ValkeyParameters(url=url)


async def test_a_ca_is_refused_where_nothing_is_encrypted(tmp_path):
    with pytest.raises(ValueError, match="valkey:// is not encrypted, so caFile has no effect; write valkeys://"):
        ValkeyParameters(url="valkey://localhost", caFile=tmp_path / "ca")


async def test_a_missing_password_file_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        ValkeyStateStore("store", ValkeyParameters(url="valkey://localhost", passwordFile=tmp_path / "none"), PluginContext())


async def test_a_file_keeps_the_state_of_one_picker(tmp_path):
    kept = FileStateStore("store", FileStoreParameters(path=tmp_path / "state"), PluginContext())
    async with Picker(kept) as one:
        assert one.link.remarks() == ()
        one.plugin.learn("kept")
    async with Picker(kept) as next_one:
        assert next_one.plugin.words == {"kept"}
    (tmp_path / "state").write_bytes((tmp_path / "state").read_bytes()[:-3])
    async with Picker(kept) as last:
        assert last.plugin.words == set(), "cut short: it begins with nothing, and serves"


async def test_a_crashed_picker_is_forgotten_by_those_beside_it(tmp_path):
    crashed = tmp_path / "1-crashed.socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(crashed))
    async with two(lambda: in_folder(tmp_path)) as (one, other):
        one.plugin.learn("a")
        await other.knows("a")
        assert not crashed.exists()
        assert len(list(tmp_path.glob("*.socket"))) == 2
    assert list(tmp_path.glob("*.socket")) == []


async def test_a_picker_that_stands_still_holds_nobody_up(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_MOST_UNREAD_BYTES", 10_000)
    with socket.socket(socket.AF_UNIX) as still:
        still.bind(str(tmp_path / "1-still.socket"))
        still.listen()
        async with two(lambda: in_folder(tmp_path)) as (one, other):
            words = [str(number) * 50_000 for number in range(10, 30)]
            for word in words:
                one.plugin.learn(word)
                await other.knows(word)
            unread = [writer.transport.get_write_buffer_size() for writer in one.store.plugin._writers.values()]
            assert max(unread, default=0) <= 10_000 + 2 * len(words[0])


async def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=f"{tmp_path}/file cannot be made: File exists"):
        await in_folder(tmp_path / "file").start()


async def test_old_snapshots_are_removed(tmp_path):
    kept = in_folder(tmp_path)
    for name, age in (("old", 700), ("young", 500)):
        await kept.save(name, b"x")
        at = time.time() - age
        os.utime(tmp_path / f"{name}.snapshot", (at, at))
    await kept.save("new", b"y")
    assert [await kept.load(name) for name in ("old", "young", "new")] == [None, b"x", b"y"]


class SwallowingStore(LocalStateStore):
    """Its connection answers a cancellation with an error, or with another message."""

    answers_with_a_message = False

    async def messages(self):
        yield b""
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if not self.answers_with_a_message:
                    raise ConnectionError("the connection is closed") from None
            yield b""


@pytest.mark.parametrize("answers_with_a_message", [False, True])
async def test_a_link_ends_although_its_store_swallows_the_cancellation(tmp_path, monkeypatch, caplog, answers_with_a_message):
    monkeypatch.setattr(SwallowingStore, "answers_with_a_message", answers_with_a_message)
    monkeypatch.setattr(link_module, "SILENCE_SECONDS", 600.0)
    async with asyncio.timeout(10), Picker(SwallowingStore("store", LocalStoreParameters(folder=tmp_path), PluginContext())):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert "a fault of endpick" not in caplog.text
