"""What does the engine do with its time and memory?"""

from dashboards.page import MODEL, Page, Panel, Query, Row
from dashboards.promql import quantile, ratio

_WHERE = 'model=~"$model"'
_R = "[$__rate_interval]"

ENGINE = Page(
    uid="fairlane-engine",
    title="Fairlane / Engine",
    description="Steps, batch, KV pool, prefix cache, preemption, start-up, cards.",
    variables=(MODEL,),
    rows=(
        Row(
            "Steps",
            (
                Panel(
                    title="Step time, P50 and P99",
                    description=(
                        "Device time of a step by what it held. A P99 of mixed steps beyond --max-step-ms: the step model is off, see "
                        "its error."
                    ),
                    unit="s",
                    queries=tuple(
                        Query(quantile(q, "fairlane_step_seconds", _WHERE, "phase"), f"{{{{phase}}}} {name}")
                        for q, name in ((0.5, "P50"), (0.99, "P99"))
                    ),
                ),
                Panel(
                    title="Device busy, by phase",
                    description=(
                        "Share of time under steps. At 1 the machine is full: more load only makes queues. Interrupted steps were cut "
                        "short for short prompts that had just come; they stay below a tenth."
                    ),
                    unit="percentunit",
                    stacked=True,
                    queries=(Query(f"sum by (phase) (rate(fairlane_busy_seconds_total{{{_WHERE}}}{_R}))", "{{phase}}"),),
                ),
                Panel(
                    title="Batch composition",
                    description="Tokens through the model by kind. Mostly prefill: prompts dominate, the prefix cache would help.",
                    unit="tokens/s",
                    stacked=True,
                    queries=(Query(f"sum by (kind) (rate(fairlane_step_tokens_total{{{_WHERE}}}{_R}))", "{{kind}}"),),
                ),
                Panel(
                    title="Pad waste",
                    description=(
                        "Rows of compiled shapes that held no token, of all rows. Above a half for long: the buckets do not fit the "
                        "traffic (--decode-buckets, --prefill-buckets)."
                    ),
                    unit="percentunit",
                    queries=(Query("fairlane:pad:ratio_rate5m", "engine {{engine}}"),),
                ),
                Panel(
                    title="Step model error",
                    description=(
                        "P99 of measured over predicted step time; 1 is perfect. Above 2 for long something else uses the machine."
                    ),
                    unit="short",
                    queries=(Query(f"fairlane_step_model_error_ratio{{{_WHERE}}}", "engine {{engine}}"),),
                ),
                Panel(
                    title="Engine round trip",
                    description=(
                        "From handing a sequence over to the first report that knows of it: about one step. More means a starved "
                        "engine process."
                    ),
                    unit="s",
                    queries=tuple(Query(quantile(q, "fairlane_rtt_seconds", _WHERE), name) for q, name in ((0.5, "P50"), (0.99, "P99"))),
                ),
            ),
        ),
        Row(
            "Memory",
            (
                Panel(
                    title="KV pool",
                    description=(
                        "Pages free, used by live sequences, and cached for reuse. Used near the top while requests wait: see "
                        "FairlaneKVSaturated."
                    ),
                    unit="rows",
                    stacked=True,
                    queries=(Query(f"sum by (state) (fairlane_kv_pages{{{_WHERE}}})", "{{state}}"),),
                ),
                Panel(
                    title="Slots in use of used pages",
                    description=(
                        "1 minus fragmentation. Low with many short sequences, each of which ends inside a page; harmless above 0.7."
                    ),
                    unit="percentunit",
                    queries=(Query(f"fairlane_kv_slot_use_ratio{{{_WHERE}}}", "engine {{engine}}"),),
                ),
                Panel(
                    title="Prefix cache hits",
                    description=(
                        "Share of prompt tokens that the cache had. A fall after a release: the system prompt changed at its beginning."
                    ),
                    unit="percentunit",
                    queries=(
                        Query(
                            ratio(
                                f"sum(rate(fairlane_prefix_cache_hit_tokens_total{{{_WHERE}}}{_R}))",
                                f"sum(rate(fairlane_prefix_cache_query_tokens_total{{{_WHERE}}}{_R}))",
                            ),
                            "hits",
                        ),
                    ),
                ),
                Panel(
                    title="Evictions and copies",
                    description=(
                        "Cached pages given up, by policy, and pages copied because outputs of one prompt write into them. Many "
                        "evictions with a low hit rate: the pool is small."
                    ),
                    unit="rows",
                    queries=(
                        Query(f"sum by (policy) (rate(fairlane_evictions_total{{{_WHERE}}}{_R}))", "{{policy}}"),
                        Query(f"sum(rate(fairlane_copied_pages_total{{{_WHERE}}}{_R}))", "copied"),
                    ),
                ),
                Panel(
                    title="Preemptions, recomputed tokens, swapped pages",
                    description="Sequences that lost their pages, and what had to be computed again. Rising: see FairlanePreemptionStorm.",
                    unit="short",
                    queries=(
                        Query(f"sum by (cause) (rate(fairlane_preemptions_total{{{_WHERE}}}{_R}))", "preempted: {{cause}}"),
                        Query(f"sum(rate(fairlane_recomputed_tokens_total{{{_WHERE}}}{_R}))", "recomputed tokens"),
                        Query(f"sum by (direction) (rate(fairlane_swapped_pages_total{{{_WHERE}}}{_R}))", "pages {{direction}} (swap)"),
                    ),
                ),
                Panel(
                    title="Memory of both processes",
                    description="Resident bytes. The engine's does not grow after warm-up; if it does, report it.",
                    unit="bytes",
                    queries=(Query("sum by (process) (fairlane_process_resident_memory_bytes)", "{{process}}"),),
                ),
            ),
        ),
        Row(
            "Start and health",
            (
                Panel(
                    title="Start-up, by phase",
                    description="Of the last start. A long `compile` means an empty cache: keep FAIRLANE_CACHE_DIR on a volume.",
                    unit="s",
                    kind="bargauge",
                    queries=(Query(f"max by (phase) (fairlane_startup_seconds{{{_WHERE}}})", "{{phase}}"),),
                ),
                Panel(
                    title="Defects and restarts, last day",
                    description=(
                        "Programs compiled after ready, sums that do not hold, and engine starts: more than one start means that it "
                        "died. See the runbook."
                    ),
                    unit="short",
                    kind="stat",
                    warn_at=1,
                    bad_at=2,
                    queries=(
                        Query(f"sum(increase(fairlane_compiles_after_ready_total{{{_WHERE}}}[1d]))", "compiles after ready"),
                        Query("sum(increase(fairlane_accounting_mismatch_total[1d]))", "accounting mismatches"),
                        Query("sum(increase(fairlane_engine_starts_total[1d]))", "engine starts"),
                    ),
                ),
                Panel(
                    title="Attention backend",
                    description="The backend in use. `xla` on a CPU means that no compiler was found: install g++ for the native kernels.",
                    unit="short",
                    kind="table",
                    queries=(
                        Query(f"max by (backend, model, quantization, gpu_type) (fairlane_kernel_backend_info{{{_WHERE}}})", "{{backend}}"),
                    ),
                ),
                Panel(
                    title="Cards",
                    description="Utilisation and memory of NVIDIA cards, from NVML; empty on a machine without one.",
                    unit="percentunit",
                    queries=(
                        Query("fairlane_gpu_utilization_ratio", "{{gpu}} busy"),
                        Query("fairlane_gpu_memory_used_bytes / fairlane_gpu_memory_total_bytes", "{{gpu}} memory"),
                    ),
                ),
            ),
        ),
    ),
)
