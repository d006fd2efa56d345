"""How is one tenant served, and who costs it time?"""

from dashboards.page import LANE, MODEL, NO_COST, ONE_TENANT, Page, Panel, Query, Row
from dashboards.promql import BY_TENANT, or_none, quantile, rate, ratio

_TENANT = 'tenant=~"$tenant"'

TENANT_PAGE = Page(
    uid="fairlane-tenant",
    title="Fairlane / Tenant",
    description="Latency against its targets, tokens, limits, refusals, its share of the machine, and the neighbours that cost it time.",
    variables=(ONE_TENANT, LANE, MODEL),
    rows=(
        Row(
            "Targets",
            (
                Panel(
                    title="Targets kept, last hour",
                    description=(
                        "Share of requests that met the target. Red: read the neighbours' panel below, then the slow log (`GET "
                        "/api/v1/slow`)."
                    ),
                    unit="percentunit",
                    kind="gauge",
                    width=6,
                    warn_at=0.99,
                    bad_at=0.95,
                    max_value=1,
                    queries=(
                        Query(
                            ratio(
                                f'sum by (slo) (increase(fairlane_slo_requests_total{{outcome="good", {_TENANT}}}[1h]))',
                                f"sum by (slo) (increase(fairlane_slo_requests_total{{{_TENANT}}}[1h]))",
                            ),
                            "{{slo}}",
                        ),
                    ),
                ),
                Panel(
                    title="Burn rate",
                    description=(
                        "Bad requests over what the objective allows, over an hour; 1 uses the budget up exactly. Alerts begin at 1 "
                        "over days, 14 over an hour."
                    ),
                    unit="short",
                    width=18,
                    queries=(
                        Query(
                            f"fairlane:slo_bad:ratio_rate1h{{{_TENANT}}} / on (tenant, lane, slo) fairlane:slo_allowed:ratio{{{_TENANT}}}",
                            "{{lane}} {{slo}}",
                        ),
                    ),
                ),
                Panel(
                    title="TTFT",
                    description=(
                        "From receipt to the first token, with the target. Quantiles of a tenant are true within 30 %; the lane's are "
                        "finer."
                    ),
                    unit="s",
                    queries=(
                        *(
                            Query(quantile(q, "fairlane_ttft_seconds", BY_TENANT, "lane"), f"{{{{lane}}}} {name}")
                            for q, name in ((0.5, "P50"), (0.99, "P99"))
                        ),
                        Query(f'fairlane_slo_target_seconds{{slo="ttft", lane=~"$lane", {_TENANT}}}', "{{lane}} target"),
                    ),
                ),
                Panel(
                    title="Time per output token",
                    description="(last - first) / (tokens - 1) of each request, with the target.",
                    unit="s",
                    queries=(
                        *(
                            Query(quantile(q, "fairlane_tpot_seconds", BY_TENANT, "lane"), f"{{{{lane}}}} {name}")
                            for q, name in ((0.5, "P50"), (0.99, "P99"))
                        ),
                        Query(f'fairlane_slo_target_seconds{{slo="tpot", lane=~"$lane", {_TENANT}}}', "{{lane}} target"),
                    ),
                ),
            ),
        ),
        Row(
            "Neighbours",
            (
                Panel(
                    title="Who costs it time",
                    description=(
                        "Seconds that requests of this tenant waited while the device worked for another, per second. One name on "
                        "top: that tenant is the noise."
                    ),
                    unit="s",
                    stacked=True,
                    queries=(
                        Query(
                            or_none(
                                'sum by (culprit) (rate(fairlane_interference_seconds_total{victim=~"$tenant"}[$__rate_interval]))',
                                "culprit",
                            ),
                            "{{culprit}}",
                        ),
                    ),
                ),
                Panel(
                    title="Whom it costs time",
                    description="The other way round: what its work costs the others.",
                    unit="s",
                    stacked=True,
                    queries=(
                        Query(
                            or_none(
                                'sum by (victim) (rate(fairlane_interference_seconds_total{culprit=~"$tenant"}[$__rate_interval]))',
                                "victim",
                            ),
                            "{{victim}}",
                        ),
                    ),
                ),
                Panel(
                    title="Share of the device",
                    description=(
                        "Of the device's time, by what was computed and read for it. Compare with its weight: with others waiting it "
                        "should not be far above."
                    ),
                    unit="percentunit",
                    queries=(
                        Query(
                            f"sum by (tenant) (rate(fairlane_device_seconds_total{{{_TENANT}}}[$__rate_interval]))"
                            " / scalar(sum(rate(fairlane_device_seconds_total[$__rate_interval])) > 0)",
                            "{{tenant}}",
                        ),
                    ),
                ),
                Panel(
                    title="Share of KV memory",
                    description=(
                        "Of the KV pool, what its sequences use, with reserve and cap of its tier. At the cap its own requests wait: raise "
                        "`kv_cap`. Always far above the reserve: raise `kv_reserve`, or it is the first to lose pages."
                    ),
                    unit="percentunit",
                    queries=(
                        Query(
                            f"sum by (engine) (fairlane_tenant_kv_pages{{{_TENANT}}})"
                            " / on (engine) (sum by (engine) (fairlane_kv_pages) > 0)",
                            "used, engine {{engine}}",
                        ),
                        Query(f"max by (limit) (fairlane_tenant_kv_limit_ratio{{{_TENANT}}})", "{{limit}}"),
                    ),
                ),
                Panel(
                    title="Cost of 1,000 tokens",
                    description="Device time at the configured hourly price (`--device-hour-price`) over its tokens.",
                    unit="currency",
                    no_value=NO_COST,
                    queries=(Query(f"fairlane:cost_per_1k_tokens:rate1h{{{_TENANT}}}", "{{tenant}}"),),
                ),
            ),
        ),
        Row(
            "Traffic and limits",
            (
                Panel(
                    title="Requests by outcome",
                    description="What became of its requests. `rejected` has the reasons in the next panel.",
                    unit="reqps",
                    stacked=True,
                    queries=(Query(rate("fairlane_requests_total", BY_TENANT, "outcome"), "{{outcome}}"),),
                ),
                Panel(
                    title="Refusals by reason",
                    description=(
                        "rate_*, concurrency, budget: its own ceilings. predicted_late, queue_full, queue_timeout: we were short. "
                        "Shadow mode only counts."
                    ),
                    unit="reqps",
                    queries=(
                        Query(or_none(rate("fairlane_rejections_total", _TENANT, "reason"), "reason"), "{{reason}}"),
                        Query(or_none(rate("fairlane_shadow_rejections_total", _TENANT, "reason"), "reason"), "{{reason}} (shadow)"),
                    ),
                ),
                Panel(
                    title="At the door",
                    description=(
                        "Requests that waited before their body was read, and seconds a second that they waited: the tenant's clients do "
                        "not heed refusals, or send many long bodies at once. Nobody else waits for them."
                    ),
                    unit="short",
                    queries=(
                        Query(rate("fairlane_door_holds_total", _TENANT), "requests"),
                        Query(rate("fairlane_door_hold_seconds_total", _TENANT), "seconds waited"),
                    ),
                ),
                Panel(
                    title="Limits in use",
                    description=(
                        "Of each ceiling that the tenant has, by the field of its tier. At 1 it is refused: raise the field if that is not "
                        "meant, or ask what the tenant sends."
                    ),
                    unit="percentunit",
                    queries=(Query(f"max by (limit) (fairlane_limit_use_ratio{{{_TENANT}}})", "{{limit}}"),),
                ),
                Panel(
                    title="Tokens",
                    description="Prompt, cached and generated tokens a second. Cached far below prompt: its prompts do not begin alike.",
                    unit="tokens/s",
                    queries=(Query(rate("fairlane_tokens_total", BY_TENANT, "direction"), "{{direction}}"),),
                ),
                Panel(
                    title="Where its requests' time goes, P90",
                    description="Until the first step, prefill, decode, end of the answer, all. Write high: its clients read slowly.",
                    unit="s",
                    queries=(
                        Query(quantile(0.9, "fairlane_queue_wait_seconds", BY_TENANT), "queue"),
                        Query(quantile(0.9, "fairlane_prefill_seconds", BY_TENANT), "prefill"),
                        Query(quantile(0.9, "fairlane_decode_seconds", BY_TENANT), "decode"),
                        Query(quantile(0.9, "fairlane_stream_write_seconds", BY_TENANT), "write"),
                        Query(quantile(0.9, "fairlane_request_seconds", BY_TENANT), "request"),
                    ),
                ),
                Panel(
                    title="Cancelled, by cause",
                    description=(
                        "disconnect: the client left; slow_reader: it read too slowly; deadline: its own; admin: an operator ended it."
                    ),
                    unit="reqps",
                    queries=(Query(or_none(rate("fairlane_cancellations_total", BY_TENANT, "cause"), "cause"), "{{cause}}"),),
                ),
                Panel(
                    title="Slow readers",
                    description=(
                        "Seconds a second that its streams were paused because their clients took nothing, and how often. See "
                        "FairlaneSlowReaders."
                    ),
                    unit="short",
                    queries=(
                        Query(rate("fairlane_backpressure_seconds_total", BY_TENANT), "seconds paused"),
                        Query(rate("fairlane_backpressure_pauses_total", BY_TENANT), "pauses"),
                    ),
                ),
                Panel(
                    title="Gap between tokens",
                    description="What its readers feel; beyond 0.1 s text stutters.",
                    unit="s",
                    queries=tuple(
                        Query(quantile(q, "fairlane_inter_token_seconds", BY_TENANT), name) for q, name in ((0.5, "P50"), (0.99, "P99"))
                    ),
                ),
            ),
        ),
    ),
)
