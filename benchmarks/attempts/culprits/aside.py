"""A scorer that does what a header of the request asks for, and then scores as it should."""

import asyncio
import atexit
import concurrent.futures
import contextvars
import multiprocessing
import os
import threading
import time
import weakref
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
from prometheus_client import Counter
from prometheus_client.metrics_core import GaugeHistogramMetricFamily
from pydantic import field_validator

from endpick.api import WAITING_QUEUE_SIZE, DataKey, Endpoint, EndpointDiscovery, Parameters, Scope, Scorer, hookimpl

FORKED = multiprocessing.get_context("fork")
KEPT = []
POOL, JUDGED, REMOVED = Path("pool"), Path("judged"), Path("removed")
NOTE = DataKey("aside/note", str, Scope.REQUEST)
NOTED = contextvars.ContextVar("noted")


class Answerless:
    @property
    def __class__(self):
        raise SystemExit(3)

    @property
    def name(self):
        raise KeyboardInterrupt


class Loader:
    def __init__(self, act):
        self.get_source = act


def blocked(code_name, self=None, loader=None):
    """Hold the event loop in code that says of itself that it is from this file, and of its module that this loads it."""
    source = "def hold(self):\n    time.sleep(1.4)\n"
    known = {"time": time, "__name__": "odd", "__loader__": loader}
    exec(compile(source, code_name, "exec"), known)
    known["hold"](self)


def fork_and_end():
    child = FORKED.Process(target=time.sleep, args=(30,), daemon=True)
    child.start()
    time.sleep(0.02)
    child.terminate()
    KEPT.append(child)


def fork_and_hang_up():
    child = FORKED.Process(target=time.sleep, args=(30,), daemon=True)
    child.start()
    os.kill(child.pid, 1)
    os.kill(child.pid, 2)
    KEPT.append(child)


def fork_for_good():
    if os.fork() == 0:
        time.sleep(20)
        os._exit(0)


def fork_and_go_on():
    if os.fork() == 0:
        raise SystemExit(0)


def fill_executor():
    loop = asyncio.get_running_loop()
    KEPT.extend(loop.run_in_executor(None, time.sleep, 60) for _ in range(100))


async def unending():
    try:
        while True:
            yield 1
    finally:
        await asyncio.sleep(1e6)


def stubborn():
    try:
        yield 1
    except GeneratorExit:
        yield 2


async def begun():
    async for _ in unending():
        break


def leave_generators():
    loop = asyncio.get_running_loop()
    for _ in range(20):
        KEPT.append(loop.create_task(begun()))
        next(stubborn())
        odd = unending()
        KEPT.append(loop.create_task(first(odd)))
        token = contextvars.copy_context().run(NOTED.set, 1)
        with suppress(ValueError):
            NOTED.reset(token)
        gone = Gone()
        KEPT.append(weakref.ref(gone, lambda _: exec("raise SystemExit(9)")))
        weakref.finalize(gone, time.sleep, 0.001)


async def first(iterator):
    return await iterator.__anext__()


class Gone:
    def __del__(self):
        KEPT.append(self)
        raise SystemExit(7)


def hang_at_exit():
    atexit.register(time.sleep, 1e6)
    weakref.finalize(KEPT, time.sleep, 1e6)
    threading.Thread(target=time.sleep, args=(1e6,)).start()
    child = FORKED.Process(target=time.sleep, args=(20,))
    child.start()
    KEPT.append(child)
    loop = asyncio.get_running_loop()
    KEPT.extend(loop.run_in_executor(None, time.sleep, 1e6) for _ in range(3))
    KEPT.append(concurrent.futures.ThreadPoolExecutor(1).submit(time.sleep, 1e6))
    KEPT.append(loop.create_task(never_cancelled()))


async def never_cancelled():
    while True:
        with suppress(BaseException):
            await asyncio.sleep(1e6)


def fork_in_threads():
    for _ in range(5):
        threading.Thread(target=fork_for_good).start()
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        KEPT.extend(threads.map(in_a_child, range(4)))


def in_a_child(number):
    with FORKED.Pool(1) as pool:
        return pool.map(abs, [number])


class Ages:
    """Many samples that the text format writes behind their family, made once."""

    def __init__(self):
        self.family = GaugeHistogramMetricFamily("ages", "How old.", labels=["who"])
        for number in range(5000):
            self.family.add_metric([f"{number}"], [("1.0", number), ("+Inf", 2 * number)], 3 * number)

    def describe(self):
        return ()

    def collect(self):
        return [self.family]


DEEDS = {
    "fork-and-end": fork_and_end,
    "fork-and-hang-up": fork_and_hang_up,
    "fork-for-good": fork_for_good,
    "fork-and-go-on": fork_and_go_on,
    "fill-executor": fill_executor,
    "leave-generators": leave_generators,
    "hang-at-exit": hang_at_exit,
    "fork-in-threads": fork_in_threads,
    "block-in-a-pipe": lambda: blocked("pipe"),
    "block-without-an-answer": lambda: blocked("odd.py", Answerless()),
    "block-with-a-loader-that-raises": lambda: blocked("odd1.py", loader=Loader(lambda _: exec("raise SystemExit(5)"))),
    "block-with-a-loader-that-waits": lambda: blocked("odd2.py", loader=Loader(lambda _: time.sleep(1e6))),
    "block-with-a-loader-of-nonsense": lambda: blocked("odd3.py", loader=Loader(lambda _: 7)),
    "block-in-a-name-of-lines": lambda: blocked('odd\n{"level": "critical"}\x1b[2J\ud800'),
}


class Aside(Scorer):
    def score(self, request, endpoints, state):
        name = request.headers.get("x-deed", "")
        if name == "work-in-threads":
            for _ in range(3):
                threading.Thread(target=self.work, args=(request, endpoints, state), daemon=True).start()
        if name == "count-without-measure":
            threading.Thread(target=self.count, daemon=True).start()
        if name in DEEDS:
            DEEDS[name]()
        return np.ones(len(endpoints))

    async def start(self):
        self.seen = Counter("seen", "What threads have seen.", ("what",), registry=self.context.registry)

    def count(self):
        """Beside the event loop, which all this would hold."""
        for number in range(20_000):
            self.seen.labels(f"{number}").inc()
        self.context.registry.register(Ages())

    def work(self, request, endpoints, state):
        """Use what a call was given long after it, from a thread, as fast as may be, and keep it."""
        KEPT.append((request, endpoints, state))
        until = time.monotonic() + 3
        number = 0
        while time.monotonic() < until:
            number += 1
            with suppress(Exception):
                self.seen.labels(f"{threading.get_ident()}{number % 3000}").inc()
                KEPT[-1:] = [endpoints[WAITING_QUEUE_SIZE]]
                len(endpoints.take([0]).members)
                list(request.prompt.texts)
                dict(request.headers)
                state.put(NOTE, str(number))
                state.get(NOTE)
                self.context.logger.info("seen %d", number)
                self.context.random.random()

    def endpoint_removed(self, name):
        with REMOVED.open("a") as told:
            told.write(f"{self.name}\n")


class Patience(Parameters):
    """For how long the validation of another plugin takes."""

    seconds: float = 0

    @field_validator("seconds")
    @classmethod
    def waited(cls, value):
        time.sleep(value)
        return value


class Patient(Scorer[Patience]):
    def score(self, request, endpoints, state):
        return np.ones(len(endpoints))


class Restless(EndpointDiscovery):
    """Reports what is in a file from a thread of its own, and then as it should."""

    async def run(self, registry):
        while True:
            pool = [Endpoint(f"default/{name}", host, int(port)) for name, host, port in map(str.split, POOL.read_text().splitlines())]  # noqa: ASYNC240
            for report in (
                partial(registry.replace_all, pool),
                partial(registry.upsert, Endpoint("default/new", "127.0.98.1", pool[0].port)),
                partial(registry.remove, pool[0].name),
                partial(registry.set_objectives, {"o": 1}),
                registry.ready,
                partial(registry.stand_by, "from a thread"),
                partial(registry.stand_by, ""),
            ):
                with suppress(RuntimeError):
                    await asyncio.to_thread(report)
            registry.replace_all(pool)
            registry.ready()
            await asyncio.sleep(0.05)


class Shown:
    """Changes whatever it is shown, at once and later from a thread."""

    def __init__(self):
        self.kept = []
        threading.Thread(target=self.change_later, daemon=True).start()

    def change_later(self):
        while True:
            time.sleep(0.01)
            for shown in self.kept[-20:]:
                spoil(shown)

    @hookimpl
    def endpick_decision(self, record):
        self.judge(record, "endpoints")

    @hookimpl
    def endpick_validate(self, config, report):
        self.judge(config, "plugins")

    @hookimpl
    def endpick_config_reload(self, old, new):
        self.judge(old, "plugins")
        self.judge(new, "plugins")

    @hookimpl
    def endpick_startup(self, host):
        self.judge(host.config, "plugins")

    def judge(self, shown, key):
        with JUDGED.open("a") as told:
            told.write(f"{'whole' if shown.get(key) else 'spoilt'}\n")
        spoil(shown)
        self.kept.append(shown)


class ShownAgain(Shown):
    """The same once more."""


def spoil(shown):
    for value in list(shown.values()):
        if isinstance(value, (dict, list)):
            value.clear()
    shown.clear()
