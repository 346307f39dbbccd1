"""Simulates llm-d's routing sidecar: lets other servers encode and prefill before a server decodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import aiohttp
import orjson

PREFILL_HEADER = "x-prefiller-host-port"
ENCODE_HEADER = "x-encoder-hosts-ports"
RANK_HEADER = "x-data-parallel-host-port"
CHAT_PATH = "/v1/chat/completions"
MEDIA_TYPES = frozenset({"image_url", "video_url", "audio_url", "input_audio"})

Stage = Literal["encode", "prefill", "rank"]
Outcome = Literal["ok", "refused", "failed"]
Count = Callable[[Stage, Outcome], None]

_UNREACHABLE = (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError, ValueError)


@dataclass(frozen=True, slots=True)
class Relayed:
    """The response of another server, to be passed to the client."""

    status: int
    body: bytes
    content_type: str
    served_by: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request for this server; `headers` name the servers of earlier stages in the response."""

    body: bytes
    headers: Mapping[str, str]


class Sidecar:
    """Runs the stages in a request's headers. Create and close it on the running event loop."""

    def __init__(self, count: Count) -> None:
        """`count` is called for each request to another server."""
        self._count = count
        self._client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60))

    async def close(self) -> None:
        """Close the connections to other servers."""
        await self._client.close()

    async def prepare(self, path: str, headers: Mapping[str, str], body: bytes, own_address: str) -> Prepared | Relayed:
        """Run earlier stages on other servers, or here if they fail; a refused prefill (4xx) is the client's response."""
        rank = headers.get(RANK_HEADER)
        if rank and rank != own_address:
            return await self._forward(rank, path, body)
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError:
            return Prepared(body, {})
        if not isinstance(document, dict):
            return Prepared(body, {})
        stage_headers = {}
        encoders = [encoder.strip() for encoder in headers.get(ENCODE_HEADER, "").split(",") if encoder.strip()]
        encoded_by = await self._encode(encoders, document)
        if encoded_by:
            stage_headers["x-encoded-by"] = ",".join(encoded_by)
        prefiller = headers.get(PREFILL_HEADER, "").partition(",")[0].strip()
        if not prefiller:
            return Prepared(body, stage_headers)
        reply = await self._prefill(prefiller, path, document)
        if isinstance(reply, Relayed):
            return reply
        if reply is None:
            return Prepared(body, stage_headers)
        transfer, stage_headers["x-prefilled-by"] = reply
        return Prepared(orjson.dumps({**document, "kv_transfer_params": transfer}), stage_headers)

    async def _encode(self, encoders: list[str], document: dict[str, object]) -> list[str]:
        items = media_of(document) if encoders else []
        asked = [
            self._post(
                encoders[position % len(encoders)],
                CHAT_PATH,
                {"model": document.get("model"), "messages": [{"role": "user", "content": [item]}], "max_tokens": 1, "stream": False},
            )
            for position, item in enumerate(items)
        ]
        replies = await asyncio.gather(*asked)
        for reply in replies:
            self._count("encode", "ok" if reply is not None and reply.status == 200 else "failed")
        return [reply.served_by for reply in replies if reply is not None and reply.status == 200]

    async def _prefill(self, server: str, path: str, document: dict[str, object]) -> tuple[object, str] | Relayed | None:
        """Transfer parameters and the server's name; None if this server has to prefill."""
        reply = await self._post(server, path, prefill_request(document))
        if reply is not None and 400 <= reply.status < 500:
            self._count("prefill", "refused")
            return reply
        try:
            transfer = orjson.loads(reply.body).get("kv_transfer_params") if reply is not None and reply.status == 200 else None
        except _UNREACHABLE:
            transfer = None
        self._count("prefill", "failed" if transfer is None or reply is None else "ok")
        return None if transfer is None or reply is None else (transfer, reply.served_by)

    async def _forward(self, rank: str, path: str, body: bytes) -> Relayed:
        reply = await self._post(rank, path, body)
        if reply is None:
            self._count("rank", "failed")
            message = f'{{"error": {{"message": "no rank listens at {rank}", "type": "BadRequestError", "param": null, "code": 400}}}}'
            return Relayed(400, message.encode(), "application/json", "")
        self._count("rank", "ok")
        return reply

    async def _post(self, server: str, path: str, body: dict[str, object] | bytes) -> Relayed | None:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        try:
            async with self._client.post(f"http://{server}{path}", data=data, headers={"content-type": "application/json"}) as response:
                return Relayed(response.status, await response.read(), response.content_type, response.headers.get("x-served-by", ""))
        except _UNREACHABLE:
            return None


def media_of(document: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the distinct media of a chat, in order."""
    messages = document.get("messages")
    found: dict[bytes, dict[str, object]] = {}
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] in MEDIA_TYPES:
                found.setdefault(orjson.dumps(part, option=orjson.OPT_SORT_KEYS), part)
    return list(found.values())


def prefill_request(document: Mapping[str, object]) -> dict[str, object]:
    """Build the prefill request: one output token, and KV blocks kept for another engine."""
    transfer = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    kept = {name: value for name, value in document.items() if name not in ("stream_options", "min_tokens")}
    limits = {name: 1 for name in ("max_tokens", "max_completion_tokens") if name == "max_tokens" or name in document}
    return {**kept, **limits, "stream": False, "kv_transfer_params": transfer}


def transfer_offer(asked: Mapping[str, object] | None, name: str, host: str, port: int, blocks: int) -> dict[str, object] | None:
    """Return the transfer parameters of a prefill server, or None if not requested."""
    if not asked or asked.get("do_remote_decode") is not True:
        return None
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": name,
        "remote_block_ids": list(range(blocks)),
        "remote_host": host,
        "remote_port": port,
    }
