"""What a gateway counts. One object, built on a given registry, handed to whoever counts.

Labels come from closed lists only (outcomes, reasons, classes): no string of a client ever becomes a label.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_RATIOS = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)


class Metrics:
    """Outcomes: ``completed``, ``cancelled`` (the client went away), or a value of ``gateway.errors.Reason``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.requests = Counter(
            "sluicegate_requests", "Requests answered, by how they ended.", ["outcome"], registry=registry
        )
        self.deadlines_exceeded = Counter(
            "sluicegate_deadlines_exceeded",
            "Requests ended by their deadline, by where they were: at the door, without a token yet, or running.",
            ["place"],
            registry=registry,
        )
        self.wait_ratio = Histogram(
            "sluicegate_wait_ratio",
            "Observed over predicted wait for the first token, of requests that waited and had a prediction.",
            buckets=_RATIOS,
            registry=registry,
        )
        self.streams_open = Gauge("sluicegate_streams_open", "Requests being answered now.", registry=registry)
        self.connections_open = Gauge(
            "sluicegate_connections_open", "HTTP connections, idle ones too.", registry=registry
        )
        self.queue_requests = Gauge(
            "sluicegate_queue_requests", "The waiting queue of the whole cluster.", registry=registry
        )
        self.slots_in_use = Gauge(
            "sluicegate_slots_in_use", "Places in the running batches that this gateway drives.", registry=registry
        )
        self.kv_blocks_in_use = Gauge(
            "sluicegate_kv_blocks_in_use", "KV blocks held by sequences that this gateway drives.", registry=registry
        )
        self.iterations = Counter("sluicegate_iterations", "Plans reported by workers.", registry=registry)
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
        self.stale_tokens = Counter(
            "sluicegate_stale_tokens", "Output tokens that came a second time or after a gap.", registry=registry
        )
        self.moves = Counter(
            "sluicegate_moves",
            "Requests of this gateway offered again, as what ran them, or the queue that held them, was lost.",
            registry=registry,
        )
        self.unwanted_tokens = Counter(
            "sluicegate_unwanted_tokens",
            "Output tokens of plans that were in flight when their sequence ended.",
            registry=registry,
        )
        self.store_acts_dropped = Counter(
            "sluicegate_store_acts_dropped",
            "Acts on the waiting queue given up while Redis was away: what they leave, reconciling repairs.",
            registry=registry,
        )
        self.preemptions = Counter(
            "sluicegate_preemptions", "Started sequences paused, by what ran out.", ["reason"], registry=registry
        )
        self.worker_idle = Counter(
            "sluicegate_worker_idle_seconds",
            "Time that workers waited for a plan between iterations.",
            registry=registry,
        )
        self.worker_busy = Counter(
            "sluicegate_worker_busy_seconds", "Time that workers spent on iterations.", registry=registry
        )
        self.first_token = Histogram(
            "sluicegate_first_token_seconds", "Receipt to first token.", buckets=_SECONDS, registry=registry
        )
        self.inter_token = Histogram(
            "sluicegate_inter_token_seconds", "Between output tokens of a stream.", buckets=_SECONDS, registry=registry
        )
