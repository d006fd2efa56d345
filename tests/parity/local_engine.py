"""A replica's parts in this process, without sockets: real weights, paged pool, compiled programs, the scheduler."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.config import resolve_kv_dtype
from engine.execution.backends import available_backends, load_weights
from engine.execution.batch import Limits as DeviceLimits
from engine.execution.kv_pool import attention_shape
from engine.execution.warmup import warm_up
from engine.kernels.select import choose_backend
from engine.model.source import open_source
from engine.scheduling.limits import limits_of
from engine.scheduling.plan import Bucket
from engine.scheduling.scheduler import Scheduler
from engine.wire import EngineConfig, Load, Sampling, SequenceEvent, Submit, TokenLogprob

ONLY_SCORING: tuple[Bucket, ...] = ()
"""The program that scores prompts is always compiled; some tests need no other."""


@dataclass(slots=True)
class Output:
    """What one sequence got."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """Entry i is of prompt token i + 1."""
    cached_tokens: int = -1

    def add(self, event: SequenceEvent) -> None:
        self.tokens += event.token_ids
        self.logprobs += event.logprobs
        self.prompt_logprobs += event.prompt_logprobs
        self.cached_tokens = max(self.cached_tokens, event.cached_tokens)

    def nll(self) -> np.ndarray:
        """Negative log-likelihood of each prompt token after the first."""
        return np.array([-entry.logprob for entry in self.prompt_logprobs])

    def likeliest(self) -> np.ndarray:
        """The most likely token after each prompt token but the last."""
        return np.array([entry.top[0].token_id for entry in self.prompt_logprobs])


class LocalEngine:
    """Runs batches of prompts to their end in the plain loop, each batch with a new scheduler over the one runner."""

    def __init__(self, config: EngineConfig, programs: tuple[Bucket, ...] | None = None) -> None:
        """`config` says max_model_len and num_gpu_blocks_override; `programs` are those of its buckets if not given."""
        source = open_source(config.model)
        model, kv_dtype, num_pages = source.config, resolve_kv_dtype(config), config.num_gpu_blocks_override
        self.limits = limits_of(
            config,
            vocab_size=model.vocab_size,
            eos_token_ids=model.eos_token_ids,
            max_model_len=config.max_model_len,
            num_pages=num_pages,
            cache_version="parity",
        )
        backend = choose_backend(
            config.attention_backend, available_backends().backends, attention_shape(model, config.block_size), kv_dtype
        ).backend
        weights = load_weights(source, config, backend, lambda *_: None)
        self.form = f"{backend.name}; {weights.form}"
        """Kernels and weights in words."""
        self.last_load: Load | None = None
        """The scheduler's counters after the last batch."""
        sizes = DeviceLimits(config.max_num_seqs, config.max_model_len, config.max_prefill_rows, num_pages, config.block_size)
        buckets = self.limits.buckets.all() if programs is None else programs
        self._warmed = warm_up(model, weights.params, sizes, backend, buckets, kv_dtype, lambda *_: None)

    def run(self, prompts: Sequence[Sequence[int]], sampling: Sampling | Sequence[Sampling], **changes: Any) -> list[Output]:
        """All prompts together; `changes` are to the scheduler's limits. Afterwards every page was given back."""
        compiles_before = self._warmed.compiles_after_ready()  # of the whole process: other engines are made in it
        scheduler, runner = Scheduler(dataclasses.replace(self.limits, **changes)), self._warmed.runner
        samplings = [sampling] * len(prompts) if isinstance(sampling, Sampling) else sampling
        for number, (prompt, chosen) in enumerate(zip(prompts, samplings, strict=True)):
            scheduler.submit(Submit(number, f"req_{number}", "default", "fast", "salt", tuple(prompt), chosen, received_ns=0))
        outputs = [Output() for _ in prompts]
        while scheduler.has_work:
            plan = scheduler.plan(0)
            assert plan is not None, "nothing is in flight, so something can run"
            for event in scheduler.commit(plan, runner.collect(runner.dispatch(plan)), 0):
                outputs[event.sequence_id].add(event)
        scheduler.check_integrity()
        self.last_load = scheduler.load(0)
        assert self._warmed.compiles_after_ready() == compiles_before
        return outputs
