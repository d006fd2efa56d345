"""From a trace to what the engine is sent: how many requests, how fast, whose, in which lane, with which targets."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from engine.simulation.synthetic import ranked_tenants, tenant_weights
from engine.simulation.trace import TraceRow
from engine.wire import Sampling, Submit, TenantPolicy

LONE_TENANT = "tenant"
TENANT_EXPONENT = 1.0
"""Where a trace's requests are dealt to tenants, the one of rank r gets 1 / r: a few send most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is done to a trace before it is replayed."""

    speed: float = 1.0
    """Requests come so many times as fast."""
    num_requests: int = 0
    """0: as many as the trace has; more than that repeats it end to end."""
    num_tenants: int = 0
    """0: the trace's own, or one."""
    length_divisor: float = 1.0
    """Prompts and outputs are so many times as short."""
    lane: str = ""
    """All requests' lane; empty lets the scheduler decide by their prompts."""
    seed: int = 0


def shaped(rows: Sequence[TraceRow], shape: Shape, max_model_len: int) -> Iterator[TraceRow]:
    """The rows as they will be replayed, in order of arrival. What is longer than the context is cut to fit it."""
    rng = random.Random(shape.seed)
    tenants, weights = ranked_tenants(shape.num_tenants), tenant_weights(shape.num_tenants, TENANT_EXPONENT)
    for number in range(shape.num_requests or len(rows)):
        row = rows[number % len(rows)]
        tenant = rng.choices(tenants, cum_weights=weights)[0] if tenants else row.tenant or LONE_TENANT
        output = min(max(1, round(row.output_tokens / shape.length_divisor)), max_model_len - 1)
        prompt = min(max(1, round(row.prompt_tokens / shape.length_divisor)), max_model_len - output)
        block_tokens = max(1, round(row.block_tokens / shape.length_divisor))
        yield TraceRow(arrived_s(rows, shape, number), tenant, prompt, output, row.blocks, block_tokens)


def arrived_s(rows: Sequence[TraceRow], shape: Shape, number: int) -> float:
    """When request `number` comes; a repetition begins one mean gap after the trace's last request."""
    turn, index = divmod(number, len(rows))
    return (rows[index].arrived_s + turn * rows[-1].arrived_s * (1 + 1 / max(1, len(rows) - 1))) / shape.speed


def submits(rows: Iterable[TraceRow], shape: Shape, policies: dict[str, TenantPolicy], vocab_size: int) -> Iterator[Submit]:
    """One sequence a row. A tenant that `policies` lacks has no targets."""
    for number, row in enumerate(rows):
        lane = shape.lane or "fast"
        policy = policies.get(row.tenant)
        ttft_s = policy.ttft_s.get(lane, 0.0) if policy else 0.0
        received_ns = round(row.arrived_s * 1e9)
        sampling = Sampling(temperature=0.0, max_tokens=row.output_tokens, ignore_eos=True)
        yield Submit(
            sequence_id=number + 1,
            request_id="",
            tenant_id=row.tenant,
            lane=lane,
            salt=row.tenant,
            prompt=prompt_of(row, number, vocab_size),
            sampling=sampling,
            received_ns=received_ns,
            ttft_deadline_ns=received_ns + round(ttft_s * 1e9) if ttft_s else 0,
            lane_by_length=not shape.lane,
        )


def prompt_of(row: TraceRow, number: int, vocab_size: int) -> tuple[int, ...]:
    """Token ids: equal blocks are equal, and the rest is like no other request's."""
    shared: list[int] = []
    for block in row.blocks:
        # the block that holds the prompt's last token is never shared as a whole
        if len(shared) + row.block_tokens >= row.prompt_tokens:
            break
        shared += _marked(block, row.block_tokens, vocab_size)
    return (*shared, *_marked(number, row.prompt_tokens - len(shared), vocab_size))


def _marked(number: int, length: int, vocab_size: int) -> list[int]:
    """`length` ids that begin with `number`, written in three digits of base `vocab_size`."""
    digits = [number % vocab_size, number // vocab_size % vocab_size, number // vocab_size**2]
    return (digits + [0] * (length - 3)) if length > 3 else digits[:length]


def tenants_of(rows: Iterable[TraceRow]) -> list[str]:
    """By first appearance."""
    return list(dict.fromkeys(row.tenant for row in rows))


def possible_tenants(rows: Iterable[TraceRow], shape: Shape) -> set[str]:
    """All that `shaped` may name, also where fewer requests are taken than the trace has."""
    return set(ranked_tenants(shape.num_tenants)) or {row.tenant or LONE_TENANT for row in rows}


def policies_of(names: Iterable[str], base: TenantPolicy, given: Iterable[TenantPolicy] = ()) -> dict[str, TenantPolicy]:
    """One policy a tenant: the one that was given, else `base` under its name."""
    by_name = {policy.tenant_id: policy for policy in given}
    fields = {name: getattr(base, name) for name in base.__struct_fields__ if name != "tenant_id"}
    return {name: by_name.get(name) or TenantPolicy(tenant_id=name, **fields) for name in names}
