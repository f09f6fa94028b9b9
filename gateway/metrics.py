"""What a gateway counts. One object, built on a given registry; each part of it is handed to whoever counts it.

Labels come from closed lists only (outcomes, reasons, classes): no string of a client ever becomes a label. The label
``class`` is empty where no class was chosen yet, as in a request that could not be read.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.loop_histogram import LoopHistogram

NO_CLASS = ""

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_RATIOS = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)


class RequestMetrics:
    """What clients of this gateway see, whoever serves them.

    The outcomes of ``ended``: ``completed``, ``cancelled`` (the client went away), or a ``gateway.errors.Reason``.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.open = Gauge("sluicegate_streams_open", "Requests being answered now.", registry=registry)
        self.connections_open = Gauge(
            "sluicegate_connections_open", "HTTP connections, idle ones too.", registry=registry
        )
        self.ended = Counter(
            "sluicegate_requests",
            "Requests answered, by how they ended and by class.",
            ["outcome", "class"],
            registry=registry,
        )
        self.deadlines_exceeded = Counter(
            "sluicegate_deadlines_exceeded",
            "Requests ended by their deadline, by where they were: at the door, without a token yet, or running.",
            ["place"],
            registry=registry,
        )
        self.first_token = Histogram(
            "sluicegate_first_token_seconds",
            "Receipt to first token, by class.",
            ["class"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.inter_token = LoopHistogram(
            "sluicegate_inter_token_seconds", "Between output tokens of a stream.", buckets=_SECONDS, registry=registry
        )
        self.wait_ratio = Histogram(
            "sluicegate_wait_ratio",
            "Observed over predicted wait for the first token, of requests that waited and had a prediction.",
            buckets=_RATIOS,
            registry=registry,
        )
        self.moves = Counter(
            "sluicegate_moves", "Requests offered again, as what ran or held them was lost.", registry=registry
        )
        self.stale_tokens = Counter(
            "sluicegate_stale_tokens", "Output tokens that came a second time or after a gap.", registry=registry
        )


class QueueMetrics:
    """The waiting queue. It is one for the whole cluster: every gateway shows the same."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Gauge(
            "sluicegate_queue_requests", "Requests that wait, by class.", ["class"], registry=registry
        )
        self.tokens = Gauge(
            "sluicegate_queue_tokens", "Prompt and expected output tokens that wait.", registry=registry
        )
        self.requests_bound = Gauge(
            "sluicegate_queue_requests_bound", "Requests that may wait for one model.", registry=registry
        )
        self.tokens_bound = Gauge(
            "sluicegate_queue_tokens_bound", "Tokens that may wait for one model.", registry=registry
        )
        self.class_requests_bound = Gauge(
            "sluicegate_queue_class_requests_bound",
            "Requests of a class that may wait for one model, where the class has a bound of its own.",
            ["class"],
            registry=registry,
        )
        self.acts_dropped = Counter(
            "sluicegate_store_acts_dropped",
            "Acts on the queue given up while Redis was away: what they leave, reconciling repairs.",
            registry=registry,
        )


class WorkerMetrics:
    """The workers that this gateway drives, whoever their requests came through: add them up over the gateways."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.slots = Gauge("sluicegate_slots", "Places in the running batches driven here.", registry=registry)
        self.slots_in_use = Gauge("sluicegate_slots_in_use", "Those of them that are taken.", registry=registry)
        self.kv_blocks = Gauge("sluicegate_kv_blocks", "KV blocks of the workers driven here.", registry=registry)
        self.kv_blocks_in_use = Gauge(
            "sluicegate_kv_blocks_in_use", "Those of them that sequences hold.", registry=registry
        )
        self.iterations = Counter("sluicegate_iterations", "Plans reported by workers.", registry=registry)
        self.busy = Counter(
            "sluicegate_worker_busy_seconds", "Time that workers spent on iterations.", registry=registry
        )
        self.idle = Counter(
            "sluicegate_worker_idle_seconds",
            "Time that workers waited for a plan between iterations.",
            registry=registry,
        )
        self.preemptions = Counter(
            "sluicegate_preemptions", "Started sequences paused, by what ran out.", ["reason"], registry=registry
        )
        self._count_tokens(registry)

    def _count_tokens(self, registry: CollectorRegistry) -> None:
        self.prompt_tokens = Counter("sluicegate_prompt_tokens", "Prompt tokens computed.", registry=registry)
        self.prompt_tokens_found = Counter(
            "sluicegate_prompt_tokens_found",
            "Tokens that were not computed, as their KV blocks were there.",
            registry=registry,
        )
        self.swapped_tokens = Counter(
            "sluicegate_swapped_tokens", "Tokens whose KV came back from host memory.", registry=registry
        )
        self.output_tokens = Counter("sluicegate_output_tokens", "Output tokens received.", registry=registry)
        self.unwanted_tokens = Counter(
            "sluicegate_unwanted_tokens",
            "Output tokens of plans that were in flight when their sequence ended.",
            registry=registry,
        )


class Metrics:
    """All of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.requests = RequestMetrics(registry)
        self.queue = QueueMetrics(registry)
        self.workers = WorkerMetrics(registry)
