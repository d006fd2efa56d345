"""How long a tenant's outputs will be, from those that ended lately: admission counts with that, not with `max_tokens`."""

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from dataclasses import dataclass, field

WINDOW_OUTPUTS = 64
"""Of each tenant; older ones are forgotten."""
FEWEST_OUTPUTS = 4
"""Before so many nothing is known of a tenant, and all tenants' outputs have to do."""
EXPECTED_SHARE = 0.8
"""Of the outputs that got as long as this one is, so many end within what is expected: one in five may lack pages later, and memory
for the longest ones is not kept idle."""


@dataclass(slots=True)
class _Window:
    recent: deque[int] = field(default_factory=deque)
    ordered: list[int] = field(default_factory=list)

    def add(self, tokens: int) -> None:
        self.recent.append(tokens)
        insort(self.ordered, tokens)
        if len(self.recent) > WINDOW_OUTPUTS:
            del self.ordered[bisect_left(self.ordered, self.recent.popleft())]

    def quantile_above(self, tokens: int) -> int | None:
        """Of the outputs longer than that; None where there was none."""
        longer = bisect_right(self.ordered, tokens)
        count = len(self.ordered) - longer
        return self.ordered[longer + math.ceil(EXPECTED_SHARE * count) - 1] if count else None


class OutputLengths:
    """In tokens. Costs O(log n) of a window."""

    def __init__(self) -> None:
        self._all = _Window()
        self._by_tenant: dict[str, _Window] = {}

    def note(self, tenant_id: str, tokens: int) -> None:
        """An output ended, for whatever reason, with so many tokens."""
        self._all.add(tokens)
        self._by_tenant.setdefault(tenant_id, _Window()).add(tokens)

    def expected(self, tenant_id: str, produced: int) -> int | None:
        """Tokens at the end of an output of this tenant that has so many; None where nothing is known of such outputs."""
        window = self._by_tenant.get(tenant_id)
        if window is None or len(window.ordered) < FEWEST_OUTPUTS:
            window = self._all
        return window.quantile_above(produced) if len(window.ordered) >= FEWEST_OUTPUTS else None

    def forget_all_but(self, tenants: set[str]) -> None:
        """Tenants that were removed."""
        self._by_tenant = {name: window for name, window in self._by_tenant.items() if name in tenants}
