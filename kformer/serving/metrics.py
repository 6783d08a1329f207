"""What `/metrics` shows, for Prometheus."""

import time
import types

_LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """The metrics of one server.

    Args:
        engine: `Engine`.
        admission: `Admission`.
    """

    def __init__(self, engine, admission):
        import prometheus_client

        self._engine = engine
        self.registry = registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=registry)
        labels = ("model", "version", "protocol")
        self._requests = prometheus_client.Counter(
            "kformer_requests", "Requests by outcome.", (*labels, "outcome"), registry=registry
        )
        self._texts = prometheus_client.Counter(
            "kformer_texts", "Texts that were answered.", labels, registry=registry
        )
        self._seconds = prometheus_client.Histogram(
            "kformer_request_seconds",
            "Time from a whole request to its reply.",
            labels,
            buckets=_LATENCIES,
            registry=registry,
        )
        accepted = prometheus_client.Gauge(
            "kformer_accepted_texts", "Texts accepted and not yet answered.", registry=registry
        )
        accepted.set_function(lambda: admission.texts)

    def answered(self, protocol, model, version, texts, start):
        """Counts a request that was answered.

        Args:
            protocol: str.
            model: str.
            version: int.
            texts: int. Its number of texts.
            start: float. `time.monotonic()` when the request was whole.
        """
        labels = (model, str(version), protocol)
        self._requests.labels(*labels, "answered").inc()
        self._texts.labels(*labels).inc(texts)
        self._seconds.labels(*labels).observe(time.monotonic() - start)

    def failed(self, protocol, model, outcome):
        """Counts a request that was not answered.

        Args:
            protocol: str.
            model: str. A name that no model has is not shown, since anybody may make up names.
            outcome: str. The name of the error.
        """
        model = model if model in self._engine.models() else ""
        self._requests.labels(model, "", protocol, outcome).inc()

    async def exposition(self):
        """Returns the text of `/metrics`, as bytes, and its content type."""
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        families = _engine_families(await self._engine.stats(), self._engine.models())
        engine = types.SimpleNamespace(collect=lambda: families)  # In the shape of a registry.
        return generate_latest(self.registry) + generate_latest(engine), CONTENT_TYPE_LATEST


def _engine_families(stats, models):
    """The metrics of an engine: batches, tokens, what waits, and which versions are served."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    labels = ("model", "version")
    sizes = HistogramMetricFamily("kformer_batch_texts", "Texts in a batch.", labels=labels)
    tokens = CounterMetricFamily(
        "kformer_tokens", "Tokens of texts and translations, estimated from bytes.", labels=labels
    )
    seconds = CounterMetricFamily(
        "kformer_computing_seconds", "Time in which batches were computed.", labels=labels
    )
    waiting = GaugeMetricFamily("kformer_waiting_texts", "Texts in the queue.", labels=labels)
    state = GaugeMetricFamily(
        "kformer_version_state", "1 for the state of a version.", labels=(*labels, "state")
    )
    for one in stats:
        names = (one.name, str(one.version))
        below = [
            (str(size), sum(n for count, n in one.batches.items() if count <= size))
            for size in _BATCH_SIZES
        ]
        total = sum(one.batches.values())
        sizes.add_metric(names, [*below, ("+Inf", total)], one.texts)
        tokens.add_metric(names, one.tokens)
        seconds.add_metric(names, one.seconds)
        waiting.add_metric(names, one.waiting)
    for versions in models.values():
        for one in versions:
            state.add_metric((one.name, str(one.version), one.state), 1)
    return [sizes, tokens, seconds, waiting, state]
