"""Patterns that meet outsiders' bytes match them in steps that grow with the text, and no faster.

Outsiders are clients, gateways, model servers, publishers of KV events, other pickers, and whoever asks the admin port.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from unittest.mock import patch

import pytest

from endpick.requests.restored_names import ModelNameRestorer
from endpick_builtin.pairs.sessions import cookie
from unit.linear.steps import Matcher

READERS = (
    *("endpick.api", "endpick.data", "endpick.extproc", "endpick.fleet", "endpick.flow_control", "endpick.requests"),
    *("endpick.scheduling", "endpick.serve", "endpick.transport", "endpick_builtin", "endpick_kubernetes", "endpick_kv_events"),
)
"""Packages that read outsiders' bytes."""
OPERATORS = {
    "endpick.api.plugin.parse_duration": "a duration of the configuration",
    "endpick.serve.hook_objects._PATH": "paths of installed hooks",
    "endpick_builtin.collection.engines._LABELS": "metric names of the configuration",
    "endpick_builtin.collection.engines._SPEC": "metric names of the configuration",
    "endpick_builtin.collection.pool_data._INDEX": "steps of a pointer of the configuration",
    "endpick_builtin.endpoint_file._ZONE": "addresses in the operator's file",
    "endpick_builtin.label_filters._TERM": "selectors of the configuration",
    "endpick_builtin.label_filters.parse_selector": "selectors of the configuration",
    "endpick_kv_events.parameters._has_usable_address": "an address of the configuration",
    "endpick_kv_events.parameters.blocks_per_endpoint": "a size of the configuration",
}
"""Patterns that meet no outsider's bytes, and what they meet."""
N = 40
SLACK = 500
Text = Callable[[int], "str | bytes"]


def cookie_pattern() -> re.Pattern[str]:
    with patch("endpick_builtin.pairs.sessions.re.search", return_value=None) as search:
        cookie("", "s")
    return re.compile(search.call_args[0][0])


BUILT = {
    "endpick.requests.restored_names.__init__": lambda: ModelNameRestorer("m", "n")._found,
    "endpick_builtin.pairs.sessions.cookie": cookie_pattern,
}
"""Patterns that are no constants."""
HEAD = b"Content-Disposition: form-data"
PATTERNS: dict[str, tuple[str, tuple[Text, ...]]] = {
    "endpick.api.metrics._LABEL": (
        "match",
        (
            lambda n: b" ," * n,
            lambda n: b"b" * n,
            lambda n: b"b" + b" " * n + b"x",
            lambda n: b"b=" + b"\t" * n,
            lambda n: b'b="' + b"\\\\" * n,
            lambda n: b'b="' + b"c\\n" * n + b'"x',
            lambda n: b'b="' + b"c" * n + b'"' + b" " * n + b"x",
        ),
    ),
    "endpick.api.metrics._LABELS_END": ("match", (lambda n: b" ," * n,)),
    "endpick.api.request._UNFIT_NAME": ("search", (lambda n: "a" * n,)),
    "endpick.api.request._UNFIT_VALUE": ("search", (lambda n: "a" * n,)),
    "endpick.data.discovery._NOT_IN_AN_ADDRESS": ("search", (lambda n: "a" * n,)),
    "endpick.requests.restored_names._MARK": ("search", (lambda n: b"a" * n,)),
    "endpick.requests.restored_names._TEXT": (
        "match",
        (lambda n: b"a" * n, lambda n: b'\\"' * n, lambda n: b"a\\\\" * n + b"\\"),
    ),
    "endpick.requests.restored_names._END_OF_EVENT": ("finditer", (lambda n: b"\n\r" * n, lambda n: b"\n" * n)),
    "endpick.requests.restored_names._END_OF_LINE": ("finditer", (lambda n: b"\n" * n, lambda n: b"a" * n)),
    "endpick.requests.restored_names.__init__": ("finditer", (lambda n: b'"model": "' * n, lambda n: b'"model":"m"' * n)),
    "endpick.transport.h2.headers._NAME": ("fullmatch", (lambda n: b"a" * n + b"A",)),
    "endpick.transport.h2.headers._FORBIDDEN_IN_VALUE": ("search", (lambda n: b"a" * n,)),
    "endpick.transport.h2.headers._TIMEOUT": ("fullmatch", (lambda n: b"1" * n,)),
    "endpick_builtin.collection.core_metrics._RANK_OF_ENDPOINT": (
        "search",
        (lambda n: "-rank-" * n, lambda n: "-rank-" + "1" * n + "x", lambda n: "-rank-1" * n + "x"),
    ),
    "endpick_builtin.collection.exporters._RANK": (
        "finditer",
        (lambda n: "-rank-" * n, lambda n: "-rank-" + "1" * n + "x", lambda n: "-rank-1" * n + "x"),
    ),
    "endpick_builtin.collection.otlp_messages._NOT_IN_A_NAME": ("finditer", (lambda n: "a" * n, lambda n: "€" * n)),
    "endpick_builtin.collection.otlp_messages._NOT_IN_A_LABEL": ("finditer", (lambda n: "a" * n, lambda n: "€" * n)),
    "endpick_builtin.flow_control._WHOLE_NUMBER": ("fullmatch", (lambda n: "1" * n,)),
    "endpick_builtin.listed_discovery._DNS_NAME": (
        "fullmatch",
        (lambda n: "a" * n + "_", lambda n: "a." * n, lambda n: "a-" * n, lambda n: ("a" * 61 + ".") * (n // 8) + "_"),
    ),
    "endpick_builtin.pairs.context_length._RANGE": (
        "fullmatch",
        (lambda n: " " * n + "x", lambda n: "1" + " " * n + "x", lambda n: "1-" + " " * n, lambda n: "1-1" + " " * n + "x"),
    ),
    "endpick_builtin.pairs.sessions.cookie": (
        "search",
        (
            lambda n: ";" + " " * n,
            lambda n: "; " * n,
            lambda n: ";s " * n,
            lambda n: "s" + " " * n,
            lambda n: ";" * n,
            lambda n: "s=" + "a" * n,
        ),
    ),
    "endpick_builtin.parsers.forms._BOUNDARY": (
        "match",
        (
            lambda n: "multipart/form-data" + " " * n,
            lambda n: "multipart/form-data" + " " * n + ";" * n,
            lambda n: "multipart/form-data;" + "boundary=," * n,
            lambda n: "multipart/form-data;" + 'boundary="";' * n,
            lambda n: "multipart/form-data;boundary=" + '"' * n,
            lambda n: 'multipart/form-data;boundary="' + "a" * n,
        ),
    ),
    "endpick_builtin.parsers.forms._NAME": (
        "search",
        (
            lambda n: (HEAD + b"\r\n") * n,
            lambda n: HEAD + b";" * n,
            lambda n: HEAD + b"; " * n,
            lambda n: HEAD + b";" + b" " * n,
            lambda n: HEAD + b';name="' * n,
            lambda n: (HEAD + b';name="\r\n') * n,
            lambda n: b"content-disposition:" * n,
        ),
    ),
    "endpick_builtin.parsers.forms._FILE": (
        "search",
        (
            lambda n: (HEAD + b"\r\n") * n,
            lambda n: HEAD + b"; " * n,
            lambda n: HEAD + b";" + b" " * n,
            lambda n: HEAD + b";filenam" * n,
        ),
    ),
    "endpick_builtin.parsers.json_bodies._LONG_INTEGER": ("search", (lambda n: b"1" * 18 + b"," + b"1" * 18 * (n // 18),)),
    "endpick_builtin.parsers.json_bodies._SURROGATE": ("finditer", (lambda n: "a" * n, lambda n: "\ud800" * n)),
    "endpick_builtin.parsers.openai_bodies._BLANK_LINE": ("finditer", (lambda n: b"\n\r" * n, lambda n: b"\n" * n)),
    "endpick_kubernetes.election._POD_OF_A_DEPLOYMENT": (
        "fullmatch",
        (lambda n: "a" * n, lambda n: "-" * n, lambda n: "-a" * n + "_", lambda n: ("-" + "a" * 20) * (n // 10) + "_"),
    ),
    "endpick_kubernetes.parameters._LEADING_NUMBER": ("match", (lambda n: " " * n, lambda n: " " * n + "+")),
    "endpick_kv_events.intake._RANK": ("search", (lambda n: "-rank-" * n, lambda n: "-rank-1" * n + "x")),
    "endpick_kv_events.messages._WILDCARD": ("finditer", (lambda n: "tcp://*:" + "1" * n + "x", lambda n: "tcp://*:1" * n)),
}
"""By its module and name: how each pattern is used, and the worst texts for it."""


@pytest.fixture
def deep() -> Iterator[None]:
    """The matcher calls itself for each repetition of a group."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("deep")
@pytest.mark.parametrize(("name", "text"), [(name, text) for name, (_, texts) in PATTERNS.items() for text in texts])
def test_a_pattern_takes_steps_in_proportion_to_the_text(name: str, text: Text) -> None:
    use = PATTERNS[name][0]
    pattern = pattern_of(name)
    steps = []
    for size in (N, 2 * N, 4 * N, 8 * N):
        matcher = Matcher(pattern, text(size))
        assert getattr(matcher, use)() == really_found(pattern, use, text(size))
        steps.append(matcher.steps)
    assert steps[-1] <= 9 * steps[0] + SLACK, steps


def pattern_of(name: str) -> re.Pattern[str] | re.Pattern[bytes]:
    module, _, constant = name.rpartition(".")
    return BUILT[name]() if name in BUILT else getattr(import_module(module), constant)


def really_found(pattern: re.Pattern, use: str, text: str | bytes) -> int | list[int] | None:
    if use == "finditer":
        return [found.end() for found in pattern.finditer(text)]
    found = getattr(pattern, use)(text)
    return None if found is None else found.end()


def test_every_pattern_is_in_the_table() -> None:
    found = {name for module in modules() for name in (*constants(module), *uses(module))}
    assert found == PATTERNS.keys() | OPERATORS.keys()
    assert not PATTERNS.keys() & OPERATORS.keys()


def modules() -> Iterator[ModuleType]:
    for reader in READERS:
        package = import_module(reader)
        yield package
        yield from (import_module(found.name) for found in pkgutil.walk_packages(package.__path__, f"{reader}."))


def constants(module: ModuleType) -> Iterator[str]:
    """The patterns among a module's own names, and its classes'."""
    for name, value in vars(module).items():
        if isinstance(value, re.Pattern):
            yield f"{module.__name__}.{name}"
        elif isinstance(value, type) and value.__module__ == module.__name__:
            yield from (f"{module.__name__}.{name}.{field}" for field, each in vars(value).items() if isinstance(each, re.Pattern))


def uses(module: ModuleType) -> Iterator[str]:
    """The functions that build a pattern, or give one to `re`."""
    for function in ast.walk(ast.parse(inspect.getsource(module) or "")):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.") and node.func.attr != "escape":
                    yield f"{module.__name__}.{function.name}"
