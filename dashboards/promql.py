"""Pieces of PromQL that several pages use. `RATE` is Grafana's own choice of a window for the zoom and the scrape interval."""

RATE = "$__rate_interval"
BY_LANE = 'lane=~"$lane", model=~"$model"'
BY_TENANT = 'tenant=~"$tenant", lane=~"$lane", model=~"$model"'


def rate(metric: str, where: str = "", by: str = "") -> str:
    """Summed rate of a counter."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{where}}}[{RATE}]))"


def quantile(q: float, histogram: str, where: str = "", by: str = "") -> str:
    """A quantile of a histogram (named without `_bucket`) over the window."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q:g}, sum by ({labels}) (rate({histogram}_bucket{{{where}}}[{RATE}])))"


def ratio(part: str, whole: str) -> str:
    """A share, with no point where the whole is 0."""
    return f"{part} / ({whole} > 0)"


def or_none(expr: str, labels: str) -> str:
    """What is above 0; where nothing is, one line at 0 whose labels say `none`, so that a quiet panel is not an empty one."""
    nothing = "vector(0)"
    for label in labels.split(", "):
        nothing = f'label_replace({nothing}, "{label}", "none", "", "")'
    return f"({expr} > 0) or on () {nothing}"
