import os
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from deployments import environments
from deployments.engine import EngineStats
from deployments.environments import environment
from deployments.metric_names import ENGINES, Metric, MetricNames, MetricsError, combine, read_stats

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 300.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7e+09
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 75.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.5e+03
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 42.0
"""
SGLANG = """\
sglang:num_running_reqs{model_name="m",tp_rank="0"} 2.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 5.0
sglang:token_usage{model_name="m",tp_rank="0"} 0.5
sglang:cache_hit_rate{model_name="m",tp_rank="0"} 0.99
sglang:cached_tokens_total{cache_source="device",model_name="m"} 30.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 10.0
sglang:prompt_tokens_total{is_streaming="true",model_name="m"} 60.0
sglang:prompt_tokens_total{is_streaming="false",model_name="m"} 20.0
sglang:generation_tokens_total{is_streaming="true",model_name="m"} 7.0
"""
TGI = """\
tgi_batch_current_size 8
tgi_queue_size 1
tgi_request_input_length_bucket{le="10"} 5
tgi_request_input_length_sum 128
tgi_request_input_length_count 2
tgi_request_generated_tokens_sum 20
"""
TENSORRT_LLM = """\
trtllm_num_requests_running{model_name="m"} 1.0
trtllm_num_requests_waiting{model_name="m"} 0.0
trtllm_kv_cache_utilization{model_name="m"} 0.125
trtllm_kv_cache_hit_rate{model_name="m"} 0.5
"""
TRITON = """\
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 9
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 6
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 4
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 10
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.1
"""
LLAMA_CPP = """\
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 6886
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 3469
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
llamacpp:requests_deferred 2
"""


@pytest.mark.parametrize(
    ("engine", "text", "stats"),
    [
        ("vllm", VLLM, EngineStats(7, 2, 0.5, 0.25, 1500, 42)),
        ("sglang", SGLANG, EngineStats(2, 5, 0.5, 0.5, 80, 7)),
        ("tgi", TGI, EngineStats(8, 1, None, None, 128, 20)),
        ("tensorrt_llm", TENSORRT_LLM, EngineStats(1, 0, 0.125, 0.5)),
        ("triton", TRITON, EngineStats(6, 4, 0.1)),
        ("llama.cpp", LLAMA_CPP, EngineStats(1, 2, None, None, 6886, 3469)),
    ],
)
def test_each_engine_s_text(engine: str, text: str, stats: EngineStats) -> None:
    assert read_stats(text, engine) == stats


def test_every_engine_has_a_text_here() -> None:
    assert {"vllm", "sglang", "tgi", "tensorrt_llm", "triton", "llama.cpp"} == set(ENGINES)


def test_a_fresh_engine_has_no_hit_rate() -> None:
    text = re.sub(r"(prefix_cache_(?:queries|hits)_total\{.*?\}) .*", r"\1 0.0", VLLM)
    assert read_stats(text, "vllm").prefix_hit_rate is None


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_values_that_are_no_numbers_are_left_out(value: str) -> None:
    text = VLLM.replace("} 0.25", f"}} {value}").replace("} 2.0", f"}} {value}")
    stats = read_stats(text, "vllm")
    assert (stats.kv_cache_usage, stats.waiting) == (0.75, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>\n<body>no</body>",
        '{"a": 1}',
        "[{}]",
        "a b c",
        "x{",
        'x{a="',
        "\x00",
        "vllm:num_requests_running NaN",
    ],
)
def test_other_texts_are_an_error(text: str) -> None:
    with pytest.raises(MetricsError):
        read_stats(text, "vllm")


def test_another_engine_s_text_names_what_is_missing() -> None:
    with pytest.raises(MetricsError, match="sglang:num_running_reqs.*sglang"):
        read_stats(VLLM, "sglang")


def test_several_servers_as_one() -> None:
    first = EngineStats(1, 2, 0.25, 0.5, 100, 10)
    second = EngineStats(3, 0, 0.75, 0.75, 300, 20)
    unknown = EngineStats(1, 1)
    assert combine([first, second, unknown]) == EngineStats(5, 3, 0.5, 0.6875, 400, 30)
    assert combine([unknown]) == unknown
    assert combine([]) == EngineStats(0, 0)


def test_rates_without_token_counts_weigh_the_same() -> None:
    assert combine([EngineStats(0, 0, None, 0.2), EngineStats(0, 0, None, 0.4)]).prefix_hit_rate == pytest.approx(0.3)


def metrics_of(names: MetricNames) -> Iterator[tuple[str, Metric]]:
    for field in fields(names):
        if isinstance(metric := getattr(names, field.name), Metric):
            yield field.name, metric


def test_the_page_has_the_table() -> None:
    page = PAGE.read_text("utf-8")
    for engine, names in ENGINES.items():
        section = page.partition(f"\n## `{engine}`\n")[2].partition("\n## ")[0]
        assert f"Endpoint: `{names.path}`." in section
        rows = re.findall(r"^\| `(.*?)` \| `(.*)` \|$", section, re.MULTILINE)
        assert rows == [(name, str(metric)) for name, metric in metrics_of(names)]


def test_the_page_explains_every_name() -> None:
    explained = set(re.findall(r"^\| `(\w+)` \| [^`]", PAGE.read_text("utf-8"), re.MULTILINE))
    assert explained == {field.name for field in fields(MetricNames)} - {"path"}


DECLARATIONS = {"vllm": "vllm/v1/metrics/loggers.py", "sglang": "sglang/srt/observability/metrics_collector.py"}


def source_of(engine: str) -> str:
    """The file in which the engine, as it is installed here, declares its metrics."""
    variable = f"TEST_ENVIRONMENT_{engine.upper()}"
    own = environment(engine).folder if engine in environments.ENGINES else None
    folder = Path(os.environ[variable]) if variable in os.environ else own
    found = list(folder.glob(f"lib/python3*/site-packages/{DECLARATIONS[engine]}")) if folder else []
    if not found:
        pytest.skip(f"{engine} isn't installed here, so its own names can't be compared; {variable} may name a folder")
    return found[0].read_text("utf-8")


@pytest.mark.parametrize("engine", sorted(DECLARATIONS))
def test_the_installed_engine_declares_these_names(engine: str) -> None:
    source = source_of(engine)
    for _, metric in metrics_of(ENGINES[engine]):
        # A counter's samples end in _total, whether its declaration says so or not.
        assert any(f'name="{name}"' in source for name in (metric.name, metric.name.removesuffix("_total"))), metric
