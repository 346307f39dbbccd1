"""Answers of model servers that cost more than they look, as a gateway shows them: events, frames, objects, headers."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.attempts.bodies import EVERY_PARSER, GENERATE, REWRITE, framed, protobuf_field
from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.gateway import MEBIBYTE, answer_messages, body_messages, grpc, headers_message
from benchmarks.attempts.streams import exchanged, pairs_message
from endpick._proto.ext_proc_pb2 import HttpBody, ProcessingRequest

_EVENTS = {"content-type": "text/event-stream"}
_OBJECT = {"content-type": "application/json"}
_FRAMES = {"content-type": "application/grpc"}
_USAGE = b'{"usage":{"prompt_tokens":1,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}}'
_MARKS = (b'"usage"', b'"usage":null', b'"meta_info"', b'"model":"another"')


def asked(path: str = "/v1/completions") -> list[ProcessingRequest]:
    """A request whose model is exchanged, so that the client's name is put back into the answer."""
    body = b'{"model":"m","prompt":"p","messages":[{"role":"user","content":"c"}],"token_ids":[1],"input_ids":[1]}'
    if path == GENERATE:
        body = framed(b"\x1a\x01p")
    return [headers_message({":path": path, REWRITE: "another"}), *body_messages(body)]


async def _answered(target: Target, bodies: Iterable[tuple[bytes, int]], headers: dict[str, str], path: str = "/v1/completions") -> None:
    """Each of these bodies, in pieces of so many bytes, as the answer to a request of its own."""
    payloads = [grpc([*asked(path), *answer_messages(body, headers, size)]) for body, size in bodies]
    await exchanged(target.ext_proc_port, payloads)


async def lines_without_number(target: Target) -> None:
    """Events of a mebibyte that are all line ends, of each kind, or all short lines, the end of which comes with as much again."""
    line = target.rng.choice(
        (b"\r", b"data:\r", b"\n", b"data:\n", b'"usage"\r', b'data:"usage"\r', b": \r\n", b"data:{}\r", b"\x0b", b"\xe2\x80\xa8")
    )
    lines = line * (MEBIBYTE // len(line) - 1)
    bodies = []
    for mark in (b'data: {"usage":{"prompt_tokens":1}}', b'"usage"', b'data: {"meta_info":{}}'):
        bodies += [(lines + lines + mark + b"\n\n", len(lines)), (mark + lines + b"\n\n", MEBIBYTE), (lines + mark + lines, 60_000)]
    await _answered(target, bodies, _EVENTS, target.rng.choice(("/v1/completions", "/v1/messages", "/generate")))


async def events_without_measure(target: Target) -> None:
    """Events without an end, of a mebibyte and one byte more, of brackets, numbers and keys, thirty thousand with usage in a mebibyte."""
    size = MEBIBYTE + target.rng.choice((-1, 0, 1))
    shapes = (b"1,", b"[],", b'"",', b'{"a":1},', b'"\\u0000",', b"1e5,", b"9" * 4000 + b",", b'{"usage":{"prompt_tokens":1}},')
    inner = [shape * ((size - 120) // len(shape)) for shape in shapes]
    bodies = [(b'data: {"usage":{"prompt_tokens":1},"x":[' + each + b"0]}\n\n", size) for each in inner]
    bodies += [
        (b"data: " + _USAGE + b"\n\n" + b"x" * 5 * MEBIBYTE, 60_000),
        ((b"data: " + _USAGE + b"\n\n") * 10_000, MEBIBYTE),
        ((b'data:{"usage":{"prompt_tokens":' + b"9" * 30 + b"}}\n\n") * 20_000, 500_000),
        (b"".join(mark * 40_000 for mark in _MARKS) + b"\n\n", 300_000),
        (b"data: " + b'{"usage":' * 400 + b"1" + b"}" * 400 + b"\n\n", 7),
    ]
    await _answered(target, bodies, _EVENTS)


async def objects_without_measure(target: Target) -> None:
    """Plain answers with usage at every place and depth, unbalanced, of braces only, with its name a hundred thousand times, or cut off."""
    bodies = [
        (b'"usage":{' + b"{" * 16_000, 60_000),
        (b'"usage":{' + b"x" * 300_000, 60_000),
        (b'"usage":' * 40_000, 60_000),
        (b'{"usage":{"prompt_tokens":' + b"9" * 16_000 + b"}}", 60_000),
        (b'{"a":[' + b"[]," * 85_000 + b'0],"usage":{"prompt_tokens":1}}', 60_000),
        (b'{"a":[' + b'{"a":1},' * 4_000_000 + b'0],"usage":{"prompt_tokens":1}}', MEBIBYTE),
        (b"{" * 200_000 + b'"usage":{}' + b"}" * 200_000, 100),
        (b'{"usage":{"prompt_tokens":-1,"completion_tokens":1e400,"prompt_tokens_details":{"cached_tokens":[]}}}', 1),
        (b"\xff" * 200_000 + b'"usage":{"prompt_tokens":1}', 200_000),
        (b"\x1f\x8b" + target.rng.randbytes(260_000) + b'"usage"', 60_000),
    ]
    for path in ("/v1/chat/completions", "/v1/messages", "/generate"):
        await _answered(target, bodies, {**_OBJECT, "content-length": "7", "content-encoding": "gzip"}, path)


async def frames_without_measure(target: Target) -> None:
    """Frames of gRPC: empty by the thousand, longer than they are, compressed, with events, unbalanced usage, or nothing."""
    vertex = "/google.cloud.aiplatform.v1.PredictionService/ChatCompletions"

    def messages(data: bytes) -> bytes:
        return framed(protobuf_field(2, (data * 16_400)[:16_340])) * 64

    bodies = [
        framed(b"") * 209_000,
        framed(b"\x0a\x00" * 8000) * 64,
        framed(b"\x0a\x02\x10\x01" * 4000) * 64,
        framed(b"\x10\x01", b"\1") * 100_000,
        b"\0\xff\xff\xff\xff" + b"\0" * 3 * MEBIBYTE,
        framed(protobuf_field(2, b'"usage":{' + b"x" * 16_330)) * 64,
        framed(protobuf_field(2, b'data:{"usage":{}}' + b"\r" * 16_310)) * 64,
        framed(b"\x12" + b"\x80" * 100_000) * 10,
        messages(b'data:{"usage":{"prompt_tokens":1}}\n'),
        messages(b'{"usage":'),
        messages(b"\n"),
        messages(b'"usage":{{'),
    ]
    for path in (GENERATE, vertex):
        sized = [(body, target.rng.choice((60_000, 250_000, MEBIBYTE))) for body in bodies]
        await _answered(target, sized, _FRAMES, path)


async def names_that_are_put_back(target: Target) -> None:
    """The name of the model in all places of an answer, halves of it at the ends of pieces, pieces of one byte, quotes without end."""
    name = b'"model":"another"'
    bodies = [
        (name * 60_000, MEBIBYTE),
        (name * 20_000, 16),
        ((name + b",") * 2000, 1),
        ((b'"model": "another"' + name[:-1]) * 30_000, 60_001),
        (b'"' * 900_000, 60_000),
        (name[:-1] * 50_000, 17),
        (b'"model":' * 100_000 + b'"another"', 8),
        (b'data: {"model":"another"}\n\n' * 9000, 27),
    ]
    long = target.rng.choice(("m", "é" * 1024))
    body = b'{"model":' + b'"' + long.encode() + b'","prompt":"p"}'
    begin = [headers_message({REWRITE: "another"}), *body_messages(body)]
    for headers in (_EVENTS, _OBJECT):
        payloads = [grpc([*begin, *answer_messages(answer, headers, size)]) for answer, size in bodies]
        await exchanged(target.ext_proc_port, payloads)


async def answers_of_sixty_megabytes(target: Target) -> None:
    """Answers of 60 MB in one message: an object, events, and the client's name put back in every place."""
    shape = target.rng.choice((b'data: {"usage":{"prompt_tokens":1}}\n\n', b'"model":"another",', b"x", b'{"usage":{},"a":"b"},'))
    headers = target.rng.choice((_EVENTS, _OBJECT))
    payload = grpc([*asked(), *answer_messages(shape * (60_000_000 // len(shape)), headers, 60_000_000)])
    await exchanged(target.ext_proc_port, [payload], max(3.0, target.seconds_left()))


async def headers_and_trailers_of_answers(target: Target) -> None:
    """Answers with 32,000 headers or trailers, 250 KB of a status, load reports, cookies, two answers, none, and an end before the body."""
    many = target.rng.choice((100, 32_000))
    usual = [(":status", "200"), ("content-type", "text/event-stream")]
    sets = [
        [(":status", "9" * 250_000)],
        [(":status", "²00"), ("content-type", "text/event-stream, application/grpc")],
        [*usual, *((f"x{each}"[:5], "") for each in range(many))],
        [*usual, ("endpoint-load-metrics", "JSON " + '{"named_metrics":' * 2000)],
        [*usual, ("set-cookie", "a" * 250_000)],
        [*usual, ("content-length", "9" * 100_000), ("transfer-encoding", "chunked")],
        [("content-type", "application/grpc" * 10_000)],
        [],
    ]
    chunk = ProcessingRequest(response_body=HttpBody(body=b"data: " + _USAGE + b"\n\n"))
    last = ProcessingRequest(response_body=HttpBody(end_of_stream=True))
    payloads = []
    for pairs in sets:
        begins = pairs_message(pairs, "response_headers")
        ends = pairs_message([*pairs, ("grpc-status", "0")], "response_trailers")
        payloads += [
            grpc([*asked(), begins, *[chunk] * 3000, ends]),
            grpc([*asked(), begins, last, chunk, ends]),
            grpc([*asked(), ends, begins]),
            grpc([begins, chunk, last]),
            grpc([*asked(), begins, begins, chunk, last]),
            grpc([*asked(), chunk, begins, *[ProcessingRequest(response_body=HttpBody())] * 20_000]),
        ]
    for start in range(0, len(payloads), 12):
        await exchanged(target.ext_proc_port, payloads[start : start + 12], 1)


ATTEMPTS = (
    Attempt(lines_without_number, config=EVERY_PARSER),
    Attempt(events_without_measure, config=EVERY_PARSER),
    Attempt(objects_without_measure, config=EVERY_PARSER),
    Attempt(frames_without_measure, config=EVERY_PARSER),
    Attempt(names_that_are_put_back),
    # "Of one long message grpcio itself takes up to 0.3 s of the event loop to read 60 MB and to write the replies".
    Attempt(answers_of_sixty_megabytes, transports=("h2",)),
    Attempt(headers_and_trailers_of_answers),
)
