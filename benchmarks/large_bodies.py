"""How long the worst bodies that the limits allow keep a thread busy: `python -m benchmarks.large_bodies`.

Prints milliseconds of the openai-parser for each body of 32 MiB: its limits and `orjson.loads` together, rendering its prompt, writing
another model into it; and how much memory the parsed body takes. `endpick serve` lets a helper process do all this for large bodies.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from time import perf_counter

from endpick.api import ParsedRequest, PluginContext
from endpick_builtin.openai import OpenAIParser, OpenAIParserParameters

BYTES = 32 * 1024 * 1024
CONTAINERS = 131_072
VALUES = 2_097_152
PROMPTS = 4096
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def bodies() -> Iterator[tuple[str, str, bytes]]:
    """What it is, path and body."""
    yield "one string", COMPLETIONS, _prompt(b'"', b"a", b'"')
    yield "one string, all newlines", COMPLETIONS, _prompt(b'"', rb"\n", b'"')
    yield "one string, all escaped quotes", COMPLETIONS, _prompt(b'"', rb"\"", b'"')
    yield "one string, all \\u00e9", COMPLETIONS, _prompt(b'"', rb"\u00e9", b'"')
    yield "one string, all brackets", COMPLETIONS, _prompt(b'"', b"[{", b'"')
    yield "most values: token ids", COMPLETIONS, b'{"model":"m","prompt":[%s]}' % b",".join([b"1234567890"] * (VALUES - 8))
    yield "most values: floats", COMPLETIONS, b'{"model":"m","prompt":"p","x":[%s]}' % b",".join([b"1.234567890123"] * (VALUES - 8))
    yield "most values: short strings", COMPLETIONS, b'{"model":"m","prompt":"p","x":[%s]}' % b",".join([b'"\\u00e9abcdef"'] * (VALUES - 8))
    yield "most containers: messages", CHAT, b'{"model":"m","messages":[%s]}' % b",".join([_message(200)] * (CONTAINERS - 4))
    yield (
        "most containers: parts",
        CHAT,
        b'{"model":"m","messages":[{"role":"user","content":[%s]}]}' % b",".join([_part(200)] * (CONTAINERS - 8)),
    )
    yield (
        "most containers: tools",
        CHAT,
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[%s]}'
        % b",".join([b'{"type":"function","x":"%s"}' % (b"y" * 200)] * (CONTAINERS - 8)),
    )
    yield (
        "most keys",
        CHAT,
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"x":{%s}}'
        % b",".join(b'"%014d":0' % number for number in range(VALUES // 2 - 8)).ljust(10),
    )
    yield "many prompts", COMPLETIONS, b'{"model":"m","prompt":[%s]}' % b",".join([b'"%s"' % (b"z" * (BYTES // PROMPTS - 8))] * PROMPTS)
    depth = 1000
    yield (
        "deep nesting",
        COMPLETIONS,
        b'{"model":"m","prompt":"p","x":[%s]}' % b",".join([b"[" * depth + b"]" * depth] * (CONTAINERS // depth - 1)),
    )


def _prompt(before: bytes, filling: bytes, after: bytes) -> bytes:
    head, end = b'{"model":"m","prompt":' + before, after + b"}"
    return head + filling * ((BYTES - len(head) - len(end)) // len(filling)) + end


def _message(size: int) -> bytes:
    return b'{"role":"user","content":"%s"}' % (b"m" * size)


def _part(size: int) -> bytes:
    return b'{"type":"text","text":"%s"}' % (b"p" * size)


def main() -> None:
    """Print the table."""
    parser = OpenAIParser("openai-parser", OpenAIParserParameters(), PluginContext())
    print(f"{'body':34} {'MiB':>5} {'parse':>8} {'render':>8} {'rewrite':>8} {'all':>8}  milliseconds    peak MiB")
    for name, path, body in bodies():
        begin = perf_counter()
        parsed = parser.parse(path, {}, body)
        parsing = perf_counter()
        if not isinstance(parsed, ParsedRequest):
            print(f"{name:34} {len(body) / 2**20:5.1f} {1e3 * (parsing - begin):8.1f}  refused: {parsed.message}")
            continue
        _ = parsed.prompt.texts
        rendering = perf_counter()
        parser.rewrite_model(body, parsed, "another")
        end = perf_counter()
        times = (parsing - begin, rendering - parsing, end - rendering, end - begin)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{name:34} {len(body) / 2**20:5.1f} " + " ".join(f"{1e3 * each:8.1f}" for each in times) + f"{peak:26.0f}", flush=True)


if __name__ == "__main__":
    main()
