"""Pages of host memory that keep what preempted sequences computed, and whether that is worth it."""

from engine.scheduling.buckets import Buckets
from engine.scheduling.step_model import NO_WORK, StepModel


class HostPages:
    """Numbers of host pages; who has them is the sequences' business, what they hold the runner's."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages))[::-1]

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """So many pages, or none where there are fewer."""
        return [self._free.pop() for _ in range(count)] if count <= len(self._free) else []

    def give_back(self, pages: list[int]) -> None:
        self._free += pages


def recompute_s(model: StepModel, buckets: Buckets, tokens: int) -> float:
    """Seconds to compute so many tokens from the first one on, in the largest chunks."""
    largest, seconds = buckets.prefill_tokens[-1], 0.0
    for start in range(0, tokens, largest):
        chunk = min(largest, tokens - start)
        bucket = next(size for size in buckets.prefill_tokens if size >= chunk)
        seconds += model.predict_s(buckets.choose(0, bucket), NO_WORK.with_chunk(chunk, start))
    return seconds


def swap_is_cheaper(model: StepModel | None, buckets: Buckets, tokens: int, pages: int) -> bool:
    """Out and back against computing again. Without a model there is nothing to compare, and what is computed is kept."""
    return model is None or pages * model.times.swap_page_s < recompute_s(model, buckets, tokens)
