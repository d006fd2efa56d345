"""Usage by the hour as columns, drawn as SVG on the server."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from appliance.domain.usage.decisions import Counts

WIDTH, HEIGHT = 1000.0, 160.0


@dataclass(frozen=True, slots=True)
class Column:
    """One hour: two stacked parts, in units of the drawing; `y` from its top."""

    began_at: datetime
    counts: Counts
    x: float
    width: float
    prompt_y: float
    prompt_height: float
    generated_y: float
    generated_height: float


@dataclass(frozen=True, slots=True)
class Chart:
    columns: list[Column]
    top: int
    """Tokens at the upper edge."""
    total: Counts


def columns_by_hour(by_hour: Mapping[datetime, Counts], begin: datetime, end: datetime) -> Chart:
    """Every hour of a span, with nothing where there was nothing."""
    first = begin.replace(minute=0, second=0, microsecond=0)
    hours = [first + timedelta(hours=index) for index in range(max(1, int((end - first).total_seconds() // 3600) + 1))]
    counts = [by_hour.get(hour, Counts()) for hour in hours]
    top = max(1, *(each.prompt_tokens + each.generated_tokens for each in counts))
    step = WIDTH / len(hours)
    total = Counts()
    for each in counts:
        total.add(each)
    return Chart(
        [_column(hour, each, index * step, step, top) for index, (hour, each) in enumerate(zip(hours, counts, strict=True))], top, total
    )


def _column(hour: datetime, counts: Counts, x: float, step: float, top: int) -> Column:
    prompt, generated = counts.prompt_tokens / top * HEIGHT, counts.generated_tokens / top * HEIGHT
    return Column(
        began_at=hour,
        counts=counts,
        x=round(x, 2),
        width=round(step * 0.82, 2),
        prompt_y=round(HEIGHT - prompt, 2),
        prompt_height=round(prompt, 2),
        generated_y=round(HEIGHT - prompt - generated, 2),
        generated_height=round(generated, 2),
    )
