"""Which sequence has which pages: the page pool and the prefix cache, seen from a sequence."""

from collections.abc import Iterable

import msgspec

from engine.scheduling.eviction import POLICIES
from engine.scheduling.limits import Limits
from engine.scheduling.moves import PendingMoves
from engine.scheduling.pages import PagePool
from engine.scheduling.prefix_cache import PrefixCache
from engine.scheduling.request import Sequence
from engine.wire import TenantPolicy


class Match(msgspec.Struct, frozen=True, gc=False):
    """What a waiting sequence would get from the prefix cache, or from the first output of its prompt."""

    pages: tuple[int, ...]
    unreferenced: int
    """How many of them would leave the cached state: they can not be evicted for somebody else any more."""
    awaited_key: bytes | None
    """The last page behind them that a running prefill is computing right now."""
    tokens: int = 0
    """Positions whose K and V are there with these pages and the copy."""
    copy_of: int | None = None
    """The page behind them, which another sequence goes on writing: it needs a copy of its own."""
    host_pages: tuple[int, ...] = ()
    """Those behind `pages` that come back from host memory."""
    is_fork: bool = False
    """The pages are another sequence's, not the prefix cache's; what they hold is planned, maybe not committed."""


NO_MATCH = Match((), 0, None)
MOST_RESERVED_PART = 2
"""All reserves together are at most one of so many parts of the pool: with many tenants, most of them away, the rest would starve on a
pool that nobody uses."""
PINNED_TENANT = "fairlane"
"""Common prefixes count as ours."""


class KvMemory:
    """Gives and takes pages. Pages are freed at once when a sequence ends, even while a step that writes them is in
    flight: the device runs steps in order, so whoever gets the page writes it in a later step, after that late
    write. Only committed tokens enter the prefix cache, so a late write never lands in a page somebody can find."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._size = limits.page_size
        self.cache = PrefixCache(limits.page_size, limits.cache_version)
        self.pool = PagePool(limits.num_pages, self.cache, POLICIES[limits.eviction_policy])
        self._announced: dict[bytes, int] = {}
        self._pinned: dict[int, None] = {}
        self.moves = PendingMoves(limits.swap_pages)

    @property
    def num_pinned(self) -> int:
        """Pages of common prefixes: they count as used, and nothing evicts them."""
        return len(self._pinned)

    def set_policies(self, policies: Iterable[TenantPolicy]) -> None:
        """Reserves and caps. What is reserved leaves room for one sequence of the longest length, and half the pool to whoever comes."""
        if self._limits.enable_kv_quota:
            available = self._limits.num_pages - self.num_pinned
            longest = self._limits.pages_for(self._limits.max_model_len)
            self.pool.set_policies(policies, min(available - longest, available // MOST_RESERVED_PART))

    def has_room(self, sequence: Sequence, pages: int, *, keep_back: int = 0) -> bool:
        """Whether a waiting sequence may take so many pages: they are there beside what is set aside for other tenants and promised
        to running sequences, `keep_back` are left, and its tenant stays within its cap. One sequence of a tenant may always run."""
        if self.is_beyond_cap(sequence, pages):
            return False
        holding = self.pool.holdings.of(sequence.submit.tenant_id)
        others = self.pool.holdings.spoken_for - holding.spoken_for
        return pages + holding.promised + others + keep_back <= self.pool.num_free + self.pool.num_cached

    def is_beyond_cap(self, sequence: Sequence, pages: int) -> bool:
        """So many pages more are too many for the waiting sequence's tenant."""
        holding = self.pool.holdings.of(sequence.submit.tenant_id)
        return bool(holding.sequences) and max(1, pages + holding.promised) > holding.room_under_cap

    def is_held_by_cap(self, tenant_id: str) -> bool:
        """Only the tenant's own pages would help it: it holds as many as it may."""
        holding = self.pool.holdings.of(tenant_id)
        return holding.sequences > 1 and not holding.room_under_cap

    def is_announced(self, key: bytes) -> bool:
        """A running prefill will compute the page with this key."""
        return key in self._announced

    def match(self, sequence: Sequence) -> Match:
        """Longest cached prefix, always short of the last token: a wholly cached prompt recomputes its last page."""
        if not self._reads_cache(sequence):
            return self._with_host_pages(sequence, NO_MATCH)
        limit = (len(sequence.tokens) - 1) // self._size
        pages: list[int] = []
        keys = self.cache.keys(sequence, limit)
        for key in keys[:limit]:
            page = self.cache.find(key)
            if page is None:
                break
            pages.append(page)
        awaited = None
        for key in keys[len(pages) : limit]:
            if key not in self._announced:
                break
            awaited = key
        unreferenced = sum([self.pool.references(page) == 0 for page in pages])
        return self._with_host_pages(sequence, Match(tuple(pages), unreferenced, awaited, len(pages) * self._size))

    def fork(self, sequence: Sequence, leader: Sequence) -> Match:
        """All pages of the prompt from a sequence with the same one, whose prefill was planned in an earlier step. Only the last token
        is computed again, for its logits; so the page it stands in is written, and copied before."""
        tokens = sequence.prompt_tokens - 1
        shared = tokens // self._size
        copy_of = leader.pages[shared] if tokens % self._size else None
        sequence.page_keys = leader.page_keys[: sequence.prompt_tokens // self._size]
        return Match(tuple(leader.pages[:shared]), 0, None, tokens, copy_of, is_fork=True)

    def missing_pages(self, sequence: Sequence, tokens: int, match: Match = NO_MATCH) -> int:
        """Pages that must be taken, or kept from eviction, before the sequence's first `tokens` tokens have room."""
        return self._limits.pages_for(tokens) - len(sequence.pages) - len(match.pages) + match.unreferenced

    def adopt(self, sequence: Sequence, match: Match) -> None:
        """Give a newly admitted sequence its cached prefix; announce the pages that its prefill will compute."""
        tenant_id = sequence.submit.tenant_id
        for page in match.pages:
            self.pool.retain(page, tenant_id)
        self.pool.holdings.of(tenant_id).sequences += 1
        sequence.pages = list(match.pages)
        if match.copy_of is not None:
            sequence.pages.append(self.pool.take(tenant_id))
            self.moves.copy(match.copy_of, sequence.pages[-1])
        for host_page in match.host_pages:
            sequence.pages.append(self.pool.take(tenant_id))
            self.moves.swap_in(host_page, sequence.pages[-1])
        if sequence.host_pages:
            self.moves.return_host(sequence.host_pages)
            sequence.host_pages, sequence.host_tokens = [], 0
        self._promise(sequence)
        sequence.planned_tokens = sequence.computed_tokens = match.tokens
        if match.is_fork:
            return  # nothing is left to announce, and its own commits come after those that computed the shared pages
        sequence.registered_pages = len(match.pages)
        if self._limits.enable_prefix_caching:
            sequence.announced_pages = len(sequence.tokens) // self._size
            for key in self.cache.keys(sequence, sequence.announced_pages)[len(match.pages) : sequence.announced_pages]:
                self._announced.setdefault(key, sequence.sequence_id)

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Room for the sequence's first `tokens` tokens, or False and nothing changed."""
        missing = self._limits.pages_for(tokens) - len(sequence.pages)
        if missing <= 0:
            return True
        if missing > self._available(sequence):
            return False
        sequence.pages += [self.pool.take(sequence.submit.tenant_id) for _ in range(missing)]
        self._promise(sequence)
        return True

    def room(self, sequence: Sequence) -> int:
        """Tokens the sequence could hold with every page that is to be had."""
        return (len(sequence.pages) + self._available(sequence)) * self._size

    def register(self, sequence: Sequence) -> None:
        """Offer the full pages of committed tokens to the prefix cache; nobody waits for them any longer."""
        if not self._limits.enable_prefix_caching:
            return
        full = sequence.computed_tokens // self._size
        if full == sequence.registered_pages:
            return
        keys = self.cache.keys(sequence, full)
        for index in range(sequence.registered_pages, full):
            self.cache.insert(keys[index], sequence.pages[index])
            self._announced.pop(keys[index], None)
        sequence.registered_pages = full

    def release(self, sequence: Sequence) -> None:
        """Take all its pages back, last page first, and withdraw what it announced."""
        for index in range(sequence.registered_pages, sequence.announced_pages):
            key = sequence.page_keys[index]
            if self._announced.get(key) == sequence.sequence_id:
                del self._announced[key]
        self.moves.release(sequence.pages)
        for page in reversed(sequence.pages):
            self.pool.release(page)
        holding = self.pool.holdings.of(sequence.submit.tenant_id)
        holding.sequences -= 1
        self.pool.holdings.promise(holding, -sequence.promised_pages)

    def pin(self, salt: str, tokens: tuple[int, ...]) -> int:
        """Reference the cached full pages of `tokens` for ever; how many leading pages are pinned now."""
        key = self.cache.root(salt)
        full = len(tokens) // self._size
        for index in range(full):
            key = self.cache.child(key, tokens[index * self._size : (index + 1) * self._size])
            page = self.cache.find(key)
            if page is None:
                return index
            if page not in self._pinned:
                self.pool.retain(page, PINNED_TENANT)
                self._pinned[page] = None
        return full

    def swap_out(self, sequence: Sequence) -> bool:
        """Before its pages are released: let the host keep what they hold of the tokens known now. False where that is nothing, or more
        than the host has room for.

        What a step in flight writes is among it, for pages are read behind that step; of tokens that it draws nobody will know. The
        last known token is computed again in any case, for its logits.
        """
        tokens = self.swappable_tokens(sequence)
        host_pages = self.moves.swap_out(sequence.sequence_id, sequence.pages[: self._limits.pages_for(tokens)])
        sequence.host_pages, sequence.host_tokens = host_pages, tokens if host_pages else 0
        return bool(host_pages)

    def swappable_tokens(self, sequence: Sequence) -> int:
        """0 where no step has written its pages yet, or its prompt is scored: that takes a pass over every token."""
        if not sequence.sent_pages or sequence.wants_prompt_logprobs:
            return 0
        return min(sequence.planned_tokens, len(sequence.tokens) - 1)

    def forget(self, sequence: Sequence) -> None:
        """It ended in the queue."""
        if sequence.host_pages:
            self.moves.drop(sequence.sequence_id, sequence.host_pages)
            sequence.host_pages, sequence.host_tokens = [], 0

    def pages_ever_available(self, sequence: Sequence) -> int:
        """Pages the sequence could use if nothing else ran: not those pinned for other prefixes."""
        others = len(self._pinned) - sum(page in self._pinned for page in self.match(sequence).pages)
        return self._limits.num_pages - others

    def check_nothing_used(self) -> None:
        """The idle invariant: only pinned pages are referenced, no page is lost, nobody is waited for."""
        self.pool.check()
        assert self.pool.num_used == len(self._pinned), f"idle, but {self.pool.num_used} pages are used and {len(self._pinned)} pinned"
        self.moves.check_nothing_held()
        assert not self._announced, f"idle, but {len(self._announced)} pages are awaited"

    def _with_host_pages(self, sequence: Sequence, match: Match) -> Match:
        """What it was swapped out with, behind what the cache still has. It waits for nobody who computes the same."""
        if sequence.host_tokens <= match.tokens:
            return match
        return msgspec.structs.replace(
            match, tokens=sequence.host_tokens, host_pages=tuple(sequence.host_pages[len(match.pages) :]), awaited_key=None
        )

    def _available(self, sequence: Sequence) -> int:
        """Pages that a running sequence can get."""
        holding = self.pool.holdings.of(sequence.submit.tenant_id)
        available = self.pool.available_to(sequence.submit.tenant_id)
        return available if holding.sequences <= 1 else min(available, holding.room_under_cap)

    def _promise(self, sequence: Sequence) -> None:
        """One page at least, so that an admission is not undone by the next few decodes; none where all were taken at once."""
        missing = self._limits.pages_for(sequence.expected_tokens) - len(sequence.pages)
        promised = max(missing, 0 if len(sequence.pages) >= self._limits.pages_for(sequence.max_tokens - 1) else 1)
        self.pool.holdings.promise(self.pool.holdings.of(sequence.submit.tenant_id), promised - sequence.promised_pages)
        sequence.promised_pages = promised

    def _reads_cache(self, sequence: Sequence) -> bool:
        # Prompt log-probabilities need a forward pass over every prompt token.
        return self._limits.enable_prefix_caching and not sequence.wants_prompt_logprobs
