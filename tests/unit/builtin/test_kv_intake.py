"""KV events over real sockets."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager

import msgspec
import pytest
from aiohttp import web

from endpick.api import ConfigurationError
from endpick_kv_events import intake
from unit.builtin.kv_publisher import CLEARED, Publisher, endpoint, picking, ports, removed, stored, until

POD = "127.0.0.1:8000"


@contextmanager
def publishing(**how):
    publisher = Publisher(**how)
    try:
        yield publisher
    finally:
        publisher.close()


@pytest.mark.asyncio
async def test_stored_and_removed_blocks_are_followed():
    with publishing() as publisher:
        async with picking([endpoint()], **ports(publisher)) as picker:
            await publisher.found()
            publisher.send(0, stored(1, count=3))
            await until(lambda: picker.matches(4) == [3.0])
            publisher.send(1, removed(3), removed(2))
            await until(lambda: picker.matches(4) == [1.0])
            publisher.send(2, CLEARED)
            await until(lambda: picker.matches(4) == [0.0])
            assert picker.events("messages_received_total", POD) == 3
            assert picker.count("llm_d_epp_kv_cache_index_admissions_total") == 3
            assert picker.count("llm_d_epp_kv_cache_index_evictions_total") == 3
            assert picker.events("active_subscribers") == 1
            assert picker.count("llm_d_epp_kv_cache_index_lookup_requests_total") > 0
            assert picker.count("llm_d_epp_kv_cache_index_lookup_hits_total") >= 4


@pytest.mark.asyncio
async def test_reconnections_are_counted():
    with publishing() as gone:
        where = ports(gone)
    async with picking([endpoint()], **where) as picker:
        await until(lambda: picker.events("subscriber_reconnections_total", POD) >= 2)
        assert picker.events("pool_capacity") == 1
        assert picker.events("pool_queue_depth") == 0


@pytest.mark.asyncio
async def test_connecting_publishers_are_known_by_their_topics():
    endpoints = [endpoint("pool/a", 8000), endpoint("pool/b", 8001), endpoint("pool/c", 8002, "127.0.0.9")]
    with publishing() as unused:
        free = unused.address
    config = {"kvEventsConfig": {"zmqEndpoint": free, "discoverPods": False}}
    async with picking(endpoints, **config) as picker:
        with (
            publishing(connect=free, pod="127.0.0.1:8001") as b,
            publishing(connect=free, pod="127.0.0.9") as c,
            publishing(connect=free, pod="10.0.0.1:1") as stranger,
        ):
            for publisher in (b, c, stranger):
                await publisher.found()
                publisher.send(0, stored(1, count=2))
            await until(lambda: picker.matches(2) == [0.0, 2.0, 2.0])
            await until(lambda: picker.count("endpick_kv_events_bad_total", reason="unknown-endpoint") == 1)
        assert picker.events("active_subscribers") == 1


@pytest.mark.asyncio
async def test_a_publisher_of_a_new_endpoint_is_known_at_once(monkeypatch):
    monkeypatch.setattr(intake, "_POOL_SECONDS", 1000.0)
    with publishing() as unused:
        free = unused.address
    async with picking([], kvEventsConfig={"zmqEndpoint": free, "discoverPods": False}) as picker:
        with publishing(connect=free, pod=POD) as publisher:
            await publisher.found()
            picker.table.upsert(endpoint())
            publisher.send(0, stored(1))
            await until(lambda: picker.events("messages_received_total", POD) == 1)
            assert picker.matches(1) == [1.0]
            assert picker.count("endpick_kv_events_bad_total", reason="unknown-endpoint") == 0


@pytest.mark.asyncio
async def test_a_gap_without_replay_port_is_counted():
    with publishing() as publisher:
        async with picking([endpoint()], **ports(publisher)) as picker:
            await publisher.found()
            publisher.send(0, stored(1))
            publisher.send(5, stored(2, parent=1))
            await until(lambda: picker.matches(2) == [2.0])
            assert picker.count("endpick_kv_events_out_of_order_total", pod_identifier=POD, verdict="gap") == 1


@pytest.mark.asyncio
async def test_messages_before_the_subscription_are_replayed():
    with publishing(replay=True) as publisher:
        publisher.send(0, stored(1), lost=True)
        publisher.send(1, stored(2, parent=1), lost=True)
        async with picking([endpoint()], **ports(publisher)) as picker:
            await until(lambda: picker.matches(3) == [2.0])
            await until(lambda: picker.events("replay_completed_total", POD) == 1)
            assert picker.events("replay_processed_total", POD) == 2
            assert picker.events("replay_active", POD) == 0
            assert picker.events("replay_last_completion_timestamp_seconds", POD) > 1.7e9
            assert publisher.asked == [0]


@pytest.mark.asyncio
async def test_a_gap_is_replayed_in_order():
    with publishing(replay=True) as publisher:
        async with picking([endpoint()], **ports(publisher)) as picker:
            await until(lambda: picker.events("replay_completed_total", POD) == 1)
            await publisher.found()
            publisher.send(0, stored(1, count=3))
            await until(lambda: picker.matches(3) == [3.0])
            publisher.send(1, removed(3), lost=True)
            publisher.send(2, removed(2), lost=True)
            publisher.send(3, stored(2, parent=1))
            await until(lambda: picker.events("replay_completed_total", POD) == 2)
            await until(lambda: picker.matches(3) == [2.0])
            assert publisher.asked == [0, 1]
            assert picker.count("endpick_kv_events_out_of_order_total", pod_identifier=POD, verdict="gap") == 1


@pytest.mark.asyncio
async def test_an_incomplete_replay_buffer_forgets_all_blocks():
    with publishing(replay=True) as publisher:
        async with picking([endpoint()], **ports(publisher)) as picker:
            await until(lambda: picker.events("replay_completed_total", POD) == 1)
            await publisher.found()
            publisher.send(0, stored(1, count=3))
            await until(lambda: picker.matches(3) == [3.0])
            publisher.send(7, stored(11), lost=True)
            publisher.send(8, stored(12, parent=11))
            await until(lambda: picker.matches(2, first=11) == [2.0])
            assert picker.matches(3) == [0.0]


@pytest.mark.asyncio
async def test_a_restarted_publisher_starts_over():
    with publishing() as publisher:
        async with picking([endpoint()], **ports(publisher)) as picker:
            await publisher.found()
            publisher.send(4, stored(1, count=2), at=100.0)
            await until(lambda: picker.matches(2) == [2.0])
            publisher.send(0, stored(11), at=101.0)
            await until(lambda: picker.matches(1, first=11) == [1.0])
            assert picker.matches(2) == [0.0]
            assert picker.count("endpick_kv_events_out_of_order_total", pod_identifier=POD, verdict="reset") == 1


@pytest.mark.asyncio
async def test_a_repeated_message_is_dropped():
    with publishing() as publisher:
        async with picking([endpoint()], **ports(publisher)) as picker:
            await publisher.found()
            publisher.send(0, stored(1), at=100.0)
            publisher.send(1, removed(1), at=101.0)
            publisher.send(0, stored(1), at=100.0)
            publisher.send(2, stored(11), at=102.0)
            await until(lambda: picker.matches(1, first=11) == [1.0])
            assert picker.matches(1) == [0.0]
            assert picker.count("endpick_kv_events_out_of_order_total", pod_identifier=POD, verdict="seen") == 1


@pytest.mark.asyncio
async def test_a_publisher_that_comes_back_is_followed():
    with publishing() as publisher:
        address = publisher.address
        async with picking([endpoint()], **ports(publisher)) as picker:
            await publisher.found()
            publisher.send(0, stored(1), at=100.0)
            await until(lambda: picker.matches(1) == [1.0])
            publisher.close()
            with publishing(bind=address) as successor:
                await successor.found()
                successor.send(0, stored(11), at=200.0)
                await until(lambda: picker.matches(1, first=11) == [1.0])
            assert picker.matches(1) == [0.0]


GARBAGE = [b"", b"\xc1", b"\x93\x01", msgspec.msgpack.encode("x"), msgspec.msgpack.encode([1.0, 7]), b"\x91" * 100_000]


@pytest.mark.asyncio
async def test_garbage_is_counted_logged_once_and_skipped(caplog):
    with publishing() as publisher:
        async with picking([endpoint()], **ports(publisher)) as picker:
            await publisher.found()
            publisher.send(0, stored(1))
            for number, payload in enumerate(GARBAGE, 1):
                publisher.socket.send_multipart([publisher.topic, number.to_bytes(8, "big"), payload])
            publisher.socket.send_multipart([publisher.topic, b"1", b""])
            publisher.socket.send_multipart([publisher.topic])
            publisher.send(len(GARBAGE) + 1, {"type": "Unheard"}, {"type": "BlockRemoved"}, stored(2, parent=1))
            await until(lambda: picker.matches(2) == [2.0])
            counts = {reason: picker.count("endpick_kv_events_bad_total", reason=reason) for reason in ("message", "frames", "event")}
            assert counts == {"message": len(GARBAGE), "frames": 2, "event": 2}
            assert caplog.text.count("skipped KV events of") == 1


@pytest.mark.asyncio
async def test_a_failed_replay_is_not_retried_at_once(monkeypatch):
    monkeypatch.setattr(intake, "REPLAY_IDLE_SECONDS", 0.05)
    with publishing() as publisher:
        config = ports(publisher, replaySocketPort=9)
        async with picking([endpoint()], **config) as picker:
            await until(lambda: picker.events("replay_failures_total", POD) == 1)
            assert picker.events("zmq_errors_total", POD, operation="replay") == 1
            await publisher.found()
            publisher.send(3, stored(1))
            publisher.send(9, stored(2, parent=1))
            await until(lambda: picker.matches(2) == [2.0])
            assert picker.events("replay_failures_total", POD) == 1


@pytest.mark.asyncio
async def test_a_removed_endpoint_is_forgotten_with_its_series():
    with publishing() as publisher:
        async with picking([endpoint()], **ports(publisher)) as picker:
            await publisher.found()
            publisher.send(0, stored(1))
            await until(lambda: picker.matches(1) == [1.0])
            picker.table.remove("pool/a")
            assert picker.registry.get_sample_value("llm_d_epp_kv_cache_events_messages_received_total", {"pod_identifier": POD}) is None
            assert picker.events("active_subscribers") == 0
            picker.table.upsert(endpoint())
            assert picker.matches(1) == [0.0]
            await until(lambda: picker.count("endpick_kv_cache_index_blocks") == 0)
            await publisher.found()
            publisher.send(1, stored(1))
            await until(lambda: picker.matches(1) == [1.0])


@pytest.mark.asyncio
async def test_the_rank_is_added_to_the_ports():
    with publishing() as publisher:
        config = {"kvEventsConfig": {"podDiscoveryConfig": {"socketPort": publisher.port - 3}}}
        async with picking([endpoint("pool/a-rank-3", 8003)], **config) as picker:
            await publisher.found()
            publisher.send(0, stored(1))
            await until(lambda: picker.matches(1) == [1.0])


@pytest.mark.asyncio
async def test_a_server_is_asked_for_its_addresses():
    async def sources(request):
        settings = {"publisher": "zmq", "endpoint": f"tcp://*:{publisher.port}", "replay_endpoint": publisher.replay_address}
        return web.json_response({"0": settings})

    app = web.Application()
    app.router.add_get("/kv_event_sources", sources)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    with publishing(replay=True) as publisher:
        publisher.send(0, stored(1), lost=True)
        config = {"kvEventsConfig": {"podDiscoveryConfig": {"askServers": True, "socketPort": 9}}}
        async with picking([endpoint("pool/a", runner.addresses[0][1])], **config) as picker:
            await until(lambda: picker.matches(1) == [1.0])
            await publisher.found()
            publisher.send(1, stored(2, parent=1))
            await until(lambda: picker.matches(2) == [2.0])
    await runner.cleanup()


@pytest.mark.asyncio
async def test_a_taken_address_is_bound_once_it_is_free():
    with publishing() as holder:
        config = {"kvEventsConfig": {"zmqEndpoint": holder.address, "discoverPods": False}}
        async with picking([endpoint()], **config) as picker:
            assert picker.events("zmq_errors_total", pod_identifier="", operation="bind") == 1
            holder.close()
            with publishing(connect=holder.address, pod=POD) as publisher:
                await asyncio.wait_for(publisher.found(), 10)
                publisher.send(0, stored(1))
                await until(lambda: picker.matches(1) == [1.0])


@pytest.mark.asyncio
async def test_a_foreign_address_fails_the_start():
    with pytest.raises(ConfigurationError, match=r"cannot listen on zmqEndpoint 'tcp://192\.0\.2\.1:5557'"):
        async with picking([endpoint()], kvEventsConfig={"zmqEndpoint": "tcp://192.0.2.1:5557"}):
            pass
