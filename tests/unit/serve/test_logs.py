"""Log lines for people and for machines."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Mapping
from enum import Enum

import pytest

from endpick.serve.log_values import LONGEST_TEXT, MOST_FIELDS
from endpick.serve.logs import JSONFormatter, TextFormatter, configure_logging


@pytest.fixture(autouse=True)
def restored_root_logger():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_line_carries_the_fields_of_the_call():
    stream = io.StringIO()
    configure_logging("info", "auto", stream)

    logging.getLogger("endpick.serve").info("ready", extra={"grpc": 9002})

    line = json.loads(stream.getvalue())
    assert (line["level"], line["logger"], line["event"], line["grpc"]) == ("info", "endpick.serve", "ready", 9002)


def test_json_line_stays_one_line_with_an_exception():
    stream = io.StringIO()
    configure_logging("info", "json", stream)

    try:
        raise RuntimeError("no\nway")
    except RuntimeError:
        logging.getLogger("x").exception("failed")

    lines = stream.getvalue().splitlines()
    assert len(lines) == 1
    assert "RuntimeError: no\nway" in json.loads(lines[0])["exception"]


def test_text_line_reads_left_to_right():
    stream = io.StringIO()
    configure_logging("warning", "text", stream)

    logging.getLogger("endpick.serve").info("hidden")
    logging.getLogger("endpick.serve").warning("careful", extra={"port": 1})

    (line,) = stream.getvalue().splitlines()
    assert line.endswith("warning endpick.serve: careful  port=1")


FORGED = "bad model\n12:30:01 error   endpick.serve: all keys leaked\x1b[2J\u2028\x85\r\x00"


def test_what_a_client_chooses_begins_no_line_and_commands_no_terminal():
    stream = io.StringIO()
    configure_logging("info", "text", stream)

    try:
        raise ValueError(FORGED)
    except ValueError:
        logging.getLogger("x").exception("refused %s", FORGED, extra={"model": FORGED})

    first, *rest = stream.getvalue().removesuffix("\n").split("\n")
    assert "refused bad model\\n12:30:01 error" in first
    assert 'model="bad model\\n12:30:01' in first
    assert rest
    assert all(line.startswith("  ") for line in rest)
    assert not set(stream.getvalue()) & (set(FORGED) - set(map(chr, range(32, 127))) - {"\n"})


def test_nothing_in_a_line_is_shown_in_another_order_or_not_at_all():
    stream = io.StringIO()
    configure_logging("info", "text", stream)
    logging.getLogger("x").info("refused %s", "m\u202edesufer\u2066\u200b\ufeff")
    assert stream.getvalue().endswith("refused m\\u202edesufer\\u2066\\u200b\\ufeff\n")


@pytest.mark.parametrize(
    "unseen", ["\xad", "\u034f", "\u115f", "\u180e", "\u206a", "\u2800", "\u3164", "\ufe0f", "\uffa0", "\ufff9", "\U0001d173", "\U000e0041"]
)
def test_characters_that_show_nothing_are_shown_as_escapes(unseen):
    stream = io.StringIO()
    configure_logging("info", "text", stream)
    logging.getLogger("x").info("refused %s", f"admin{unseen}", extra={"model": f"admin{unseen}"})
    assert unseen not in stream.getvalue()
    assert stream.getvalue().count(unseen.encode("unicode_escape").decode()) == 2


@pytest.mark.parametrize("control", ["\x7f", "\x85", "\x9b", "\u2028", "\u202e", "\u200b", "\U000e0041"])
def test_a_json_line_is_one_line_to_all_who_look_at_it_and_says_the_same(control):
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    logging.getLogger("x").info("refused %s", control, extra={"model": f"ü{control}"})
    (line,) = stream.getvalue().splitlines()
    assert control not in line
    assert (json.loads(line)["event"], json.loads(line)["model"]) == (f"refused {control}", f"ü{control}")


def test_a_field_with_blanks_cannot_pass_for_two():
    stream = io.StringIO()
    configure_logging("info", "text", stream)

    logging.getLogger("x").info("asked", extra={"model": 'a"  priority=9', "empty": "", "plain": "10.0.0.1:80"})

    assert stream.getvalue().endswith('asked  model="a\\"  priority=9"  empty=""  plain=10.0.0.1:80\n')


def test_half_a_surrogate_pair_does_not_cost_the_line():
    stream = io.StringIO()
    configure_logging("info", "json", stream)

    logging.getLogger("x").info("asked", extra={"model": "\ud800"})

    assert json.loads(stream.getvalue())["model"] == "\\ud800"


def _lines_of(log_format: str, more: Mapping[object, object] | None = None, **fields: object) -> list[str]:
    stream = io.StringIO()
    configure_logging("info", log_format, stream)
    record = logging.makeLogRecord(
        {"name": "acme", "msg": "said", "levelno": 25, "levelname": "INFO", "created": 0.0} | fields | (more or {})
    )
    logging.getLogger("acme").handle(record)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("field", ["name", "levelname", FORGED])
def test_no_name_that_a_plugin_chooses_begins_a_line_or_commands_a_terminal(field):
    (text,) = _lines_of("text", **{field: FORGED})
    (line,) = _lines_of("json", **{field: FORGED})
    assert "\x1b" not in text + line
    assert json.loads(line)["level"] == "info"
    assert text.split(" ", 2)[1] == "info"


def test_no_field_of_a_plugin_passes_for_what_a_line_says_of_itself():
    own = {"ts": "never", "level": "error", "logger": "endpick", "event": "ready", "exception": "none"}
    (line,) = _lines_of("json", **own)
    shown = json.loads(line)
    assert (shown["ts"][:4], shown["level"], shown["logger"], shown["event"]) == ("1970", "info", "acme", "said")
    assert {name: shown[f"{name}_"] for name in own} == own


class Text(str):
    """What a plugin may give for a text: it looks like one of endpick's own, and becomes another one when it is written."""

    def __str__(self):
        return FORGED

    lower = __format__ = lambda self, *_: FORGED


class Name(Enum):
    """What orjson writes as the value, though it is equal to no text."""

    LEVEL = "level"
    EVENT = "event"


def test_no_text_of_a_class_of_its_own_passes_for_what_a_line_says_of_itself():
    told = {Name.LEVEL: "critical", Name.EVENT: "ready", Text("logger"): "endpick", "levelname": Text("WARNING"), "name": Text("acme")}
    (line,) = _lines_of("json", told)
    names = [name for name, _ in json.loads(line, object_pairs_hook=list)]
    assert [names.count(name) for name in ("ts", "level", "logger", "event")] == [1, 1, 1, 1]
    assert (json.loads(line)["level"], json.loads(line)["logger_"]) == ("warning", "endpick")
    (text,) = _lines_of("text", told)
    assert text.split(" ", 2)[1] == "warning"


@pytest.mark.parametrize("formatter", [JSONFormatter(), TextFormatter()])
@pytest.mark.parametrize("value", [["m" * 1_000_000], {"k" * 1_000_000: 1}, tuple(range(7000)), b"\xff" * 1_000_000])
def test_a_field_that_is_long_in_any_way_is_shown_with_its_ends(formatter, value):
    line = formatter.format(logging.makeLogRecord({"msg": "much", "levelno": 20, "levelname": "INFO", "value": value, "few": [1, 2]}))
    assert len(line) < 150_000
    assert "characters" in line
    assert str([1, 2]).replace(" ", "") in line.replace(" ", "")


def _nested(depth: int) -> list[object]:
    """Two to the power of `depth` texts, by way of lists of two."""
    inner: list[object] = ["many"]
    for _ in range(depth):
        inner = [inner, inner]
    return inner


ENDLESS = {
    "within each other": _nested(200),
    "side by side": _nested(20),
    "one text many times": ["m" * 1_000_000] * 1000,
    "a table": dict.fromkeys(range(1_000_000)),
}


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("value", ENDLESS.values(), ids=ENDLESS)
def test_what_would_never_end_as_text_is_named_by_its_kind(log_format, value):
    (line,) = _lines_of(log_format, msg="seen %s %d", args=(value, 7), value=value)
    named = f"a {type(value).__name__} of {len(value)}, with more in it than a line of the log has room for"
    assert line.count(named) == 2
    assert f"{named} 7" in line


def test_names_within_a_message_stand_for_what_was_given():
    (line,) = _lines_of("json", msg="%(who)s %(what)s", args={"who": "acme", "what": _nested(200)})
    assert json.loads(line)["event"].startswith("acme a list of 2, ")


def test_of_fields_without_number_the_first_are_shown_and_the_rest_counted():
    (line,) = _lines_of("json", more={f"field{at}": at for at in range(100_000)})
    shown = json.loads(line)
    assert shown["fields_left_out"] == 100_000 - MOST_FIELDS
    assert shown["field0"] == 0
    assert len(shown) == 4 + MOST_FIELDS + 1


def test_the_name_of_a_field_is_no_longer_than_a_text():
    (line,) = _lines_of("json", more={"n" * 1_000_000: 1})
    assert len(line) < 2 * LONGEST_TEXT
