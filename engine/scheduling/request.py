"""One submitted sequence, from its arrival to its one terminal event."""

from dataclasses import dataclass, field

from engine.wire import Submit, TokenLogprob


@dataclass(slots=True, eq=False)
class Sequence:
    """What the scheduler knows of one prompt and its output. Positions count from 0 over prompt and output.

    Invariant: computed_tokens <= planned_tokens <= len(tokens) + in_flight_samples, and pages hold planned_tokens.
    """

    submit: Submit
    arrival: int
    """Order of arrival; the smaller, the older. It survives preemption."""
    tokens: list[int]
    """Prompt and committed output."""
    prompt_tokens: int
    page_keys: list[bytes] = field(default_factory=list)
    """Prefix-cache keys of the leading full pages of `tokens`, as far as anybody asked for them."""
    pages: list[int] = field(default_factory=list)
    sent_pages: int = 0
    """How many of `pages` the runner's page table has."""
    planned_tokens: int = 0
    """Positions whose K and V are written by some plan."""
    computed_tokens: int = 0
    """Positions whose K and V are written by a committed plan, or came from the prefix cache."""
    expected_tokens: int = 0
    """Prompt and output that its tenant's recent outputs make likely; its pages are promised to it when it starts."""
    promised_pages: int = 0
    """Of these, those it has not taken yet."""
    registered_pages: int = 0
    """Leading full pages that were offered to the prefix cache."""
    announced_pages: int = 0
    """Leading pages that this prefill announced it will compute; others with the same prefix wait for them."""
    in_flight_samples: int = 0
    """Tokens that planned and not yet committed steps draw."""
    slot: int = -1
    """Row of the runner's state; -1 while it waits."""
    epoch: int = 0
    """Rises at preemption, abort and end: rows planned in an earlier epoch are late and dropped."""
    decoding: bool = False
    """Every known token is planned: from here on one decode row a step."""
    is_paused: bool = False
    """Its reader lags: no more tokens are drawn for it."""
    preemptions: int = 0
    host_pages: list[int] = field(default_factory=list)
    """Of host memory: what it had computed when it was preempted, from the first token on."""
    host_tokens: int = 0
    """Positions that they hold."""
    lost_tokens: int = 0
    """Positions that the last preemption threw away."""
    leader: "Sequence | None" = None
    """The first output of the same prompt, while its pages of the prompt may still be shared."""
    has_ended: bool = False
    awaited_key: bytes | None = None
    """It waits in the queue until the page with this key is computed by somebody else, or given up."""
    waiting_tokens: int = 0
    """What the queue is told it has to compute: known tokens without those that were cached when it came."""
    latest_start_ns: int = 0
    """Not begun by then, it ends unserved; 0: it waits."""
    tpot_ns: int = 0
    """Target of its tenant's tier for its lane; 0: none."""
    first_token_ns: int = 0
    """When its first token was committed, without the time it was paused since; 0 before."""
    last_token_ns: int = 0
    """When its newest token was committed; 0 before the first."""
    first_event_sent: bool = False
    scheduled_ns: int = 0
    row_ns: int = 0
    """When it got the row that it has or had last."""
    cached_tokens: int = -1
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    sequence_id: int = field(init=False)
    max_tokens: int = field(init=False)
    """Prompt and output together."""

    def __post_init__(self) -> None:
        self.sequence_id = self.submit.sequence_id
        self.max_tokens = self.prompt_tokens + self.submit.sampling.max_tokens

    @property
    def wants_decode(self) -> bool:
        """Its next token may be planned: nothing is planned past `max_tokens`, however many samples are in flight."""
        return self.decoding and not self.is_paused and len(self.tokens) + self.in_flight_samples < self.max_tokens

    @property
    def uncomputed_tokens(self) -> int:
        """Known tokens that a prefill has still to plan."""
        return 0 if self.decoding else len(self.tokens) - self.planned_tokens

    @property
    def wants_prompt_logprobs(self) -> bool:
        """They go out with the first event, so after it a resumed sequence needs them no more."""
        return self.submit.sampling.prompt_logprobs >= 0 and not self.first_event_sent

    def forget_device_state(self) -> None:
        """Back to the queue or gone: whatever is still in flight for it is late from now on."""
        self.epoch += 1
        self.pages = []
        self.sent_pages = self.planned_tokens = self.computed_tokens = 0
        self.registered_pages = self.announced_pages = self.in_flight_samples = self.promised_pages = 0
        self.slot = -1
        self.decoding = False
        self.awaited_key = None
        self.prompt_logprobs = []
