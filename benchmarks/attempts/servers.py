"""Model servers whose metrics pages are no pages, never end, or come all at once; and pools that flip."""

from __future__ import annotations

import asyncio
import struct
import zlib

from benchmarks.attempts.catalogue import CONFIG, Attempt, Target
from benchmarks.attempts.gateway import MEBIBYTE
from benchmarks.attempts.posing import PLAIN, Serve, answering, beside, hostile_entries, page, serving, write_endpoints

_LONG = 8 * MEBIBYTE - 4096
_NAMES = ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc")
_CHUNKED = PLAIN + b"Transfer-Encoding: chunked\r\n\r\n"


def _filled(line: bytes, size: int = _LONG) -> bytes:
    return line * (size // len(line))


def _of_each_shape() -> list[bytes]:
    labels = b",".join(b'a%d="x"' % number for number in range(600_000))
    adapters = b",".join(b"adapter-%d" % number for number in range(600_000))
    return [
        _filled(b"# HELP a b\n"),
        _filled(b"\r"),
        b"vllm:num_requests_waiting{" + labels[:_LONG] + b"} 1\n",
        b'vllm:lora_requests_info{running_lora_adapters="' + adapters[:_LONG] + b'",max_lora="4"} 1\n',
        b"".join(b"f%d 1\n" % number for number in range(750_000))[:_LONG],
        b'vllm:num_requests_waiting{model_name="' + b'\\"' * (_LONG // 2) + b'"} 1\n',
        b"vllm:num_requests_waiting " + b"9" * _LONG + b"\n",
        b"vllm:num_requests_waiting" + b" " * _LONG + b"1\n",
        b"\0" * _LONG,
        _filled(b'vllm:num_requests_waiting 1 # {trace_id="a"} 1 1700000000\n'),
        _filled(b'vllm:num_requests_waiting{model_name="\xf0\x9f\xa6\x99"} 1\n'),
        _filled(b"vllm:kv_cache_usage_perc{"),
        _filled(b'vllm:cache_config_info{block_size="16",num_gpu_blocks="4096"} 1\n'),
        _filled(b'{,}="" 1\n'),
    ]


async def pages_of_8_mb_in_every_shape(target: Target) -> None:
    """20 servers whose pages are 8 MB of comments, labels, adapters, families, quotes, digits, blanks, NUL, exemplars, other alphabets."""
    await beside(target, answering(*(page(body) for body in target.rng.sample(_of_each_shape(), 14))))


async def numbers_that_are_none(target: Target) -> None:
    """Pages whose values are NaN, infinite, 1e308, negative, hexadecimal, of 4000 digits, go back, and change with each scrape."""
    values = (
        b"NaN",
        b"+Inf",
        b"-Inf",
        b"1e308",
        b"-1e308",
        b"-0",
        b"0x1p3",
        b"9" * 4000,
        b"1_000",
        b"",
        b"1e-400",
        b"\xd9\xa1",
        b"1e99999",
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            lines = [b"vllm:%s %s\n" % (name.encode(), target.rng.choice(values)) for name in _NAMES * 20]
            config = b'vllm:cache_config_info{block_size="%s",num_gpu_blocks="%s"} 1\n'
            lines.append(config % (target.rng.choice(values), target.rng.choice(values)))
            target.rng.shuffle(lines)
            writer.write(page(b"".join(lines)))

    await beside(target, serve, 40)


async def formats_that_change(target: Target) -> None:
    """The same servers answer in turn with text, OpenMetrics, protobuf, HTML, JSON, UTF-16, and gzip, deflate, br or zstd that lie."""
    text = b"vllm:num_requests_waiting 1\n"
    bomb = zlib.compress(b"\n" * (400 * MEBIBYTE), 9)
    answers = (
        page(text),
        page(text + b"# EOF\n", b"Content-Type: application/openmetrics-text; version=1.0.0\r\n"),
        page(struct.pack(">I", 2**31) + b"\x0a\xff\xff\xff\xff\x0f" * 1000, b"Content-Type: application/vnd.google.protobuf\r\n"),
        page(b"<html>" * 10_000),
        page(b"[" * MEBIBYTE),
        page(text.decode().encode("utf-16")),
        page(b"\xef\xbb\xbf" + text),
        page(bomb, b"Content-Encoding: deflate\r\n"),
        page(bomb[:-10], b"Content-Encoding: deflate\r\n"),
        page(text, b"Content-Encoding: gzip\r\n"),
        page(text, b"Content-Encoding: br\r\n"),
        page(text, b"Content-Encoding: zstd, gzip\r\n"),
        page(text, b"Content-Encoding: \xff\xfe\r\n"),
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(target.rng.choice(answers))
            await writer.drain()

    await beside(target, serve)


async def answers_that_are_no_answers(target: Target) -> None:
    """Contradicting lengths, interim answers without end, trailers, upgrades, redirects, three answers at once, HTTP/0.9, HTTP/2, noise."""
    ok = page(b"vllm:num_requests_waiting 1\n")
    answers = (
        PLAIN + b"Content-Length: 5\r\nContent-Length: 7\r\n\r\nabcde",
        PLAIN + b"Content-Length: -1\r\n\r\n",
        PLAIN + b"Content-Length: " + b"9" * 4000 + b"\r\n\r\n",
        PLAIN + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000 + ok,
        b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\n" * 2000,
        _CHUNKED + b"1\r\na\r\n" * 30_000,
        _CHUNKED + b"-1\r\na\r\n",
        _CHUNKED + b"ffffffffffffffff\r\na\r\n",
        _CHUNKED + b"0\r\n" + b"X-T: a\r\n" * 300 + b"\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n" + ok,
        b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n",
        ok * 3,
        b"vllm:num_requests_waiting 1\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
        b"HTTP/1.1 200 " + b"a" * 300_000,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 60_000,
        b"HTTP/1.1 99999 OK\r\n\r\n",
        b"\x16\x03\x01" * 10_000,
        target.rng.randbytes(100_000),
        b"",
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(target.rng.choice(answers))
        await writer.drain()
        await asyncio.sleep(target.rng.choice((0, 0.01, 0.5)))

    await beside(target, serve, 60)


def _endless(begin: bytes, part: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begin)
        while True:
            writer.write(part)
            await writer.drain()

    return serve


async def extensions_of_chunks_without_end(target: Target) -> None:
    """40 servers send one chunk whose extension has no end, as fast as they can."""
    await beside(target, _endless(_CHUNKED + b"5;", b"a" * MEBIBYTE), 40)


async def trailers_without_end(target: Target) -> None:
    """40 servers send a page, and behind it one trailer that has no end, as fast as they can."""
    await beside(target, _endless(_CHUNKED + b"1\r\na\r\n0\r\nX-Trailer: ", b"a" * MEBIBYTE), 40)


async def chunks_of_one_byte(target: Target) -> None:
    """40 servers send chunks of one byte with leading zeros, as fast as they can."""
    await beside(target, _endless(_CHUNKED, b"0001\r\n#\r\n" * 50_000), 40)


async def drips(target: Target) -> None:
    """80 servers send their answers byte by byte, or stop in the middle; half of them announce 8 MB."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        size = target.rng.choice((30, 8_000_000))
        writer.write(PLAIN + b"Content-Length: %d\r\n\r\n" % size + b"#" * target.rng.choice((0, 300_000 if size > 30 else 0)))
        while True:
            await asyncio.sleep(target.rng.choice((0.001, 0.05)))
            writer.write(b"#")
            await writer.drain()

    await beside(target, serve, 80)


async def silence_and_resets(target: Target) -> None:
    """80 servers take connections and say nothing, reset them at once, or in the middle of a page."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match target.rng.randrange(3):
            case 0:
                await asyncio.sleep(60)
            case 1:
                writer.get_extra_info("socket").setsockopt(1, 13, struct.pack("ii", 1, 0))  # SO_LINGER: a reset
            case _:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(page(b"#" * 100_000)[: target.rng.randrange(1, 100_000)])
                await writer.drain()

    await beside(target, serve, 80)


def _together(every_seconds: float, answer: bytes, begin: int) -> Serve:
    """Holds answers back until a moment that all servers share, but for their first bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer[:begin])
            await asyncio.sleep(every_seconds - loop.time() % every_seconds)
            writer.write(answer[begin:])
            await writer.drain()

    return serve


async def pages_that_come_at_one_moment(target: Target) -> None:
    """300 servers hold pages of 250 KB back, and send them at one moment."""
    body = b"".join(b'vllm:f%d{model_name="m"} %d\n' % (number, number) for number in range(20_000))[:250_000]
    await beside(target, _together(0.7, page(body + b"\n" + b"vllm:num_requests_waiting 1\n"), 200), 300)


async def short_pages_of_thousands_at_one_moment(target: Target) -> None:
    """2000 servers hold short pages back, and send them at one moment."""
    await beside(target, _together(0.7, page(b"vllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.5\n"), 20), 2000)


async def connections_that_end_at_one_moment(target: Target) -> None:
    """2000 servers hold answers back, and reset all their connections at one moment."""

    async def serve(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.7 - asyncio.get_running_loop().time() % 0.7)

    await beside(target, serve, 2000)


async def endpoints_that_flip(target: Target) -> None:
    """500 endpoints in the file are 500 others each 50 ms, some of them with the same names; all serve pages."""
    async with serving(answering(page(b"vllm:num_requests_waiting 1\n"))) as port:
        while target.seconds_left() > 1:
            first = target.rng.randrange(3000)
            entries = hostile_entries(port, 500, first)
            write_endpoints(target, entries if target.rng.random() < 0.5 else entries.replace("name: h", "name: other"))
            await asyncio.sleep(0.05)
    write_endpoints(target)


_READER = """\
from endpick.api import SERVED_MODELS, Scorer


class ReadsModels(Scorer):
    \"\"\"Has the lists of models read.\"\"\"

    consumes = (SERVED_MODELS,)

    def score(self, request, endpoints, state):
        endpoints.objects(SERVED_MODELS)
        return [0.0] * len(endpoints)
"""
_FILES = {
    "site/reads_models.py": _READER,
    "site/reads_models-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: reads-models\nVersion: 1.0\nRequires-Dist: endpick\n",
    "site/reads_models-1.0.dist-info/entry_points.txt": "[endpick.plugins.v1]\nreads.models = reads_models:ReadsModels\n",
}
_MODELS = (
    CONFIG.replace("plugins:\n", "plugins:\n- type: reads.models\n- type: models-data-source\n- type: models-data-extractor\n", 1)
    .replace(
        "dataLayer: {discovery: {pluginRef: endpoints}}",
        "dataLayer: {discovery: {pluginRef: endpoints}, sources: "
        "[{pluginRef: models-data-source, collectors: [{pluginRef: models-data-extractor}]}]}",
    )
    .replace("  - pluginRef: max-score", "  - pluginRef: reads.models\n  - pluginRef: max-score")
)


async def lists_of_models_that_are_none(target: Target) -> None:
    """40 servers answer with 8 MB of models, of brackets, numbers, escapes, one text, and with names that command a terminal."""
    one = b'{"id":"\\u001b[2J\\nlevel=critical","parent":"\\ud800"}'
    bodies = (
        b'{"data":[' + b",".join([one] * 50_000) + b"]}",
        b'{"data":' + b"[" * 4_000_000,
        b'{"data":[' + b"1," * 3_900_000 + b"1]}",
        b'{"data":[{"id":"' + b"\\u0061" * 1_300_000 + b'"}]}',
        b'{"data":[{"id":"' + b"m" * 8_000_000 + b'"}]}',
        b'{"data":[{"id":1e999,"parent":{}}]}',
        b'{"data":[{"id":"\xff"}]}',
        b'{"data":{"id":"m"}}',
        b'{"data":' + b'{"id":"m","data":' * 200_000,
        b'{"data":[' + b"1," * 150_000 + b"1]}",
        b'{"data":[' + b'{"id":1},' * 20_000 + b"{}]}",
    )
    await beside(target, answering(*(page(body) for body in target.rng.sample(bodies, len(bodies)))), 40)


ATTEMPTS = (
    Attempt(pages_of_8_mb_in_every_shape),
    Attempt(numbers_that_are_none),
    Attempt(formats_that_change),
    Attempt(answers_that_are_no_answers),
    Attempt(extensions_of_chunks_without_end),
    Attempt(trailers_without_end),
    Attempt(chunks_of_one_byte),
    Attempt(drips),
    Attempt(silence_and_resets),
    Attempt(pages_that_come_at_one_moment),
    Attempt(short_pages_of_thousands_at_one_moment),
    Attempt(connections_that_end_at_one_moment),
    Attempt(endpoints_that_flip),
    Attempt(lists_of_models_that_are_none, config=_MODELS, files=_FILES),
)
