"""One output of a request: token events in, text out. Streams and whole answers both read it, so they agree."""

from collections import deque
from dataclasses import dataclass, field

from appliance.domain.inference.ends import Ends, EndWatch, FinishDetail
from appliance.domain.inference.output_caps import Bound
from appliance.text.detokenizer import MAX_CHAR_BYTES, Detokenizer
from appliance.text.tokenizer import Tokenizer
from engine.wire import FinishReason, SequenceEvent, TokenLogprob


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and the text they came from (None where the client sent ids)."""

    token_ids: tuple[int, ...]
    text: str | None = None


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token with its log-probability (None for a prompt's first) and where its text begins in the output's text."""

    token_id: int
    score: TokenLogprob | None
    text_offset: int


@dataclass(slots=True)
class Delta:
    """What an output gained since the last one."""

    text: str = ""
    num_tokens: int = 0
    """Also those whose text is held back, as it ends inside a character or may begin a stop string."""
    scored: list[ScoredToken] = field(default_factory=list[ScoredToken])
    finish_reason: str | None = None
    finish_detail: FinishDetail | None = None

    @property
    def is_empty(self) -> bool:
        """Nothing to send."""
        return not self.num_tokens and not self.text and not self.scored and self.finish_reason is None


class Choice:
    """Counts tokens, turns them into text, ends where the request wants it, lines log-probabilities up with the text sent."""

    def __init__(
        self, index: int, prompt: Prompt, tokenizer: Tokenizer, *, ends: Ends, bound: Bound, min_tokens: int, echo: bool, scores: bool
    ) -> None:
        """`bound`: what it means when the engine ends the output for its length."""
        self.index = index
        self.prompt = prompt
        self.num_tokens = 0
        self.num_drained_tokens = 0
        """Of these, the ones that whoever answers has taken."""
        self.cached_tokens = 0
        self.first_token_ns = 0
        self.last_token_ns = 0
        self.finish_reason: str | None = None
        self.finish_detail: FinishDetail | None = None
        self.failure: str | None = None
        """Why the engine ended it, where it did."""
        self._min_tokens = min_tokens
        self._echo = echo
        self._scores = scores
        self._ends = ends
        self._watch = EndWatch(ends)
        self._bound: Bound = bound
        tail = () if echo else prompt.token_ids[-MAX_CHAR_BYTES:]
        self._detokenizer = Detokenizer(tokenizer.token_bytes, tail)
        self._text_chars = 0
        """Length of the text of all tokens so far."""
        self._sent_chars = 0
        self._waiting: deque[ScoredToken] = deque()
        """Scored tokens whose text has not been let through yet."""
        self._delta = Delta()

    @property
    def is_over(self) -> bool:
        return self.finish_reason is not None or self.failure is not None

    @property
    def ended_here(self) -> bool:
        """It ended by its text or its tokens: the engine does not know and must be told."""
        return self._watch.found is not None

    def feed(self, event: SequenceEvent, now_ns: int) -> None:
        """Take one event of its sequence. What comes after its end is dropped."""
        if self.is_over:
            return
        if event.cached_tokens >= 0:
            self.cached_tokens = event.cached_tokens
        if event.token_ids:
            self.first_token_ns = self.first_token_ns or now_ns
            self.last_token_ns = now_ns
        if self._echo and event.token_ids:
            self._echo = False
            self._repeat_prompt(event)
        num_text = len(event.token_ids) - (event.finish is FinishReason.STOP)  # the stop id is no text
        for position, token_id in enumerate(event.token_ids):
            self.num_tokens += 1
            if position < num_text:
                self._append(token_id, event.logprobs[position] if self._scores else None)
            if self._watch.found is not None:
                self._finish("stop", self._watch.found)
                return
        if event.finish is not None:
            self._end(event)

    def cut(self) -> None:
        """Its deadline has come: it ends with what it has."""
        self._send(self._watch.finish(self._detokenizer.flush()))
        self._finish("length", "deadline")

    def drain(self) -> Delta:
        """What was gained since the last call."""
        delta, self._delta = self._delta, Delta()
        delta.num_tokens, self.num_drained_tokens = self.num_tokens - self.num_drained_tokens, self.num_tokens
        delta.finish_reason, delta.finish_detail = self.finish_reason, self.finish_detail
        whole = self.finish_reason is not None and not self.ended_here
        while self._waiting and (whole or self._waiting[0].text_offset < self._sent_chars):
            delta.scored.append(self._waiting.popleft())
        return delta

    def _append(self, token_id: int, score: TokenLogprob | None) -> None:
        if score is not None:
            self._waiting.append(ScoredToken(token_id, score, self._text_chars))
        text = self._detokenizer.push(token_id)
        self._text_chars += len(text)
        self._send(self._watch.push(token_id, text, may_end=self.num_tokens > self._min_tokens))

    def _send(self, text: str) -> None:
        self._sent_chars += len(text)
        self._delta.text += text

    def _end(self, event: SequenceEvent) -> None:
        if event.finish not in (FinishReason.STOP, FinishReason.LENGTH):
            self.failure = event.message or "the engine ended this request early"
            return
        self._send(self._watch.finish(self._detokenizer.flush()))
        if self._watch.found is not None:
            self._finish("stop", self._watch.found)
        elif event.finish is FinishReason.LENGTH:
            self._finish("length", self._bound)
        else:
            self._finish("stop", "stop_token" if event.stop_token_id in self._ends.token_ids else "eos")

    def _finish(self, reason: str, detail: FinishDetail) -> None:
        self.finish_reason, self.finish_detail = reason, detail

    def _repeat_prompt(self, event: SequenceEvent) -> None:
        """The prompt in front of the output: its own text where there is one, and its tokens' scores."""
        scores = (None, *event.prompt_logprobs) if self._scores else ()
        pieces: list[str] = []
        for position, token_id in enumerate(self.prompt.token_ids):
            if self._scores:
                self._delta.scored.append(ScoredToken(token_id, scores[position], self._text_chars))
            pieces.append(self._detokenizer.push(token_id))
            self._text_chars += len(pieces[-1])
        text = "".join(pieces) if self.prompt.text is None else self.prompt.text
        self._text_chars = len(text)
        self._send(text)
