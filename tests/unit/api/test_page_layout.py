"""A page read with what was remembered of those before it says what it says by itself."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import MetricsPage, PageLayout

NAMES = ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc", "up", "vllm:lora_requests_info")


def page_of(*groups: Iterable[str], filler: int = 200, seed: int = 0) -> bytes:
    """Groups of lines among histograms whose numbers, and their lengths, follow from the seed."""
    chance = random.Random(seed)
    lines: list[str] = []
    for number, group in enumerate(groups):
        lines += (f'other_{number}_bucket{{le="{bound}"}} {chance.uniform(0, 10 ** chance.randint(0, 5)):.3f}' for bound in range(filler))
        lines += group
    return ("\n".join(lines) + "\n").encode()


def as_read(page: MetricsPage) -> list[list[tuple[dict[str, str], str, float | None]]]:
    return [[(dict(one.labels), repr(one.value), one.timestamp_seconds) for one in page.samples(name)] for name in NAMES]


def assert_same_as_alone(pages: Iterable[bytes]) -> None:
    layout = PageLayout()
    for body in pages:
        assert as_read(MetricsPage(body, layout)) == as_read(MetricsPage(body))


def usual(waiting: float = 3, *more: Iterable[str], seed: int = 0) -> bytes:
    return page_of(
        ["# HELP vllm:num_requests_waiting Requests.", f'vllm:num_requests_waiting{{engine="0"}} {waiting}'],
        ["# TYPE vllm:kv_cache_usage_perc gauge", 'vllm:kv_cache_usage_perc{engine="0"} 0.5', 'vllm:kv_cache_usage_perc{engine="1"} 0.25'],
        ["vllm:num_requests_running 7"],
        *more,
        seed=seed,
    )


def test_numbers_that_change_are_read_where_their_lines_have_moved_to():
    assert_same_as_alone(usual(moment, seed=moment) for moment in range(40))


@pytest.mark.parametrize(
    "other",
    [
        usual().replace(b'{engine="0"} 3', b'{engine="0"} 3\nvllm:num_requests_waiting{engine="1"} 4'),
        usual().replace(b"# HELP vllm:num_requests_waiting Requests.", b'vllm:num_requests_waiting{engine="2"} 9'),
        usual().replace(b'{engine="0"} 3', b'{engine="0"} NaN'),
        usual().replace(b'{engine="0"} 3', b'{engine="0"} 1e2'),
        usual().replace(b'{engine="0"} 3', b'{engine="0"} +Inf'),
        usual().replace(b'{engine="0"} 3', b'{engine="0"} 3 1700000000000'),
        usual().replace(b'{engine="0"} 3', b'{engine="0"} 3 # {trace_id="a"} 0.7'),
        usual().replace(b'{engine="0"} 3', b'{engine="0"} three'),
        usual().replace(b'{engine="0"} 3', b'{engine="a}b\\"c"} 3'),
        usual().replace(b"vllm:num_requests_waiting{", b"vllm:num_requests_waiting_by_reason{"),
        usual().replace(b"vllm:num_requests_waiting{", b"  vllm:num_requests_waiting{"),
        usual().replace(b"vllm:num_requests_running 7", b"vllm:num_requests_running\t7"),
        usual().replace(b'vllm:kv_cache_usage_perc{engine="1"} 0.25\n', b""),
        usual().replace(b"\n", b"\r\n"),
        usual(3, ['vllm:lora_requests_info{max_lora="4"} 1.7e9']),
        usual()[:20_000],
        usual()[:-1],
        usual() + b"# EOF\n",
        page_of(["up 1"], ["vllm:num_requests_running 8"], filler=3),
        b"<html>not found</html>",
        b"",
    ],
)
def test_what_changes_on_the_page_is_seen_at_once(other):
    assert_same_as_alone([usual(), usual(4), other, usual(5), other, other, usual(6)])


def test_an_exemplar_is_not_taken_for_the_value():
    line = b'vllm:num_requests_waiting{engine="0"} 17 # {trace_id="a"} 0.67'
    bodies = [usual().replace(b'vllm:num_requests_waiting{engine="0"} 3', line.replace(b"17", b"%d" % number)) for number in (17, 18, 19)]
    layout = PageLayout()
    assert [MetricsPage(body, layout).samples("vllm:num_requests_waiting")[0].value for body in bodies] == [17.0, 18.0, 19.0]


def test_a_metric_that_comes_to_stand_in_a_second_place_is_found_within_sixteen_pages():
    again = usual(seed=1) + b'vllm:num_requests_waiting{engine="9"} 1\n'
    layout = PageLayout()
    MetricsPage(usual(), layout).samples("vllm:num_requests_waiting")
    found = [len(MetricsPage(again, layout).samples("vllm:num_requests_waiting")) for _ in range(16)]
    assert found[-1] == 2


def test_a_metric_that_takes_the_line_of_another_is_found_within_sixteen_pages():
    with_up = usual().replace(b'other_2_bucket{le="5"}', b"up")
    layout = PageLayout()
    for _ in range(3):
        assert MetricsPage(usual(), layout).samples("up") == ()
    assert any(MetricsPage(with_up, layout).samples("up") for _ in range(16))


_LINES = st.lists(
    st.sampled_from(
        [
            *(f'{name}{{engine="{engine}"}} ' for name in NAMES for engine in range(2)),
            *(f"{name} " for name in NAMES),
            "# HELP up Whether.\n",
            "vllm:num_requests_waiting_total ",
            " up ",
        ]
    ),
    max_size=12,
)
_NUMBERS = st.sampled_from(["1", "2.5", "NaN", "+Inf", "-Inf", "1e9", "0x1", "1_0", "3 1000", '7 # {a="b"} 1', ""])


@given(lines=_LINES, moments=st.lists(st.lists(_NUMBERS, min_size=12, max_size=12), min_size=1, max_size=6), filler=st.integers(0, 120))
def test_pages_of_the_same_lines_read_as_they_do_alone_whatever_their_numbers(lines, moments, filler):
    assert_same_as_alone(
        page_of((line + number for line, number in zip(lines, numbers, strict=False)), [], filler=filler, seed=seed)
        for seed, numbers in enumerate(moments)
    )


def test_values_stay_as_exact_as_they_are_written():
    layout = PageLayout()
    for text in ("1e308", "4.9e-324", "0.1", "123456789.123456789", "-0"):
        body = usual().replace(b'{engine="0"} 3', b'{engine="0"} ' + text.encode())
        value = MetricsPage(body, layout).samples("vllm:num_requests_waiting")[0].value
        assert value == float(text)
        assert math.copysign(1, value) == math.copysign(1, float(text))
