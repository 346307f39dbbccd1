"""Hostile and large request bodies on `endpick serve`: they are parsed in place, and other requests do not wait for them."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from endpick._proto import ext_proc_pb2 as pb
from integration.plugins.serving import METHOD, Picker, serving

pytestmark = [pytest.mark.long, pytest.mark.asyncio]

CONFIG = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- {type: queue-scorer}
- {type: prefix-cache-scorer}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer}, {pluginRef: prefix-cache-scorer}]
dataLayer:
  discovery: {endpoints: {pluginRef: file-discovery}}
"""
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MIB = 1 << 20
MAX_DELAY_SECONDS = 0.25
"""CPU time of the server while an honest request waits: the delay on a machine that does nothing else."""
MAX_RESIDENT_BYTES = 1.2 * (1 << 30)


def repeated(before: bytes, item: bytes, after: bytes, size: int) -> bytes:
    return before + b",".join([item] * (size // (len(item) + 1))) + after


HOSTILE = {
    "parts": (
        CHAT,
        lambda: repeated(b'{"model":"m","messages":[{"role":"user","content":[', b'{"type":"text","text":"a"}', b"]}]}", 3 * MIB),
        413,
    ),
    "prompts": (COMPLETIONS, lambda: repeated(b'{"model":"m","prompt":[', b'"a"', b"]}", 16 * MIB), 413),
    "messages": (CHAT, lambda: repeated(b'{"model":"m","messages":[', b'{"role":"user","content":"a"}', b"]}", 16 * MIB), 413),
    "tools": (CHAT, lambda: repeated(b'{"model":"m","messages":[{"content":"a"}],"tools":[', b'{"type":"function"}', b"]}", 16 * MIB), 413),
    "keys": (CHAT, lambda: b"{" + b",".join(b'"k%d":1' % number for number in range(16 * MIB // 12)) + b"}", 413),
    "nesting": (CHAT, lambda: b'{"model":' + b"[" * (MIB // 2) + b"]" * (MIB // 2) + b"}", 413),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "endpoints.yaml").write_text('endpoints:\n- {name: a, address: 127.0.0.1, port: "1"}\n')
    return tmp_path


def conversation(path: str, body: bytes, rewrite: str = "") -> Iterator[bytes]:
    """The messages of one request, its body in chunks of 64 KiB as a gateway sends them."""
    names = {":path": path, ":method": "POST"} | ({"x-llm-d-model-name-rewrite": rewrite} if rewrite else {})
    headers = pb.HeaderMap(headers=[pb.HeaderValue(key=key, raw_value=value.encode()) for key, value in names.items()])
    yield pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=headers)).SerializeToString()
    for start in range(0, len(body), 1 << 16):
        chunk = pb.HttpBody(body=body[start : start + (1 << 16)], end_of_stream=start + (1 << 16) >= len(body))
        yield pb.ProcessingRequest(request_body=chunk).SerializeToString()


def send(port: int, path: str, body: bytes, rewrite: str = "") -> tuple[int, bytes]:
    """The status of a refusal, or 0 and the body for the model server. Blocks."""
    sent = b""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for serialised in channel.stream_stream(METHOD)(conversation(path, body, rewrite)):
            answer = pb.ProcessingResponse.FromString(serialised)
            if answer.WhichOneof("response") == "immediate_response":
                return answer.immediate_response.status.code, answer.immediate_response.body
            streamed = answer.request_body.response.body_mutation.streamed_response
            sent += streamed.body
            if streamed.end_of_stream:
                return 0, sent
    raise AssertionError("the stream ended without an answer")


def resident_bytes(picker: Picker) -> int:
    status = Path(f"/proc/{picker.process.pid}/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def attack(port: int, done: threading.Event) -> dict[str, int]:
    statuses = {name: send(port, path, body())[0] for name, (path, body, _) in HOSTILE.items()}
    done.set()
    return statuses


def delays_until(picker: Picker, done: threading.Event) -> list[float]:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello " * 100}]}).encode()
    delays: list[float] = []
    while not done.is_set():
        began = cpu_seconds(picker)
        assert send(picker.port, CHAT, body) == (0, body)
        delays.append(cpu_seconds(picker) - began)
    return delays


def cpu_seconds(picker: Picker) -> float:
    fields = Path(f"/proc/{picker.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_hostile_bodies_do_not_delay_honest_requests(folder: Path) -> None:
    done = threading.Event()
    async with serving(folder) as picker:
        attacking = asyncio.create_task(asyncio.to_thread(attack, picker.port, done))
        delays = await asyncio.to_thread(delays_until, picker, done)
        assert await attacking == {name: status for name, (_, _, status) in HOSTILE.items()}
        assert max(delays) < MAX_DELAY_SECONDS, sorted(delays)[-5:]
        assert resident_bytes(picker) < MAX_RESIDENT_BYTES


async def test_a_large_body_is_routed_and_its_model_rewritten(folder: Path) -> None:
    body = json.dumps({"model": "m", "prompt": "{word}, [" * (3 * MIB)}, separators=(",", ":")).encode()
    async with serving(folder) as picker:
        assert await asyncio.to_thread(send, picker.port, COMPLETIONS, body) == (0, body)
        assert await asyncio.to_thread(send, picker.port, COMPLETIONS, body, "other") == (0, body.replace(b'"m"', b'"other"', 1))
        too_large = b'{"prompt":"' + b"x" * 33 * MIB + b'"}'
        assert (await asyncio.to_thread(send, picker.port, COMPLETIONS, too_large))[0] == 413
