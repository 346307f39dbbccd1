"""A model server's part of KV events: a publisher that listens or dials, and its replay port; and the precise producer beside it."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import asynccontextmanager

import msgspec
import numpy as np
import zmq
from prometheus_client import CollectorRegistry

from endpick.api import Endpoint, InferenceRequest, PluginContext
from endpick.api.access import Access
from endpick.api.keys import PREFIX_MATCH_BLOCKS, TOKENIZED_PROMPT, PromptTokens
from endpick.api.state import CycleState
from endpick.data.table import EndpointTable
from endpick_kv_events.parameters import PrecisePrefixCacheParameters
from endpick_kv_events.plugins import PrecisePrefixCacheProducer

BLOCK = 4


async def until(condition, what="the condition", seconds=10.0):
    """Come back to a condition until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true"
        await asyncio.sleep(0.005)


def stored(number, parent=None, count=1):
    """Blocks `number` to `number + count - 1` of the prompt that `prompt` begins."""
    blocks = list(range(number, number + count))
    ids = [token for block in blocks for token in block_tokens(block)]
    return {"type": "BlockStored", "block_hashes": blocks, "parent_block_hash": parent, "token_ids": ids, "block_size": BLOCK}


def removed(*numbers):
    return {"type": "BlockRemoved", "block_hashes": list(numbers)}


CLEARED = {"type": "AllBlocksCleared"}


def block_tokens(number):
    return [number * 10 + place for place in range(BLOCK)]


def prompt(blocks, first=1):
    return np.array([token for block in range(first, first + blocks) for token in block_tokens(block)], dtype=np.uint32)


class Publisher:
    """Sends what it is told to, with the numbers it is told; a thread of its own answers for what is kept."""

    def __init__(self, bind="tcp://127.0.0.1:*", connect=None, pod="", replay=False):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.XPUB)
        self.socket.linger = 0
        self.socket.setsockopt(zmq.XPUB_VERBOSER, 1)
        if connect:
            self.socket.connect(connect)
        else:
            self.socket.bind(bind)
        self.address = self.socket.get_string(zmq.LAST_ENDPOINT)
        self.topic = f"kv@{pod}@m".encode()
        self.kept = {}
        self.asked = []
        self.closing = threading.Event()
        self.replay_address = ""
        if replay:
            self.router = self.context.socket(zmq.ROUTER)
            self.router.linger = 0
            self.router.bind("tcp://127.0.0.1:*")
            self.replay_address = self.router.get_string(zmq.LAST_ENDPOINT)
            self.thread = threading.Thread(target=self._answer, daemon=True)
            self.thread.start()

    @property
    def port(self):
        return int(self.address.rsplit(":", 1)[1])

    @property
    def replay_port(self):
        return int(self.replay_address.rsplit(":", 1)[1])

    async def found(self):
        """Wait until a subscriber has found it: what is published before is lost."""
        await until(lambda: self.socket.poll(0) and self.socket.recv()[0] == 1, "a subscription")

    def send(self, number, *events, at=None, payload=None, lost=False):
        """Publish a message, or keep it for replays alone as if it had been `lost`."""
        payload = payload or msgspec.msgpack.encode([float(number) if at is None else at, events, 0])
        self.kept[number] = payload
        if not lost:
            self.socket.send_multipart([self.topic, number.to_bytes(8, "big"), payload])

    def _answer(self):
        while not self.closing.is_set():
            if not self.router.poll(20):
                continue
            client, _, first = self.router.recv_multipart()
            self.asked.append(int.from_bytes(first, "big"))
            for number, payload in sorted(self.kept.items()):
                if number >= self.asked[-1]:
                    self.router.send_multipart([client, b"", self.topic, number.to_bytes(8, "big"), payload])
            self.router.send_multipart([client, b"", b"", (-1).to_bytes(8, "big", signed=True), b""])
        self.router.close(0)

    def close(self):
        self.closing.set()
        if self.replay_address:
            self.thread.join()
        self.socket.close(0)
        self.context.term()


class Picker:
    """The producer with a pool, as the host drives it."""

    def __init__(self, endpoints, kind=PrecisePrefixCacheProducer, **parameters):
        self.table = EndpointTable(time.monotonic, keys=())
        self.table.replace_all(endpoints)
        self.registry = CollectorRegistry()
        block = {"tokenProcessorConfig": {"blockSizeTokens": BLOCK}, **parameters}
        context = PluginContext(clock=time.monotonic, registry=self.registry, columns=self.table.writer(None))
        self.plugin = kind("precise", PrecisePrefixCacheParameters.model_validate(block), context)
        self.table.on_removed.append(self.plugin.endpoint_removed)

    def look_up(self, ids, model="m"):
        """A request on its way: itself, its candidates, its state."""
        endpoints, state = self.table.view(Access()), CycleState()
        state.put(TOKENIZED_PROMPT, (PromptTokens(ids),))
        request = InferenceRequest(id="r", model=model)
        self.plugin.produce(request, endpoints, state)
        return request, endpoints, state

    def matches(self, blocks, first=1, model="m"):
        _, endpoints, state = self.look_up(prompt(blocks, first), model)
        return state.column(PREFIX_MATCH_BLOCKS, endpoints).tolist()

    def count(self, name, **labels):
        return self.registry.get_sample_value(name, labels) or 0.0

    def events(self, name, pod=None, **labels):
        return self.count(f"llm_d_epp_kv_cache_events_{name}", **({"pod_identifier": pod} if pod else {}), **labels)


@asynccontextmanager
async def picking(endpoints, kind=PrecisePrefixCacheProducer, **parameters):
    picker = Picker(endpoints, kind, **parameters)
    await picker.plugin.start()
    try:
        yield picker
    finally:
        await picker.plugin.stop()


def endpoint(name="pool/a", port=8000, host="127.0.0.1"):
    return Endpoint(name, host, port)


def ports(publisher, **more):
    """Parameters with which the picker dials a publisher."""
    discovery = {"socketPort": publisher.port, **more}
    if publisher.replay_address:
        discovery["replaySocketPort"] = publisher.replay_port
    return {"kvEventsConfig": {"podDiscoveryConfig": discovery}}
