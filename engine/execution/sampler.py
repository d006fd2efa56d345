"""Draws tokens on the device. Every parameter is an array with a neutral value; `lax.cond` skips what no row uses.

There is no sort over the vocabulary (124 ms at 32 rows of SmolLM2 on two CPU cores). Filters become one threshold a row, found
among the `CANDIDATES` largest logits, else among `MORE_CANDIDATES`, else by bisection; then one number decides by the
inverse of the cumulative distribution. What a row gets depends on its own logits and parameters only: which of the
three ways found its threshold is chosen row by row, so the same seed gives the same text whatever else is in the batch.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32, UInt32

from engine.kernels.top_k import largest_of
from engine.wire import MAX_LOGPROBS

CANDIDATES = 64
MORE_CANDIDATES = 1024
CUMSUM_BLOCK = 256
HISTORY_BLOCK_TOKENS = 256
GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy, as in vLLM."""
LOWEST = -3.0e38
"""Logit of a forbidden token: finite, so that differences stay numbers."""


class SamplingRows(NamedTuple):
    """Parameters of N rows; a row in the middle of its prompt is drawn too, and ignored."""

    temperature: Float32[Array, " N"]  # 0: greedy
    top_p: Float32[Array, " N"]  # 1: off
    min_p: Float32[Array, " N"]  # 0: off
    top_k: Int32[Array, " N"]  # 0: off
    repetition: Float32[Array, " N"]  # 1: off
    presence: Float32[Array, " N"]  # 0: off
    frequency: Float32[Array, " N"]  # 0: off
    seed: UInt32[Array, " N"]
    position: Int32[Array, " N"]  # of the token to draw: the random counter, and the number of tokens in the history
    prompt_tokens: Int32[Array, " N"]  # the history's tokens from here on are output
    biased: Bool[Array, " N"]  # its bias ids count
    held: Bool[Array, " N"]  # below min_tokens: its forbidden ids count
    wants_logprobs: Bool[Array, " N"]


class SlotState(NamedTuple):
    """What the device remembers of each slot's sequence for sampling: R slots and a scratch row. Unused ids are the
    vocabulary's size: a scatter drops them."""

    history: Int32[Array, "R1 L"]
    """Tokens by position: a decode row's input is the step before's sample, and penalties count here."""
    bias_ids: Int32[Array, "R1 E"]
    bias_values: Float32[Array, "R1 E"]
    forbidden_ids: Int32[Array, "R1 F"]


class Drawn(NamedTuple):
    """Tokens, and their log-probabilities in the model's own distribution, before any parameter acts."""

    token: Int32[Array, " N"]
    logprob: Float32[Array, " N"]
    top_ids: Int32[Array, "N 20"]
    top_logprobs: Float32[Array, "N 20"]


@jax.jit  # traced once for all programs with as many rows
def sample(logits: Float32[Array, "N V"], rows: SamplingRows, state: SlotState, owners: Int32[Array, " N"]) -> Drawn:
    """One token a row; row n belongs to slot owners[n]."""
    adjusted = _adjust(logits, rows, state, owners)
    greedy = rows.temperature < GREEDY_BELOW
    peak = jnp.max(adjusted, axis=-1)
    best = _first_index(adjusted, peak)
    drawn = lax.cond(jnp.all(greedy), lambda: best, lambda: jnp.where(greedy, best, _draw(adjusted, peak, rows)))
    return score(logits, drawn, rows.wants_logprobs)


def _first_index(logits: jax.Array, peak: jax.Array) -> Int32[Array, " N"]:
    """Argmax as two plain reductions: XLA's own, which carries pairs, takes 7 ms at 32 rows on a CPU, these 0.6."""
    index = lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    last = logits.shape[1] - 1  # also for a row of NaN, which equals nothing
    return jnp.min(jnp.where(logits == peak[:, None], index, last), axis=-1)


def score(logits: Float32[Array, "N V"], tokens: Int32[Array, " N"], wanted: Bool[Array, " N"]) -> Drawn:
    """Log-probabilities of given tokens and of the most likely ones; zeros unless some row wants them."""
    num_top = min(MAX_LOGPROBS, logits.shape[1])

    def compute() -> Drawn:
        normaliser = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        top, ids = largest_of(logits, num_top)
        own = jnp.take_along_axis(logits, tokens[:, None], axis=1)
        return Drawn(tokens, (own - normaliser)[:, 0], ids, top - normaliser)

    def skip() -> Drawn:
        zeros = jnp.zeros((logits.shape[0], num_top), jnp.float32)
        return Drawn(tokens, zeros[:, 0], zeros.astype(jnp.int32), zeros)

    return lax.cond(jnp.any(wanted), compute, skip)


# ---- penalties, bias, forbidden ids -----------------------------------------------------------------------------


def _adjust(logits: jax.Array, rows: SamplingRows, state: SlotState, owners: jax.Array) -> jax.Array:
    """Logits after penalties, then bias, then with forbidden ids out of reach (the order of vLLM's processors)."""
    penalised = (rows.repetition != 1.0) | (rows.presence != 0.0) | (rows.frequency != 0.0)
    row_index = jnp.arange(logits.shape[0])[:, None]

    def adjust() -> jax.Array:
        own = SlotState(*(array[owners] for array in state))
        changed = lax.cond(jnp.any(penalised), lambda: _penalise(logits, rows, penalised, own.history), lambda: logits)
        bias = jnp.where(rows.biased[:, None], own.bias_values, 0.0)
        changed = changed.at[row_index, own.bias_ids].add(bias, mode="drop")
        forbidden = jnp.where(rows.held[:, None], own.forbidden_ids, logits.shape[1])
        return changed.at[row_index, forbidden].set(LOWEST, mode="drop")

    # One branch for all: each one that is not taken still costs a copy of the logits.
    return lax.cond(jnp.any(penalised | rows.biased | rows.held), adjust, lambda: logits)


def _penalise(logits: jax.Array, rows: SamplingRows, penalised: jax.Array, history: jax.Array) -> jax.Array:
    """Repetition (prompt and output; Keskar et al., 2019), presence and frequency (output only) penalties."""
    seen, counts = _count_tokens(logits.shape[1], rows, penalised, history)
    repetition = jnp.where(seen, rows.repetition[:, None], 1.0)
    logits = jnp.where(logits > 0, logits / repetition, logits * repetition)
    return logits - rows.frequency[:, None] * counts - rows.presence[:, None] * (counts > 0)


def _count_tokens(
    vocab_size: int, rows: SamplingRows, penalised: jax.Array, history: jax.Array
) -> tuple[Bool[Array, "N V"], Int32[Array, "N V"]]:
    """Whether a token stands in the history, and how often in its output part; up to the longest penalised row."""
    lengths = jnp.where(penalised, rows.position, 0)
    block = min(HISTORY_BLOCK_TOKENS, history.shape[1])
    history = jnp.pad(history, ((0, 0), (0, -history.shape[1] % block)))
    row_index = jnp.arange(history.shape[0])[:, None]

    def step(index: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        seen, counts = state
        ids = lax.dynamic_slice_in_dim(history, index * block, block, axis=1)
        positions = (index * block + jnp.arange(block))[None, :]
        known = positions < lengths[:, None]
        output = known & (positions >= rows.prompt_tokens[:, None])
        seen = seen.at[row_index, jnp.where(known, ids, vocab_size)].set(True, mode="drop")
        return seen, counts.at[row_index, jnp.where(output, ids, vocab_size)].add(1, mode="drop")

    start = (jnp.zeros((history.shape[0], vocab_size), bool), jnp.zeros((history.shape[0], vocab_size), jnp.int32))
    return lax.fori_loop(0, -(-jnp.max(lengths) // block), step, start)


# ---- filters and the draw ---------------------------------------------------------------------------------------


class _Scaled(NamedTuple):
    """Logits over temperature, the largest of a row at 0: computed where they are used, never stored."""

    logits: Float32[Array, "N V"]
    peak: Float32[Array, " N"]
    temperature: Float32[Array, " N"]

    def of(self, logits: Float32[Array, "N C"]) -> Float32[Array, "N C"]:
        return (logits - self.peak[:, None]) / self.temperature[:, None]

    def weights(self, logits: Float32[Array, "N C"], threshold: Float32[Array, " N"]) -> Float32[Array, "N C"]:
        """exp of what reaches the threshold, else 0."""
        scaled = self.of(logits)
        return jnp.where(scaled >= threshold[:, None], jnp.exp(scaled), 0.0)


def _draw(logits: jax.Array, peak: jax.Array, rows: SamplingRows) -> Int32[Array, " N"]:
    """Temperature, then top-k and min-p, then top-p over what those keep, then one token."""
    scaled = _Scaled(logits, peak, jnp.maximum(rows.temperature, GREEDY_BELOW))
    filtered = (rows.top_k > 0) | (rows.top_p < 1.0) | (rows.min_p > 0.0)
    nothing = jnp.full_like(peak, -jnp.inf)
    threshold = lax.cond(jnp.any(filtered), lambda: jnp.where(filtered, _thresholds(scaled, rows), nothing), lambda: nothing)
    return _invert_cumulative(scaled, threshold, _uniform(rows.seed, rows.position))


def _uniform(seed: jax.Array, position: jax.Array) -> Float32[Array, " N"]:
    """One number in [0, 1) from (seed, position), counter-based (Salmon et al., 2011)."""

    def one(seed: jax.Array, position: jax.Array) -> jax.Array:
        return jax.random.uniform(jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), position))

    return jax.vmap(one)(seed, position)


def _invert_cumulative(scaled: _Scaled, threshold: jax.Array, uniform: jax.Array) -> Int32[Array, " N"]:
    """First index whose cumulative weight exceeds uniform * total, in two levels: blocks, then inside one block."""
    num_rows, vocab_size = scaled.logits.shape
    padded = jnp.pad(scaled.logits, ((0, 0), (0, -vocab_size % CUMSUM_BLOCK)), constant_values=-jnp.inf)
    blocks = padded.reshape(num_rows, -1, CUMSUM_BLOCK)
    weights = scaled.weights(padded, threshold).reshape(blocks.shape)
    block_weights = weights.sum(axis=-1)
    block_ends = jnp.cumsum(block_weights, axis=-1)
    target = uniform[:, None] * block_ends[:, -1:]
    block = _first_beyond(block_ends, target, block_weights > 0)
    before = jnp.where(block > 0, jnp.take_along_axis(block_ends, jnp.maximum(block - 1, 0), axis=1), 0.0)
    inside = scaled.weights(jnp.take_along_axis(blocks, block[:, :, None], axis=1)[:, 0], threshold)
    index = _first_beyond(jnp.cumsum(inside, axis=-1), target - before, inside > 0)
    return (block * CUMSUM_BLOCK + index)[:, 0].astype(jnp.int32)


def _first_beyond(ends: jax.Array, target: jax.Array, possible: jax.Array) -> Int32[Array, "N 1"]:
    """First index with ends > target; where rounding leaves none, the last possible one."""
    beyond = (ends > target) & possible
    last = ends.shape[1] - 1 - jnp.argmax(possible[:, ::-1], axis=1)
    return jnp.where(beyond.any(axis=1), jnp.argmax(beyond, axis=1), last)[:, None]


def _thresholds(scaled: _Scaled, rows: SamplingRows) -> Float32[Array, " N"]:
    """Smallest scaled logit that each row keeps. Ties with it are kept."""
    vocab_size = scaled.logits.shape[1]
    top_k = jnp.where(rows.top_k > 0, jnp.minimum(rows.top_k, vocab_size), vocab_size)
    floor = jnp.where(rows.min_p > 0, jnp.log(jnp.maximum(rows.min_p, 1e-38)), -jnp.inf)
    floored = _Floored(scaled, floor, scaled.weights(scaled.logits, floor).sum(axis=-1))
    few, few_suffice = _among_candidates(floored, CANDIDATES, top_k, rows.top_p)

    def look_further() -> jax.Array:
        more, more_suffice = _among_candidates(floored, MORE_CANDIDATES, top_k, rows.top_p)
        found = jnp.where(few_suffice, few, more)
        sufficient = few_suffice | more_suffice
        return lax.cond(
            jnp.all(sufficient), lambda: found, lambda: jnp.where(sufficient, found, _by_bisection(scaled, top_k, floor, rows.top_p))
        )

    return lax.cond(jnp.all(few_suffice), lambda: few, look_further)


class _Floored(NamedTuple):
    """After min-p: the floor it sets, and the weight of what stays."""

    scaled: _Scaled
    floor: Float32[Array, " N"]
    mass: Float32[Array, " N"]


def _among_candidates(
    floored: _Floored, num_candidates: int, top_k: jax.Array, top_p: jax.Array
) -> tuple[Float32[Array, " N"], Bool[Array, " N"]]:
    """Thresholds found among the largest logits, and whether those sufficed to find them."""
    logits = floored.scaled.logits
    num_candidates = min(num_candidates, logits.shape[1])
    largest = floored.scaled.of(largest_of(logits, num_candidates)[0])
    kth = jnp.take_along_axis(largest, jnp.minimum(top_k, num_candidates)[:, None] - 1, axis=1)[:, 0]
    cut_by_k = top_k <= num_candidates
    floor = jnp.maximum(floored.floor, jnp.where(cut_by_k, kth, -jnp.inf))
    kept = jnp.where(largest >= floor[:, None], jnp.exp(largest), 0.0)
    mass = jnp.where(cut_by_k, kept.sum(axis=-1), floored.mass)
    enough = jnp.cumsum(kept, axis=-1) >= (top_p * mass)[:, None]
    nucleus = jnp.take_along_axis(largest, jnp.argmax(enough, axis=1)[:, None], axis=1)[:, 0]
    no_top_p = top_p >= 1.0
    threshold = jnp.where(no_top_p, floor, jnp.maximum(floor, nucleus))
    k_is_known = cut_by_k | (top_k >= logits.shape[1]) | (floor > largest[:, -1])
    return threshold, k_is_known & (no_top_p | enough.any(axis=1))


def _by_bisection(scaled: _Scaled, top_k: jax.Array, floor: jax.Array, top_p: jax.Array) -> Float32[Array, " N"]:
    """The same thresholds from the whole vocabulary: bisection over the 32-bit patterns of the (non-positive) floats."""
    values = scaled.of(scaled.logits)
    magnitudes = lax.bitcast_convert_type(-values, jnp.int32) & 0x7FFFFFFF  # grows as the logit falls

    def smallest_with(enough: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """Smallest magnitude m for which keeping all magnitudes <= m is enough, as a threshold."""

        def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low, high = bounds
            middle = low + (high - low) // 2
            ok = enough(magnitudes <= middle[:, None])
            return jnp.where(ok, low, middle + 1), jnp.where(ok, middle, high)

        start = (jnp.zeros_like(top_k), jnp.full_like(top_k, 0x7F800000))
        return -lax.bitcast_convert_type(lax.fori_loop(0, 32, halve, start)[1], jnp.float32)

    kth = smallest_with(lambda keep: keep.sum(axis=-1) >= top_k)
    floor = jnp.maximum(floor, kth)
    weights = scaled.weights(scaled.logits, floor)
    target = top_p * weights.sum(axis=-1)
    nucleus = smallest_with(lambda keep: jnp.where(keep, weights, 0.0).sum(axis=-1) >= target)
    return jnp.where(top_p >= 1.0, floor, jnp.maximum(floor, nucleus))
