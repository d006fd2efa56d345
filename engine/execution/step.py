"""The device's side of a step, as one pure function: gather inputs, layers, logits at sampled rows, sample, remember, pack."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from engine.execution.batch import Limits, StepInputs, StepShape, unpack
from engine.execution.kv_pool import DeviceState, attention_shape
from engine.execution.sampler import Drawn, SlotState, sample, score
from engine.kernels.attention import AttentionBackend, LayerCache
from engine.kernels.cpu.decoder import DecoderStep, NativeStack, run_decoder
from engine.model.config import ModelConfig
from engine.model.layers import rope_tables
from engine.model.params import Params
from engine.model.transformer import embed, forward, logits
from engine.scheduling.plan import QUERY_BLOCK_TOKENS


class Rows(NamedTuple):
    """The step's B + T rows: where each one's token comes from and where its K and V go."""

    tokens: jax.Array  # i32 [B + T]
    positions: jax.Array  # i32 [B + T]; -1: padding
    owners: jax.Array  # i32 [B + T] slots
    cache_slots: jax.Array  # i32 [B + T]; -1: padding


def run_step(
    config: ModelConfig, limits: Limits, backend: AttentionBackend, shape: StepShape, params: Params, state: DeviceState, buffer: jax.Array
) -> tuple[DeviceState, jax.Array]:
    """New state, and the packed results i32 [W + scored rows, 2 + 2 * top]: token, logprob, top ids, top logprobs."""
    inputs = unpack(shape, buffer)
    rows = _rows(limits, shape, inputs, state.slots)
    hidden, caches = _run_layers(config, limits, backend, shape, params, inputs, rows, state.caches)
    slots = _remember(state.slots, rows.owners, rows.positions, rows.tokens)

    decode_rows = shape.bucket.decode_rows
    last_rows = decode_rows + jnp.maximum(inputs.layout.row_start + inputs.layout.chunk_tokens - 1, 0)
    sampled_rows = jnp.concatenate([jnp.arange(decode_rows, dtype=jnp.int32), last_rows])
    wanted_rows = jnp.concatenate([sampled_rows, jnp.arange(decode_rows, decode_rows + shape.scored_rows, dtype=jnp.int32)])
    live = jnp.concatenate([inputs.sample_positions >= 0, jnp.ones(shape.scored_rows, bool)])
    row_logits = logits(config, params, hidden[wanted_rows], live)
    owners = jnp.concatenate([inputs.decode_slots, inputs.chunk_slots])
    drawn = sample(row_logits[: shape.sample_rows], inputs.sampling, slots, owners)
    slots = _remember(slots, owners, inputs.sample_positions, drawn.token)
    packed = _pack(drawn)
    if shape.scores_prompt:
        scored = score(row_logits[shape.sample_rows :], inputs.following, jnp.ones(shape.scored_rows, bool))
        packed = jnp.concatenate([packed, _pack(scored)])
    return DeviceState(slots, caches), packed


def _rows(limits: Limits, shape: StepShape, inputs: StepInputs, slots: SlotState) -> Rows:
    """Decode rows read their token from the history; prefill rows find their chunk through its query block."""
    decode_tokens = slots.history[inputs.decode_slots, jnp.maximum(inputs.decode_positions, 0)]
    decode_cache = _cache_slots(limits, inputs.decode_tables, jnp.arange(shape.bucket.decode_rows), inputs.decode_positions)
    if not shape.bucket.prefill_tokens:
        return Rows(decode_tokens, inputs.decode_positions, inputs.decode_slots, decode_cache)
    layout = inputs.layout
    chunk = jnp.repeat(layout.block_sequence, QUERY_BLOCK_TOKENS)
    offset = jnp.arange(shape.bucket.prefill_tokens) - layout.row_start[chunk]
    inside = (offset >= 0) & (offset < layout.chunk_tokens[chunk])
    positions = jnp.where(inside, layout.context_tokens[chunk] + offset, -1)
    return Rows(
        jnp.concatenate([decode_tokens, inputs.tokens]),
        jnp.concatenate([inputs.decode_positions, positions]),
        jnp.concatenate([inputs.decode_slots, inputs.chunk_slots[chunk]]),
        jnp.concatenate([decode_cache, _cache_slots(limits, layout.tables, chunk, positions)]),
    )


def _run_layers(
    config: ModelConfig,
    limits: Limits,
    backend: AttentionBackend,
    shape: StepShape,
    params: Params,
    inputs: StepInputs,
    rows: Rows,
    caches: tuple[LayerCache, ...],
) -> tuple[jax.Array, tuple[LayerCache, ...]]:
    """Layer by layer through XLA, or all as one native call where the weights are stacked for it."""
    attention = attention_shape(config, limits.page_size)
    positions = jnp.maximum(rows.positions, 0)
    lengths = inputs.decode_positions + 1
    if isinstance(params.layers, NativeStack):
        cos, sin = rope_tables(config.rope, config.head_dim, positions)
        step = DecoderStep(cos, sin, rows.cache_slots, inputs.decode_tables, lengths, inputs.layout)
        return run_decoder(attention, config.rms_norm_eps, params.layers, embed(config, params, rows.tokens), step, caches)
    decode_rows = shape.bucket.decode_rows

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, cache: LayerCache) -> tuple[jax.Array, LayerCache]:
        """Write the step's K and V, then attend: decode rows first, prefill rows behind them."""
        cache = backend.write(attention, cache, k, v, rows.cache_slots)
        parts = []
        if decode_rows:
            parts.append(backend.decode(attention, cache, q[:decode_rows], inputs.decode_tables, lengths))
        if shape.bucket.prefill_tokens:
            parts.append(backend.prefill(attention, cache, q[decode_rows:], inputs.layout))
        return jnp.concatenate(parts), cache

    return forward(config, params, rows.tokens, positions, attend, caches)


def _cache_slots(limits: Limits, tables: jax.Array, table_of_row: jax.Array, positions: jax.Array) -> jax.Array:
    page = tables[table_of_row, jnp.maximum(positions, 0) // limits.page_size]
    return jnp.where(positions >= 0, page * limits.page_size + positions % limits.page_size, -1)


def _remember(slots: SlotState, owners: jax.Array, positions: jax.Array, tokens: jax.Array) -> SlotState:
    """Put tokens into the history; rows at position -1 are dropped."""
    where = jnp.where(positions < 0, slots.history.shape[1], positions)
    return slots._replace(history=slots.history.at[owners, where].set(tokens, mode="drop"))


def _pack(drawn: Drawn) -> jax.Array:
    bits = lax.bitcast_convert_type(jnp.concatenate([drawn.logprob[:, None], drawn.top_logprobs], axis=1), jnp.int32)
    return jnp.concatenate([drawn.token[:, None], bits, drawn.top_ids], axis=1)
