"""Every metric family, declared once: name, kind, labels and the closed sets their values come from.

docs/metrics.md is this table in words; a test compares the two.
"""

from dataclasses import dataclass
from typing import Literal

REQUEST_LABELS = ("lane", "tenant", "model", "quantization", "gpu_type")
ENGINE_LABELS = ("model", "quantization", "gpu_type", "engine")

LANES = ("fast", "slow", "batch", "none")
"""`none`: refused before a lane was proposed."""
OUTCOMES = ("completed", "rejected", "cancelled", "expired", "failed")
REJECTIONS = (
    "rate_requests", "rate_tokens", "concurrency", "budget", "predicted_late", "queue_full", "queue_timeout", "too_long",
    "warming_up", "draining", "engine_down", "invalid",
)  # fmt: skip
SHADOW_REASONS = ("rate_requests", "rate_tokens", "concurrency", "budget", "queue_full", "queue_timeout", "too_long")
"""Own limits of a tenant."""
STAGES = ("queue", "prefill", "decode")
CAUSES = ("disconnect", "slow_reader", "admin", "deadline")
DIRECTIONS = ("prompt", "cached", "generated")
STEP_PHASES = ("decode", "prefill", "mixed")
PAGE_STATES = ("free", "used", "cached")

TTFT_GRID_S = (0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.12, 0.2, 0.35, 0.6, 1.0, 2.0, 5.0, 15.0, 60.0)
"""The one grid of times that count from the receipt of a request."""
TOKEN_GRID_S = (0.001, 0.002, 0.004, 0.006, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.1, 0.15, 0.25, 0.5, 1.0, 5.0)
"""Gaps between tokens, and steps."""
REQUEST_GRID_S = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 2.0, 4.0, 7.0, 10.0, 20.0, 40.0, 90.0, 180.0, 600.0)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family. `name` has neither the prefix `fairlane_` nor a counter's `_total`."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...]
    grid_s: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        """The name that Prometheus shows."""
        return f"fairlane_{self.name}" + ("_total" if self.kind == "counter" else "")


REQUESTS = Family("requests", "counter", "Requests by their one outcome.", (*REQUEST_LABELS, "outcome"))
REJECTED = Family("rejections", "counter", "Requests refused, by reason.", (*REQUEST_LABELS, "reason"))
SHADOWED = Family(
    "shadow_rejections",
    "counter",
    "Requests admitted in shadow mode, by the own limit that would have refused.",
    (*REQUEST_LABELS, "reason"),
)
CANCELLED = Family(
    "cancellations", "counter", "Requests cancelled, by the stage they were in and the cause.", (*REQUEST_LABELS, "stage", "cause")
)
TOKENS = Family(
    "tokens", "counter", "Tokens of settled requests; cached ones are prompt tokens the prefix cache had.", (*REQUEST_LABELS, "direction")
)
TTFT = Family("ttft_seconds", "histogram", "From receipt to the first token reaching the transport.", REQUEST_LABELS, TTFT_GRID_S)
INTER_TOKEN = Family("inter_token_seconds", "histogram", "Gaps between token events of one output.", REQUEST_LABELS, TOKEN_GRID_S)
TPOT = Family("tpot_seconds", "histogram", "(last - first token) / (tokens - 1), by request.", REQUEST_LABELS, TOKEN_GRID_S)
QUEUE_WAIT = Family("queue_wait_seconds", "histogram", "From receipt to the first prefill chunk.", REQUEST_LABELS, TTFT_GRID_S)
PREFILL = Family("prefill_seconds", "histogram", "From the first prefill chunk to the first token.", REQUEST_LABELS, TTFT_GRID_S)
REQUEST = Family("request_seconds", "histogram", "From receipt to the end of an admitted request.", REQUEST_LABELS, REQUEST_GRID_S)

RUNNING = Family("running_requests", "gauge", "Sequences that hold a row of the batch.", (*ENGINE_LABELS, "lane"))
QUEUED = Family("queue_depth", "gauge", "Sequences waiting for a row.", (*ENGINE_LABELS, "lane"))
KV_PAGES = Family("kv_pages", "gauge", "Pages of the KV pool: free, used by live sequences, cached for reuse.", (*ENGINE_LABELS, "state"))
PREEMPTIONS = Family("preemptions", "counter", "Sequences that lost their pages and start over.", (*ENGINE_LABELS, "cause"))
PREFIX_QUERIES = Family("prefix_cache_query_tokens", "counter", "Prompt tokens looked up in the prefix cache.", ENGINE_LABELS)
PREFIX_HITS = Family("prefix_cache_hit_tokens", "counter", "Prompt tokens the prefix cache had.", ENGINE_LABELS)
COMPILES = Family("compiles_after_ready", "counter", "Programs compiled after ready: each one stalled every request.", ENGINE_LABELS)
STEP = Family("step_seconds", "histogram", "Time of the device for a step, by what it held.", (*ENGINE_LABELS, "phase"), TOKEN_GRID_S)
STEP_MODEL_ERROR = Family(
    "step_model_error_ratio", "gauge", "P99 over recent steps of measured over predicted step time; 1 is a perfect model.", ENGINE_LABELS
)
STARTUP = Family("startup_seconds", "gauge", "How long each phase of the engine's last start took.", (*ENGINE_LABELS, "phase"))
BACKEND = Family("kernel_backend_info", "gauge", "1 for the attention backend in use.", (*ENGINE_LABELS, "backend"))

FAMILIES = (
    REQUESTS, REJECTED, SHADOWED, CANCELLED, TOKENS, TTFT, INTER_TOKEN, TPOT, QUEUE_WAIT, PREFILL, REQUEST,
    RUNNING, QUEUED, KV_PAGES, PREEMPTIONS, PREFIX_QUERIES, PREFIX_HITS, COMPILES, STEP, STEP_MODEL_ERROR, STARTUP, BACKEND,
)  # fmt: skip
