"""Bodies beyond a threshold go to the reader of large bodies, and their requests go on with what it says as all others do."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

import pytest

from endpick.api import ParsedRequest, Prompt, Rejection
from endpick.host.breaker import LATE_CALLS
from endpick.host.kinds import OnFault
from endpick.requests.director import Director
from endpick.requests.large import BodyRead, ElsewhereError, LargeBody, ParserFailed
from endpick.requests.model import NO_MODEL, Refused, Routed
from unit.requests.stage import CHAT, Stage, async_producer_of, parser_of, producer_of

SMALL = json.dumps(CHAT).encode()
LARGE = SMALL + b" "
PARSED = ParsedRequest(model="m", prompt=Prompt(lambda: (b"elsewhere",)), streaming=True, max_output_tokens=7, cache_salt="s")


@dataclass
class Elsewhere:
    """Says the same of every body, when it is allowed to."""

    answer: object
    asked: list[LargeBody] = field(default_factory=list)
    threshold_bytes: int = len(SMALL)
    threshold_weight: int = 32 * 1024
    release: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: int = 0

    async def read(self, large: LargeBody):
        self.asked.append(large)
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.answer


def stage_with(answer: object, **keywords) -> tuple[Stage, Elsewhere]:
    stage, elsewhere = Stage(**keywords), Elsewhere(answer)
    stage.director = Director(stage.pipeline, stage.table, stage.telemetry, lambda: stage.now, large_bodies=elsewhere)
    elsewhere.release.set()
    return stage, elsewhere


@pytest.mark.asyncio
async def test_a_body_of_more_bytes_than_the_threshold_is_read_elsewhere():
    seen = []
    stage, elsewhere = stage_with(
        BodyRead(PARSED, b"rewritten", 0.5), producers=[producer_of(lambda request, endpoints, state: seen.append(request))]
    )
    assert isinstance(stage.decide(SMALL), Routed)
    assert elsewhere.asked == []

    decision = await stage.decide(LARGE, "/v1/chat/completions?x=1", x_llm_d_model_name_rewrite="n", x_llm_d_inference_fairness_id="f")
    assert isinstance(decision, Routed)
    assert decision.body == b"rewritten"
    (large,) = elsewhere.asked
    assert (large.instance.name, large.path, large.body) == ("openai-parser", "/v1/chat/completions", LARGE)
    assert (large.rewrite, large.fairness_id, large.headers[":method"]) == ("n", "f", "POST")
    request = seen[-1]
    assert (request.model, request.incoming_model, request.fairness_id, request.size_bytes) == ("n", "m", "f", len(LARGE))
    assert (request.streaming, request.max_output_tokens, request.cache_salt) == (True, 7, "s")
    assert (request.prompt.texts, request.payload) == ((b"elsewhere",), None)
    assert stage.telemetry.timers["RequestParsing", "openai-parser"].total >= 0.5


@pytest.mark.asyncio
async def test_a_body_of_much_structure_is_read_elsewhere_however_short():
    stage, elsewhere = stage_with(BodyRead(PARSED, None, 0.1))
    elsewhere.threshold_bytes = 1024 * 1024
    stage.director = Director(stage.pipeline, stage.table, stage.telemetry, lambda: stage.now, large_bodies=elsewhere)
    long_text = json.dumps({"model": "m", "messages": [{"role": "user", "content": '{"a": [1, 2]},' * 20_000}]}).encode()
    assert isinstance(stage.decide(long_text), Routed), "what is within a string is no structure"
    assert elsewhere.asked == []

    parts = b'{"model":"m","messages":[{"role":"user","content":[%s{}]}]}' % (b"{}," * 6000)
    assert isinstance(await stage.decide(parts), Routed)
    assert [large.body for large in elsewhere.asked] == [parts]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        (Rejection("not mine", 403, "rejected-taste"), Refused(403, "Forbidden", "not mine", "rejected-taste")),
        (Refused(413, "PayloadTooLarge", "too slow", "rejected-body-too-slow"),) * 2,
        (BodyRead(ParsedRequest(), None, 0.1), NO_MODEL),
    ],
)
async def test_what_the_reader_refuses_is_refused(answer, refusal):
    stage, _ = stage_with(answer)
    assert await stage.decide(LARGE) == refusal
    assert stage.telemetry.refused == [("", refusal.code)]


@pytest.mark.asyncio
@pytest.mark.parametrize("method", ["parse", "rewrite_model"])
async def test_a_failure_elsewhere_is_a_fault_of_the_instance(method):
    stage, _ = stage_with(ParserFailed(method, ElsewhereError("ValueError: no"), 0.1))
    assert await stage.decide(LARGE) == Refused(500, "Internal", "plugin 'openai-parser' failed")
    assert stage.telemetry.faults == [("openai-parser", "RequestParsing", "ElsewhereError: ValueError: no")]


@pytest.mark.asyncio
async def test_a_parser_that_is_left_out_is_not_asked_elsewhere_either():
    odd = parser_of("odd", on_fault=OnFault.REFUSE, parse=lambda path, headers, body: PARSED)
    for _ in range(LATE_CALLS):
        odd.breaker.took(5.0)
    stage, elsewhere = stage_with(BodyRead(PARSED, None, 0.1), parsers=[odd])
    assert await stage.decide(LARGE) == Refused(500, "Internal", "plugin 'odd' failed")
    assert elsewhere.asked == []
    assert stage.telemetry.outs == [("odd", "RequestParsing")]


@pytest.mark.asyncio
async def test_a_path_that_no_parser_claims_is_refused_at_once():
    stage, elsewhere = stage_with(None, parsers=[parser_of("chat", ("/v1/chat/completions",), parse=lambda path, headers, body: PARSED)])
    assert (await stage.decide(LARGE, "/other")).message == "no parser is configured for path '/other'"
    assert elsewhere.asked == []


@pytest.mark.asyncio
async def test_a_producer_that_waits_is_awaited_after_the_body():
    async def wait(request, endpoints, state):
        await asyncio.sleep(0)

    stage, _ = stage_with(BodyRead(PARSED, None, 0.1), producers=[async_producer_of(wait)])
    assert isinstance(await stage.decide(LARGE), Routed)


@pytest.mark.asyncio
async def test_a_request_keeps_the_pipeline_that_it_began_with():
    old, elsewhere = stage_with(BodyRead(PARSED, None, 0.1))
    new = Stage(parsers=[])
    elsewhere.release.clear()
    deciding = asyncio.ensure_future(old.decide(LARGE))
    await asyncio.sleep(0)
    old.director.switch(new.pipeline)
    elsewhere.release.set()
    assert isinstance(await deciding, Routed)
    assert (await old.decide(LARGE)).status == 400


@pytest.mark.asyncio
async def test_a_stream_that_ends_is_told_to_the_reader():
    stage, elsewhere = stage_with(None)
    elsewhere.release.clear()
    deciding = asyncio.ensure_future(stage.decide(LARGE))
    await asyncio.sleep(0)
    deciding.cancel()
    await asyncio.gather(deciding, return_exceptions=True)
    assert elsewhere.cancelled == 1


def test_without_a_reader_every_body_is_parsed_in_place():
    body = json.dumps({**CHAT, "x": "y" * 2**21}).encode()
    assert isinstance(Stage().decide(body), Routed)


@pytest.mark.asyncio
@pytest.mark.filterwarnings("error")
async def test_a_stream_that_ends_before_its_body_is_looked_at_leaves_no_coroutine_that_was_never_awaited():
    stage, elsewhere = stage_with(BodyRead(PARSED, None, 0.1))
    decision = stage.decide(LARGE)
    decision.close()
    del decision
    assert elsewhere.asked == []
