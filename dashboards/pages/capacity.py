"""How much more would fit?"""

from dashboards.page import LANE, MODEL, NO_COST, Page, Panel, Query, Row
from dashboards.promql import BY_LANE, or_none, rate, ratio

CAPACITY = Page(
    uid="fairlane-capacity",
    title="Fairlane / Capacity",
    description=(
        "Headroom: arrivals against what is served, time and memory left. `fairlane simulate` answers how many more users would fit."
    ),
    variables=(LANE, MODEL),
    hours=6,
    rows=(
        Row(
            "Headroom",
            (
                Panel(
                    title="Device time left",
                    description="1 minus the share of time under steps. Below 0.15 P99 rises quickly: plan the next machine.",
                    unit="percentunit",
                    kind="gauge",
                    width=6,
                    warn_at=0.3,
                    bad_at=0.15,
                    max_value=1,
                    queries=(Query("1 - avg(fairlane:device_busy:ratio_rate5m)", "left"),),
                ),
                Panel(
                    title="KV pages left",
                    description="Pages that no live sequence uses; cached ones count, they are given up when needed.",
                    unit="percentunit",
                    kind="gauge",
                    width=6,
                    warn_at=0.2,
                    bad_at=0.05,
                    max_value=1,
                    queries=(Query("1 - max(fairlane:kv_used:ratio)", "left"),),
                ),
                Panel(
                    title="Busy and memory over time",
                    description="The two things that run out. Whichever is nearer to 1 is what a larger machine must have more of.",
                    unit="percentunit",
                    queries=(
                        Query("avg by (engine) (fairlane:device_busy:ratio_rate5m)", "device time, engine {{engine}}"),
                        Query("fairlane:kv_used:ratio", "KV pages, engine {{engine}}"),
                    ),
                ),
                Panel(
                    title="Arrivals against completions",
                    description=(
                        "Requests that ended at all and those that were completed. A gap that stays is load above capacity, or "
                        "refusals by design."
                    ),
                    unit="reqps",
                    queries=(
                        Query(rate("fairlane_requests_total", BY_LANE), "arrived"),
                        Query(rate("fairlane_requests_total", f'outcome="completed", {BY_LANE}'), "completed"),
                    ),
                ),
                Panel(
                    title="Queue",
                    description=(
                        "Sequences that wait, and how long the first of them has. A queue that never empties is load above capacity."
                    ),
                    unit="short",
                    queries=(
                        Query('sum by (lane) (fairlane_queue_depth{lane=~"$lane"})', "{{lane}} waiting"),
                        Query('max by (lane) (fairlane_queue_oldest_seconds{lane=~"$lane"})', "{{lane}} oldest, s"),
                    ),
                ),
            ),
        ),
        Row(
            "What a token costs",
            (
                Panel(
                    title="Tokens a second of busy device",
                    description=(
                        "Tokens put through the model over time under steps: the machine's service rate for this traffic. Times "
                        "device time left, it is what more would fit."
                    ),
                    unit="tokens/s",
                    queries=(
                        Query(
                            ratio(
                                'sum(rate(fairlane_step_tokens_total{model=~"$model"}[$__rate_interval]))',
                                'sum(rate(fairlane_busy_seconds_total{model=~"$model"}[$__rate_interval]))',
                            ),
                            "service rate",
                        ),
                    ),
                ),
                Panel(
                    title="Device time by tenant",
                    description="Who uses the machine. Compare with what each tenant was promised.",
                    unit="percentunit",
                    stacked=True,
                    queries=(Query("topk(10, sum by (tenant) (rate(fairlane_device_seconds_total[$__rate_interval])))", "{{tenant}}"),),
                ),
                Panel(
                    title="Refused because we were short",
                    description=(
                        "By lane and reason. Anything here with device time left is worth a look at the targets: they may be too "
                        "tight for the machine."
                    ),
                    unit="reqps",
                    queries=(
                        Query(
                            or_none(
                                rate("fairlane_rejections_total", 'reason=~"predicted_late|queue_full|queue_timeout"', "lane, reason"),
                                "reason",
                            ),
                            "{{lane}} {{reason}}",
                        ),
                    ),
                ),
                Panel(
                    title="Most expensive tenants, cost of 1,000 tokens",
                    description="At the configured hourly price (`--device-hour-price`). Long contexts and no cache make tokens dear.",
                    unit="currency",
                    no_value=NO_COST,
                    queries=(Query("topk(10, fairlane:cost_per_1k_tokens:rate1h)", "{{tenant}}"),),
                ),
            ),
        ),
    ),
)
