"""Judging what was found: pure functions from facts to a `Finding`."""

from dataclasses import dataclass
from enum import StrEnum

from appliance.db.revision import Schema, SchemaError, SchemaState, refuse_unless_current
from engine.wire import ModelNeeds

MIN_DRIVER = (525, 60)
"""CUDA 12 needs it: https://docs.nvidia.com/deploy/cuda-compatibility/"""
MIN_CARD_SPARE_BYTES = 2 * 10**9
"""Beside the weights, for KV pages, programs and the driver."""
MIN_SPARE_BYTES = 1 * 10**9
"""Of memory, for the processes themselves."""
MORE_MEMORY = "give it more memory, or a smaller pool with --kv-cache-memory-bytes"
MIN_DISK_BYTES, GOOD_DISK_BYTES = 200 * 10**6, 2 * 10**9
"""The database, a usage spool of up to 256 MB, compiled programs."""
MIN_OPEN_FILES, GOOD_OPEN_FILES = 1_024, 8_192
"""Each connection is one."""
BUILT_AFTER_S = 1_764_547_200.0
"""December 2025: a clock that says less is wrong."""
MAX_SKEW_S = 2.0
"""Against the database's clock: keys expire and budgets are renewed by it."""


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was found, and where it is not fine, what to do."""

    name: str
    state: State
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    name: str
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Cards:
    """`driver` and `cards` as NVML tells them; `error` where it does not answer."""

    device_files: tuple[str, ...] = ()
    driver: str = ""
    cards: tuple[Card, ...] = ()
    error: str = ""
    has_cuda_plugin: bool = False
    """JAX's, for the cards."""


def judge_driver(cards: Cards) -> Finding:
    if not cards.cards and not cards.device_files:
        return Finding("driver", State.OK, "no NVIDIA card: the engine runs on the CPU")
    if not cards.cards:
        found = f"{', '.join(cards.device_files)} is there, but the driver does not answer: {cards.error}"
        remedy = "install NVIDIA's driver, 525.60 or newer; start a container with --gpus all, and NVIDIA's container toolkit on the host"
        return Finding("driver", State.FAILED, found, remedy)
    names = f"{', '.join(card.name for card in cards.cards)}, driver {cards.driver}"
    if _version(cards.driver) < MIN_DRIVER:
        return Finding("driver", State.FAILED, names, "CUDA 12 needs driver 525.60 or newer: update it")
    if not cards.has_cuda_plugin:
        remedy = "JAX here has no CUDA: use the image with target cuda12, or install requirements/cuda12.lock"
        return Finding("driver", State.WARNING, f"{names}, not used: the engine runs on the CPU", remedy)
    return Finding("driver", State.OK, names)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def judge_model(needs: ModelNeeds | str) -> Finding:
    """`needs`, or what the engine said against the configuration."""
    if isinstance(needs, str):
        return Finding("model files", State.FAILED, "the model can not be served", needs)
    found = f"{needs.model}, weights {_gb(needs.weight_bytes)}"
    if not needs.has_native_kernels and needs.has_compiler:
        return Finding("model files", State.OK, f"{found}; the next start builds the native CPU kernels")
    if not needs.has_native_kernels:
        remedy = "install g++: the next start builds them, and steps take about half the time"
        return Finding("model files", State.WARNING, f"{found}; the native CPU kernels are not built", remedy)
    return Finding("model files", State.OK, found)


def judge_split(needs: ModelNeeds, cards: Cards) -> Finding:
    """Whether there are as many cards as the model is to be split over."""
    count, found = needs.tensor_parallel_size, len(cards.cards) if cards.has_cuda_plugin else 0
    if count <= found:
        return Finding("tensor parallelism", State.OK, f"{count} of {found} cards")
    if found:
        remedy = f"give --tensor-parallel-size {found} or fewer, or show the container more (--gpus all)"
        return Finding("tensor parallelism", State.FAILED, f"tensor_parallel_size is {count}, and there are {found} cards", remedy)
    said = f"tensor_parallel_size is {count}, and no card can be used"
    remedy = f"without cards give 1; for a trial XLA_FLAGS=--xla_force_host_platform_device_count={count} makes devices of the CPU"
    return Finding("tensor parallelism", State.WARNING, said, remedy)


def judge_memory(needs: ModelNeeds, cards: Cards, own_url: str = "") -> Finding:
    """That of the fullest card used where JAX uses some, else the machine's. `own_url` of the server that runs on this data directory
    and has taken its part already, if one does."""
    if own_url:
        found = f"{_gb(needs.available_bytes)} of {_gb(needs.total_bytes)} available beside {own_url}"
        is_short = needs.available_bytes < MIN_SPARE_BYTES
        return Finding("memory", State.WARNING if is_short else State.OK, found, MORE_MEMORY if is_short else "")
    if cards.cards and cards.has_cuda_plugin:
        card = min(cards.cards[: needs.tensor_parallel_size], key=lambda card: card.free_bytes)
        weight_bytes = needs.weight_bytes // needs.tensor_parallel_size
        found = f"{card.name}: {_gb(card.free_bytes)} of {_gb(card.total_bytes)} free, weights {_gb(weight_bytes)}"
        if weight_bytes + MIN_CARD_SPARE_BYTES > card.free_bytes:
            remedy = (
                "stop what else is on the card (nvidia-smi shows it), take a smaller model, --quantization int8, or more cards with"
                " --tensor-parallel-size"
            )
            return Finding("memory", State.FAILED, found, remedy)
        return Finding("memory", State.OK, found)
    found = (
        f"{_gb(needs.available_bytes)} of {_gb(needs.total_bytes)} available; weights {_gb(needs.weight_bytes)},"
        f" KV pool {_gb(needs.pool_bytes)}"
    )
    spare = needs.available_bytes - needs.weight_bytes - needs.pool_bytes
    if needs.pool_problem or spare < 0:
        remedy = needs.pool_problem or "give it more memory, a smaller model, or a smaller pool with --kv-cache-memory-bytes"
        return Finding("memory", State.FAILED, found, remedy)
    if spare < MIN_SPARE_BYTES:
        return Finding("memory", State.WARNING, f"{found}: {_gb(spare)} left for all else", MORE_MEMORY)
    return Finding("memory", State.OK, found)


def judge_port(address: str, error: str, own_url: str) -> Finding:
    """`error` of trying to listen there, empty where it worked; `own_url` of the server that runs on this data directory, if one does."""
    if not error:
        return Finding("port", State.OK, f"{address} is free")
    if own_url:
        return Finding("port", State.OK, f"{own_url} is served from this data directory")
    return Finding("port", State.FAILED, f"{address} can not be listened on ({error})", "stop what listens there, or choose another --port")


def judge_database(name: str, schema: Schema | str, skew_s: float = 0.0) -> Finding:
    """`schema`, or why the database does not answer."""
    if isinstance(schema, str):
        said, _, remedy = schema.partition(": ")
        remedy = remedy or "start it, or correct FAIRLANE_DATABASE_URL (host, name, user, password)"
        return Finding("database", State.FAILED, f"{name}: {said}", remedy)
    if schema.state is SchemaState.EMPTY:
        return Finding("database", State.OK, f"{name} is empty: the first start fills it")
    try:
        refuse_unless_current(schema)
    except SchemaError as error:
        said, _, remedy = str(error).partition(": ")
        return Finding("database", State.FAILED, f"{name}: {said}", remedy)
    if abs(skew_s) > MAX_SKEW_S:
        remedy = "synchronise both machines' clocks (NTP)"
        return Finding("database", State.WARNING, f"{name}: its clock is {skew_s:+.1f} s from ours", remedy)
    return Finding("database", State.OK, f"{name} at revision {schema.revision}")


def judge_disk(name: str, folder: str, free_bytes: int, error: str) -> Finding:
    """`error` of writing there, empty where it worked."""
    if error:
        return Finding(name, State.FAILED, f"{folder} can not be written ({error})", "give it to the user that the appliance runs as")
    found = f"{folder}: {_gb(free_bytes)} free"
    if free_bytes < MIN_DISK_BYTES:
        return Finding(name, State.FAILED, found, f"free at least {_gb(GOOD_DISK_BYTES)}")
    if free_bytes < GOOD_DISK_BYTES:
        return Finding(name, State.WARNING, found, f"{_gb(GOOD_DISK_BYTES)} are enough for the usage of days and for compiled programs")
    return Finding(name, State.OK, found)


def judge_clock(now_s: float, is_synchronised: bool | None) -> Finding:
    """`is_synchronised` as the kernel says; None where it can not be asked."""
    if now_s < BUILT_AFTER_S:
        return Finding("clock", State.FAILED, "it is years behind", "set it: keys, budgets and certificates go by it")
    if is_synchronised is False:
        return Finding("clock", State.WARNING, "not synchronised", "run an NTP client (chrony) on the host: keys and budgets go by it")
    return Finding("clock", State.OK, "synchronised" if is_synchronised else "plausible")


def judge_open_files(reachable: int) -> Finding:
    """`reachable`: the limit that `fairlane serve` raises its own to."""
    found = f"{reachable} at once"
    if reachable < GOOD_OPEN_FILES:
        state = State.FAILED if reachable < MIN_OPEN_FILES else State.WARNING
        return Finding("open files", state, found, f"each connection is one: ulimit -Hn {GOOD_OPEN_FILES} (LimitNOFILE, --ulimit nofile)")
    return Finding("open files", State.OK, found)


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
