"""The page of metrics with the names of before as well, beside all the series that clients can make."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.attempts.catalogue import CONFIG, Attempt, Target
from benchmarks.attempts.gateway import answer_messages, grpc, request
from benchmarks.attempts.kept import EXPERIMENTS, beside, hold, page_of
from benchmarks.attempts.posing import hostile_entries, write_endpoints
from benchmarks.attempts.second import asked, refused, second
from benchmarks.attempts.streams import exchanged
from benchmarks.siege.beat import install_plugin

_TWINS = "--legacy-metrics=true"
_SHORT = b'{"model":"m","prompt":"p"}'
_ANSWER = grpc(
    answer_messages(
        b'data: {"usage":{"prompt_tokens":9,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":3}}}\n\n' * 3,
        {"content-type": "text/event-stream"},
        100,
    )
)


async def _read_meanwhile(target: Target, work: asyncio.Future[object], least: int) -> Iterable[str]:
    """Read the page again and again until the work is done: whether each can be read, and has as many samples at last."""
    found, samples = list[str](), 0
    while not work.done():
        page = await page_of(target)
        try:
            samples = max(samples, sum(len(family.samples) for family in await asyncio.to_thread(_families, page)))
        except ValueError as problem:
            found.append(f"the page cannot be read: {problem}")
        await asyncio.sleep(0.2)
    await work
    return found if samples > least else [*found, f"the attempt was none: the page has {samples} samples at most"]


def _families(page: str) -> list[object]:
    return list(text_string_to_metric_families(page))


async def twins_of_flows_at_their_endpoints(target: Target) -> Iterable[str]:
    """The names of before are shown too, while 16,000 requests of as many flows stay, and the page is read without rest."""

    def payloads() -> Iterable[bytes]:
        for number in range(1000):
            whose = {"x-llm-d-inference-fairness-id": f"{number}-{target.rng.random()}"}
            yield request(_SHORT, whose)

    held = asyncio.gather(*(hold(target, payloads(), 3.0, reset=target.rng.random() < 0.5) for _ in range(16)))
    return await _read_meanwhile(target, held, 1000)


async def twins_of_every_combination(target: Target) -> Iterable[str]:
    """The names of before are shown too, of 250 pairs of models, each with a stream, tokens, an error and a queue, in a pool of 4000."""
    write_endpoints(target, hostile_entries(target.model_server_port, 4000))

    async def ask() -> None:
        for _ in range(3):
            payloads = [
                request(b'{"model":"m%d","stream":true,"prompt":"p"}' % (each % 260), {"x-gateway-model-name-rewrite": f"t{each}"})
                + _ANSWER
                for each in range(300)
            ]
            await asyncio.gather(*(exchanged(target.ext_proc_port, payloads, 3.0) for _ in range(3)))

    return await _read_meanwhile(target, asyncio.ensure_future(ask()), 20_000)


_COUNTING = '''\
import numpy as np

from endpick.api import Scorer
from endpick.api.fast_metrics import Distributions


class Counting(Scorer):
    """Has nearly as many samples as an instance may show."""

    async def start(self):
        sizes = Distributions("acme_sizes", "Of things.", ("kind",), range(17), self.context.registry)
        for number in range(4900):
            sizes.labels(f"{number}").observe(1.0)

    def score(self, request, endpoints, state):
        return np.zeros(len(endpoints))
'''


async def twins_beside_a_plugin_with_many_samples(target: Target) -> Iterable[str]:
    """The names of before are shown too, on a second picker with a plugin that has 98,000 samples, and the page is read without rest."""
    site = target.folder / "counting"
    if not site.exists():
        install_plugin(site, "acme.counting", "Counting", _COUNTING)
    files = {f"site/{path.relative_to(site)}": path.read_text() for path in site.rglob("*") if path.is_file()}
    config = beside("- type: acme.counting\n", "  - pluginRef: acme.counting\n")
    async with second(target, _TWINS, config=config, files=files) as made:
        answers = [False]
        for _ in range(3):
            reading = asyncio.create_task(asyncio.to_thread(_page_at, made.picker.metrics_port))
            answers = [await asked(made.picker.ext_proc_port) for _ in range(20)]
            if (await reading).count("acme_sizes_bucket") < 80_000:
                made.told.append("the attempt was none: the page has not all samples of the plugin")
        made.told += refused(answers, "while a page of 98,000 samples was written")
    return made.told


def _page_at(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        return str(page.read(), "utf-8")


_FLOWS = beside("- type: inflight-load-producer\n- type: active-request-scorer\n", "  - pluginRef: active-request-scorer\n")
_QUEUES = CONFIG.replace("kind:", "featureGates: [flowControl]\nkind:", 1)
ATTEMPTS = (
    Attempt(twins_of_flows_at_their_endpoints, flags=(EXPERIMENTS, _TWINS), config=_FLOWS, transports=("h2",)),
    Attempt(twins_of_every_combination, flags=(EXPERIMENTS, _TWINS), config=_QUEUES),
    Attempt(twins_beside_a_plugin_with_many_samples),
)
