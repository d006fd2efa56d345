"""What is the P99 made of, and who made it?"""

from dashboards.page import LANE, Page, Panel, Query, Row
from dashboards.promql import or_none

TAIL = Page(
    uid="fairlane-tail",
    title="Fairlane / Tail",
    description="What the slowest requests waited for, and whose work it was. Every number comes from the step ledger, as `explain` does.",
    variables=(LANE,),
    rows=(
        Row(
            "What the tail is made of",
            (
                Panel(
                    title="Time of the slowest requests, by part",
                    description=(
                        "Seconds a second that the slowest hundredth of requests spent in each part. queue: load; prefill: long "
                        "prompts; gaps: others' work in their steps; write: slow clients."
                    ),
                    unit="s",
                    stacked=True,
                    width=24,
                    queries=(
                        Query(
                            or_none('sum by (part) (rate(fairlane_tail_seconds_total{lane=~"$lane"}[$__rate_interval]))', "part"),
                            "{{part}}",
                        ),
                    ),
                ),
                Panel(
                    title="The same, as shares",
                    description="The part that grows is the one to work on.",
                    unit="percentunit",
                    kind="bargauge",
                    max_value=1,
                    queries=(
                        Query(
                            or_none(
                                'sum by (part) (increase(fairlane_tail_seconds_total{lane=~"$lane"}[1h]))'
                                ' / scalar(sum(increase(fairlane_tail_seconds_total{lane=~"$lane"}[1h])) > 0)',
                                "part",
                            ),
                            "{{part}}",
                        ),
                    ),
                ),
                Panel(
                    title="Slow requests not looked into",
                    description=(
                        "Slow requests beyond what is explained in the background, a second. Above 0 the numbers here are a sample; "
                        "`explain` still answers."
                    ),
                    unit="reqps",
                    width=6,
                    queries=(Query("sum(rate(fairlane_slow_requests_unexplained_total[$__rate_interval]))", "not looked into"),),
                ),
                Panel(
                    title="P99 over P50 of TTFT",
                    width=6,
                    description=(
                        "How much worse the tail is than the middle; 1 is perfectly even. Compare before and after a change of tiers."
                    ),
                    unit="short",
                    queries=(
                        Query(
                            'fairlane:lane_ttft_seconds:p99_5m{lane=~"$lane"} / fairlane:lane_ttft_seconds:p50_5m{lane=~"$lane"}',
                            "{{lane}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Who made whom wait",
            (
                Panel(
                    title="Victim by culprit, last hour",
                    description=(
                        "Seconds that the victim's requests waited while the device worked for the culprit. A column that stands out "
                        "is a noisy tenant: lower its concurrency or move it to batch."
                    ),
                    unit="s",
                    kind="table",
                    width=24,
                    queries=(
                        Query("sum by (victim, culprit) (increase(fairlane_interference_seconds_total[1h])) > 0", "{{victim}} {{culprit}}"),
                    ),
                ),
                Panel(
                    title="Noisiest tenants",
                    description="Time that each tenant cost the others, per second.",
                    unit="s",
                    queries=(
                        Query("topk(5, sum by (culprit) (rate(fairlane_interference_seconds_total[$__rate_interval])))", "{{culprit}}"),
                    ),
                ),
                Panel(
                    title="Most disturbed tenants",
                    description="Time that each tenant lost to the others, per second.",
                    unit="s",
                    queries=(
                        Query("topk(5, sum by (victim) (rate(fairlane_interference_seconds_total[$__rate_interval])))", "{{victim}}"),
                    ),
                ),
            ),
        ),
    ),
)
