"""From answers and counters to figures."""

import pytest

from benchmarks.gateway.cases import CASES, Case
from benchmarks.gateway.figures import Spent, case_figures, gaps_s, paired_figures, quantile
from tests.benchmarks.gateway_samples import STREAM, WHOLE, answer, right


@pytest.mark.parametrize(
    ("q", "value"), [(0.0, 1), (0.01, 1), (0.5, 50), (0.501, 51), (0.99, 99), (0.991, 100), (1.0, 100)]
)
def test_a_quantile_is_one_of_the_values(q: float, value: float) -> None:
    assert quantile([float(number) for number in range(100, 0, -1)], q) == value


def test_quantiles_of_few_and_of_none() -> None:
    assert quantile([7.0], 0.99) == quantile([7.0], 0.5) == 7.0
    assert quantile([], 0.5) is None


def test_events_that_one_read_brought_have_no_gap() -> None:
    assert list(gaps_s([(1.0, 3), (1.5, 1), (3.5, 2)])) == [0.0, 0.0, 0.5, 2.0, 0.0]
    assert list(gaps_s([(1.0, 1)])) == []


async def test_a_streamed_case() -> None:
    body = await right(STREAM)
    answers = [answer(body, [(0.1, 1), (0.2, 7), (0.4, 8)]), answer(body, [(0.3, 16)])]
    spent = Spent(wall_s=2.0, cpu_s=0.5, idle_cpu_s=0.1, client_cpu_s=0.05)
    found = case_figures(Case("case", STREAM, 1, 2), answers, spent)
    assert (found.requests, found.wrong, found.requests_per_s, found.chunks_per_s) == (2, {}, 1.0, 12.0)
    assert (found.ttft_ms_p50, found.ttft_ms_p99) == (100.0, 300.0)
    assert (found.gap_ms_p50, found.gap_ms_p99) == (0.0, 200.0)
    assert found.reads_per_event == 4 / 32
    assert (found.cpu_ms_per_request, found.raw_cpu_ms_per_request) == (200.0, 250.0)
    assert found.cpu_us_per_chunk == pytest.approx(400_000 / 24)
    assert found.raw_cpu_us_per_chunk == pytest.approx(500_000 / 24)


async def test_a_case_without_streams() -> None:
    spent = Spent(wall_s=1.0, cpu_s=0.01, idle_cpu_s=0.02, client_cpu_s=0.0)
    found = case_figures(Case("case", WHOLE, 1, 1), [answer(await right(WHOLE), [])], spent)
    assert found.ttft_ms_p50 == 2000.0, "the first that comes of it is all of it"
    assert found.cpu_ms_per_request == 0.0, "never below nothing"
    assert found.chunks_per_s is found.cpu_us_per_chunk is found.reads_per_event is found.gap_ms_p50 is None


async def test_wrong_answers_are_counted_by_what_is_wrong_and_make_no_speed() -> None:
    body = await right(STREAM)
    gone = answer(b"")
    gone.failure = "no connection: Connection refused"
    answers = [answer(body), gone, gone, answer(body.replace(b"tok0001", b"tok0002"))]
    found = case_figures(Case("case", STREAM, 1, 4), answers, Spent(1.0, 0.4, 0.0, 0.0))
    assert found.wrong == {"no connection: Connection refused": 2, "the text differs": 1}
    assert (found.requests, found.requests_per_s, found.cpu_ms_per_request) == (4, 1.0, 100.0)


def test_a_case_without_an_answer_is_figures_too() -> None:
    found = case_figures(Case("case", STREAM, 1, 4), [], Spent(1.0, 0.0, 0.0, 0.0))
    assert (found.requests, found.requests_per_s, found.ttft_ms_p50) == (0, 0.0, None)


async def test_what_a_gateway_adds_is_the_difference_of_the_quantiles() -> None:
    body = await right(STREAM)
    pairs = [(answer(body, [(0.01, 16)]), answer(body, [(0.03, 16)])) for _ in range(98)]
    pairs += [(answer(body, [(0.02, 16)]), answer(body[:-3], [(0.08, 16)]))] * 2
    found = paired_figures(STREAM, pairs)
    assert found.pairs == 100
    assert found.added_ttft_ms_p50 == pytest.approx(20)
    assert found.added_ttft_ms_p99 == pytest.approx(60)
    assert list(found.wrong.values()) == [2]


def test_no_pair_is_no_figure() -> None:
    with pytest.raises(ValueError, match="no pair"):
        paired_figures(STREAM, [])


def test_a_scaled_case_has_every_client_ask() -> None:
    for case in CASES:
        short = case.scaled(0.01)
        assert short.requests == max(short.concurrency, round(case.requests * 0.01))
        assert short.limit_s == 1.0
        assert case.scaled(1) == case
