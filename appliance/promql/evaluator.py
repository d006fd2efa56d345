"""Evaluates an expression on a grid of times. Recorded series need no recording: their rules are evaluated where they are named."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import promql_parser as promql

from appliance.promql.aggregates import aggregated, group_of
from appliance.promql.binary import combined, operator_of
from appliance.promql.errors import Unparsable, Unsupported
from appliance.promql.grid import LOOKBACK_MS, Grid
from appliance.promql.quantiles import histogram_quantile
from appliance.promql.rates import Rates
from appliance.promql.source import Source, matcher_of
from appliance.promql.values import NAME, Scalar, Series, Vector, merged, without

type Value = Vector | Scalar
type Rules = Mapping[str, str]
"""Expressions of recording rules by the name they record."""


def evaluate(expr: str, source: Source, grid: Grid, rules: Rules) -> Vector:
    """Series of an expression; of a number one without labels. Raises `PromqlError`."""
    value = _Evaluation(source, grid, rules).value(_parsed(expr))
    return merged(value) if isinstance(value, list) else [Series({}, value.values)]


def _parsed(expr: str) -> Any:
    try:
        return promql.parse(expr)
    except ValueError as error:
        raise Unparsable(f"{error}: {expr}") from error


class _Evaluation:
    """One walk over an expression."""

    def __init__(self, source: Source, grid: Grid, rules: Rules) -> None:
        self._source = source
        self._grid = grid
        self._rules = rules
        self._calls: Mapping[str, Callable[[list[Any]], Value]] = {
            "rate": lambda args: self._rate(args[0], per_second=True),
            "increase": lambda args: self._rate(args[0], per_second=False),
            "histogram_quantile": lambda args: histogram_quantile(self._scalar(args[0]), self._vector(args[1])),
            "label_replace": lambda args: _replaced(self._vector(args[0]), *(text.val for text in args[1:])),
            "vector": lambda args: [Series({}, self._scalar(args[0]).values)],
            "scalar": lambda args: _only(self._vector(args[0]), grid.count),
            "clamp_max": lambda args: _clamped(self._vector(args[0]), self._scalar(args[1])),
        }

    def value(self, expr: Any) -> Value:
        match expr:
            case promql.NumberLiteral():
                return Scalar([expr.val] * self._grid.count)
            case promql.ParenExpr():
                return self.value(expr.expr)
            case promql.VectorSelector():
                return self._selected(expr)
            case promql.AggregateExpr():
                parameter = self._scalar(expr.param) if expr.param is not None else None
                return aggregated(str(expr.op), group_of(expr.modifier), self._vector(expr.expr), parameter)
            case promql.BinaryExpr():
                return combined(operator_of(expr), self.value(expr.lhs), self.value(expr.rhs))
            case promql.Call() if expr.func.name in self._calls:
                return self._calls[expr.func.name](expr.args)
            case promql.Call():
                raise Unsupported(f"the function {expr.func.name!r}")
            case _:
                raise Unsupported(f"an expression of the kind {type(expr).__name__}")

    def _vector(self, expr: Any) -> Vector:
        value = self.value(expr)
        assert isinstance(value, list), "the parser checks the kinds of arguments"
        return value

    def _scalar(self, expr: Any) -> Scalar:
        value = self.value(expr)
        assert isinstance(value, Scalar), "the parser checks the kinds of arguments"
        return value

    def _selected(self, selector: promql.VectorSelector) -> Vector:
        """The newest sample at each time, unless it is older than the look-back or the series has gone since."""
        name, is_wanted = _asked(selector)
        if name in self._rules:
            recorded = self._vector(_parsed(self._rules[name]))
            return [Series({**series.labels, NAME: name}, series.values) for series in recorded if is_wanted(series.labels)]
        windows = self._grid.windows(self._source.times_ms, LOOKBACK_MS)
        newest = [last - 1 if last > first else None for first, last in windows]
        return [
            Series({**each.labels, NAME: name}, [None if place is None else each.values[place] for place in newest])
            for each in self._source.select(name, is_wanted)
        ]

    def _rate(self, matrix: promql.MatrixSelector, *, per_second: bool) -> Vector:
        name, is_wanted = _asked(matrix.vector_selector)
        if name in self._rules:
            raise Unsupported(f"a range of the recorded series {name}")
        rates = Rates(self._source.times_ms, self._grid, matrix.range // timedelta(milliseconds=1), per_second=per_second)
        return [Series(each.labels, rates.of(each.values)) for each in self._source.select(name, is_wanted)]


def _asked(selector: promql.VectorSelector) -> tuple[str, Callable[[Mapping[str, str]], bool]]:
    if selector.name is None or selector.offset is not None or selector.at is not None or selector.matchers.or_matchers:
        raise Unsupported(f"a selector without a name, with `offset`, `@` or `or`: {selector}")
    return selector.name, matcher_of(selector.matchers.matchers)


def _replaced(vector: Vector, target: str, replacement: str, source: str, pattern: str) -> Vector:
    """`label_replace`."""
    wanted, template = re.compile(pattern), re.sub(r"\$(\d+|\{\w+\})", lambda found: rf"\g<{found[1].strip('{}')}>", replacement)

    def relabelled() -> Iterator[Series]:
        for series in vector:
            found = wanted.fullmatch(series.labels.get(source, ""))
            text = found.expand(template) if found is not None else series.labels.get(target, "")
            labels = without(series.labels, target)
            yield Series(labels | {target: text} if text else labels, series.values)

    return merged(relabelled())


def _only(vector: Vector, count: int) -> Scalar:
    """`scalar`: the value where there is one series, and no number elsewhere."""
    rows: Sequence[Sequence[float | None]] = list(zip(*(series.values for series in vector), strict=True)) or [()] * count
    present = [[value for value in row if value is not None] for row in rows]
    return Scalar([values[0] if len(values) == 1 else float("nan") for values in present])


def _clamped(vector: Vector, bound: Scalar) -> Vector:
    """`clamp_max`."""
    return [
        Series(
            without(series.labels, NAME),
            [None if value is None else min(value, most) for value, most in zip(series.values, bound.values, strict=True)],
        )
        for series in vector
    ]
