"""Large bodies are parsed in a helper process, and it makes no difference but one: the event loop turns meanwhile."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from endpick.serve.bodies.reader import LargeBodySettings

from endpick.api import Media, Modality, Rejection
from endpick.host.discovery import discover
from endpick.host.lock import Lock, lock_of
from endpick.requests.large import BodyRead, ParserFailed
from endpick.requests.long_body import LongBody
from endpick.requests.model import Refused
from integration.serve.large import Reading, is_running, page, parser, reading, until

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def odd(fixture_project):
    return [fixture_project("odd-parsers")]


@pytest.fixture
def obedient(odd, monkeypatch):
    monkeypatch.syspath_prepend(odd[0])
    return lambda name="odd", **parameters: parser("obedient-parser", name, odd, **parameters)


async def test_what_json_cannot_carry_is_carried_all_the_same(obedient):
    async with reading() as bodies:
        answer = await bodies.read(obedient(greeting="good day"), b"anything else", "/obey", rewrite="other", x="\udce4")
        assert isinstance(answer, BodyRead)
        assert answer.parsed.model == "mod\ud800el"
        assert answer.parsed.max_output_tokens == 2**70
        assert answer.parsed.streaming
        assert answer.parsed.cache_salt == "salt"
        assert answer.parsed.prompt.texts == (b"good day started", b"/obey", repr([("x", "\udce4")]).encode(), b"anything else")
        assert answer.body == b"other:anything else"

        rejection = await bodies.read(obedient(), b"reject", "/obey")
        assert rejection == Rejection("I do not like it: \ud800", 403, "rejected-taste")
        many = await bodies.read(obedient(), b"many", "/obey", rewrite="nothing")
        assert isinstance(many, BodyRead)
        assert many.parsed.prompt.texts == tuple(b"%d" % n for n in range(4096))
        assert many.body is None
        assert bodies.outcomes() == {"parsed": 2, "rejected": 1}


async def test_the_loop_turns_while_32_mib_are_parsed():
    head, filling, end = b'{"model":"m","messages":[', rb'{"role":"user","content":"line\n"},', b'{"role":"user","content":"x"}]}'
    body = head + filling * 100_000 + end + b" " * (32 * 1024 * 1024 - 100_000 * len(filling) - len(head) - len(end))
    instance = parser()
    turns = 0

    async def tick():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with reading() as bodies:
        await bodies.read(instance, b"{}")  # which starts the helper
        ticking = asyncio.create_task(tick())
        answer = await bodies.read(instance, body, rewrite="another")
        ticking.cancel()
    assert isinstance(answer, BodyRead)
    assert isinstance(answer.body, LongBody)
    assert answer.body.whole() == body.replace(b'"m"', b'"another"', 1)
    assert len(answer.parsed.prompt.texts[0]) == 100_000 * len("userline\n") + len("userx")
    # It is sent and received in pieces, with a turn for each; and in between the loop does nothing else but turn.
    assert turns > 4 * len(body) / (256 * 1024)


async def test_pieces_go_to_the_helper_as_they_came_and_a_picture_of_megabytes_comes_back_whole():
    url = "data:image/png;base64," + "A" * 3_000_000
    content = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "x"}]
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()
    pieces = [memoryview(body)[:700_000], bytearray(body[700_000:700_001]), body[700_001:]]
    async with reading() as bodies:
        answer = await bodies.read(parser(), LongBody(pieces), rewrite="another")
    assert isinstance(answer, BodyRead)
    assert isinstance(answer.body, LongBody)
    assert answer.body.whole() == body.replace(b'"m"', b'"another"', 1)
    assert answer.parsed.prompt.pieces == ((b"userwhat is this?", Media(Modality.IMAGE, url), b"x"),)


@pytest.mark.parametrize(
    ("word", "rewrite", "method", "problem"),
    [
        ("raise", None, "parse", "ValueError: no such word ?, at {file}:"),
        ("leave", None, "parse", "SystemExit: I leave, at {file}:"),
        ("nonsense", None, "parse", "answered str, not a ParsedRequest or Rejection"),
        ("unrendered", None, "parse", "TypeError: the texts of a prompt must be a tuple of bytes"),
        ("fine", "raise", "rewrite_model", "KeyError: 'raise', at {file}:"),
        ("fine", "text", "rewrite_model", "answered str, not the bytes of a body"),
    ],
)
async def test_a_parser_that_fails_elsewhere_has_failed(obedient, odd, word, rewrite, method, problem):
    async with reading() as bodies:
        failed = await bodies.read(obedient(), word.encode(), "/obey", rewrite=rewrite)
        assert isinstance(failed, ParserFailed)
        assert failed.method == method
        assert str(failed.problem).startswith(problem.format(file=Path(odd[0]) / "odd_parsers.py"))

        assert isinstance(await bodies.read(obedient(), b"fine", "/obey"), BodyRead)
        assert bodies.outcomes() == {"failed": 1, "parsed": 1}
        assert bodies.value("endpick_body_helper_starts_total") == 1


@pytest.mark.parametrize(
    ("word", "outcome", "status", "advice"),
    [
        ("loop", "too_slow", 413, "--large-body-timeout"),
        ("allocate", "too_much_memory", 413, "--large-body-memory"),
        ("exit", "crashed", 503, "it ended with status 7"),
        ("die", "crashed", 503, "it was ended by SIGKILL"),
        ("huge", "crashed", 503, "it answered nonsense"),
    ],
)
async def test_a_body_that_the_helper_does_not_survive_is_refused_and_the_next_one_is_parsed(
    obedient, caplog, word, outcome, status, advice
):
    instance = obedient()
    allowed = LargeBodySettings(timeout_seconds=0.5 if word == "loop" else 20.0, memory_bytes=100 * 1024 * 1024)
    body = word.encode() + b" " * (1024 * 1024 if word == "huge" else 0)
    async with reading(allowed) as bodies:
        await bodies.read(instance, b"fine", "/obey")
        first = bodies.pid
        refused, parsed = await asyncio.gather(bodies.read(instance, body, "/obey"), bodies.read(instance, b"fine", "/obey"))

        assert isinstance(refused, Refused)
        assert refused.status == status
        assert refused.reason.startswith("rejected-")
        assert isinstance(parsed, BodyRead)
        assert bodies.outcomes() == {outcome: 1, "parsed": 2}
        assert bodies.value("endpick_body_helper_starts_total") == 2
        assert not is_running(first)
    (told,) = (record for record in caplog.records if record.name == "endpick.bodies" and record.levelno == logging.WARNING)
    assert advice in told.getMessage()
    assert told.parser == "odd"


async def parsing(bodies: Reading, instance) -> asyncio.Task:
    """A task that waits for the parser, which the body keeps busy for ever."""
    await bodies.read(instance, b"fine", "/obey")
    asking = asyncio.create_task(bodies.read(instance, b"loop", "/obey"))
    await asyncio.sleep(0)
    await until(lambda: not bodies.value("endpick_large_bodies_waiting"), "its turn")
    return asking


async def test_a_helper_that_is_killed_from_outside_costs_one_request(obedient):
    instance = obedient()
    async with reading() as bodies:
        asking = await parsing(bodies, instance)
        os.kill(bodies.pid, signal.SIGKILL)
        refused = await asking
        assert isinstance(refused, Refused)
        assert (refused.status, refused.reason) == (503, "rejected-body-helper-ended")
        assert isinstance(await bodies.read(instance, b"fine", "/obey"), BodyRead)
        assert bodies.outcomes() == {"crashed": 1, "parsed": 2}


async def test_a_helper_that_is_killed_while_it_has_nothing_to_do_costs_none(obedient):
    instance = obedient()
    async with reading() as bodies:
        assert isinstance(await bodies.read(instance, b"fine", "/obey"), BodyRead)
        pid = bodies.pid
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not is_running(pid), "the helper to be gone")
        assert isinstance(await bodies.read(instance, b"fine", "/obey"), BodyRead)
        assert bodies.pid != pid
        assert bodies.outcomes() == {"parsed": 2}


async def test_what_a_service_manager_tells_all_its_processes_costs_no_body(obedient):
    """Systemd sends SIGTERM to every process of a service that it stops; the parent still answers what it has."""
    instance = obedient()
    async with reading() as bodies:
        await bodies.read(instance, b"fine", "/obey")
        first = bodies.pid
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            os.kill(first, number)
        assert isinstance(await bodies.read(instance, b"fine", "/obey"), BodyRead)
        assert bodies.pid == first
        assert bodies.outcomes() == {"parsed": 2}


async def test_a_stream_that_ends_cancels_its_own_body_only(obedient):
    instance = obedient()
    async with reading() as bodies:
        endless = await parsing(bodies, instance)
        given_up, kept = (asyncio.create_task(bodies.read(instance, b"fine", "/obey")) for _ in range(2))
        await until(lambda: bodies.value("endpick_large_bodies_waiting") == 2, "both to wait")
        given_up.cancel()
        endless.cancel()
        assert isinstance(await kept, BodyRead)  # long before the twenty seconds are over that the endless one would have had
        assert bodies.outcomes() == {"cancelled": 2, "parsed": 2}
        assert bodies.value("endpick_body_helper_starts_total") == 2


async def test_what_waits_is_bounded_and_refused_beyond(obedient, caplog):
    instance, body = obedient(), b"fine" + b" " * 996
    async with reading(LargeBodySettings(queue_bytes=2500)) as bodies:
        endless = await parsing(bodies, instance)
        waiting = [asyncio.create_task(bodies.read(instance, body, "/obey")) for _ in range(2)]
        await until(lambda: bodies.value("endpick_large_body_waiting_bytes") == 2000, "two to wait")
        refused = await bodies.read(instance, body, "/obey")
        assert isinstance(refused, Refused)
        assert (refused.status, refused.reason) == (503, "rejected-body-queue-full")
        endless.cancel()
        assert all(isinstance(answer, BodyRead) for answer in await asyncio.gather(*waiting))
        assert bodies.outcomes() == {"queue_full": 1, "cancelled": 1, "parsed": 3}
    assert "--large-body-queue" in caplog.text


async def test_stopping_refuses_what_is_parsed_and_what_waits_and_leaves_no_process(obedient):
    instance = obedient()
    async with reading() as bodies:
        asking = [await parsing(bodies, instance), asyncio.create_task(bodies.read(instance, b"fine", "/obey"))]
        await until(lambda: bodies.value("endpick_large_bodies_waiting") == 1, "one to wait")
        pid = bodies.pid
        await bodies.bodies.stop()
        assert not is_running(pid)
        refusals = [*await asyncio.gather(*asking), await bodies.read(instance, b"fine", "/obey")]
        assert [refusal.reason for refusal in refusals] == ["rejected-stopping"] * 3
        assert bodies.outcomes() == {"parsed": 1, "stopping": 3}


async def test_a_helper_without_work_ends_and_another_one_starts(obedient):
    instance = obedient()
    async with reading(LargeBodySettings(quiet_seconds=0.01)) as bodies:
        await bodies.read(instance, b"fine", "/obey")
        pid = bodies.pid
        await until(lambda: not bodies.value("endpick_body_helpers"), "the quiet helper to end")
        await until(lambda: pid is None or not is_running(pid), "its process to be gone")
        assert isinstance(await bodies.read(instance, b"fine", "/obey"), BodyRead)
        assert bodies.value("endpick_body_helper_starts_total") == 2
        assert bodies.value("endpick_large_body_seconds_count") == 2


async def test_what_a_parser_counts_and_logs_elsewhere_is_shown_under_its_name(obedient, caplog):
    instance = obedient()
    labels = (("plugin_name", "odd"), ("plugin_type", "obedient-parser"))
    instance.plugin.parse("/obey", {}, b"log")
    instance.plugin.parse("/obey", {}, b"here")
    async with reading() as bodies:
        for word in (b"log", b"log", b"there"):
            await bodies.read(instance, word, "/obey")
        await bodies.bodies.stop()
    counted = {found: value for (name, found), value in page(instance).items() if name == "obedient_bodies_total"}
    assert counted == {(*labels, ("word", "here")): 1, (*labels, ("word", "log")): 3, (*labels, ("word", "there")): 1}
    assert [(each.name, each.levelname, each.getMessage()) for each in caplog.records if each.name.startswith("endpick.plugin")] == [
        ("endpick.plugin.odd", "WARNING", "a log was logged")
    ] * 3
    assert {each.plugin for each in caplog.records if each.name == "endpick.plugin.odd"} == {"odd (obedient-parser, odd-parsers 1.0)"}


async def test_what_a_parser_prints_warns_of_and_cannot_log_elsewhere_is_logged_and_written_nowhere(obedient, caplog, capfd):
    """Clients choose what a parser prints of a body, and whatever reads the log would take its lines for endpick's."""
    caplog.set_level(logging.INFO)
    async with reading() as bodies:
        await bodies.read(obedient(), b"print", "/obey")
        await bodies.bodies.stop()
    told = [each.getMessage() for each in caplog.records if each.name == "endpick.plugin.odd"]
    assert told[0] == "printed: print was printed"
    assert "UserWarning: it is Tuesday" in told[1]
    assert told[2:] == ["a line cannot be shown: TypeError"]
    assert capfd.readouterr() == ("", "")


async def test_refusals_of_the_openai_parser_are_counted_wherever_it_parses():
    instance = parser(maxPrompts=2)
    async with reading() as bodies:
        answer = await bodies.read(instance, b'{"model":"m","prompt":["a","b","c"]}', "/v1/completions")
    assert answer == Rejection("the request body holds more than 2 prompts", 400)
    (value,) = (value for (name, _), value in page(instance).items() if name == "endpick_parser_refusals_total")
    assert value == 1


async def test_each_instance_has_a_double_with_its_own_parameters(obedient):
    async with reading() as bodies:
        greetings = [
            (await bodies.read(instance, b"fine", "/obey")).parsed.prompt.texts[0]
            for instance in (obedient(greeting="one"), obedient(greeting="two"), obedient("other", greeting="one"))
        ]
        assert greetings == [b"one started", b"two started", b"one started"]
        assert bodies.value("endpick_body_helper_starts_total") == 1


async def test_a_parser_that_cannot_be_built_elsewhere_refuses_its_bodies_only(obedient, caplog):
    async with reading() as bodies:
        refused = await bodies.read(obedient(greeting="stay away"), b"fine", "/obey")
        assert isinstance(refused, Refused)
        assert (refused.status, refused.reason) == (503, "rejected-no-body-helper")
        assert isinstance(await bodies.read(obedient(), b"fine", "/obey"), BodyRead)
        assert bodies.outcomes() == {"unavailable": 1, "parsed": 1}
        assert bodies.value("endpick_body_helper_starts_total") == 1
    assert "there is no file here" in caplog.text


@pytest.mark.parametrize(("program", "why"), [("/nowhere/python", "No such file"), ("/bin/false", "it ended with status 1")])
async def test_a_helper_that_does_not_start_is_tried_again_with_the_next_body(obedient, monkeypatch, caplog, program, why):
    async with reading() as bodies:
        with monkeypatch.context() as broken:
            broken.setattr(sys, "executable", program)
            refused = await bodies.read(obedient(), b"fine", "/obey")
        assert isinstance(refused, Refused)
        assert (refused.status, refused.reason) == (503, "rejected-no-body-helper")
        assert why in caplog.text
        assert isinstance(await bodies.read(obedient(), b"fine", "/obey"), BodyRead)
        assert bodies.outcomes() == {"unavailable": 1, "parsed": 1}


async def test_the_helper_loads_no_plugin_that_the_lock_file_does_not_know(obedient, tmp_path, caplog):
    lock = tmp_path / "endpick.lock.json"
    lock.write_text(Lock().render())
    async with reading(LargeBodySettings(lock_file=lock)) as bodies:
        refused = await bodies.read(obedient(), b"fine", "/obey")
        assert isinstance(refused, Refused)
        assert refused.reason == "rejected-no-body-helper"
        lock.write_text(lock_of(discover()).render())
        assert isinstance(await bodies.read(obedient(), b"fine", "/obey"), BodyRead)
    assert "lock" in caplog.text


async def test_the_helper_imports_nothing_that_changed_after_it_was_locked(odd, tmp_path, monkeypatch, caplog):
    installed = shutil.copytree(odd[0], tmp_path / "installed")
    monkeypatch.syspath_prepend(installed)
    lock = tmp_path / "endpick.lock.json"
    lock.write_text(lock_of(discover()).render())
    async with reading(LargeBodySettings(lock_file=lock)) as bodies:
        instance = parser("obedient-parser", "odd", [installed])
        with (installed / "odd_parsers.py").open("a") as module:
            module.write("print('other code')\n")
        refused = await bodies.read(instance, b"fine", "/obey")
        assert isinstance(refused, Refused)
        assert refused.reason == "rejected-no-body-helper"
    assert "odd_parsers.py" in caplog.text


async def test_the_helper_imports_nothing_from_the_working_directory(obedient, tmp_path, monkeypatch):
    (tmp_path / "pickle.py").write_text("raise SystemExit('from the working directory')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    async with reading() as bodies:
        assert isinstance(await bodies.read(obedient(), b"fine", "/obey"), BodyRead)
