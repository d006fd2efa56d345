"""What metrics cost the control plane's interpreter: a scrape of 100 tenants, and the counting of requests and tokens.

    python -m benchmarks.metrics_cost

In this process, by the CPU time of the thread that does it, which is time of the interpreter lock (but for a last copy of a scrape's bytes,
which lets go of it). From these follows the share of a core that metrics take under a load (`--requests-per-s`, `--tokens-per-s`).
"""

import argparse
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, generate_latest

from appliance.domain.lanes.decisions import LANES
from appliance.telemetry.hub import LOOK_EVERY_S, Telemetry
from appliance.telemetry.requests import Outcome, RequestReport
from benchmarks.record import RESULTS, keep
from benchmarks.scenarios import quantile
from benchmarks.tail.case import Figure
from engine.wire import Load, ModelCard, Ready, StepDone, StepRecord, TenantPolicy, WorkShare

CARD = ModelCard(
    model_id="benchmark",
    architecture="llama",
    vocab_size=100,
    max_model_len=2048,
    bos_token_id=None,
    eos_token_ids=(2,),
    add_bos=False,
    chat_template=None,
    special_tokens={},
    dtype="bfloat16",
    quantization="none",
    weight_bytes=1,
    kv_bytes_per_token=1,
    block_size=16,
    num_pages=512,
)
LOAD = Load(1, 1, {"fast": 8}, {"slow": 3}, 1, pages_free=300, pages_used=150, pages_cached=62)
STEP_ROWS = 8
TOKENS_A_REQUEST = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU milliseconds of a thread; microseconds where the name says so."""

    num_series: int
    first_scrape_ms: float
    busy_scrape_ms: float
    """Every tenant was served in every lane since the scrape before; median."""
    quiet_scrape_ms: float
    """Nothing changed since; median."""
    client_scrape_ms: float
    """The client library's own rendering of the same registry; median."""
    settle_us: float
    """Counting an ended request in all families, targets and the archive; its log line is not in it."""
    token_us: float
    """The gap before a token, in the tenant's histogram and the lane's."""
    step_us: float
    """A step's record, of eight rows, and load report."""
    look_ms: float
    """Labels, attainment, budgets and burn rates after every tenant was served, which is due every `LOOK_EVERY_S`; median."""


def thread_ms(call: Callable[[], object]) -> float:
    """CPU time that this thread takes for it."""
    began_s = time.thread_time()
    call()
    return 1e3 * (time.thread_time() - began_s)


def median_ms(calls: int, call: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """Of several calls; what goes before each is not counted."""
    times: list[float] = []
    for _ in range(calls):
        before()
        times.append(thread_ms(call))
    return quantile(times, 0.5)


def report(tenant_id: str, lane: str, number: int) -> RequestReport:
    """A request that was served in some hundred milliseconds, each a little different."""
    ms = 1_000_000
    began_ns, wait_ns = number * 10 * ms + 1, (5 + number % 50) * ms
    return RequestReport(
        request_id=f"req_{number:032x}",
        route="completions",
        tenant_id=tenant_id,
        key_id=f"key_{tenant_id}",
        lane=lane,
        outcome=Outcome.COMPLETED,
        status=200,
        streamed=True,
        num_sequences=1,
        prompt_tokens=70,
        cached_tokens=16,
        generated_tokens=TOKENS_A_REQUEST,
        received_ns=began_ns,
        read_ns=began_ns + ms // 10,
        tokenized_ns=began_ns + ms // 5,
        submitted_ns=began_ns + ms // 4,
        scheduled_ns=began_ns + wait_ns,
        first_token_ns=began_ns + 2 * wait_ns,
        first_sent_ns=began_ns + 2 * wait_ns + ms // 10,
        last_token_ns=began_ns + 2 * wait_ns + 31 * 9 * ms,
        over_ns=began_ns + 2 * wait_ns + 31 * 9 * ms,
        fed_ns=began_ns + 2 * wait_ns + 31 * 9 * ms + ms // 10,
        ended_ns=began_ns + 2 * wait_ns + 31 * 9 * ms + ms // 5,
        tokens_after_first=TOKENS_A_REQUEST - 1,
        ttft_target_s=0.5,
        tpot_target_s=0.05,
        sequence_ids=(number,),
    )


class Served:
    """A process's telemetry, and requests of all tenants in all lanes that it is told of."""

    def __init__(self, num_tenants: int) -> None:
        self.registry = CollectorRegistry()
        self.telemetry = Telemetry(self.registry)
        policies = [
            TenantPolicy(tenant_id=f"tenant-{n:03d}", ttft_s=dict.fromkeys(LANES, 0.5), tpot_s=dict.fromkeys(LANES, 0.05))
            for n in range(num_tenants)
        ]
        self.tenants = [policy.tenant_id for policy in policies]
        self.telemetry.sync_policies({policy.tenant_id: policy for policy in policies})
        self.telemetry.note_ready(Ready(CARD, "cpu", "xla", {"load": 1.0}))
        self._number = 0

    def scrape(self) -> bytes:
        """As Prometheus asks for it."""
        return self.telemetry.render(openmetrics=True)

    def serve(self) -> None:
        """One request of each tenant in each lane, every token of it."""
        for tenant_id in self.tenants:
            for lane in LANES:
                self.count_tokens(tenant_id, lane)
                self.settle(tenant_id, lane)

    def count_tokens(self, tenant_id: str, lane: str) -> None:
        observe = self.telemetry.gap_observer(lane, tenant_id)
        for number in range(1, TOKENS_A_REQUEST):
            observe(0.004 + 0.001 * (number % 9))

    def settle(self, tenant_id: str, lane: str) -> None:
        self._number += 1
        self.telemetry.settle(report(tenant_id, lane, self._number))


def measure(num_tenants: int, calls: int = 15) -> Cost:
    """On telemetry in which every tenant was served in every lane."""
    served = Served(num_tenants)
    served.serve()
    telemetry = served.telemetry
    first_ms = thread_ms(served.scrape)
    busy_ms = median_ms(calls, served.scrape, before=served.serve)
    quiet_ms = median_ms(calls, served.scrape)
    look_ms = median_ms(calls, telemetry.look, before=served.serve)
    client_ms = median_ms(3, lambda: generate_latest(served.registry))
    num_series = sum(not line.startswith(b"#") for line in telemetry.render().splitlines())
    tenants, rounds = served.tenants, range(max(1, 1000 // num_tenants))
    made_ms = thread_ms(lambda: [report(tenant, "fast", n) for n in rounds for tenant in tenants])
    settle_ms = thread_ms(lambda: [served.settle(tenant, "fast") for _ in rounds for tenant in tenants]) - made_ms
    token_ms = thread_ms(lambda: [served.count_tokens(tenant, "fast") for _ in rounds for tenant in tenants])
    requests = len(rounds) * num_tenants
    return Cost(
        num_series=num_series,
        first_scrape_ms=first_ms,
        busy_scrape_ms=busy_ms,
        quiet_scrape_ms=quiet_ms,
        client_scrape_ms=client_ms,
        settle_us=1e3 * settle_ms / requests,
        token_us=1e3 * token_ms / requests / (TOKENS_A_REQUEST - 1),
        step_us=_step_us(telemetry),
        look_ms=look_ms,
    )


def _step_us(telemetry: Telemetry, steps: int = 500) -> float:
    shares = tuple(WorkShare(row, f"tenant-{row:03d}", 1, 0, 200) for row in range(STEP_ROWS))
    made = [StepDone((), LOAD, StepRecord(n, 15 * n, 15 * n, 15 * n + 9, 15 * n + 10, "d8", STEP_ROWS, 0, 0, shares)) for n in range(steps)]
    return 1e3 * thread_ms(lambda: [telemetry.note_step(step) for step in made]) / steps


def share_of_core(cost: Cost, *, requests_per_s: float, tokens_per_s: float, steps_per_s: float, scrape_every_s: float) -> float:
    """What part of one core all counting and rendering takes under a load."""
    counted_us = requests_per_s * cost.settle_us + tokens_per_s * cost.token_us + steps_per_s * cost.step_us
    return counted_us / 1e6 + cost.busy_scrape_ms / 1e3 / scrape_every_s + cost.look_ms / 1e3 / LOOK_EVERY_S


def figures_of(cost: Cost, share: float) -> list[Figure]:
    """The bars of the observability issue, and what stands beside them."""
    return [
        Figure("scrape of a busy appliance, CPU time of its thread", cost.busy_scrape_ms, "ms", bar=20),
        Figure("the first scrape, which builds every line", cost.first_scrape_ms, "ms"),
        Figure("a scrape where nothing changed", cost.quiet_scrape_ms, "ms"),
        Figure("the client library's rendering of the same", cost.client_scrape_ms, "ms"),
        Figure("series", cost.num_series),
        Figure("counting an ended request", cost.settle_us, "us"),
        Figure("counting a token", cost.token_us, "us"),
        Figure("counting a step", cost.step_us, "us"),
        Figure("attainment, budgets and burn rates anew, on the event loop", cost.look_ms, "ms"),
        Figure("of one core under the load: throughput that metrics can cost", 100 * share, "%", bar=1),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.metrics_cost", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tenants", type=int, default=100)
    parser.add_argument("--requests-per-s", type=float, default=20.0)
    parser.add_argument("--tokens-per-s", type=float, default=1_000.0)
    parser.add_argument("--steps-per-s", type=float, default=60.0)
    parser.add_argument("--scrape-every-s", type=float, default=15.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    cost = measure(arguments.tenants)
    load = {name: getattr(arguments, name) for name in ("requests_per_s", "tokens_per_s", "steps_per_s", "scrape_every_s")}
    keep(
        "metrics",
        figures_of(cost, share_of_core(cost, **load)),
        {"tenants": arguments.tenants, "load": load, "cost": asdict(cost)},
        arguments.out,
    )


if __name__ == "__main__":
    main()
