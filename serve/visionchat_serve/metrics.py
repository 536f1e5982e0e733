"""Every metric of the gateway, each named once. Prometheus text at `/metrics`.

One registry per gateway process, so that tests and several apps in one process do not share counters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from visionchat_serve.exchange import Exchange
from visionchat_serve.messages import QueueLoad, ReplicaReport

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FIRST_TOKEN = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 30, 60, 120, 300)
_PER_TOKEN = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


class Metrics:
    """`observe` is called once per answered request, `queue` when the page is read."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "visionchat_requests",
            "Chat requests by outcome (ok or an error code)",
            ["outcome"],
            registry=self._registry,
        )
        self.cache = Counter(
            "visionchat_cache",
            "Requests by what the result cache did (hit, joined, miss, bypass, uncacheable)",
            ["result"],
            registry=self._registry,
        )
        self._first_token = Histogram(
            "visionchat_time_to_first_token_seconds", "From submit to the first text",
            buckets=_FIRST_TOKEN, registry=self._registry,
        )  # fmt: skip
        self._per_token = Histogram(
            "visionchat_time_per_output_token_seconds", "Mean time of an answer's later tokens",
            buckets=_PER_TOKEN, registry=self._registry,
        )  # fmt: skip
        self._prompt_tokens = Counter("visionchat_prompt_tokens", "Tokens read", registry=self._registry)
        self._output_tokens = Counter("visionchat_output_tokens", "Tokens written", registry=self._registry)
        self._depth = Gauge(
            "visionchat_queue_depth", "Jobs not yet answered, by state", ["state"], registry=self._registry
        )
        self._seconds = Gauge(
            "visionchat_queue_seconds", "About how long the replicas will work on these jobs", registry=self._registry
        )
        self._replicas = Gauge("visionchat_replicas_ready", "Replicas that report themselves", registry=self._registry)
        self._reported = _Reported()
        self._registry.register(self._reported)

    def observe(self, exchange: Exchange) -> None:
        """An answer came to its good end."""
        self.requests.labels("ok").inc()
        usage = exchange.finish.usage
        self._prompt_tokens.inc(usage.prompt_tokens)
        self._output_tokens.inc(usage.completion_tokens)
        if exchange.first_text_at is None or exchange.last_text_at is None:
            return
        self._first_token.observe(exchange.first_text_at - exchange.submitted_at)
        if usage.completion_tokens > 1:
            decoding = exchange.last_text_at - exchange.first_text_at
            self._per_token.observe(decoding / (usage.completion_tokens - 1))

    def page(self, load: QueueLoad, reports: Sequence[ReplicaReport]) -> bytes:
        """The page in Prometheus' text form."""
        for state in ("waiting", "leased", "delayed"):
            self._depth.labels(state).set(getattr(load, state))
        self._seconds.set(load.seconds)
        self._replicas.set(len(reports))
        self._reported.reports = reports
        return generate_latest(self._registry)


class _Reported(Collector):
    """What replicas count themselves; the same at every gateway."""

    reports: Sequence[ReplicaReport] = ()

    def collect(self) -> Iterator[CounterMetricFamily]:
        for field, name, help in (
            ("picture_hits", "visionchat_picture_cache_hits", "Pictures that the replica knew from earlier requests"),
            ("picture_misses", "visionchat_picture_cache_misses", "Pictures that the replica had to encode"),
            ("cached_tokens", "visionchat_cached_prompt_tokens", "Prompt tokens known to the replica, not read again"),
        ):
            family = CounterMetricFamily(name, help, labels=["replica"])
            for report in self.reports:
                family.add_metric([report.replica], getattr(report, field))
            yield family
