"""What each engine calls what `EngineStats` counts, on its own Prometheus endpoint; and how to read that."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from deployments.engine import EngineStats


@dataclass(frozen=True, slots=True)
class Metric:
    """Samples of one name, as Prometheus' text has them; only those with these labels, where some are given."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        labels = ",".join(f'{name}="{value}"' for name, value in self.labels)
        return f"{self.name}{{{labels}}}" if labels else self.name


@dataclass(frozen=True, slots=True)
class MetricNames:
    """One engine's names. None: it doesn't tell. Several samples of a count are added up, of a share averaged."""

    running: Metric
    waiting: Metric
    kv_cache_usage: Metric | None = None  # a share, 0 to 1
    prefix_hit_rate: Metric | None = None  # a share, 0 to 1; else the two counters that it is made of
    prefix_hits: Metric | None = None  # prompt tokens
    prefix_queries: Metric | None = None  # prompt tokens
    prompt_tokens: Metric | None = None
    generated_tokens: Metric | None = None
    path: str = "/metrics"  # under the server's root


def _triton(family: str, label: str, value: str) -> Metric:
    return Metric(f"nv_trt_llm_{family}_metrics", ((label, value),))


# Sources: vLLM 0.32 v1/metrics/loggers.py; SGLang 0.5.23 srt/observability/metrics_collector.py; TGI 3.3's metrics
# reference; TensorRT-LLM's metrics/collector.py (its `/metrics` is JSON; the counts of requests came later);
# Triton's TensorRT-LLM backend, custom_metrics_reporter.cc (`waiting` came later); llama.cpp's server README.
ENGINES: Mapping[str, MetricNames] = {
    "vllm": MetricNames(
        running=Metric("vllm:num_requests_running"),
        waiting=Metric("vllm:num_requests_waiting"),
        kv_cache_usage=Metric("vllm:kv_cache_usage_perc"),
        prefix_hits=Metric("vllm:prefix_cache_hits_total"),
        prefix_queries=Metric("vllm:prefix_cache_queries_total"),
        prompt_tokens=Metric("vllm:prompt_tokens_total"),
        generated_tokens=Metric("vllm:generation_tokens_total"),
    ),
    "sglang": MetricNames(
        running=Metric("sglang:num_running_reqs"),
        waiting=Metric("sglang:num_queue_reqs"),
        kv_cache_usage=Metric("sglang:token_usage"),
        # Not sglang:cache_hit_rate: that is of the last report.
        prefix_hits=Metric("sglang:cached_tokens_total"),
        prefix_queries=Metric("sglang:prompt_tokens_total"),
        prompt_tokens=Metric("sglang:prompt_tokens_total"),
        generated_tokens=Metric("sglang:generation_tokens_total"),
    ),
    "tgi": MetricNames(
        running=Metric("tgi_batch_current_size"),
        waiting=Metric("tgi_queue_size"),
        prompt_tokens=Metric("tgi_request_input_length_sum"),
        generated_tokens=Metric("tgi_request_generated_tokens_sum"),
    ),
    "tensorrt_llm": MetricNames(
        running=Metric("trtllm_num_requests_running"),
        waiting=Metric("trtllm_num_requests_waiting"),
        kv_cache_usage=Metric("trtllm_kv_cache_utilization"),
        prefix_hit_rate=Metric("trtllm_kv_cache_hit_rate"),
        path="/prometheus/metrics",
    ),
    "triton": MetricNames(
        running=_triton("request", "request_type", "scheduled"),
        waiting=_triton("request", "request_type", "waiting"),
        kv_cache_usage=_triton("kv_cache_block", "kv_cache_block_type", "fraction"),
    ),
    "llama.cpp": MetricNames(
        running=Metric("llamacpp:requests_processing"),
        waiting=Metric("llamacpp:requests_deferred"),
        kv_cache_usage=Metric("llamacpp:kv_cache_usage_ratio"),  # newer builds have none
        prompt_tokens=Metric("llamacpp:prompt_tokens_total"),
        generated_tokens=Metric("llamacpp:tokens_predicted_total"),
    ),
}

Samples = Mapping[str, list[tuple[dict[str, str], float]]]  # labels and value, by name


class MetricsError(ValueError):
    """A text that isn't the metrics of that engine. The message says what is missing."""


def read_stats(text: str, engine: str) -> EngineStats:
    """An engine's stats, from its Prometheus text.

    Raises:
        MetricsError: the text is of another format, or has no count of running requests under the engine's name.
    """
    names, samples = ENGINES[engine], _samples(text)
    running = _values(samples, names.running)
    if not running:
        raise MetricsError(f"no '{names.running}' among the metrics: they aren't those of {engine}")
    return EngineStats(
        running=round(sum(running)),
        waiting=round(sum(_values(samples, names.waiting))),
        kv_cache_usage=_mean(_values(samples, names.kv_cache_usage)),
        prefix_hit_rate=_hit_rate(samples, names),
        prompt_tokens=round(sum(_values(samples, names.prompt_tokens))),
        generated_tokens=round(sum(_values(samples, names.generated_tokens))),
    )


def combine(stats: Iterable[EngineStats]) -> EngineStats:
    """Several servers as one. Shares are averaged; that of the prefix cache by the prompt tokens of each server."""
    all_stats = list(stats)
    rates = [(each.prefix_hit_rate, each.prompt_tokens) for each in all_stats if each.prefix_hit_rate is not None]
    tokens = sum(weight for _, weight in rates)
    weighted = sum(rate * weight for rate, weight in rates) / tokens if tokens else _mean(rate for rate, _ in rates)
    return EngineStats(
        running=sum(each.running for each in all_stats),
        waiting=sum(each.waiting for each in all_stats),
        kv_cache_usage=_mean(each.kv_cache_usage for each in all_stats if each.kv_cache_usage is not None),
        prefix_hit_rate=weighted,
        prompt_tokens=sum(each.prompt_tokens for each in all_stats),
        generated_tokens=sum(each.generated_tokens for each in all_stats),
    )


def _samples(text: str) -> Samples:
    from prometheus_client.parser import text_string_to_metric_families

    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    except (ValueError, KeyError, IndexError) as error:  # what the parser raises for other formats
        raise MetricsError(f"not Prometheus' text format: {error}") from error
    return samples


def _values(samples: Samples, metric: Metric | None) -> list[float]:
    if metric is None:
        return []
    wanted = set(metric.labels)
    found = [value for labels, value in samples.get(metric.name, ()) if wanted <= labels.items()]
    return [value for value in found if abs(value) < float("inf")]  # neither NaN nor infinite


def _hit_rate(samples: Samples, names: MetricNames) -> float | None:
    if names.prefix_hit_rate is not None:
        return _mean(_values(samples, names.prefix_hit_rate))
    queries = sum(_values(samples, names.prefix_queries))
    return sum(_values(samples, names.prefix_hits)) / queries if queries else None


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None
