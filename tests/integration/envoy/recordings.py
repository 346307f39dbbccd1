"""Conversations that a real Envoy had with a picker: what to say to get them, and how they are kept in the repository."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from endpick._proto.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from integration.envoy.picker import Message

FOLDER = Path(__file__).resolve().parents[2] / "fixtures/extproc"


@dataclass(frozen=True)
class Scenario:
    """One request that a client sends through Envoy."""

    dialect: str
    path: str = "/what"
    body: bytes | Sequence[bytes] | None = b'{"model":"internal"}'
    trailers: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


RENAME = {"x-test-rewrite": '"model":"internal"|"model":"public"'}
REFUSE = {"x-test-refuse": "429,ResourceExhausted,rejected-saturated"}
DIALECTS = ("full_duplex", "streamed", "streamed_early", "buffered", "buffered_partial", "no_response_body", "no_bodies")

SCENARIOS = {
    **{f"{dialect}-plain": Scenario(dialect) for dialect in DIALECTS},
    **{f"{dialect}-get": Scenario(dialect, "/v1/models", None) for dialect in DIALECTS},
    **{f"{dialect}-refused": Scenario(dialect, headers=REFUSE) for dialect in DIALECTS},
    **{f"{dialect}-response-trailers": Scenario(dialect, "/trailers") for dialect in DIALECTS},
    "full_duplex-sse": Scenario("full_duplex", "/sse?n=3", headers=RENAME),
    "full_duplex-split": Scenario("full_duplex", "/split", headers=RENAME),
    "full_duplex-subset": Scenario("full_duplex", headers={"x-test-subset": "10.0.0.1:8000,10.0.0.2"}),
    "full_duplex-served": Scenario("full_duplex", headers={"x-test-served": "10.0.0.2:8000"}),
    "full_duplex-via-upstream": Scenario("full_duplex"),
    "full_duplex-unreachable": Scenario("full_duplex", headers={"x-test-destination": "127.0.0.1:1"}),
    "full_duplex-reset": Scenario("full_duplex", "/reset"),
    "full_duplex-replaced": Scenario("full_duplex", headers={"x-test-body": '{"model":"other"}'}),
    "full_duplex-trailers": Scenario("full_duplex", body=[b"ab", b"cd"], trailers={"x-checksum": "42"}),
    "full_duplex-trailers-only": Scenario("full_duplex", body=[], trailers={"x-checksum": "42"}),
    "full_duplex-no-content": Scenario("full_duplex", "/empty"),
    "buffered-replaced": Scenario("buffered", headers={"x-test-body": '{"model":"other"}'}),
    "buffered-renamed": Scenario("buffered", "/echo", headers=RENAME),
    "buffered-trailers": Scenario("buffered", body=[b"ab", b"cd"], trailers={"x-checksum": "42"}),
    "buffered-trailers-only": Scenario("buffered", body=[], trailers={"x-checksum": "42"}),
}


def load(name: str) -> list[Message]:
    """The committed conversation."""
    lines = json.loads((FOLDER / f"{name}.json").read_text())
    return [(direction, base64.b64decode(text)) for line in lines for direction, text in line.items()]


def save(name: str, conversation: Iterable[Message]) -> None:
    """Commit to a conversation."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    lines = [{direction: base64.b64encode(message).decode()} for direction, message in conversation]
    (FOLDER / f"{name}.json").write_text(json.dumps(lines, indent=0) + "\n")


def shape(conversation: Iterable[Message]) -> tuple[list[str], list[str]]:
    """The kinds of messages each side sent, in order; how bodies are cut and interleaved is a matter of timing."""
    asked: dict[str, None] = {}
    answered: dict[str, None] = {}
    for direction, message in conversation:
        if direction == "in":
            asked[ProcessingRequest.FromString(message).WhichOneof("request") or ""] = None
        else:
            answered[ProcessingResponse.FromString(message).WhichOneof("response") or ""] = None
    return list(asked), list(answered)
