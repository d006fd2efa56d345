"""Where a request's time went, in four pieces that add up to it. The log, the answer's header and its usage block show the same."""

from dataclasses import dataclass
from itertools import pairwise

from appliance.telemetry.requests import RequestReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Seconds. A stage that was never reached took none."""

    queue_s: float
    """From receipt to the first prefill chunk: reading, tokenising and admission as well."""
    prefill_s: float
    """To the first token of the output that ran longest."""
    decode_s: float
    """To its last token."""
    write_s: float
    """To the end of the answer."""

    @property
    def total_s(self) -> float:
        return self.queue_s + self.prefill_s + self.decode_s + self.write_s


def split(*, received_ns: int, scheduled_ns: int, first_token_ns: int, last_token_ns: int, ended_ns: int) -> Split:
    """The pieces between stamps of `monotonic_ns`; a stamp is 0 where the request never came so far."""
    ends = [scheduled_ns, first_token_ns, last_token_ns]
    while ends and not ends[-1]:
        ends.pop()  # never reached: the stage before it lasted until the end
    bounds = [received_ns]
    for stamp in ends:
        bounds.append(min(ended_ns, max(bounds[-1], stamp)))
    bounds += [ended_ns] * (5 - len(bounds))
    lengths = [(after - before) / 1e9 for before, after in pairwise(bounds)]
    queue_s, prefill_s, decode_s, write_s = lengths
    return Split(queue_s=queue_s, prefill_s=prefill_s, decode_s=decode_s, write_s=write_s)


def split_of(report: RequestReport) -> Split:
    """The pieces of a request that ended."""
    return split(
        received_ns=report.received_ns,
        scheduled_ns=report.scheduled_ns,
        first_token_ns=report.first_token_ns,
        last_token_ns=report.last_token_ns,
        ended_ns=report.ended_ns,
    )


def server_timing(parts: Split) -> str:
    """As the header `Server-Timing` writes durations (W3C), in milliseconds: `queue;dur=1.2, prefill;dur=30.5, decode;dur=250.1`."""
    durations = (("queue", parts.queue_s), ("prefill", parts.prefill_s), ("decode", parts.decode_s))
    return ", ".join(f"{name};dur={seconds * 1000:.1f}" for name, seconds in durations)
