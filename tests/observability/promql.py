"""What a PromQL expression reads."""

from collections.abc import Iterator
from typing import Any

import promql_parser as promql

from appliance.telemetry.families import FAMILIES, Family

BUILT_IN = frozenset({"up", "scrape_samples_scraped", "scrape_duration_seconds"})
"""What Prometheus itself adds to each scrape."""


def selectors(expr: Any) -> Iterator[tuple[Any, bool]]:
    """Every selector of an expression, and whether it is a range (what counters must be read as)."""
    match expr:
        case promql.VectorSelector():
            yield expr, False
        case promql.MatrixSelector():
            yield expr.vector_selector, True
        case promql.SubqueryExpr() | promql.ParenExpr() | promql.UnaryExpr():
            yield from selectors(expr.expr)
        case promql.AggregateExpr():
            yield from selectors(expr.expr)
            if expr.param is not None:
                yield from selectors(expr.param)
        case promql.BinaryExpr():
            yield from selectors(expr.lhs)
            yield from selectors(expr.rhs)
        case promql.Call():
            for argument in expr.args:
                yield from selectors(argument)
        case _:
            return


def parsed(expr: str) -> Any:
    """An expression of a dashboard or a rule file; raises ValueError where it is none."""
    return promql.parse(expr.replace("$__rate_interval", "1m"))


def series_names(family: Family) -> tuple[str, ...]:
    """Names of the series of a family."""
    if family.kind == "histogram":
        return tuple(f"{family.full_name}_{suffix}" for suffix in ("bucket", "count", "sum"))
    return (family.full_name,)


FAMILY_OF = {name: family for family in FAMILIES for name in series_names(family)}
"""Family by series name."""


def labels_of(name: str) -> frozenset[str]:
    """Labels that a declared series has, with those that a scrape adds."""
    family = FAMILY_OF[name]
    return frozenset(family.labels) | {"instance", "job"} | ({"le"} if name.endswith("_bucket") else frozenset())
