"""Plugins that touch what they did not declare, change what they are given, block, or leave something behind."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import prometheus_client

from conformance.broken.register import TENANTS, TOKENS, Fair, breaks
from endpick.api import (
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    DataProducer,
    PreRequest,
    Scorer,
)


@breaks("reads_only_declared_keys", "it reads the data key 'kv-cache-usage', which it does not declare in `consumes`")
class Peeking(Scorer):
    """Reads what it did not ask for."""

    def score(self, request, endpoints, state):
        return np.fmax(1.0 - endpoints[KV_CACHE_USAGE], 0.0)


@breaks("reads_every_declared_key", "the data key 'running-requests-size' is declared and was never read")
class Hoarding(Scorer):
    """Asks for more than it reads."""

    consumes = (KV_CACHE_USAGE,)
    consumes_optional = (RUNNING_REQUESTS_SIZE,)

    def score(self, request, endpoints, state):
        return np.fmax(1.0 - endpoints[KV_CACHE_USAGE], 0.0)


class Counting(DataProducer):
    """Counts tokens: a producer without fault."""

    produces = (TOKENS,)

    def produce(self, request, endpoints, state):
        state.put(TOKENS, request.prompt.estimated_tokens)


@breaks("writes_only_declared_keys", "it writes the data key 'acme.example/tokens', which it does not declare in `produces`")
class Smuggling(DataProducer):
    """Writes what it did not declare."""

    produces = (WAITING_QUEUE_SIZE,)

    def produce(self, request, endpoints, state):
        self.context.columns.set(WAITING_QUEUE_SIZE, 1.0, endpoints.members[0])
        state.put(TOKENS, 1)


@breaks("writes_every_declared_key", "the data key 'acme.example/tokens' is in `produces` and was never written")
class Promising(DataProducer):
    """Does not keep its promise."""

    produces = (TOKENS,)

    def produce(self, request, endpoints, state):
        return None


@breaks("produces_something", "it produces nothing with the defaults")
class Idle(DataProducer):
    """Declares nothing."""

    def produce(self, request, endpoints, state):
        return None


@breaks("producer_copes_with_every_request", "`produce` raises IndexError")
class Assuming(DataProducer):
    """Takes for granted that there is a prompt."""

    produces = (TOKENS,)

    def produce(self, request, endpoints, state):
        state.put(TOKENS, len(request.prompt.texts[0]) // 4)


@breaks("does_not_change_its_inputs", "`score` changes the column 'waiting-queue-size'")
class Clamping(Scorer):
    """Cuts queues in place."""

    consumes = (WAITING_QUEUE_SIZE,)

    def score(self, request, endpoints, state):
        queue = endpoints[WAITING_QUEUE_SIZE]
        queue.flags.writeable = True
        np.minimum(queue, 5.0, out=queue)
        return np.fmax(1.0 - queue / 5.0, 0.0)


@breaks("does_not_change_its_inputs", "`score` changes the column 'acme.example/tenants'", samples={TENANTS: [["a"], ["b"]]})
class Subscribing(Scorer):
    """Adds to lists that belong to the endpoint table."""

    consumes = (TENANTS,)

    def score(self, request, endpoints, state):
        for tenants in endpoints.objects(TENANTS):
            if tenants is not None:
                tenants.append(request.fairness_id)
        return np.ones(len(endpoints))


@breaks("does_not_change_its_inputs", "`before_request` changes the headers of the request")
class Stamping(PreRequest):
    """Writes into the request's headers."""

    def before_request(self, request, result, headers, state):
        request.headers["x-stamp"] = "1"


@breaks("does_not_block", "`score` opens a file at")
class Reading(Fair):
    """Reads a file for every request."""

    def score(self, request, endpoints, state):
        with Path(__file__).open() as file:
            file.readline()
        return np.ones(len(endpoints))


@breaks("does_not_block", "`score` sleeps at")
class Sleeping(Fair):
    """Takes a nap for every request."""

    def score(self, request, endpoints, state):
        time.sleep(0)
        return np.ones(len(endpoints))


@breaks("does_not_block", "`before_request` starts a process at")
class Forking(PreRequest):
    """Starts a process for every request."""

    def before_request(self, request, result, headers, state):
        subprocess.run(["true"], check=True)


@breaks("accepts_removal_of_any_endpoint", "`endpoint_removed('default/e0')` comes to KeyError")
class Forgetful(Fair):
    """Cannot forget whom it has never met."""

    def __init__(self, name, parameters, context):
        super().__init__(name, parameters, context)
        self.learnt = {}

    def endpoint_removed(self, name):
        del self.learnt[name]


@breaks("starts_and_stops", "`start` or `stop` raises AttributeError")
class Stumbling(Fair):
    """Closes what it never opened."""

    session = None

    async def stop(self):
        await self.session.close()


@breaks("leaves_nothing_running", "it leaves the thread 'broken-ticker'")
class Haunting(Fair):
    """Leaves a thread behind."""

    async def start(self):
        self.end = threading.Event()
        self.thread = threading.Thread(target=self.end.wait, args=(2,), name="broken-ticker", daemon=True)
        self.thread.start()


@breaks("leaves_nothing_running", "it leaves the task of `Ticking.tick`")
class Ticking(Fair):
    """Leaves a task behind."""

    async def start(self):
        self.task = asyncio.create_task(self.tick())

    async def tick(self):
        await asyncio.sleep(60)


@breaks("can_be_built", "a second instance cannot be built beside the first")
class Registering(Fair):
    """Registers its metric for the whole process, with every instance."""

    def __init__(self, name, parameters, context):
        super().__init__(name, parameters, context)
        self.asked = prometheus_client.Counter("broken_asked", "Requests.")


@breaks("works_after_a_reload", "once another instance has stopped, `score` raises RuntimeError: the session is closed")
class Sharing(Scorer):
    """All instances share one session, and the first one that stops closes it."""

    is_open = False
    uses_it = False

    async def start(self):
        type(self).is_open = self.uses_it = True

    async def stop(self):
        type(self).is_open = False

    def score(self, request, endpoints, state):
        if self.uses_it and not type(self).is_open:
            raise RuntimeError("the session is closed")
        return np.ones(len(endpoints))
