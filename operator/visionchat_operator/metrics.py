"""The operator's own metrics, once each, in Prometheus' form."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class OperatorMetrics:
    """One set per process; a registry of its own, so that tests do not share it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Histogram(
            "visionchat_operator_reconcile_seconds",
            "Time of one reconcile: the plan and all that is done for it",
            buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
            registry=self.registry,
        )
        self.errors = Counter(
            "visionchat_operator_errors_total", "Reconciles that failed", ["reason"], registry=self.registry
        )
        self.decisions = Counter(
            "visionchat_operator_decisions_total", "Decisions by reason", ["reason"], registry=self.registry
        )
        self.api_calls = Counter(
            "visionchat_operator_api_calls_total",
            "Calls to the API server, watches not counted",
            ["verb", "kind", "code"],
            registry=self.registry,
        )
        self.missed = Counter(
            "visionchat_operator_missed_events_total",
            "Objects whose news a watch missed",
            ["kind"],
            registry=self.registry,
        )
        self.resources = Gauge(
            "visionchat_operator_visionchats", "VisionChats that are looked after", registry=self.registry
        )
        self.leading = Gauge("visionchat_operator_leading", "1 while this operator leads", registry=self.registry)
