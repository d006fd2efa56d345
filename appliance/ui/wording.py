"""Numbers and times as pages write them: short, with their unit, one way everywhere."""

import math
from datetime import UTC, datetime

from markupsafe import Markup, escape

NONE = "–"


def duration(seconds: float | None) -> str:
    """`340 ms`, `2.31 s`, `4 min 5 s`, `3 h 2 min`, `2 h`."""
    if seconds is None:
        return NONE
    if abs(seconds) < 0.9995:
        ms = seconds * 1000
        return f"{ms:.1f} ms" if 0 < abs(ms) < 10 else f"{ms:.0f} ms"
    if abs(seconds) < 99.95:
        return f"{seconds:.2f} s" if abs(seconds) < 9.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    sizes = ((60, "min"), (1, "s")) if whole < 3600 else ((3600, "h"), (60, "min")) if whole < 172_800 else ((86_400, "d"), (3600, "h"))
    (large_s, large), (small_s, small) = sizes
    rest = whole % large_s // small_s
    return f"{whole // large_s} {large} {rest} {small}" if rest else f"{whole // large_s} {large}"


def count(number: float | None) -> str:
    """`12,345`; one digit after the point below 10 where it is no whole number."""
    if number is None:
        return NONE
    return f"{number:,.1f}" if number != int(number) and abs(number) < 10 else f"{round(number):,}"


def short(number: float | None) -> str:
    """`950`, `5.80k`, `12.3k`, `456M`: three digits, for places where a whole number would be too long."""
    if number is None:
        return NONE
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= 0.9995 * size:  # what rounds to a thousand is one of the next unit
            return f"{number / size:#.3g}".rstrip(".") + unit
    return count(number)


def percent(ratio: float | None, digits: int = 1) -> str:
    """A ratio as `98.7 %`. What is not whole is not called 100."""
    if ratio is None:
        return NONE
    scaled = ratio * 100
    shown = math.floor(scaled * 10**digits) / 10**digits if scaled < 100 else scaled
    return f"{shown:.{digits}f} %"


def budget(left: float) -> str:
    """What is left of an error budget: `62 %`, or how many times it was spent."""
    return percent(left, 0) if left >= 0 else f"{1 - left:,.1f}× spent" if left > -9 else f"{1 - left:,.0f}× spent"


def size(num_bytes: float | None) -> str:
    """`1.2 GiB`."""
    if num_bytes is None:
        return NONE
    for unit, bytes_of in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= bytes_of:
            return f"{num_bytes / bytes_of:.1f} {unit}"
    return f"{num_bytes:.0f} B"


def moment(time: datetime | None) -> Markup:
    """A time of UTC, which the browser turns into its own; UTC stays as the tooltip."""
    if time is None:
        return Markup(NONE)
    utc = time.astimezone(UTC)
    text = f"{utc:%Y-%m-%d %H:%M:%S}"
    return Markup('<time datetime="{}" title="{} UTC">{} UTC</time>').format(f"{utc:%Y-%m-%dT%H:%M:%SZ}", text, text)


def plain(value: object) -> str:
    """A field's value as the tables of changes show it."""
    match value:
        case None:
            return NONE
        case bool():
            return "yes" if value else "no"
        case dict():
            return ", ".join(f"{name} {plain(each)}" for name, each in value.items()) or NONE
        case list() | tuple():
            return ", ".join(plain(each) for each in value) or NONE
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.6g}"
        case _:
            return str(value)


def marked(text: str) -> Markup:
    """What stands between backticks is code."""
    parts = enumerate(text.split("`"))
    return Markup("").join(Markup("<code>{}</code>").format(part) if number % 2 else escape(part) for number, part in parts)


FILTERS = {
    "duration": duration,
    "count": count,
    "short": short,
    "percent": percent,
    "budget": budget,
    "size": size,
    "moment": moment,
    "plain": plain,
    "marked": marked,
}
