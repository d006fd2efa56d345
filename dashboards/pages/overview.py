"""Is everybody served as agreed?"""

from dashboards.page import MODEL, Page, Panel, Query, Row
from dashboards.promql import or_none, quantile, rate, ratio

_WHERE = 'model=~"$model"'

OVERVIEW = Page(
    uid="fairlane-overview",
    title="Fairlane / Overview",
    description="Health, targets, budgets and who burns them. Start here.",
    variables=(MODEL,),
    rows=(
        Row(
            "Health",
            (
                Panel(
                    title="Taking requests",
                    description="1 while requests are taken. If not, /readyz says the phase and the reason; see FairlaneNotReady.",
                    unit="bool",
                    kind="stat",
                    width=4,
                    height=4,
                    warn_at=1,
                    bad_at=0,
                    queries=(Query("min(fairlane_ready)", "ready"),),
                ),
                Panel(
                    title="Targets kept",
                    description=(
                        "Share of requests of the last hour that met their target, over all tenants. Below the objectives: find the "
                        "tenant below."
                    ),
                    unit="percentunit",
                    kind="stat",
                    width=5,
                    height=4,
                    warn_at=0.99,
                    bad_at=0.95,
                    queries=(
                        Query(
                            ratio(
                                'sum(increase(fairlane_slo_requests_total{outcome="good"}[1h]))',
                                "sum(increase(fairlane_slo_requests_total[1h]))",
                            ),
                            "kept",
                        ),
                    ),
                ),
                Panel(
                    title="Requests",
                    description=(
                        "Requests ended a second. A fall to 0 with ready at 1 means that clients do not come: look before the appliance."
                    ),
                    unit="reqps",
                    kind="stat",
                    width=5,
                    height=4,
                    queries=(Query(rate("fairlane_requests_total", _WHERE), "requests"),),
                ),
                Panel(
                    title="Tokens",
                    description="Tokens generated a second, over all tenants.",
                    unit="tokens/s",
                    kind="stat",
                    width=5,
                    height=4,
                    queries=(Query(rate("fairlane_tokens_total", f'direction="generated", {_WHERE}'), "generated"),),
                ),
                Panel(
                    title="Oldest wait",
                    description=(
                        "How long the request has waited that waits longest for its first step. Seconds here are load above capacity: "
                        "see the page Capacity."
                    ),
                    unit="s",
                    kind="stat",
                    width=5,
                    height=4,
                    warn_at=2,
                    bad_at=15,
                    queries=(Query("max(fairlane_queue_oldest_seconds)", "oldest"),),
                ),
            ),
        ),
        Row(
            "Targets",
            (
                Panel(
                    title="Attainment by tenant, worst first",
                    description=(
                        "Share of each tenant's requests of the last hour that met their targets. Open the tenant's page for a bar in red."
                    ),
                    unit="percentunit",
                    kind="bargauge",
                    warn_at=0.99,
                    bad_at=0.95,
                    max_value=1,
                    queries=(
                        Query(
                            'bottomk(10, sum by (tenant) (increase(fairlane_slo_requests_total{outcome="good"}[1h]))'
                            " / (sum by (tenant) (increase(fairlane_slo_requests_total[1h])) > 0))",
                            "{{tenant}}",
                        ),
                    ),
                ),
                Panel(
                    title="Top burners: budget used a day, in budgets",
                    description=(
                        "How fast each tenant's error budget burns now; 1 uses it up exactly in its period. Above 14 somebody should "
                        "look at once."
                    ),
                    unit="short",
                    kind="bargauge",
                    warn_at=1,
                    bad_at=14.4,
                    queries=(
                        Query(
                            "topk(10, max by (tenant) (fairlane:slo_bad:ratio_rate1h / on (tenant, lane, slo) fairlane:slo_allowed:ratio))",
                            "{{tenant}}",
                        ),
                    ),
                ),
                Panel(
                    title="Error budget left",
                    description="Of the last three days, by tenant and target. Below 0 it is overspent: see FairlaneSLOBurnSlow.",
                    unit="percentunit",
                    queries=(Query("min by (tenant, slo) (fairlane:slo_budget_left:ratio3d)", "{{tenant}} {{slo}}"),),
                ),
                Panel(
                    title="Requests by outcome",
                    description=(
                        "What became of requests. `rejected` were refused before any work, `expired` waited too long, `failed` is our "
                        "fault."
                    ),
                    unit="reqps",
                    stacked=True,
                    queries=(Query(rate("fairlane_requests_total", _WHERE, "outcome"), "{{outcome}}"),),
                ),
            ),
        ),
        Row(
            "Traffic",
            (
                Panel(
                    title="TTFT by lane, P99",
                    description=(
                        "From receipt to the first token. One lane rising alone points at that lane's load; all rising, at the machine."
                    ),
                    unit="s",
                    queries=(Query(quantile(0.99, "fairlane_lane_ttft_seconds", _WHERE, "lane"), "{{lane}}"),),
                ),
                Panel(
                    title="Refusals by reason",
                    description=(
                        "Own ceilings (rate, concurrency, budget) are as agreed. predicted_late, queue_full and queue_timeout mean "
                        "that we are short."
                    ),
                    unit="reqps",
                    stacked=True,
                    queries=(Query(or_none(rate("fairlane_rejections_total", _WHERE, "reason"), "reason"), "{{reason}}"),),
                ),
                Panel(
                    title="Processor of both processes",
                    description=(
                        "Cores in use. An engine at all cores is at work; a control plane near 1 core is the bottleneck of its streams."
                    ),
                    unit="short",
                    width=8,
                    queries=(Query("sum by (process) (rate(fairlane_process_cpu_seconds_total[$__rate_interval]))", "{{process}}"),),
                ),
                Panel(
                    title="Control plane: lag, unwritten usage, database",
                    description="Event loop lag P99, age of usage not yet in the database, and 1 while the database does not answer.",
                    unit="s",
                    width=8,
                    queries=(
                        Query(quantile(0.99, "fairlane_event_loop_lag_seconds"), "event loop lag P99"),
                        Query("max(fairlane_usage_unwritten_seconds)", "unwritten usage"),
                        Query("max(fairlane_database_degraded)", "database degraded"),
                    ),
                ),
                Panel(
                    title="Usage lost",
                    description=(
                        "Requests of the last hour whose usage nothing had room for: no bill and no budget has it. Above 0: see "
                        "FairlaneUsageLost."
                    ),
                    unit="short",
                    width=8,
                    queries=(Query("sum(increase(fairlane_usage_lost_requests_total[1h]))", "requests"),),
                ),
            ),
        ),
    ),
)
