"""Tells when a token sequence has begun to repeat itself."""

NGRAM_TOKENS = 8
"""A repetition is suspected when so many tokens in a row come a second time."""
MIN_REPEATED_TOKENS = 32
MIN_ROUNDS = 3
"""A loop has gone round so often, and a short one (a ruler of dashes) so long that it is no style."""


class RepetitionDetector:
    """Finds loops of any length in constant time a token.

    The last place of each n-gram is remembered. Where one comes again, the distance is the suspected period; from then on each token is
    compared with the one a period before. The sequence loops when it has matched itself for `MIN_ROUNDS` - 1 periods and for at least
    `MIN_REPEATED_TOKENS` tokens.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._last_end: dict[tuple[int, ...], int] = {}
        """By n-gram: how many tokens there were when it came last."""
        self._period = 0
        self._num_matched = 0
        """Tokens at the end that equal those a period before."""

    def push(self, token_id: int) -> bool:
        """Take a token; True when the sequence up to it loops."""
        tokens = self._tokens
        tokens.append(token_id)
        num_tokens = len(tokens)
        if self._period and token_id == tokens[num_tokens - 1 - self._period]:
            self._num_matched += 1
        else:
            self._period = self._num_matched = 0
        if num_tokens >= NGRAM_TOKENS:
            ngram = tuple(tokens[-NGRAM_TOKENS:])
            before = self._last_end.get(ngram)
            if before is not None and not self._period:
                self._period, self._num_matched = num_tokens - before, NGRAM_TOKENS
            self._last_end[ngram] = num_tokens
        return bool(self._period) and self._num_matched >= max((MIN_ROUNDS - 1) * self._period, MIN_REPEATED_TOKENS)
