"""Every metric family, declared once: name, kind, labels and the closed sets their values come from.

docs/metrics.md is this table in words; a test compares the two.
"""

from dataclasses import dataclass
from typing import Literal

from appliance.telemetry.grid import FINE_GRID_S
from engine import wire

REQUEST_LABELS = ("lane", "tenant", "model", "quantization", "gpu_type")
LANE_LABELS = ("lane", "model", "quantization", "gpu_type")
TENANT_LABELS = ("tenant", "model", "quantization", "gpu_type")
ENGINE_LABELS = ("model", "quantization", "gpu_type", "engine")

LANES = (*wire.LANES, "none")
"""`none`: refused before a lane was proposed."""
OUTCOMES = ("completed", "rejected", "cancelled", "expired", "failed")
REJECTIONS = (
    "rate_requests", "rate_tokens", "concurrency", "budget", "predicted_late", "queue_full", "queue_timeout", "refused_often", "too_long",
    "warming_up", "draining", "engine_down", "invalid",
)  # fmt: skip
SHADOW_REASONS = ("rate_requests", "rate_tokens", "concurrency", "budget", "predicted_late", "queue_full", "queue_timeout", "too_long")
"""Own limits of a tenant."""
STAGES = ("queue", "prefill", "decode")
CAUSES = ("disconnect", "slow_reader", "admin", "deadline")
DIRECTIONS = ("prompt", "cached", "generated")
SLO_OUTCOMES = ("good", "bad")
STEP_PHASES = ("decode", "prefill", "mixed", "interrupted")
ROW_KINDS = ("decode", "prefill")
PAGE_STATES = ("free", "used", "cached")
SWAP_DIRECTIONS = ("out", "in")
KV_LIMITS = ("reserve", "cap")
LIMITS = ("max_concurrency", "max_queued", "rpm", "tpm", "tokens_per_day", "tokens_per_month")
"""Ceilings of a tenant, by the field of its tier."""
EVICTION_POLICIES = ("lru", "lfu", "size", "weighted-lru", "decayed-lfu")
EVICTION_VICTIMS = ("over_cap", "over_reserve", "own")
PROCESSES = ("control", "engine")
TRACE_OUTCOMES = ("sent", "failed", "dropped")
ACCOUNTING_CHECKS = ("pages", "slots", "requests")

TTFT_GRID_S = (0.005, 0.008, 0.013, 0.022, 0.036, 0.06, 0.1, 0.16, 0.27, 0.44, 0.73, 1.2, 2.0, 3.3, 5.4, 9.0, 15.0, 30.0, 60.0)
"""The one grid of times that count from the receipt of a request: even steps up to 9 s, so a quantile is true within 30 %."""
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
PAUSES = Family("backpressure_pauses", "counter", "Times a stream was paused until its reader had caught up.", REQUEST_LABELS)
PAUSED_SECONDS = Family("backpressure_seconds", "counter", "How long streams were paused for their readers.", REQUEST_LABELS)
HOLDS = Family(
    "door_holds", "counter",
    "Requests that stood at the door before their body was read: many of their tenant's had been refused, or its long bodies had no room.",
    REQUEST_LABELS,
)  # fmt: skip
HELD_SECONDS = Family("door_hold_seconds", "counter", "How long requests stood at the door.", REQUEST_LABELS)
TOKENS = Family(
    "tokens",
    "counter",
    "Tokens that settled requests cost their tenants; cached ones are prompt tokens the prefix cache had.",
    (*REQUEST_LABELS, "direction"),
)
TTFT = Family("ttft_seconds", "histogram", "From receipt to the first token reaching the transport.", REQUEST_LABELS, TTFT_GRID_S)
INTER_TOKEN = Family("inter_token_seconds", "histogram", "Gaps between token events of one output.", REQUEST_LABELS, TOKEN_GRID_S)
TPOT = Family("tpot_seconds", "histogram", "(last - first token) / (tokens - 1), by request.", REQUEST_LABELS, TOKEN_GRID_S)
QUEUE_WAIT = Family("queue_wait_seconds", "histogram", "From receipt to the first prefill chunk.", REQUEST_LABELS, TTFT_GRID_S)
PREFILL = Family("prefill_seconds", "histogram", "From the first prefill chunk to the first token.", REQUEST_LABELS, TTFT_GRID_S)
DECODE = Family("decode_seconds", "histogram", "From the first token to the last.", REQUEST_LABELS, REQUEST_GRID_S)
STREAM_WRITE = Family(
    "stream_write_seconds", "histogram", "From the last token to the end of the answer: text, writing, a client that reads slowly.",
    REQUEST_LABELS, TOKEN_GRID_S,
)  # fmt: skip
REQUEST = Family(
    "request_seconds",
    "histogram",
    "From receipt to the end of an admitted request, when its last token is written.",
    REQUEST_LABELS,
    REQUEST_GRID_S,
)

LANE_TTFT = Family(
    "lane_ttft_seconds",
    "histogram",
    "As ttft_seconds, without the tenant and on a fine grid: a P99 is true within 10 %.",
    LANE_LABELS,
    FINE_GRID_S,
)
LANE_INTER_TOKEN = Family(
    "lane_inter_token_seconds", "histogram", "As inter_token_seconds, without the tenant and on a fine grid.", LANE_LABELS, FINE_GRID_S
)
DEVICE_SECONDS = Family(
    "device_seconds",
    "counter",
    "Time of the device by tenant: each step's, shared by what each tenant computed and read in it.",
    TENANT_LABELS,
)

TENANT_KV_PAGES = Family("tenant_kv_pages", "gauge", "Pages of the KV pool that a tenant's live sequences use.", ("tenant", *ENGINE_LABELS))
TENANT_KV_LIMIT = Family(
    "tenant_kv_limit_ratio", "gauge", "Share of the KV pool that a tenant's tier sets aside for it, and the most it may use.",
    (*TENANT_LABELS, "limit"),
)  # fmt: skip

LIMIT_USE = Family("limit_use_ratio", "gauge", "Share of a tenant's ceiling that is in use; at 1 it is refused.", (*TENANT_LABELS, "limit"))

SLO_LABELS = (*REQUEST_LABELS, "slo")
SLO_REQUESTS = Family(
    "slo_requests", "counter", "Requests counted for an SLO, by whether they met their tenant's exact target.", (*SLO_LABELS, "outcome")
)
SLO_TARGET = Family("slo_target_seconds", "gauge", "The target of the tenant's tier for the lane.", SLO_LABELS)
SLO_OBJECTIVE = Family("slo_objective_ratio", "gauge", "Share of requests that must meet the target.", SLO_LABELS)
SLO_ATTAINMENT = Family("slo_attainment_ratio", "gauge", "Share that met it in the last three days; none without requests.", SLO_LABELS)
SLO_BUDGET = Family(
    "slo_budget_left_ratio", "gauge", "Of the requests that may miss it in three days: 1 is all left, below 0 overspent.", SLO_LABELS
)
SLO_BURN = Family("slo_burn_rate", "gauge", "How many times as fast as allowed the budget is spent.", (*SLO_LABELS, "window"))
TAIL_SECONDS = Family(
    "tail_seconds",
    "counter",
    "What the slowest hundredth of a lane's requests is made of: until the first token (ttft), after it (tpot).",
    (*LANE_LABELS, "slo", "part"),
)
INTERFERENCE = Family(
    "interference_seconds",
    "counter",
    "What slow requests of one tenant spent on the work of another.",
    ("model", "quantization", "gpu_type", "victim", "culprit"),
)
UNEXPLAINED = Family("slow_requests_unexplained", "counter", "Slow requests beyond what is explained in the background.", ())

RUNNING = Family("running_requests", "gauge", "Sequences that hold a row of the batch.", (*ENGINE_LABELS, "lane"))
QUEUED = Family("queue_depth", "gauge", "Sequences waiting for a row.", (*ENGINE_LABELS, "lane"))
QUEUE_OLDEST = Family(
    "queue_oldest_seconds", "gauge", "Since the receipt of the request that has waited longest for its first step; 0 where none waits.",
    (*ENGINE_LABELS, "lane"),
)  # fmt: skip
KV_SLOT_USE = Family(
    "kv_slot_use_ratio", "gauge", "Token slots in use over those of all used pages; the rest is fragmentation.", ENGINE_LABELS
)
KV_PAGES = Family("kv_pages", "gauge", "Pages of the KV pool: free, used by live sequences, cached for reuse.", (*ENGINE_LABELS, "state"))
PREEMPTIONS = Family(
    "preemptions", "counter", "Sequences that lost their pages on the device and wait for a row again.", (*ENGINE_LABELS, "cause")
)
PREFIX_QUERIES = Family("prefix_cache_query_tokens", "counter", "Prompt tokens looked up in the prefix cache.", ENGINE_LABELS)
PREFIX_HITS = Family("prefix_cache_hit_tokens", "counter", "Prompt tokens the prefix cache had.", ENGINE_LABELS)
RECOMPUTED = Family("recomputed_tokens", "counter", "Tokens computed again after a preemption.", ENGINE_LABELS)
EVICTIONS = Family(
    "evictions", "counter", "Cached pages given up, by policy and by why they were their tenant's to lose.",
    (*ENGINE_LABELS, "policy", "victim"),
)  # fmt: skip
COPIED_PAGES = Family("copied_pages", "counter", "Pages of a prompt that its outputs shared until one of them wrote.", ENGINE_LABELS)
SWAPPED_PAGES = Family("swapped_pages", "counter", "Pages of preempted sequences to host memory and back.", (*ENGINE_LABELS, "direction"))
PAD_TOKENS = Family("pad_tokens", "counter", "Rows of compiled shapes that held no token.", ENGINE_LABELS)
STEP_TOKENS = Family("step_tokens", "counter", "Tokens put through the model: decode rows and prefill rows.", (*ENGINE_LABELS, "kind"))
BUSY = Family("busy_seconds", "counter", "Time of the device under steps, by what they held.", (*ENGINE_LABELS, "phase"))
ROUND_TRIP = Family(
    "rtt_seconds", "histogram", "From handing a sequence to the engine to the first report that knows of it.", ENGINE_LABELS, TOKEN_GRID_S
)
COMPILES = Family("compiles_after_ready", "counter", "Programs compiled after ready: each one stalled every request.", ENGINE_LABELS)
STEP = Family("step_seconds", "histogram", "Time of the device for a step, by what it held.", (*ENGINE_LABELS, "phase"), TOKEN_GRID_S)
STEP_MODEL_ERROR = Family(
    "step_model_error_ratio", "gauge", "Measured over expected time of a mean step as late as the P99; 1 is a perfect model.", ENGINE_LABELS
)
STARTUP = Family("startup_seconds", "gauge", "How long each phase of the engine's last start took.", (*ENGINE_LABELS, "phase"))
BACKEND = Family("kernel_backend_info", "gauge", "1 for the attention backend in use.", (*ENGINE_LABELS, "backend"))

READY = Family("ready", "gauge", "1 while requests are taken.", ())
ENGINE_STARTS = Family(
    "engine_starts", "counter", "Processes of an engine that came to take requests; more than one means that one died.", ("engine",)
)
ENGINE_UP = Family("engine_up", "gauge", "1 while an engine takes requests of its lanes.", ("engine",))
DEGRADED = Family("database_degraded", "gauge", "1 while the database does not answer, or takes no writes.", ())
UNWRITTEN = Family("usage_unwritten_seconds", "gauge", "Age of the oldest usage that is not in the database yet.", ())
USAGE_LOST = Family("usage_lost_requests", "counter", "Requests whose usage is lost: nothing had room for it any more.", ())
LOOP_LAG = Family(
    "event_loop_lag_seconds", "histogram", "How late the control plane's event loop woke from a sleep of 0.1 s.", (), TOKEN_GRID_S
)
PROCESS_CPU = Family("process_cpu_seconds", "counter", "Processor time of the control plane and of the engines.", ("process",))
PROCESS_MEMORY = Family("process_resident_memory_bytes", "gauge", "Resident memory of the control plane and of the engines.", ("process",))
GPU_USE = Family("gpu_utilization_ratio", "gauge", "Share of time a kernel ran on the card (NVML); no series without a card.", ("gpu",))
GPU_MEMORY = Family("gpu_memory_used_bytes", "gauge", "Memory in use on the card (NVML).", ("gpu",))
GPU_MEMORY_TOTAL = Family("gpu_memory_total_bytes", "gauge", "Memory of the card (NVML).", ("gpu",))
PRICE = Family("device_hour_price", "gauge", "What an hour of the device costs, as configured; 0 where it is not.", ())
TRACES = Family(
    "otlp_traces",
    "counter",
    "Traces kept for the OTLP collector: taken by it, failed to reach it, or dropped because too many waited.",
    ("outcome",),
)
MISMATCHES = Family(
    "accounting_mismatch", "counter", "Times that a sum which must hold did not: a defect of ours, please report it.", ("check",)
)

FAMILIES = (
    REQUESTS, REJECTED, SHADOWED, CANCELLED, PAUSES, PAUSED_SECONDS, HOLDS, HELD_SECONDS, TOKENS, TTFT, INTER_TOKEN, TPOT,
    QUEUE_WAIT, PREFILL, DECODE, STREAM_WRITE,
    REQUEST, LANE_TTFT, LANE_INTER_TOKEN, DEVICE_SECONDS, TENANT_KV_PAGES, TENANT_KV_LIMIT, LIMIT_USE,
    SLO_REQUESTS, SLO_TARGET, SLO_OBJECTIVE, SLO_ATTAINMENT, SLO_BUDGET, SLO_BURN, TAIL_SECONDS, INTERFERENCE, UNEXPLAINED,
    RUNNING, QUEUED, QUEUE_OLDEST, KV_PAGES, KV_SLOT_USE, PREEMPTIONS, RECOMPUTED, PREFIX_QUERIES, PREFIX_HITS, PAD_TOKENS, STEP_TOKENS,
    EVICTIONS, COPIED_PAGES, SWAPPED_PAGES, COMPILES, STEP, BUSY, ROUND_TRIP, STEP_MODEL_ERROR, STARTUP, BACKEND,
    READY, ENGINE_STARTS, ENGINE_UP, DEGRADED, UNWRITTEN, USAGE_LOST,
    LOOP_LAG, PROCESS_CPU, PROCESS_MEMORY, GPU_USE, GPU_MEMORY, GPU_MEMORY_TOTAL, PRICE, TRACES, MISMATCHES,
)  # fmt: skip
