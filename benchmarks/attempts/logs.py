"""Lines that clients and plugins would like to have in the log."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

from benchmarks.attempts.catalogue import CONFIG, Attempt, Target
from benchmarks.attempts.gateway import request
from benchmarks.attempts.log_reading import FORGED, both_formats, hostile_texts, is_logged, judged, say, sent, until

_DISTRIBUTION = {
    "site/saying-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme-saying\nVersion: 1.0\n",
    "site/saying-1.0.dist-info/entry_points.txt": "[endpick.plugins.v1]\nacme.saying = saying:Saying\n",
}
_WITH_PLUGIN = CONFIG.replace("plugins:\n", "plugins:\n- type: acme.saying\n", 1).replace(
    "  - pluginRef: siege.beat", "  - pluginRef: siege.beat\n  - pluginRef: acme.saying", 1
)
_ECHO = '''\
import logging
import warnings

import numpy as np

from endpick.api import Scorer


class Saying(Scorer):
    """Says what clients say, by every way that a plugin has."""

    def score(self, request, endpoints, state):
        said = [request.model, request.id, request.fairness_id, request.path, request.cache_salt]
        said += [*request.headers, *request.headers.values()]
        for each in said:
            self.context.logger.warning("a request of %s", each, extra={"of": each})
            self.context.logger.info(each)
            print(each)
            warnings.warn(each, stacklevel=1)
        logging.getLogger(request.model).error("its logger is called so")
        problem = type(request.model.replace("\\0", "") or "E", (ValueError,), {})(*said)
        problem.add_note(request.model)
        raise problem
'''


def _plugin(source: str) -> dict[str, str]:
    return {**_DISTRIBUTION, "site/saying.py": source}


def _requests_with(texts: Iterable[str]) -> list[bytes]:
    """Requests that have a text wherever a client may put one."""
    out = []
    for text in texts:
        header = text.encode("utf-8", "replace").decode()
        headers = {
            "x-request-id": header,
            "x-gateway-inference-fairness-id": header,
            "x-gateway-inference-objective": header,
            "user-agent": header,
            "x-acme": header,
        }
        body = json.dumps({"model": text, "prompt": text, "cache_salt": text, "user": text}).encode()
        out.append(request(body, headers))
        out.append(request(sent(f'{{"model": "m", "prompt": {text}')))
        out.append(request(body, {":path": f"/v1/{header}"}))
        out.append(request(body, {":method": header, "content-type": header, header: "named so"}))
    return out


async def clients_whose_names_are_lines(target: Target) -> list[str]:
    """Models, ids, paths, methods and headers with 41 odd characters, which a plugin logs, prints, raises, names loggers by."""
    async with both_formats(target, config=_WITH_PLUGIN, files=_plugin(_ECHO)) as pickers:
        for picker in pickers:
            texts = target.rng.sample(hostile_texts(), 20)
            for part in range(0, 20, 5):
                await say(picker.ports["ext_proc"], _requests_with(texts[part : part + 5]))
        return judged(pickers)


_FORGING = '''\
import asyncio, enum, logging, sys, threading, warnings

import numpy as np

from endpick.api import Scorer

TEXTS = __TEXTS__


class Looks(str):
    def __str__(self):
        return TEXTS[0]

    __format__ = lower = upper = strip = replace = lambda self, *_: TEXTS[0]
    __len__ = lambda self: 1


class Name(enum.Enum):
    LEVEL, EVENT, TS, LOGGER = "level", "event", "ts", "logger"


class Shown:
    def __str__(self):
        return Looks("x")

    __repr__ = __str__


class Ends:
    def __del__(self):
        raise ValueError(TEXTS[1])


class Record(logging.LogRecord):
    def getMessage(self):
        return TEXTS[0]


class Saying(Scorer):
    """Forges lines by every means of logging."""

    number = 0

    def score(self, request, endpoints, state):
        text = TEXTS[Saying.number % len(TEXTS)]
        Saying.number += 1
        log = self.context.logger
        for fields in ({text: text}, {Name.LEVEL: "critical", Name.EVENT: text}, {Looks("level"): text}, {None: text, True: 1, 1.5: 2}):
            log.warning(text, extra=fields)
        for value in (Shown(), Looks(text), text.encode("utf-8", "replace"), [text], {text: {text: float("nan")}}, {1: object()}, 10**400):
            log.warning("%s", value, extra={"value": value})
            log.warning(value)
        for level, name in ((33, text), (34, Looks("WARNING")), (-5, text), (10**30, Looks("INFO"))):
            logging.addLevelName(level, name)
            log.log(level, text)
        for name in (text, Looks("endpick.serve"), f"endpick.{text}", f"endpick.plugin.{text}"):
            logging.getLogger(name).error(text, stack_info=True)
        log.handle(Record("endpick.serve", 30, text, 1, text, (), None, text, text))
        record = logging.makeLogRecord({"name": Looks("acme"), "levelname": text, "created": float("nan"), "msg": text, "thread": text})
        log.handle(record)
        log.handle(logging.makeLogRecord({"name": 5, "levelname": ["x"], "levelno": "x", "created": 0, "msg": text, "plugin": text}))
        log.warning("%d %s", text)
        log.warning("%(a)s", {"b": text})
        print(text, end="")
        print(text, file=sys.stderr)
        sys.stdout.write(text + "\\n" + TEXTS[0] + "\\n")
        sys.stderr.buffer.write(text.encode("utf-8", "replace") + b"\\xff\\xfe\\n")
        warnings.warn_explicit(text, type(Looks("Kind"), (UserWarning,), {}), text, 1)
        threading.Thread(target=self.fall, name=text).start()
        Ends()
        asyncio.get_running_loop().call_exception_handler({"message": text, "exception": ValueError(text)})
        task = asyncio.ensure_future(self.fall_later(text))
        task.set_name(text)
        kind = type("x", (ValueError,), {"__module__": text})
        kind.__qualname__ = kind.__name__ = text.replace("\\0", "").encode("utf-8", "replace").decode()
        problem = kind(text, Shown())
        problem.add_note(text)
        code = compile("\\n" * 5 + "def fall(problem):\\n    raise problem", text.replace("\\0", "") or "x", "exec")
        scope = {}
        exec(code, scope)
        scope["fall"](problem)

    def fall(self):
        raise ValueError(TEXTS[Saying.number % len(TEXTS)])

    async def fall_later(self, text):
        raise ValueError(text)
'''


async def a_plugin_that_forges_lines(target: Target) -> list[str]:
    """Loggers, levels, records, fields, enums, texts of own classes, exceptions, notes, threads, tasks, prints, warnings, finalizers."""
    texts = target.rng.sample(hostile_texts(), 24)
    source = _FORGING.replace("__TEXTS__", ascii(texts))
    async with both_formats(target, config=_WITH_PLUGIN, files=_plugin(source)) as pickers:
        for picker in pickers:
            for _ in range(4):
                await say(picker.ports["ext_proc"], [request(b'{"model":"m","prompt":"p"}')] * 6)
        return judged(pickers)


_PARSING = '''\
import logging, sys, warnings, threading

from endpick.api import Parameters
from endpick_builtin.parsers.openai import OpenAIParser


class Ends:
    def __init__(self, text):
        self.text = text

    def __del__(self):
        raise ValueError(self.text)


class Saying(OpenAIParser):
    """Says what bodies say."""

    def parse(self, path, headers, body):
        text = body.rstrip(b" ").decode("utf-8", "surrogatepass")
        for each in text.split("|"):
            print(each)
            print(each, file=sys.stderr, end="")
            warnings.warn(each, stacklevel=1)
            self.context.logger.warning("%d", each)
            self.context.logger.warning(each, extra={"level": each, each: each})
            logging.getLogger(each).warning(each)
            threading.Thread(target=lambda each=each: 1 / len(each[:0])).start()
            Ends(each)
        raise ValueError(text)
'''


async def a_parser_that_says_what_large_bodies_say(target: Target) -> list[str]:
    """In the process that parses large bodies, a parser prints, warns of, logs and raises what clients say, in threads, too."""
    config = CONFIG.replace("plugins:\n", "plugins:\n- type: acme.saying\n", 1) + "requestHandler: {parsers: [{pluginRef: acme.saying}]}\n"
    async with both_formats(target, ("--large-body=1000",), config=config, files=_plugin(_PARSING)) as pickers:
        for picker in pickers:
            ends_at = time.monotonic() + 20.0
            texts = target.rng.sample(hostile_texts(), 8)
            while not is_logged(picker, FORGED) and time.monotonic() < ends_at:  # the first wait for the process, and are given up
                await say(picker.ports["ext_proc"], [request(sent(text) + b" " * 3000) for text in texts])
            await say(picker.ports["ext_proc"], [request(sent("|".join(texts)) + b" " * 3000)])
        return judged(pickers)


async def a_log_that_is_read_late(target: Target) -> list[str]:
    """A pipe that nothing reads while a plugin logs 20,000 lines, of which some are dropped: what is told of it is a line as others."""
    async with both_formats(target, config=_WITH_PLUGIN, files=_plugin(_LOUD)) as pickers:
        for picker in pickers:
            picker.read.clear()
            await say(picker.ports["ext_proc"], [request(b'{"model":"m","prompt":"p"}')] * 5)
            picker.read.set()
            await until(picker, "log lines were dropped")
        return judged(pickers, "log lines were dropped")


_LOUD = '''\
import logging

import numpy as np

from endpick.api import Scorer


class Saying(Scorer):
    """Logs what an operator asked for, below `info`: of that no line is held back."""

    def score(self, request, endpoints, state):
        for number in range(4000):
            self.context.logger.debug("line %d\\nof many", number)
        return np.ones(len(endpoints))
'''


ATTEMPTS = tuple(
    Attempt(run)
    for run in (
        clients_whose_names_are_lines,
        a_plugin_that_forges_lines,
        a_parser_that_says_what_large_bodies_say,
        a_log_that_is_read_late,
    )
)
