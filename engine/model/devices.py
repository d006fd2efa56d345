"""The devices that one replica's model is split over (tensor parallelism), and how its matrices are cut.

The cut is Megatron-LM's (Shoeybi et al., 2019): each device has some of the heads, some of the MLP's width and some of the
vocabulary. q, k, v, gate and up are cut by output (rows), what follows them by input (columns), so a layer needs two sums over
the devices: one after attention, one after the MLP. The embedding and the head are cut by token: a look-up is a third sum, once a
step, and logits are gathered, so that every device draws the same tokens from the whole vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from engine.errors import ConfigError
from engine.model.config import ModelConfig
from engine.model.params import LayerParams

AXIS = "tp"
"""The mesh's one axis."""
WHOLE, ROWS, COLUMNS = PartitionSpec(), PartitionSpec(AXIS), PartitionSpec(None, AXIS)
VOCABULARY_CUT = ROWS
LAYER_CUT: Any = LayerParams(
    input_norm=WHOLE,
    qkv=ROWS,
    qkv_bias=ROWS,
    q_norm=WHOLE,
    k_norm=WHOLE,
    output=COLUMNS,
    output_bias=WHOLE,
    post_norm=WHOLE,
    gate_up=ROWS,
    gate_up_bias=ROWS,
    down=COLUMNS,
    down_bias=WHOLE,
)
"""A `LayerParams` of specs: how each array of a layer is cut. A bias behind a sum counts once, so every device has it whole."""


@dataclass(frozen=True, slots=True)
class Devices:
    """One device without a mesh, or several in one."""

    mesh: Mesh | None = None

    @property
    def count(self) -> int:
        return 1 if self.mesh is None else self.mesh.size

    def put(self, values: np.ndarray, spec: PartitionSpec, part_rows: Sequence[int] = ()) -> jax.Array:
        """Each device's part of an array in host memory, straight to it.

        `part_rows` are the rows of matrices that lie one below the other in `values`: a device gets its share of each.
        """
        if self.mesh is None:
            return jax.device_put(values)
        if spec == ROWS and len(part_rows) > 1:
            values = by_device(values, part_rows, self.count)
        return jax.device_put(values, NamedSharding(self.mesh, spec))

    def put_vocabulary(self, values: np.ndarray) -> jax.Array:
        """Rows of tokens [V, hidden], with zeros behind them to a multiple of the devices."""
        padding = -values.shape[0] % self.count
        return self.put(np.pad(values, ((0, padding), (0, 0))) if padding else values, VOCABULARY_CUT)

    def whole_of(self, part: jax.ShapeDtypeStruct, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        """Shape and place over all devices of an array of which each has such a part."""
        if self.mesh is None:
            return part
        cuts = (*spec, *[None] * (len(part.shape) - len(spec)))
        dims = [size if cut is None else size * self.count for size, cut in zip(part.shape, cuts, strict=True)]
        return jax.ShapeDtypeStruct(dims, part.dtype, sharding=NamedSharding(self.mesh, spec))

    def jit(self, function: Callable[..., Any], arguments: tuple[Any, ...], results: Any, *, donate_argnums: Sequence[int] = ()) -> Any:
        """`function` jitted for one device, or to run on each with its own parts.

        `arguments` and `results` are pytrees of arrays or shapes that say how things are cut; what says nothing is whole everywhere.
        `results` may stand for more than one array with one spec.
        """
        mesh = self.mesh
        if mesh is None:
            return jax.jit(function, donate_argnums=donate_argnums)
        specs, out_specs = jax.tree.map(_spec, arguments), jax.tree.map(_spec, results)
        spread = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out_specs, check_vma=False)
        places, out_places = (jax.tree.map(partial(NamedSharding, mesh), tree) for tree in (specs, out_specs))
        return jax.jit(spread, in_shardings=places, out_shardings=out_places, donate_argnums=donate_argnums)


ONE_DEVICE = Devices()


def find_devices(count: int) -> Devices:
    """The first `count` of the default backend's.

    Raises:
        ConfigError: there are fewer.
    """
    if count == 1:
        return ONE_DEVICE
    found = jax.devices()
    if count > len(found):
        kind = found[0].device_kind
        trial = f"; for a trial without cards XLA_FLAGS=--xla_force_host_platform_device_count={count} makes {count} devices of one CPU"
        raise ConfigError(
            f"tensor_parallel_size is {count}, and JAX finds {len(found)} here ({kind}): give at most {len(found)}, or a machine with more"
            f"{trial if found[0].platform == 'cpu' else ''}"
        )
    return Devices(Mesh(np.array(found[:count]), (AXIS,)))


def share_of(config: ModelConfig, num_devices: int) -> ModelConfig:
    """One device's share of a model.

    Raises:
        ConfigError: heads or MLP width do not divide.
    """
    if num_devices == 1:
        return config
    sizes = (config.num_heads, config.num_kv_heads, config.intermediate_size)
    if any(size % num_devices for size in sizes):
        able = [str(n) for n in range(1, config.num_kv_heads + 1) if not any(size % n for size in sizes)]
        raise ConfigError(
            f"tensor_parallel_size is {num_devices}: every device has as many heads and as much of the MLP as the others, and {config.name}"
            f" has {config.num_heads} query heads, {config.num_kv_heads} KV heads and an MLP of width {config.intermediate_size};"
            f" give {' or '.join(able)}"
        )
    return replace(
        config,
        num_heads=config.num_heads // num_devices,
        num_kv_heads=config.num_kv_heads // num_devices,
        intermediate_size=config.intermediate_size // num_devices,
        split_over=num_devices,
    )


def by_device(values: np.ndarray, part_rows: Sequence[int], num_devices: int) -> np.ndarray:
    """Rows of parts that lie one below the other, re-ordered: a device's share of each part, then the next device's."""
    starts = np.cumsum([0, *part_rows[:-1]])
    shares = [
        values[start + rows * device // num_devices : start + rows * (device + 1) // num_devices]
        for device in range(num_devices)
        for start, rows in zip(starts, part_rows, strict=True)
    ]
    return np.concatenate(shares)


# ---- inside a step --------------------------------------------------------------------------------------------------


def sum_over_devices(config: ModelConfig, x: jax.Array) -> jax.Array:
    """What each device computed from its columns -> the whole product, on all of them."""
    return lax.psum(x, AXIS) if config.split_over > 1 else x


def own_tokens(tokens: jax.Array, own_rows: int) -> tuple[jax.Array, jax.Array]:
    """Token ids as rows of this device's part of the embedding, and which of them it has."""
    rows = tokens - lax.axis_index(AXIS) * own_rows
    return rows, (rows >= 0) & (rows < own_rows)


def gather_vocabulary(config: ModelConfig, x: jax.Array) -> jax.Array:
    """Each device's [N, V / devices] -> [N, V] on all of them, without padding."""
    return lax.all_gather(x, AXIS, axis=1, tiled=True)[:, : config.vocab_size] if config.split_over > 1 else x


def _spec(array: Any) -> PartitionSpec:
    sharding = getattr(array, "sharding", None)
    return sharding.spec if isinstance(sharding, NamedSharding) else WHOLE
