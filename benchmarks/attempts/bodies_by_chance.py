"""Bodies that are drawn from all that the APIs know, light by their length and their marks; and large ones in each mode of a gateway."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable

from benchmarks.attempts.bodies import EVERY_PARSER, REWRITE
from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.gateway import MEBIBYTE, body_messages, grpc, headers_message, request
from benchmarks.attempts.streams import exchanged, replies
from endpick._proto.ext_proc_pb2 import BodyMutation, ProcessingResponse, ProtocolConfiguration

_UNITS = (
    *("a", "\\n", "\\\\", '\\"', "\\u00e9", "\\u4e2d", "\\ud83d\\ude00", "\\u0000", "\\u006d", "é", "中", "😀", " "),
    *(",{[", "<x>", "model", '\\"model\\":', "data:image/png;base64,AAAA", "\\/"),
)
_SIZES = (15_000, 16_000, 60_000, 255_000, 600_000, 1_000_000)
_FIELDS = {
    "/v1/completions": "prompt",
    "/v1/chat/completions": "messages",
    "/v1/responses": "input",
    "/v1/embeddings": "input",
    "/v1/conversations": "items",
    "/v1/images/generations": "prompt",
    "/v1/messages": "messages",
    "/inference/v1/generate": "token_ids",
    "/generate": "input_ids",
    "/v1/rerank": "documents",
    "/v1/audio/transcriptions": "file",
    "/v1/batches": "requests",
}


def _text(rng: random.Random, size: int) -> str:
    unit = rng.choice(_UNITS)
    return '"' + unit * max(1, size // len(unit.encode())) + '"'


def _leaf(rng: random.Random, size: int) -> str:
    return rng.choice((_text(rng, size), "1" * min(size, 400), "null", "1e308", "-0.12345678901234567", "{}", "[]", "[0]", "4294967295"))


def _part(rng: random.Random, size: int) -> str:
    text = _text(rng, size)
    link = rng.choice(("https://a/", "data:image/png;base64,", "data:image/jpeg;base64,/9j/", "data:;base64,"))
    return rng.choice(
        (
            f'{{"type":"text","text":{text}}}',
            f'{{"type":"image_url","image_url":{{"url":"{link}{text[1:]}}}}}',
            f'{{"type":"input_audio","input_audio":{{"data":{text},"format":"wav"}}}}',
            f'{{"type":"video_url","video_url":{text}}}',
            f'{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":{text}}}}}',
            f'{{"type":"tool_result","content":[{{"type":"text","text":{text}}}]}}',
            f'{{"type":"tool_use","input":{{"a":{text}}}}}',
            f'{{"type":"function","function":{{"name":{text},"parameters":{{"$ref":{text}}}}}}}',
            _leaf(rng, size),
        )
    )


def _many(rng: random.Random, one: Callable[[random.Random, int], str], total: int) -> str:
    """A list of so many bytes, alike or not, that no more than some thousand stand in."""
    size = rng.choice((1, 10, 100, 400, 1000, 10_000, total))
    first = one(rng, size)
    count = min(1500, max(1, total // (len(first.encode()) + 1)))
    return "[" + ",".join(first if rng.random() < 0.9 else one(rng, size) for _ in range(count)) + "]"


def drawn(rng: random.Random) -> tuple[str, bytes]:
    """A path, and a body for it."""
    path, field = rng.choice([*_FIELDS.items()])
    total = rng.choice(_SIZES)
    parts = _many(rng, _part, total)
    values = [parts, _many(rng, _leaf, total), _text(rng, total), f'[{{"role":"user","content":{parts}}}]']
    extras = ["", f',"tools":{_many(rng, _part, 100_000)}', f',"system":{_text(rng, 50_000)}', ',"model":"m"' * 500]
    extras += [',"logit_bias":{' + ",".join(f'"{each}":-100' for each in range(rng.choice((10, 5000)))) + "}"]
    body = f'{{"model":"m","{field}":{rng.choice(values)}{rng.choice(extras)}}}'
    return path, body.encode()[: MEBIBYTE + rng.choice((0, 100_000))]


async def bodies_made_up_by_chance(target: Target) -> Iterable[str]:
    """Bodies drawn from texts, parts, media, tools and numbers of twelve APIs at six sizes, the model exchanged, twelve at a time."""
    answered = Counter[str]()
    while target.seconds_left() > 1 or answered.total() < 60:
        drawings = [drawn(target.rng) for _ in range(12)]
        payloads = [request(body, {":path": path, REWRITE: "another"}) for path, body in drawings]
        for stream in (await exchanged(target.ext_proc_port, payloads, 3.0)).values():
            answered.update(reply.WhichOneof("response") or "" for reply in replies(stream)[:1])
    routed, refused = answered["request_headers"], answered["immediate_response"]
    return [] if min(routed, refused) > 5 else [f"the attempt was none: {routed} bodies were routed, and {refused} refused"]


def _modes() -> Iterable[ProtocolConfiguration]:
    """All in which the picker sees the body of a request before it has to answer the headers, or after it has."""
    for mode, early in ((1, True), (2, False), (2, True), (3, False), (3, True), (4, False), (4, True)):
        yield ProtocolConfiguration(
            request_body_mode=mode,  # type: ignore[arg-type]
            response_body_mode=mode,  # type: ignore[arg-type]
            send_body_without_waiting_for_header_response=early,
        )


def _sent_on(answers: Iterable[ProcessingResponse]) -> bytes:
    """The body that the model server gets by these answers, where each replaces something."""
    mutations: Iterable[BodyMutation] = (each.request_body.response.body_mutation for each in answers if each.HasField("request_body"))
    return b"".join(each.body or each.streamed_response.body for each in mutations)


async def large_bodies_in_each_mode(target: Target) -> Iterable[str]:
    """Bodies just over `--large-body` of six JSON APIs, whole or in pieces of any size, in seven modes at once: the model is exchanged."""
    wrong = Counter[str]()

    async def asked(configuration: ProtocolConfiguration) -> None:
        payloads, expected = [], []
        whole = configuration.request_body_mode in (2, 3)
        for path, needed in (
            ("/v1/completions", '"prompt":"p"'),
            ("/v1/chat/completions", '"messages":[{"role":"user","content":"c"}]'),
            ("/v1/responses", '"input":"i"'),
            ("/v1/embeddings", '"input":["i"]'),
            ("/v1/messages", '"messages":[{"role":"user","content":"c"}]'),
            ("/inference/v1/generate", '"token_ids":[1]'),
        ):
            filling = "x" * (MEBIBYTE + target.rng.choice((1, 100, 70_000)))
            body = f'{{"model":"m",{needed},"user":"{filling}"}}'.encode()
            head = headers_message({":path": path, REWRITE: "another", "content-length": f"{len(body)}"})
            head.protocol_config.CopyFrom(configuration)
            pieces = len(body) if whole else target.rng.choice((1000, 60_000, 400_000))
            payloads.append(grpc([head, *body_messages(body, pieces)]))
            expected.append(body.replace(b'"m"', b'"another"', 1))
        heard = await exchanged(target.ext_proc_port, payloads, 12.0)
        for at, body in enumerate(expected):
            answers = replies(heard.get(at, b""))
            if any(each.HasField("immediate_response") for each in answers):
                wrong["refused"] += 1
            elif _sent_on(answers) != body:
                wrong["others"] += 1
            else:
                wrong["right"] += 1

    # Before anything is judged the process that parses them has to be there: it takes longer to start than an exchange waits for more.
    await exchanged(target.ext_proc_port, [request(b'{"model":"m","prompt":"' + b"x" * MEBIBYTE + b'"}')], 10.0)
    await asyncio.gather(*map(asked, _modes()))
    told = f"{wrong['others']} large bodies became others, and {wrong['refused']} were refused, of {wrong.total()}"
    return [told] if wrong["others"] or wrong["refused"] else []


ATTEMPTS = (
    Attempt(bodies_made_up_by_chance, config=EVERY_PARSER),
    Attempt(large_bodies_in_each_mode, config=EVERY_PARSER),
)
