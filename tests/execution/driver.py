"""A tiny model, the dense reference for it, and a driver that feeds a runner plans without any scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from engine.execution.batch import Limits
from engine.execution.runner import SCORING_BUCKET
from engine.execution.warmup import WarmedUp, warm_up
from engine.kernels.xla_attention import XlaAttention
from engine.model.config import ModelConfig, RopeConfig
from engine.model.params import LayerParams, Params
from engine.model.transformer import dense_attend, forward, logits
from engine.scheduling.plan import QUERY_BLOCK_TOKENS, Admitted, Bucket, DecodeRow, PrefillChunk, Runner, StepPlan, StepResult
from engine.wire import Sampling, TokenLogprob

CONFIG = ModelConfig(
    name="tiny",
    architecture="llama",
    vocab_size=300,
    hidden_size=64,
    intermediate_size=64,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=32,
    rms_norm_eps=1e-5,
    max_position=640,
    rope=RopeConfig(),
    tie_embeddings=True,
    eos_token_ids=(2,),
)
LIMITS = Limits(max_num_seqs=16, max_model_len=640, max_prefill_rows=4, num_pages=400, page_size=16)
BUCKETS = (Bucket(16, 0), Bucket(0, 64), Bucket(0, 512), Bucket(16, 64))
GREEDY = Sampling(temperature=0.0, max_tokens=8)


def tiny_params(config: ModelConfig = CONFIG, seed: int = 0) -> Params:
    """Random f32 weights, large enough that the next token depends on the text."""
    draw = np.random.default_rng(seed)

    def weight(*dims: int) -> jax.Array:
        return jnp.asarray(draw.standard_normal(dims, np.float32) / np.sqrt(dims[-1]) * 1.5)

    heads = config.num_heads + 2 * config.num_kv_heads
    layers = tuple(
        LayerParams(
            input_norm=jnp.ones(config.hidden_size),
            qkv=weight(heads * config.head_dim, config.hidden_size),
            qkv_bias=None,
            q_norm=None,
            k_norm=None,
            output=weight(config.hidden_size, config.num_heads * config.head_dim),
            output_bias=None,
            post_norm=jnp.ones(config.hidden_size),
            gate_up=weight(2 * config.intermediate_size, config.hidden_size),
            gate_up_bias=None,
            down=weight(config.hidden_size, config.intermediate_size),
            down_bias=None,
        )
        for _ in range(config.num_layers)
    )
    return Params(weight(config.vocab_size, config.hidden_size), layers, jnp.ones(config.hidden_size), None)


def warmed() -> WarmedUp:
    """The XLA backend in f32."""
    return warm_up(CONFIG, tiny_params(), LIMITS, XlaAttention(), BUCKETS, "float32", lambda *_: None)


def dense_logits(tokens: Sequence[int]) -> np.ndarray:
    """f32 [len(tokens), V] of the dense reference, padded to few shapes."""
    size = -(-len(tokens) // 64) * 64
    padded = jnp.asarray([*tokens, *[0] * (size - len(tokens))], jnp.int32)
    return np.asarray(_dense(tiny_params(), padded))[: len(tokens)]


@jax.jit
def _dense(params: Params, tokens: jax.Array) -> jax.Array:
    hidden, _ = forward(CONFIG, params, tokens, jnp.arange(tokens.size), dense_attend(CONFIG), [None] * CONFIG.num_layers)
    return logits(CONFIG, params, hidden)


def dense_greedy(prompt: Sequence[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(dense_logits(tokens)[-1])))
    return tokens[len(prompt) :]


@dataclass
class Text:
    """One sequence as the driver follows it."""

    prompt: list[int]
    sampling: Sampling = GREEDY
    output: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob | None] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)


class Driver:
    """Runs sequences to their `max_tokens`: prefill in chunks of one sequence, then decode all, optionally overlapped."""

    def __init__(self, runner: Runner, *, overlap: bool = False) -> None:
        self.runner = runner
        self.overlap = overlap
        self.free_pages = list(range(LIMITS.num_pages))[::-1]
        self.step = 0

    def run(self, texts: Sequence[Text], chunk_tokens: int = 512) -> list[list[int]]:
        for slot, text in enumerate(texts):
            self.prefill(slot, text, chunk_tokens)
        pending: list[tuple[list[int], object]] = []
        for turn in range(max(text.sampling.max_tokens for text in texts) - 1):
            rows = [slot for slot, text in enumerate(texts) if text.sampling.max_tokens > turn + 1]
            decodes = tuple(self.decode_row(slot, texts[slot], len(texts[slot].prompt) + turn) for slot in rows)
            pending.append((rows, self.runner.dispatch(self.plan(Bucket(16, 0), decodes=decodes))))
            if len(pending) > (1 if self.overlap else 0):
                self.take(texts, *pending.pop(0))
        for rows, ticket in pending:
            self.take(texts, rows, ticket)
        return [text.output for text in texts]

    def prefill(self, slot: int, text: Text, chunk_tokens: int) -> None:
        """Whole prompt; the first output token is drawn."""
        scored = text.sampling.prompt_logprobs >= 0
        admitted: tuple[Admitted, ...] = (Admitted(slot, slot, text.prompt, len(text.prompt), text.sampling),)
        for start in range(0, len(text.prompt), chunk_tokens):
            tokens = tuple(text.prompt[start : start + chunk_tokens])
            samples = start + len(tokens) == len(text.prompt)
            chunk = PrefillChunk(slot, slot, start, tokens, self.grow(text, start + len(tokens)), samples, scored)
            padded = -(-len(tokens) // QUERY_BLOCK_TOKENS) * QUERY_BLOCK_TOKENS
            bucket = SCORING_BUCKET if scored else Bucket(0, 64 if padded <= 64 else 512)
            result = self.collect(self.runner.dispatch(self.plan(bucket, admitted=admitted, prefills=(chunk,))))
            admitted = ()
            if scored:
                text.prompt_logprobs.extend(result.prompt_logprobs[0])
            if samples:
                text.output.append(result.tokens[0])
                text.logprobs.append(result.logprobs[0])

    def decode_row(self, slot: int, text: Text, position: int) -> DecodeRow:
        return DecodeRow(slot, slot, position, self.grow(text, position + 1))

    def grow(self, text: Text, tokens: int) -> tuple[int, ...]:
        new = tuple(self.free_pages.pop() for _ in range(-(-tokens // LIMITS.page_size) - len(text.pages)))
        text.pages.extend(new)
        return new

    def plan(
        self,
        bucket: Bucket,
        *,
        admitted: tuple[Admitted, ...] = (),
        decodes: tuple[DecodeRow, ...] = (),
        prefills: tuple[PrefillChunk, ...] = (),
    ) -> StepPlan:
        self.step += 1
        return StepPlan(self.step, bucket, admitted, decodes, prefills)

    def collect(self, ticket: object) -> StepResult:
        result = self.runner.collect(ticket)  # type: ignore[arg-type]
        assert isinstance(result, StepResult)
        return result

    def take(self, texts: Sequence[Text], rows: Sequence[int], ticket: object) -> None:
        result = self.collect(ticket)
        for slot, token, logprob in zip(rows, result.tokens, result.logprobs, strict=True):
            texts[slot].output.append(token)
            texts[slot].logprobs.append(logprob)
