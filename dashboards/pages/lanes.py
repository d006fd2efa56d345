"""How does each lane do?"""

from dashboards.page import LANE, MODEL, Page, Panel, Query, Row
from dashboards.promql import BY_LANE, or_none, quantile, rate

_TTFT, _GAP = "fairlane_lane_ttft_seconds", "fairlane_lane_inter_token_seconds"

LANES = Page(
    uid="fairlane-lanes",
    title="Fairlane / Lanes",
    description="First tokens, gaps and queues of the lanes fast, slow and batch. Quantiles are true within 10 %.",
    variables=(LANE, MODEL),
    rows=(
        Row(
            "First token",
            (
                Panel(
                    title="TTFT quantiles",
                    description=(
                        "From receipt to the first token, with the tightest target of the chosen lanes. P99.9 far above P99: a few "
                        "requests meet something rare, see the page Tail."
                    ),
                    unit="s",
                    queries=(
                        *(
                            Query(quantile(q, _TTFT, BY_LANE, "lane"), f"{{{{lane}}}} {name}")
                            for q, name in ((0.5, "P50"), (0.9, "P90"), (0.99, "P99"), (0.999, "P99.9"))
                        ),
                        Query('min by (lane) (fairlane_slo_target_seconds{slo="ttft", lane=~"$lane"})', "{{lane}} target"),
                    ),
                ),
                Panel(
                    title="TTFT, all of it",
                    description=(
                        "Each column is a time, brighter where more requests were. Two bands mean two kinds of requests, or a queue "
                        "that comes and goes."
                    ),
                    unit="s",
                    kind="heatmap",
                    queries=(Query(f"sum by (le) (increase(fairlane_ttft_seconds_bucket{{{BY_LANE}}}[$__rate_interval]))", "{{le}}"),),
                ),
                Panel(
                    title="Queue wait, P99",
                    description=(
                        "From receipt to the first prefill chunk: the part of TTFT that load makes. Rising alone, it asks for "
                        "capacity or tighter ceilings."
                    ),
                    unit="s",
                    queries=(Query(quantile(0.99, "fairlane_queue_wait_seconds", BY_LANE, "lane"), "{{lane}}"),),
                ),
                Panel(
                    title="Prefill, P99",
                    description="From the first prefill chunk to the first token. Rising: prompts are longer, or cached less.",
                    unit="s",
                    queries=(Query(quantile(0.99, "fairlane_prefill_seconds", BY_LANE, "lane"), "{{lane}}"),),
                ),
            ),
        ),
        Row(
            "Tokens",
            (
                Panel(
                    title="Gap between tokens, quantiles",
                    description="What a reader feels. P99 beyond the target: steps hold too much; see batch mix on the page Engine.",
                    unit="s",
                    queries=(
                        *(Query(quantile(q, _GAP, BY_LANE, "lane"), f"{{{{lane}}}} {name}") for q, name in ((0.5, "P50"), (0.99, "P99"))),
                        Query('min by (lane) (fairlane_slo_target_seconds{slo="tpot", lane=~"$lane"})', "{{lane}} target"),
                    ),
                ),
                Panel(
                    title="Tokens by kind",
                    description="Prompt tokens computed and cached, and tokens generated, by lane. Cached tokens are nearly free.",
                    unit="tokens/s",
                    queries=(Query(rate("fairlane_tokens_total", BY_LANE, "lane, direction"), "{{lane}} {{direction}}"),),
                ),
            ),
        ),
        Row(
            "Queue and batch",
            (
                Panel(
                    title="Batch mix",
                    description="Sequences that hold a row, by lane. Batch filling all rows while fast ones queue would be a defect.",
                    unit="rows",
                    stacked=True,
                    queries=(Query('sum by (lane) (fairlane_running_requests{lane=~"$lane", model=~"$model"})', "{{lane}}"),),
                ),
                Panel(
                    title="Waiting",
                    description=(
                        "Sequences without a row, by lane. A fast lane that waits at all is at the end of what the machine can do."
                    ),
                    unit="rows",
                    stacked=True,
                    queries=(Query('sum by (lane) (fairlane_queue_depth{lane=~"$lane", model=~"$model"})', "{{lane}}"),),
                ),
                Panel(
                    title="Oldest wait",
                    description="Since receipt of the request that waits longest. Beyond the tier's queue time it is answered 503.",
                    unit="s",
                    queries=(Query('max by (lane) (fairlane_queue_oldest_seconds{lane=~"$lane", model=~"$model"})', "{{lane}}"),),
                ),
                Panel(
                    title="Cancelled, by stage and cause",
                    description=(
                        "Clients that left, read too slowly, or ran into a deadline. Many in the queue: they do not wait as long as "
                        "we let them."
                    ),
                    unit="reqps",
                    queries=(
                        Query(
                            or_none(rate("fairlane_cancellations_total", BY_LANE, "stage, cause"), "stage, cause"), "{{stage}} {{cause}}"
                        ),
                    ),
                ),
            ),
        ),
    ),
)
