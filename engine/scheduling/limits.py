"""What a scheduler must know of model, pool and settings; read once, frozen."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.scheduling.buckets import Buckets, buckets_of
from engine.scheduling.lanes import DEFAULT_SHARES, NO_RULE, LaneRule, rules_of
from engine.wire import EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds and switches. Names as in `EngineConfig` where the meaning is the same."""

    vocab_size: int
    eos_token_ids: frozenset[int]
    max_model_len: int
    num_pages: int
    page_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_prefill_rows: int
    buckets: Buckets
    cache_version: str
    """Names the model, its weights and the cache's type: part of every prefix-cache key."""
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    preempt_every_steps: int = 0
    scheduling_policy: str = "fcfs"
    max_step_ms: int = 0
    eviction_policy: str = "weighted-lru"
    enable_kv_quota: bool = True
    contiguous_kv: bool = False
    """Each sequence takes the pages of the longest context when it starts, and shares none."""
    swap_pages: int = 0
    """Pages of host memory for preempted sequences."""
    lanes: Mapping[str, LaneRule] = field(default_factory=lambda: DEFAULT_SHARES)
    fast_prompt_tokens: int = 512
    enable_deadline_order: bool = True
    enable_batch_preemption: bool = True
    fixed_chunk_tokens: int = 0
    enable_step_interrupts: bool = True

    def pages_for(self, tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-tokens // self.page_size)

    def lane(self, name: str) -> LaneRule:
        """The rule of a lane."""
        return self.lanes.get(name, NO_RULE)


def limits_of(
    config: EngineConfig,
    *,
    vocab_size: int,
    eos_token_ids: tuple[int, ...],
    max_model_len: int,
    num_pages: int,
    cache_version: str,
    swap_pages: int = 0,
) -> Limits:
    """`max_model_len`, `num_pages` and `swap_pages` are the resolved ones: the configuration's may be 0.

    Raises:
        ConfigError: the bucket lists contradict the limits.
    """
    return Limits(
        vocab_size=vocab_size,
        eos_token_ids=frozenset(eos_token_ids),
        max_model_len=max_model_len,
        num_pages=num_pages,
        page_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_prefill_rows=config.max_prefill_rows,
        buckets=buckets_of(config),
        cache_version=cache_version,
        enable_prefix_caching=config.enable_prefix_caching and config.kv_allocation == "paged",
        enable_chunked_prefill=config.enable_chunked_prefill,
        preempt_every_steps=config.preempt_every_steps,
        scheduling_policy=config.scheduling_policy,
        max_step_ms=config.max_step_ms,
        eviction_policy=config.eviction_policy,
        enable_kv_quota=config.enable_kv_quota,
        contiguous_kv=config.kv_allocation == "contiguous",
        swap_pages=swap_pages,
        lanes=rules_of(config),
        fast_prompt_tokens=config.fast_prompt_tokens,
        enable_deadline_order=config.enable_deadline_order,
        enable_batch_preemption=config.enable_batch_preemption,
        fixed_chunk_tokens=config.fixed_chunk_tokens,
        enable_step_interrupts=config.enable_step_interrupts,
    )
