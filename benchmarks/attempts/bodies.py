"""Request bodies that cost more than they look, or are not what they say."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.attempts.catalogue import CONFIG, Attempt, Target
from benchmarks.attempts.gateway import HELLO, MEBIBYTE, answered, body_messages, connected, data, grpc, headers_message, opened, request
from benchmarks.attempts.gateway import send_flow_controlled as sent_whole
from benchmarks.attempts.streams import exchanged, pairs_message, refused_with
from endpick._proto.ext_proc_pb2 import HttpBody, ProcessingRequest, ProtocolConfiguration

_PARSERS = ("openai", "anthropic", "vllmhttp", "sglanghttp", "vllmgrpc", "vertexai")
EVERY_PARSER = CONFIG.replace("plugins:\n", "plugins:\n" + "".join(f"- type: {name}-parser\n" for name in _PARSERS), 1) + (
    "requestHandler:\n  parsers:\n" + "".join(f"  - pluginRef: {name}-parser\n" for name in _PARSERS)
)
GENERATE, EMBED = "/vllm.grpc.engine.VllmEngine/Generate", "/vllm.grpc.engine.VllmEngine/Embed"
REWRITE = "x-llm-d-model-name-rewrite"
_LIGHT, _LENIENT, _LARGE = 16 * 1024, 256 * 1024, MEBIBYTE
_PATHS = {
    "/v1/completions": b'"prompt":"p"',
    "/v1/chat/completions": b'"messages":[{"role":"user","content":"c"}]',
    "/v1/responses": b'"input":"i"',
    "/v1/conversations": b'"items":["i"]',
    "/v1/embeddings": b'"input":["i"]',
    "/v1/images/generations": b'"prompt":"p"',
    "/v1/messages": b'"messages":[{"role":"user","content":"c"}]',
    "/inference/v1/generate": b'"token_ids":[1]',
    "/generate": b'"input_ids":[1]',
}
"""What each JSON API has to have."""


def filled(needed: bytes, shape: bytes, size: int, begin: bytes = b"[", end: bytes = b"]", field: bytes = b'"tools"') -> bytes:
    """A body of about so many bytes, of which all but what its API has to have is one shape, over and over."""
    times = max(1, (size - len(needed) - 40) // (len(shape) + 1))
    return b'{"model":"m",' + needed + b"," + field + b":" + begin + b",".join([shape] * times) + end + b"}"


async def prompts_of_one_token(target: Target) -> None:
    """`"prompt":[[1],[1],…]` of 30 MB."""
    async with connected(target.ext_proc_port) as (reader, writer):
        await sent_whole(reader, writer, 1, request(b'{"model":"m","prompt":[' + b"[1]," * 7_500_000 + b"[1]]}"))
        await answered(reader, 2)


async def shapes_for_each_parser(target: Target) -> None:
    """Eight shapes at six sizes on the paths of every JSON parser, the model exchanged: tools, schemas, references, keys, numbers."""
    shapes = [
        b'{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"$ref":"#/a"}}}}}',
        b'{"$ref":"#/' + b"a/" * 200 + b'"}',
        b'{"anyOf":' * 90 + b"{}" + b"}" * 90,
        b"1" * target.rng.choice((19, 310, 4000)),
        target.rng.choice((b"1e308", b"-1e-400", b"1E9999", b"0.0000001", b"1.7976931348623159e308")),
        target.rng.choice((b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\u0000"', b'"\\u006dodel"', b'"\\"model\\":"')),
        b'"' + "\U0001f600é".encode() * 50 + b'"',
        b'{"model":"m","model":"m"}',
    ]
    sizes = (_LIGHT - 9, _LIGHT + 9, 96 * 1024, _LENIENT - 9, _LENIENT + 9, _LARGE - 9)
    for path, needed in _PATHS.items():
        bodies = [filled(needed, shape, target.rng.choice(sizes)) for shape in shapes]
        await exchanged(target.ext_proc_port, [request(body, {":path": path, REWRITE: "another"}) for body in bodies])


async def prompts_for_each_parser(target: Target) -> None:
    """The same where each API has its prompt: parts, blocks, results of tools, token ids, data URLs, media with features."""
    picture = b'"data:image/png;base64,' + b"A" * target.rng.choice((0, 1, 40_000)) + b'"'
    part = target.rng.choice(
        (
            b'{"type":"image_url","image_url":{"url":' + picture + b"}}",
            b'{"type":"input_audio","input_audio":{"data":"","format":"wav"}}',
            b'{"type":"text","text":null}',
            b"{}",
            b'{"type":{},"text":[]}',
        )
    )
    block = target.rng.choice(
        (
            b'{"type":"tool_result","content":[' * 60 + b"]}" * 60,
            b'{"type":"image","source":{"type":"base64","data":""}}',
            b'{"type":"tool_use","input":{"a":[[]]}}',
            b'{"type":"thinking","thinking":"\\u0000"}',
        )
    )
    placed = b'{"offset":0,"length":4294967295}'
    features = b',"features":{"mm_hashes":{"image":[' + b'"",' * 4000 + b'""]},"mm_placeholders":{"image":[' + placed + b"]}}}"
    size = target.rng.choice((_LIGHT - 9, _LIGHT + 9, 100_000, _LARGE - 9))
    content = b'{"role":"user","content":[' + b",".join([part] * max(1, size // (len(part) + 1))) + b"]}"
    blocks = b'{"role":"user","content":[' + b",".join([block] * max(1, size // (len(block) + 1))) + b"]}"
    payloads = [
        request(b'{"model":"m","messages":[' + content + b"]}", {":path": "/v1/chat/completions"}),
        request(b'{"model":"m","messages":[' + blocks + b"]}", {":path": "/v1/messages"}),
        request(b'{"model":"m","input":[' + content + b"]}", {":path": "/v1/responses"}),
        request(filled(b'"stream":true', b"1", size, field=b'"token_ids"')[:-1] + features, {":path": "/inference/v1/generate"}),
        request(filled(b'"model":"n"', b"4294967295", size, field=b'"input_ids"'), {":path": "/generate"}),
        request(filled(b'"model":"n"', b"[0]", size, field=b'"prompt"')),
        request(filled(b'"model":"n"', b'""', size, field=b'"input"'), {":path": "/v1/embeddings"}),
        request(filled(b'"a":1', b'{"role":""}', size, field=b'"messages"'), {":path": "/v1/chat/completions", REWRITE: "another"}),
    ]
    await exchanged(target.ext_proc_port, payloads)


async def keys_without_measure(target: Target) -> None:
    """Bodies whose keys repeat, collide, are long, or are all `model`; blanks of a megabyte between names and values."""
    many = target.rng.choice((900, 6000, 200_000))
    blanks = target.rng.choice((b" ", b"\n", b"\t \r\n")) * target.rng.choice((100_000, 400_000))
    bodies = [
        b'{"prompt":"p"' + b',"model":"m"' * many + b"}",
        b'{"prompt":"p",' + b",".join(b'"%d":0' % (each * 2**20) for each in range(many)) + b',"model":"m"}',
        b'{"prompt":"p","model"' + blanks + b":" + blanks + b'"m"' + blanks + b"}",
        b'{"model":"m","prompt":"p","' + b"k" * 1_000_000 + b'":0}',
        b'{"model":"m","prompt":"' + b'\\"model\\":\\"m\\",' * 50_000 + b'"}',
        b'{"model":"m","prompt":"' + b"\\\\" * 500_000 + b'"}',
        b'{"model":"m","prompt":"' + b"\\u006d" * 170_000 + b'"}',
        b'{"model":"m","a":{' + b'"model":{' * 3000 + b"}" * 3001 + b',"prompt":"p"}',
        b'{"model":"' + b"\\u0000" * 1024 + b'","prompt":"p"}',
        blanks + b'{"model":"m","prompt":"p"}' + blanks,
    ]
    await exchanged(target.ext_proc_port, [request(body, {REWRITE: "n" * target.rng.choice((1, 1024))}) for body in bodies])


async def texts_in_other_encodings(target: Target) -> None:
    """UTF-16, UTF-32, UTF-7, Latin 1, byte order marks, gzip, deflated bombs, multipart, XML and noise, with headers that say otherwise."""
    text = json.dumps({"model": "m", "prompt": "ä€😀" * target.rng.choice((10, 30_000))}, ensure_ascii=False)
    wide = ("utf-16", "utf-16-be", "utf-32", "utf-32-le", "utf-7", "utf-8-sig")
    bodies = [text.encode(name, "surrogatepass") for name in wide]
    bodies += [text.encode("latin-1", "replace"), gzip.compress(b"\0" * 30_000_000), target.rng.randbytes(1_000_000)]
    bodies += [b'{"model":"m","prompt":"' + mark * 300_000 + b'"}' for mark in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80")]
    bodies += [b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n' * 15_000, b"<a>" * 300_000, b"[" * 900_000]
    said = ("gzip", "identity", "br, gzip", "deflate", "x" * 900)
    kinds = ("application/json; charset=utf-16", "multipart/form-data; boundary=b", "text/plain", "application/grpc", "")
    for start in range(0, len(bodies), 5):
        headers = {"content-encoding": target.rng.choice(said), "content-type": target.rng.choice(kinds)}
        await exchanged(target.ext_proc_port, [request(body, headers) for body in bodies[start : start + 5]])


async def lengths_that_lie(target: Target) -> None:
    """Lengths that contradict the body, a body after the end, ends without a body, trailers amid it, and every mode of the gateway."""
    body = b'{"model":"m","prompt":"' + b"p" * target.rng.choice((10, 70_000)) + b'"}'
    lengths = ("-1", "0", "9" * 30, "1, 2", "0x10", "٣", "")
    whole = body_messages(body, target.rng.choice((1000, 60_000)))
    begins = headers_message({"content-length": target.rng.choice(lengths), "transfer-encoding": "chunked, chunked"})
    trailers = pairs_message([("grpc-status", "0")] * 100, "request_trailers")
    orders: list[list[ProcessingRequest]] = [
        [begins, *whole],
        [begins, *whole, *whole],
        [headers_message(end=True), *whole],
        [begins, trailers, *whole],
        [begins, *whole[:-1], trailers, trailers],
        [*whole, begins],
        [begins, begins, *whole],
        [begins, *[ProcessingRequest(request_body=HttpBody())] * 20_000, *whole],
        [begins, *body_messages(body[:9000], 1)],
    ]
    for order in orders:
        modes = ProtocolConfiguration(
            request_body_mode=target.rng.randrange(6),  # type: ignore[arg-type]
            response_body_mode=target.rng.randrange(6),  # type: ignore[arg-type]
            send_body_without_waiting_for_header_response=target.rng.random() < 0.5,
        )
        first = ProcessingRequest.FromString(order[0].SerializeToString())
        first.protocol_config.CopyFrom(modes)
        await exchanged(target.ext_proc_port, [grpc(order), grpc([first, *order[1:]])], 2)


async def bodies_at_each_limit(target: Target) -> Iterable[str]:
    """Bodies one byte below, at and above the limits of light, lenient, large and refused ones, and whether those above are refused."""
    told = []
    for limit in (_LIGHT, _LENIENT, _LARGE, 2 * MEBIBYTE):
        begin, end = b'{"model":"m","prompt":"', b'"}'
        sizes = (limit - 1, limit, limit + 1)
        bodies = [begin + b"x" * (size - len(begin) - len(end)) + end for size in sizes]
        heard = await exchanged(target.ext_proc_port, [request(body) for body in bodies], 8)
        for index, size in enumerate(sizes):
            status = refused_with(heard.get(index, b""))
            if index in heard and status != (413 if size > 2 * MEBIBYTE else 0):
                told.append(f"a body of {size} bytes was answered with {status}, where --max-request-body is {2 * MEBIBYTE}")
    return told


async def medium_bodies_at_one_moment(target: Target) -> None:
    """Sixty connections whose bodies, a byte below `--large-body` and below its structure, end at the same moment, as many as it holds."""
    shapes = (b"{}", b'""', b"0", b"[[]]")
    shape = target.rng.choice(shapes)
    weight = 16 * (shape.count(b"{") + shape.count(b"[")) + 2 * shape.count(b'"') + 1
    structure = b",".join([shape] * (31_000 // weight))
    text = b"x\\n" * ((_LARGE - len(structure) - 100) // 3)
    payload = request(b'{"model":"m","prompt":"' + text + b'","x":[' + structure + b"]}", {REWRITE: "another"})

    async def held(ready: asyncio.Barrier) -> None:
        async with connected(target.ext_proc_port) as (reader, writer):
            writer.write(HELLO + opened(1) + data(1, payload[:65_535]))
            await reader.read(1)
            writer.write(data(1, payload[65_535:-1]))
            await writer.drain()
            await ready.wait()
            writer.write(data(1, payload[-1:]))
            await answered(reader, 2)

    ready = asyncio.Barrier(60)
    async with asyncio.timeout(10):
        await asyncio.gather(*(held(ready) for _ in range(60)))


async def bodies_that_stop_before_their_end(target: Target) -> None:
    """Eight hundred streams whose bodies miss their last byte; then they are reset, or the connection is gone, or nothing happens."""
    payload = request(b'{"model":"m","prompt":"' + b"x" * target.rng.choice((10, 15_000, 18_000)) + b'"}')[:-1]

    async def stopped() -> None:
        async with connected(target.ext_proc_port) as (reader, writer):
            writer.write(HELLO + b"".join(opened(each) + data(each, payload) for each in range(1, 401, 2)))
            await writer.drain()
            await answered(reader, target.rng.choice((0.2, 1.0)))
            if target.rng.random() < 0.5:
                writer.write(b"".join(b"\0\0\4\3\0" + each.to_bytes(4, "big") + b"\0\0\0\x08" for each in range(1, 401, 2)))
                await answered(reader, 0.2)

    await asyncio.gather(*(stopped() for _ in range(4)))


def children_of(pid: int) -> Sequence[int]:
    """The processes that this one started."""
    with suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return ()


async def helper_that_is_stopped_and_killed(target: Target) -> None:
    """Large bodies while the process that parses them is stopped, continued, killed or told to end, and at last left stopped."""
    body = b'{"model":"m","messages":[{"role":"user","content":[' + b"{}," * 40_000 + b"{}]}]}"
    payloads = [request(body, {":path": "/v1/chat/completions"}) for _ in range(4)]
    asking = [asyncio.create_task(exchanged(target.ext_proc_port, payloads, 2)) for _ in range(4)]
    for each in (signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP):
        await asyncio.sleep(target.rng.uniform(0.05, 0.6))
        for child in children_of(target.pid):
            with suppress(ProcessLookupError):
                os.kill(child, each)
    await asyncio.gather(*asking)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def protobuf_field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def framed(message: bytes, flag: bytes = b"\0") -> bytes:
    """As gRPC has it within the body of a request."""
    return flag + len(message).to_bytes(4, "big") + message


_TEXTUAL_BYTES = 0x1FC2 | 0x3D << 14
"""A length whose varint is valid UTF-8, C2 BF 3D, as is that of four more, C6 BF 3D."""
_TEXTUAL_FRAME_BYTES = 0x0F7F7F
"""The same of a frame's length."""


async def grpc_bodies_that_pass_for_text(target: Target) -> None:
    """gRPC bodies of a megabyte that are valid UTF-8, lengths included: token ids of a byte, packed and not, media of nothing, no texts."""
    tokens = protobuf_field(2, protobuf_field(2, b"\x01" * _TEXTUAL_BYTES))
    one = b"\x12\x02\x10\x01"
    fillings = (b"\x10\x01", b"\x2a\x00", b"\x32\x00", b"\x2a\x02\x10\x01")
    messages = [tokens, *(one + protobuf_field(number, (each * _TEXTUAL_BYTES)[:_TEXTUAL_BYTES]) for number in (2, 7) for each in fillings)]
    bodies = []
    for message in messages:
        left = _TEXTUAL_FRAME_BYTES - len(message)
        bodies.append(framed(message + b"\x1a\x01x" * (left % 2) + b"\x1a\x00" * ((left - 3 * (left % 2)) // 2)))
    headers = {":path": target.rng.choice((GENERATE, EMBED)), "content-type": "application/grpc"}
    await exchanged(target.ext_proc_port, [request(each, headers) for each in bodies])


async def grpc_bodies_that_are_none(target: Target) -> None:
    """Frames whose length or flag lies, groups without end, fields of every number and type, JSON in Vertex AI's messages, half of it."""
    chat = b'{"model":"m","messages":[' + b'{"content":[],"role":""},' * 1500 + b'{"role":"user","content":"' + b"x" * 200_000 + b'"}]}'
    vertex = "/google.cloud.aiplatform.v1.PredictionService/"
    http_body = protobuf_field(2, protobuf_field(1, b"application/json") + protobuf_field(2, chat))
    messages = [
        framed(http_body),
        framed(http_body * 4),
        framed(http_body, b"\1"),
        b"\0" + b"\xff" * 4 + http_body,
        framed(b"\x13" * 200_000),
        framed(protobuf_field(2, protobuf_field(2, b"\x80" * 200_000))),
        framed(protobuf_field(3, b"\xff" * 200_000)),
        framed(
            protobuf_field(2, protobuf_field(2, b"\xff\xff\xff\xff\x0f" * 40_000))
            + protobuf_field(7, protobuf_field(6, b"\xff") * 20_000 + protobuf_field(5, b"\x10\x05") * 9999)
        ),
        b'\0"' + http_body,
        b"".join(framed(b"") for _ in range(50_000)),
        target.rng.randbytes(100_000),
    ]
    paths = (GENERATE, EMBED, f"{vertex}ChatCompletions", f"{vertex}RawPredict")
    for path in paths:
        headers = {":path": path, "content-type": "application/grpc", REWRITE: "another"}
        await exchanged(target.ext_proc_port, [request(message, headers) for message in messages])


async def headers_by_the_thousand(target: Target) -> None:
    """Headers up to `--grpc-max-envelope-size`: 32,000 of two bytes, one of 250 KB, one name over and over, new names, cookies."""
    many = target.rng.choice((300, 9000, 32_000))
    sets = [
        [(chr(97 + each % 26) + chr(97 + each // 26 % 26), "") for each in range(many)],
        [("x-" + str(target.rng.random()), "v") for _ in range(min(many, 8000))],
        [("cookie", "a=b; " * 50_000)],
        [("cookie", "a=b")] * min(many, 9000),
        [("x-request-id", "r" * 250_000)],
        [(":path", "/v1/" + "a/" * 60_000 + "completions?" + "&" * 90_000)],
        [(":path", "/v1/completions"), ("x-llm-d-inference-objective", "o" * 100_000), ("x-llm-d-inference-fairness-id", "f" * 1024)],
        [("x-llm-d-inference-fairness-id", "\U0001f600" * 1024), (REWRITE, "\x1b[2J\r\n" * 100)],
        [("X-\u0130" * 20, "\udcff" * 200)] * 200,
        [("n" * 250_000, "")],
    ]
    body = body_messages(b'{"model":"m","prompt":"p"}')
    trailers = [pairs_message(pairs, "request_trailers") for pairs in sets]
    payloads = [grpc([pairs_message(pairs), *body]) for pairs in sets] + [grpc([headers_message(), *body, each]) for each in trailers]
    await exchanged(target.ext_proc_port, payloads, 2)


async def metadata_without_measure(target: Target) -> None:
    """Subset hints of a hundred thousand entries, as text and as a list, structures within each other, attributes, many namespaces."""
    hint = ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset")
    texts = ("," * 250_000, "a," * 120_000, "127.0.100.100:1 ," * 14_000, "[::1]:8000,[" * 20_000, "127.0.100.100")
    messages = []
    for value in (*texts, [""] * 60_000, ["a"] * 40_000, [f"{each:x}" for each in range(25_000)], [["127.0.100.100"]] * 9000, {"a": None}):
        message = headers_message()
        message.metadata_context.filter_metadata[hint[0]].update({hint[1]: value})
        messages.append(message)
    for _ in range(3):
        message = headers_message()
        for each in range(target.rng.choice((10, 3000))):
            message.metadata_context.filter_metadata[f"namespace-{each}"].update({"a": {"b": [None, True, 1e308]}})
        messages.append(message)
    body = body_messages(b'{"model":"m","prompt":"p"}')
    payloads = [grpc([message, *body]) for message in messages]
    # Deeper than protobuf reads, attributes of which endpick knows nothing, and fields that ext_proc does not have.
    deep = headers_message().SerializeToString()
    for tag, within in ((b"\x42", b"\x0a"), (b"\x4a", b"\x12"), (b"\xfa\x01", b"\x0a")):
        inner = b""
        for _ in range(target.rng.choice((90, 150, 5000))):
            inner = within + _varint(len(inner)) + inner
        payloads.append(framed(deep + tag + _varint(len(inner)) + inner) + grpc(body))
    await exchanged(target.ext_proc_port, payloads, 2)


ATTEMPTS = (
    Attempt(prompts_of_one_token),
    Attempt(shapes_for_each_parser, config=EVERY_PARSER),
    Attempt(prompts_for_each_parser, config=EVERY_PARSER),
    Attempt(keys_without_measure),
    Attempt(texts_in_other_encodings),
    Attempt(lengths_that_lie),
    Attempt(bodies_at_each_limit, flags=("--max-request-body=2Mi",)),
    Attempt(medium_bodies_at_one_moment),
    Attempt(bodies_that_stop_before_their_end),
    Attempt(helper_that_is_stopped_and_killed, flags=("--large-body-timeout=1s",)),
    Attempt(grpc_bodies_that_pass_for_text, config=EVERY_PARSER),
    Attempt(grpc_bodies_that_are_none, config=EVERY_PARSER),
    Attempt(headers_by_the_thousand),
    Attempt(metadata_without_measure),
)
