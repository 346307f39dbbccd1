"""Whatever outsiders send is read in steps that grow with it, and no faster; `test_patterns.py` says so of patterns.

Outsiders are clients, gateways, model servers, publishers of KV events, other pickers, and whoever asks the admin port.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from unittest.mock import patch

import msgspec
import orjson
import pytest
from aiohttp.test_utils import make_mocked_request
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from endpick._proto.ext_proc_pb2 import ProcessingRequest
from endpick.api import Endpoint, MetricsPage, Unavailable, metrics
from endpick.extproc import messages
from endpick.fleet.exchange import FORMAT, Exchange, Message
from endpick.host.discovery import request_path
from endpick.host.telemetry import NullTelemetry
from endpick.requests.compressed_body import CompressedUsage, Decoder
from endpick.requests.pipeline import prefers
from endpick.requests.response_body import FramedUsage, StreamedUsage, UsageReader, WholeUsage
from endpick.requests.restored_names import ModelNameRestorer
from endpick.serve.admin_api import admits
from endpick.transport.h2.connection import Connection
from endpick.transport.h2.frames import PREFACE, FrameType, settings
from endpick.transport.h2.headers import HeaderDecoder, encode, read_head
from endpick.transport.h2.send import Outbox
from endpick.transport.h2.stream import MessageAssembler, Stream
from endpick.transport.limits import Limits, TransportCounters
from endpick_builtin.collection import http_pages
from endpick_builtin.collection.otlp_messages import pages_of, parse_export
from endpick_builtin.collection.sources import parse_model_list
from endpick_builtin.observers import read_load
from endpick_builtin.pairs import sessions, topology
from endpick_builtin.parsers.anthropic import AnthropicParser
from endpick_builtin.parsers.json_bodies import is_too_complex, read_leniently
from endpick_builtin.parsers.openai import OpenAIParser
from endpick_builtin.parsers.openai_bodies import from_body, from_events
from endpick_builtin.parsers.token_ids import VllmHTTPParser
from endpick_builtin.predicted import model as predicted
from endpick_builtin.predicted.shared import SharedEvents
from endpick_builtin.producers import token_estimate
from endpick_builtin.producers.inflight_load import _RemoteLoad
from endpick_builtin.producers.prefix_tree import FINGERPRINT_BYTES, MAX_RESTORED_BYTES, PrefixTree
from endpick_builtin.producers.token_producer import prompts_in
from endpick_kv_events.block_index import BlockKeys, HashAlgorithm, TierIndex
from endpick_kv_events.engine_blocks import MAX_PLACES, EngineBlocks
from endpick_kv_events.messages import Batch, decode, source_of
from endpick_kv_events.plugins import block_extras
from endpick_kv_events.stream import KvMetrics
from unit.linear.steps import Counted, peak_of, steps_of

N = 100
SLACK = 500
NUMBERS = count()  # make URLs unlike: they are cached
ENDLESS = 1 << 30

pytestmark = pytest.mark.skipif(request_path() == "compiled", reason="lines of compiled modules cannot be counted")


def fed(feed: Callable[[bytes], object], data: bytes, size: int = 1) -> int:
    """Steps to read the data in pieces of a size."""
    return steps_of(lambda: [feed(data[start : start + size]) for start in range(0, len(data), size)])


def bytes_looked_at(body: bytes) -> int:
    page = Counted(body)
    assert MetricsPage(page).samples("a") is not None
    return page.looked_at


def usage(reader: UsageReader, data: bytes, size: int = 1) -> int:
    return fed(reader.feed, data, size) + steps_of(reader.result)


def streamed(data: bytes, size: int = 1) -> int:
    return usage(StreamedUsage(lambda events, _: from_events(events), b'"usage'), data, size)


def whole(data: bytes, size: int = 1) -> int:
    return usage(WholeUsage(lambda body, _: from_body(body), b'"usage'), data, size)


class Copying(Decoder):
    """Reads 64 bytes a step, and counts the bytes it is given."""

    def __init__(self) -> None:
        self.given = 0

    def step(self, data: bytes) -> tuple[bytes, bytes, bool]:
        self.given += len(data)
        return b"", data[64:], len(data) > 64


def decompressed(size: int) -> int:
    decoder = Copying()
    CompressedUsage(decoder, UsageReader(), pytest.fail).feed(bytes(size))
    return decoder.given


def renamed(data: bytes, content_type: str = "application/json") -> int:
    restorer = ModelNameRestorer("m", "client", content_type)
    return fed(lambda piece: restorer.feed(piece, False), data)


def parsed(parser: OpenAIParser | AnthropicParser | VllmHTTPParser, path: str, body: bytes) -> int:
    """Steps to parse a request, and to walk all of its prompt."""

    def walk() -> None:
        prompt = parser.parse(path, {}, body).prompt
        assert prompt.texts
        assert prompt.pieces
        assert prompt.media is not None

    return steps_of(walk)


def openai(path: str, payload: object) -> int:
    return parsed(OpenAIParser.__new__(OpenAIParser), path, orjson.dumps(payload))


def chat(content: object, times: int = 1) -> int:
    return openai("/v1/chat/completions", {"messages": [{"role": "user", "content": content}] * times})


def anthropic(content: bytes, times: int = 1) -> int:
    messages = b",".join([b'{"role":"user","content":%b}' % content] * times)
    return parsed(AnthropicParser.__new__(AnthropicParser), "/v1/messages", b'{"messages":[%b]}' % messages)


def results(depth: int, times: int = 1) -> bytes:
    """Results of tools in each other."""
    return b"[%b]" % b",".join([b'{"type":"tool_result","content":[' * depth + b'{"type":"text","text":"a"}' + b"]}" * depth] * times)


def media(tokens: int, places: Sequence[Mapping[str, int]], identifier: str = "a") -> dict[str, object]:
    features = {"mm_hashes": {"image": [identifier] * len(places)}, "mm_placeholders": {"image": places}}
    return {"token_ids": [1] * tokens, "features": features}


def apart(n: int) -> list[Mapping[str, int]]:
    return [{"offset": place, "length": 1} for place in range(n)]


def overlapping(n: int) -> list[Mapping[str, int]]:
    return [{"offset": 0, "length": n}] * n


def vllm(n: int, places: Sequence[Mapping[str, int]]) -> int:
    return parsed(VllmHTTPParser.__new__(VllmHTTPParser), "/inference/v1/generate", orjson.dumps(media(n, places)))


def rendered(n: int, places: Sequence[Mapping[str, int]]) -> int:
    return steps_of(lambda: block_extras(prompts_in(media(n, places))[0], "", 16))


def length_of_extras(n: int) -> int:
    """Every block's key hashes its extras."""
    prompt = prompts_in(media(n, overlapping(n)[:1], "a" * n))[0]
    return sum(len(extra) for block in block_extras(prompt, "", 16) for extra in block)


def headers(*names: str) -> int:
    message = ProcessingRequest()
    for name in names:
        message.request_headers.headers.headers.add(key=name, raw_value=b"a")
    data = message.SerializeToString()
    return steps_of(lambda: messages.header_message(data))


def subset(text: str) -> int:
    message = ProcessingRequest()
    message.metadata_context.filter_metadata[messages.SUBSET_NAMESPACE].fields[messages.SUBSET_KEY].string_value = text
    return steps_of(lambda: messages.subset_hint(message))


def connection(data: bytes) -> int:
    receiver = Connection({}, Limits(), TransportCounters(), lambda *_: None, 0.0)
    return fed(lambda piece: receiver.receive(piece, 1.0), PREFACE + settings({}) + data)


def assembled(data: bytes) -> int:
    assembler = MessageAssembler(ENDLESS)
    return fed(lambda piece: assembler.feed(piece, 0, 1), data)


def frame(kind: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, 0, 0, 0, 0, 0)) + payload


def waiting_stream(count: int) -> tuple[Outbox, Stream]:
    outbox, stream = Outbox(lambda _: None), Stream(1, ENDLESS, 0)
    outbox.send_messages(stream, [bytes(2050)] * count)
    return outbox, stream


def drained(count: int) -> int:
    outbox, stream = waiting_stream(count)
    outbox.window = ENDLESS
    return steps_of(lambda: outbox.grow_stream_window(stream, ENDLESS))


class Socket:
    def write(self, data: bytes) -> None: ...

    def abort(self) -> None: ...


def copied_heads(answer: bytes) -> int:
    """Bytes of an answer's head that its parser copies: all that came, with every read."""
    loop, buffer, size = asyncio.new_event_loop(), memoryview(bytearray(1 << 16)), 1 << 16
    reader = http_pages._Connection(loop, ENDLESS, buffer)
    reader.connection_made(Socket())
    page = reader.ask(b"")
    copied = 0
    for start in range(0, len(answer), size):
        read = answer[start : start + size]
        buffer[: len(read)] = read
        reader.buffer_updated(len(read))
        if reader.state is http_pages._State.CLOSED:
            break
        copied += start + len(read)
    assert not page.done() or "too long" in str(page.exception())
    loop.close()
    return copied


def page_bytes(name_length: int, points: int) -> int:
    export = ExportMetricsServiceRequest()
    metric = export.resource_metrics.add().scope_metrics.add().metrics.add(name="a" * name_length)
    for _ in range(points):
        metric.gauge.data_points.add(as_int=1)
    return sum(len(found.page.body) for found in pages_of(parse_export(export.SerializeToString(), is_json=False)))


def stored(hashes: Sequence[int], tokens: Sequence[int], size: int, parent: int | None = None, **more: object) -> dict[str, object]:
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens, "block_size": size}
    return event | more


def removed(hashes: Sequence[int], **more: object) -> dict[str, object]:
    return {"type": "BlockRemoved", "block_hashes": hashes, **more}


CLEARED = {"type": "AllBlocksCleared"}


def engine_blocks(ours: int = 64, algorithm: HashAlgorithm = HashAlgorithm.XXH64) -> EngineBlocks:
    return EngineBlocks(TierIndex({}), 0, BlockKeys(ours, algorithm), ENDLESS)


def batch(events: Sequence[object]) -> Batch:
    return decode(msgspec.msgpack.encode([1.0, events, 0]))


def applied(events: Sequence[object], algorithm: HashAlgorithm = HashAlgorithm.XXH64) -> int:
    payload = msgspec.msgpack.encode([1.0, events, 0])
    return steps_of(lambda: engine_blocks(64, algorithm).apply(decode(payload).events, "m"))


def completed(beginning: int, tokens: Callable[[int], int]) -> Callable[[int], int]:
    """A block of `beginning` tokens is completed as often, by 63 of these tokens; the steps, and the keys that are copied."""

    def cost(n: int) -> int:
        events = [stored([at + 2], [tokens(at)] * 63, 63, 1) for at in range(n)]
        blocks, copied = engine_blocks(), 0
        blocks.apply(batch([stored([1], [1] * beginning, beginning)]).events, "m")
        for event in events:
            blocks.apply(batch([event]).events, "m")
            copied += len(blocks._keys[1])
        return copied + applied([stored([1], [1] * beginning, beginning), *events])

    return cost


def many_places(**place: Callable[[int], object]) -> Callable[[int], int]:
    """Blocks in as many tiers, or groups."""

    def cost(n: int) -> int:
        places = [{name: of(number) for name, of in place.items()} for number in range(n)]
        stores = [stored([number], [1] * 64, 64, **each) for number, each in enumerate(places)]
        return applied([*stores, *(removed([number], **each) for number, each in enumerate(places))])

    return cost


def slots_cleared(n: int) -> int:
    """Places of a dictionary that clears go through: many blocks, then many pairs of a store and a clear."""
    blocks, places = engine_blocks(ours=1), 0
    blocks.apply(batch([stored([*range(n)], [1] * n, 1), CLEARED]).events, "m")
    pair = batch([stored([1], [1], 1), CLEARED]).events
    for _ in range(n // 4):
        blocks.apply(pair, "m")
        places += sys.getsizeof(blocks._keys)
    return places


def first_tokens(numbers: Sequence[int]) -> int:
    """Comparisons of prompts when their first tokens come in this order."""
    compared = 0

    class Prefill(predicted.Prefill):
        __slots__ = ()
        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return self is other

    model = predicted.LatencyModel()
    model.slots(["a"])
    sent = [(0, number, 0.0, "a", 1.0, True) for number in sorted(numbers)]
    answered = [(1, number, 0.0, "", 0.0, False) for number in numbers]
    with patch.object(predicted, "Prefill", Prefill):
        SharedEvents(model).apply(msgspec.msgpack.encode((0.0, [*sent, *answered])), "other", 1.0)
    return compared


def block(number: int) -> bytes:
    return number.to_bytes(FINGERPRINT_BYTES, "big")


class Inserted(PrefixTree):
    """Counts the bytes of what is inserted."""

    total = 0

    def insert(self, name: str, prompt: bytes, capacity: int) -> None:
        self.total += len(prompt)
        super().insert(name, prompt, capacity)


def restored(branches: list[tuple[int, bytes]], insertions: list[tuple[int, int]]) -> Inserted:
    tree = Inserted()
    tree.slots(["a"])
    tree.restore("a", branches, insertions)
    return tree


def memory_of_chain(n: int) -> int:
    """Each branch continues the one before."""
    branches = [(number, block(number)) for number in range(n)]
    return peak_of(lambda: restored(branches, [(n, 1)]))


def forks(n: int) -> tuple[list[tuple[int, bytes]], list[tuple[int, int]]]:
    """A prompt of `n` KiB, with as many endings."""
    return [(0, bytes(n << 10)), *((1, block(number)) for number in range(1, n + 1))], [(number, 1) for number in range(2, n + 2)]


def remote_loads(n: int) -> int:
    loads = _RemoteLoad()
    loads.update("other", True, {str(number): (1, 1) for number in range(n)})
    return steps_of(lambda: [loads.update("other", False, {"1": (1, 1)}) for _ in range(n)])


def heard(messages: Sequence[Message]) -> int:
    """Steps of a picker that hears these messages of others."""
    exchange = Exchange("a", lambda: 0.0, NullTelemetry())
    wires = [msgspec.msgpack.encode(message) for message in messages]
    return steps_of(lambda: [exchange.receive(wire) for wire in wires])


def admitted(header: str, query: str) -> int:
    """Steps of the admin port that meet what a client writes."""
    request = make_mocked_request("GET", f"/decisions?{query}{next(NUMBERS)}", headers={"Authorization": header, "Accept": header})
    return steps_of(lambda: (admits(request, "secret"), choose_encoder(header), [request.query.get(name) for name in ("why", "endpoint")]))


LOOPS: dict[str, tuple[int, Callable[[int], int]]] = {
    "message of a picker with many parts": (N, lambda n: heard([Message(FORMAT, "b", sequence=1, deltas={str(i): b"" for i in range(n)})])),
    "messages of many pickers": (N, lambda n: heard([Message(FORMAT, f"b{i}", sequence=1) for i in range(n)])),
    "messages of a picker that repeats itself": (N, lambda n: heard([Message(FORMAT, "b", sequence=1)] * n)),
    "admin request with a long header": (N, lambda n: admitted("Bearer ,;=" * n, "")),
    "admin request with a long query": (N, lambda n: admitted("", "why=a&" * n)),
    "page with braces in labels": (N, lambda n: bytes_looked_at(b'a{b="}"} 1\n' * n)),
    "page with a name often in a line": (N, lambda n: bytes_looked_at(b"x" + b"a " * n)),
    "page with a name at ends of lines": (N, lambda n: bytes_looked_at(b"xxxxxx a\n" * n)),
    "page with one long line of blanks": (N, lambda n: bytes_looked_at(b" " * n + b"a 1\n" * n)),
    "page with one series": (N, lambda n: steps_of(lambda: MetricsPage(b'a{b="c"} 1\n' * n).series("a"))),
    "page with many labels": (N, lambda n: steps_of(lambda: MetricsPage(b"a{%b} 1" % b",".join([b'b="c"'] * n)).samples("a"))),
    "OTLP with a long name": (1100, lambda n: page_bytes(n, n)),
    "OTLP with many points": (N, lambda n: page_bytes(10, n)),
    "HTTP with an endless header": (1 << 18, lambda n: copied_heads(b"HTTP/1.1 200 OK\r\nX: " + b"a" * n)),
    "HTTP with endless trailers": (
        1 << 18,
        lambda n: copied_heads(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"a" * n),
    ),
    "models": (N, lambda n: steps_of(lambda: parse_model_list(orjson.dumps({"data": [{"id": "a"}] * n})))),
    "events without an end": (N, lambda n: streamed(b"data: " + b"x" * n)),
    "events of line breaks": (N, lambda n: streamed(b"\r\n" * n)),
    "events with usage": (N, lambda n: streamed(b'data: {"usage":{}}\n\n' * n, 7)),
    "events with usage at once": (N, lambda n: streamed(b'data: {"usage":{}}\n\n' * n, ENDLESS)),
    "events of half lines": (N, lambda n: streamed(b'data: {"usage"\n' * n, ENDLESS)),
    "body": (N, lambda n: whole(b'{"usage":{"a":"' + b"\\n" * n)),
    "body beyond what is kept": (1 << 16, lambda n: whole(b" " * n, 64)),
    "frames": (N, lambda n: usage(FramedUsage(lambda *_: None), b"\0\0\0\0\0" * n)),
    "frames at once": (N, lambda n: usage(FramedUsage(lambda *_: None), b"\0\0\0\0\0" * n, ENDLESS)),
    "frame that is skipped": (N, lambda n: usage(FramedUsage(lambda *_: None), b"\0\xff\xff\xff\xff" + bytes(n))),
    "compressed members": (1 << 16, decompressed),
    "names in a string": (N, lambda n: renamed(b'["' + b'\\"model\\":\\"m\\"' * n)),
    "names in events": (N, lambda n: renamed(b'data: {"model":"m"}\n\n' * n, "text/event-stream")),
    "names of braces": (N, lambda n: renamed(b"{[" * n, "application/x-ndjson")),
    "chat of messages": (1000, lambda n: chat("a", n)),
    "chat of parts": (1100, lambda n: chat([{"type": "text", "text": "a"}] * n)),
    "chat of media": (1100, lambda n: chat([{"type": "image_url", "image_url": "a"}] * n)),
    "completions": (500, lambda n: openai("/v1/completions", {"prompt": ["a"] * n})),
    "tokens": (1000, lambda n: openai("/v1/completions", {"prompt": [1] * n})),
    "Anthropic messages": (1000, lambda n: anthropic(b'"a"', n)),
    "tool results": (1000, lambda n: anthropic(results(1, n))),
    "nested tool results": (20, lambda n: anthropic(results(n))),
    "tool results nested and many": (5, lambda n: anthropic(results(50, n))),
    "vLLM media": (N, lambda n: vllm(n, apart(n))),
    "vLLM media that overlap": (N, lambda n: vllm(n, overlapping(n))),
    "JSON read leniently": (N, lambda n: steps_of(lambda: read_leniently(b'{"a":"' + b"\\ud800\xff" * n + b'"}'))),
    "JSON of quotes": (1 << 18, lambda n: steps_of(lambda: is_too_complex(b'"",' * n))),
    "headers of ext_proc": (20, lambda n: headers(*["cookie"] * n)),
    "long headers of ext_proc": (20, lambda n: headers(*["a" * messages.MAX_NAME_LENGTH + str(at) for at in range(n)])),
    "subset hint": (N, lambda n: subset("a, " * n)),
    "message cut up": (N, lambda n: assembled(b"\0" + n.to_bytes(4, "big") + bytes(n))),
    "empty messages": (N, lambda n: steps_of(lambda: MessageAssembler(n).feed(bytes(5 * n), 0, 5 * n))),
    "head with cookies": (N, lambda n: steps_of(lambda: read_head([*HEAD, *[(b"cookie", b"a", False)] * n]))),
    "header block": (20, lambda n: steps_of(lambda: HeaderDecoder(ENDLESS).decode(encode((b"a%d" % at, b"b") for at in range(n))))),
    "frame cut up": (N, lambda n: connection(frame(0x20, bytes(n)))),
    "settings": (20, lambda n: connection(frame(FrameType.SETTINGS, b"\0\4\0\0\0\0" * n))),
    "pending messages": (N, drained),
    "cookies": (N, lambda n: steps_of(lambda: sessions.cookie(";s " * n, "s"))),
    "cookie of blanks": (N, lambda n: steps_of(lambda: sessions.cookie(";" + " " * n, "s"))),
    "peer's place": (N, lambda n: steps_of(lambda: topology.decoded("host=a, " * n))),
    "preferences": (N, lambda n: steps_of(lambda: prefers({"prefer": ", " * n}, "x"))),
    "load as text": (N, lambda n: steps_of(lambda: read_load("TEXT " + "named_metrics.a=1," * n))),
    "load as JSON": (
        N,
        lambda n: steps_of(lambda: read_load("JSON " + orjson.dumps({"named_metrics": {str(at): 1 for at in range(n)}}).decode())),
    ),
    "rendered media": (N, lambda n: rendered(n, apart(n))),
    "rendered media that overlap": (N, lambda n: rendered(n, overlapping(n))),
    "rendered media with a long identifier": (1100, length_of_extras),
    "KV blocks": (N, lambda n: applied([stored([*range(n)], [1] * 64 * n, 64)])),
    "KV blocks smaller than ours": (N, lambda n: applied([stored([at], [1], 1, at - 1 if at else None) for at in range(n)])),
    "KV block larger than ours": (N, lambda n: applied([stored([1], [1] * 64 * n, 64 * n)])),
    "KV partial block completed alike": (N, completed(1, lambda _: 1)),
    "KV partial block completed differently": (N, completed(65, lambda at: at)),
    "KV tiers": (N, many_places(medium=str)),
    "KV groups": (N, many_places(group_idx=int)),
    "KV extra keys": (N, lambda n: applied([stored([1], [1] * 64 * n, 64 * n, extra_keys=[list(map(str, range(n)))])])),
    "KV long extra key": (
        20,
        lambda n: applied([stored([1], [n] * 64 * n, 64 * n, extra_keys=[["a" * 64 * n]])], HashAlgorithm.CBOR_FNV),
    ),
    "KV clears": (1000, slots_cleared),
    "KV sources": (N, lambda n: steps_of(lambda: source_of(orjson.dumps({str(at): {"endpoint": "tcp://"} for at in range(n)}), SERVER, 1))),
    "predicted, in order": (N, lambda n: first_tokens(range(1, n + 1))),
    "predicted, in reverse": (N, lambda n: first_tokens(range(n, 0, -1))),
    "restored chain": (400, memory_of_chain),
    "restored forks": (64, lambda n: restored(*forks(n)).total),
    "remote loads": (N, remote_loads),
}
"""What outsiders send, a size of it, and the steps or bytes that reading it costs by its size."""
HEAD = [(b":method", b"POST", False), (b":path", b"/", False), (b":scheme", b"http", False)]
SERVER = Endpoint("server", "10.0.0.1", 8000)


@pytest.mark.parametrize("name", LOOPS)
def test_reading_costs_in_proportion_to_what_is_sent(name: str) -> None:
    size, cost = LOOPS[name]
    cost(size)  # what is made once
    costs = [cost(size), cost(2 * size), cost(4 * size), cost(8 * size)]
    assert costs[-1] <= 9 * costs[0] + SLACK, costs


def test_pending_messages_leave_at_the_left():
    _, stream = waiting_stream(2)
    assert isinstance(stream.pending, deque)


def test_of_very_many_prompts_the_newest_are_restored():
    branches, insertions = forks(4 << 10)
    tree = restored(branches, insertions[:10])
    assert MAX_RESTORED_BYTES // 2 < tree.total <= MAX_RESTORED_BYTES
    assert tree.match(branches[0][1] + branches[10][1])[0] > tree.match(branches[0][1] + branches[1][1])[0]


def test_one_bad_entry_of_a_list_is_enough():
    with pytest.raises(Unavailable) as failed:
        parse_model_list(b'{"data":[' + b"1," * 1000 + b"1]}")
    assert failed.value.__cause__.error_count() == 1


def test_a_usage_that_nests_deeply_is_none():
    assert from_body(b'"usage":{"a":' + b"[" * 100_000) is None


def test_only_short_labels_are_cached():
    before = metrics._labels_of_block.cache_info()
    assert MetricsPage(b'a{b="%b"} 1' % (b"c" * 5000)).samples("a")[0].labels == {"b": "c" * 5000}
    assert metrics._labels_of_block.cache_info() == before


def test_a_long_number_in_a_header_is_none():
    assert token_estimate._positive("1" * 32) == token_estimate._MAX_NUMBER
    assert token_estimate._positive("1" * 33) is None


def test_kinds_and_places_of_kv_events_are_bounded():
    blocks, many = engine_blocks(), range(2 * MAX_PLACES)
    kinds = [stored([at], [1] * 64, 64, group_idx=at, kv_cache_spec_kind=f"kind{at}") for at in many]
    tiers = [event for at in many for event in (stored([at], [1] * 64, 64, medium=str(at)), CLEARED)]
    found = blocks.apply(batch([*kinds, *tiers]).events, "m")
    assert len(blocks._excluded) == len(blocks._copies) == len(blocks._index._holders) == MAX_PLACES
    assert found.skipped_stores["unknown", "too-many-tiers"] == MAX_PLACES

    registry = CollectorRegistry()
    KvMetrics(registry, int, int, int).applied(found)
    reported = {labels["cache_kind"] for family in registry.collect() for _, labels, *_ in family.samples if "cache_kind" in labels}
    assert len(reported) <= MAX_PLACES + 1


def test_a_partial_block_completed_alike_has_its_key_once():
    blocks = engine_blocks()
    blocks.apply(batch([stored([1], [1], 1), *(stored([at], [1] * 63, 63, 1) for at in (2, 3))]).events, "m")
    assert blocks._keys[1] == blocks._keys[2] == blocks._keys[3]


def test_extra_keys_beyond_their_bounds_make_an_event_malformed():
    keys = [["a"] * 64, ["a" * 1024], ["a"] * 65, ["a" * 1025], [b"a" * 513]]
    found = batch([stored([1], [1] * 64, 64, extra_keys=[each]) for each in keys])
    assert (len(found.events), found.undecodable) == (2, 3)
