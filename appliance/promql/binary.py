"""Operators between two operands: arithmetic, comparison, and the three on sets."""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass

import promql_parser as promql

from appliance.promql.errors import Ambiguous, Unsupported
from appliance.promql.values import NAME, Column, Labels, Scalar, Series, Vector, kept, key_of, united, without


def _divided(one: float, other: float) -> float:
    if other:
        return one / other
    return math.nan if one == 0 or one != one else math.copysign(math.inf, one) * math.copysign(1.0, other)


ARITHMETIC: dict[str, Callable[[float, float], float]] = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": _divided}
COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
SETS = frozenset({"and", "or", "unless"})

type Signature = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Matching:
    """Which labels two series must share to be partners, and what an answer's labels are."""

    names: frozenset[str] | None
    """None: all labels but the name and those ignored."""
    ignored: frozenset[str] = frozenset()

    def signature(self, labels: Labels) -> Signature:
        return key_of(self.shown(labels))

    def shown(self, labels: Labels) -> dict[str, str]:
        """Labels of a one-to-one match."""
        return kept(labels, self.names) if self.names is not None else without(labels, NAME, *self.ignored)


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator as it is written: `returns_bool` is its `bool`, `many` says whether more than one left partner may match."""

    symbol: str
    matching: Matching
    returns_bool: bool
    many: bool

    def __call__(self, one: float, other: float) -> float | None:
        """Of two numbers; None where a comparison filters the left one out."""
        if self.symbol in ARITHMETIC:
            return ARITHMETIC[self.symbol](one, other)
        is_true = COMPARISONS[self.symbol](one, other)
        return float(is_true) if self.returns_bool else one if is_true else None

    @property
    def keeps_name(self) -> bool:
        return self.symbol in COMPARISONS and not self.returns_bool


def operator_of(expr: promql.BinaryExpr) -> Operator:
    """Raises `Unsupported`."""
    symbol, modifier = str(expr.op), expr.modifier
    if symbol not in ARITHMETIC and symbol not in COMPARISONS and symbol not in SETS:
        raise Unsupported(f"the operator {symbol!r}")
    matching, many = Matching(None), False
    if modifier is not None:
        if modifier.group_labels or modifier.card == promql.VectorMatchCardinality.OneToMany:
            raise Unsupported("group_left with labels, and group_right")
        many = modifier.card == promql.VectorMatchCardinality.ManyToOne
        if modifier.matching is not None:
            names = frozenset(modifier.matching.labels)
            is_on = modifier.matching.type == promql.LabelModifierType.Include
            matching = Matching(names) if is_on else Matching(None, names)
    return Operator(symbol, matching, modifier is not None and modifier.return_bool, many)


def combined(op: Operator, left: Vector | Scalar, right: Vector | Scalar) -> Vector | Scalar:
    """The answer of an operator. Raises `Ambiguous`."""
    if isinstance(left, Scalar) and isinstance(right, Scalar):
        return Scalar([op(a, b) or 0.0 for a, b in zip(left.values, right.values, strict=True)])
    if isinstance(left, Scalar):
        assert isinstance(right, list), "one of two operands is a vector"
        return [_with_scalar(op, series, left, is_left=False) for series in right]
    if isinstance(right, Scalar):
        return [_with_scalar(op, series, right, is_left=True) for series in left]
    return _of_sets(op, left, right) if op.symbol in SETS else _matched(op, left, right)


def _with_scalar(op: Operator, series: Series, scalar: Scalar, *, is_left: bool) -> Series:
    """A filter keeps the series' value, on whichever side it stands."""
    values: list[float | None] = []
    for value, number in zip(series.values, scalar.values, strict=True):
        if value is None:
            values.append(None)
            continue
        answer = op(value, number) if is_left else op(number, value)
        values.append(value if answer is not None and op.keeps_name else answer)
    return Series(series.labels if op.keeps_name else without(series.labels, NAME), values)


def _matched(op: Operator, left: Vector, right: Vector) -> Vector:
    partners: dict[Signature, Series] = {}
    for series in right:
        signature = op.matching.signature(series.labels)
        before = partners.get(signature)
        partners[signature] = series if before is None else Series(series.labels, united(before.values, series.values, series.labels))
    used: dict[Signature, Column] = {}
    answers: Vector = []
    for series in left:
        signature = op.matching.signature(series.labels)
        partner = partners.get(signature)
        if partner is None:
            continue
        pairs = list(zip(series.values, partner.values, strict=True))
        values = [None if a is None or b is None else op(a, b) for a, b in pairs]
        if not op.many:
            used[signature] = _taken_once(used.get(signature), [None if b is None else a for a, b in pairs])
        labels = dict(series.labels) if op.keeps_name else without(series.labels, NAME)
        answers.append(Series(labels if op.many else _one_to_one(op, labels), values))
    return answers


def _one_to_one(op: Operator, labels: Labels) -> dict[str, str]:
    if op.matching.names is not None:
        return kept(labels, op.matching.names)
    return without(labels, *op.matching.ignored)


def _taken_once(before: Column | None, now: Column) -> Column:
    """Raises `Ambiguous` where a partner is taken by two series at one time."""
    if before is None:
        return now
    if any(a is not None and b is not None for a, b in zip(before, now, strict=True)):
        raise Ambiguous("more than one series matches on the left: say group_left, or aggregate before")
    return [b if a is None else a for a, b in zip(before, now, strict=True)]


def _of_sets(op: Operator, left: Vector, right: Vector) -> Vector:
    """`and`: left ones with a partner, `unless`: without; `or`: left ones, and right ones without a partner."""
    in_right, in_left = _presence(op.matching, right), _presence(op.matching, left)
    match op.symbol:
        case "and":
            return [_where(series, in_right.get(op.matching.signature(series.labels)), wanted=True) for series in left]
        case "unless":
            return [_where(series, in_right.get(op.matching.signature(series.labels)), wanted=False) for series in left]
        case _:
            return [*left, *(_where(series, in_left.get(op.matching.signature(series.labels)), wanted=False) for series in right)]


def _presence(matching: Matching, vector: Vector) -> dict[Signature, list[bool]]:
    found: dict[Signature, list[bool]] = {}
    for series in vector:
        there = [value is not None for value in series.values]
        signature = matching.signature(series.labels)
        before = found.get(signature)
        found[signature] = there if before is None else [a or b for a, b in zip(before, there, strict=True)]
    return found


def _where(series: Series, there: list[bool] | None, *, wanted: bool) -> Series:
    flags = there or [False] * len(series.values)
    return Series(series.labels, [value if flag is wanted else None for value, flag in zip(series.values, flags, strict=True)])
