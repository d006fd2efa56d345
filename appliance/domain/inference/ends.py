"""What ends an output beside the engine: stop strings, the presets of a task, a finished JSON value, a loop."""

from dataclasses import dataclass
from typing import Literal

from appliance.domain.inference.output_caps import Bound
from appliance.domain.slas.decisions import Task
from appliance.text.endings import BlockEnding, Ending, JsonEnding
from appliance.text.repetition import RepetitionDetector
from appliance.text.stops import StopMatcher

type FinishDetail = Literal["eos", "stop_token", "stop_string", "task_stop", "json", "repetition", "deadline"] | Bound
"""Why an output ended, more precisely than OpenAI's `finish_reason`: the field `finish_detail` of an answer."""


@dataclass(frozen=True, slots=True)
class TaskStops:
    """Ends that come with a task. `strings` do not belong to the output, blocks (opening, closing) do."""

    strings: tuple[str, ...] = ()
    blocks: tuple[tuple[str, str], ...] = ()


FENCE = ("```", "```")
FINAL_ANSWER = ("Final Answer:", "\n\n")
"""The paragraph that it begins."""
TOOL_CALL = ("<tool_call>", "</tool_call>")
NEXT_SECTION = "###"
"""A small model goes on with the next section of its training data."""

TASK_STOPS: dict[Task, TaskStops] = {
    "extract": TaskStops(strings=(NEXT_SECTION,), blocks=(FENCE,)),
    "chat": TaskStops(blocks=(TOOL_CALL,)),
    "reason": TaskStops(blocks=(FINAL_ANSWER,)),
    "other": TaskStops(strings=(NEXT_SECTION,)),
}
"""For a request that names its task: what its answer is has been said when one of these comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The ends that a request asks for."""

    strings: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()
    """The engine stops at these; here they only tell which end it was."""
    task: TaskStops = TaskStops()
    on_json: bool = False
    on_repetition: bool = False


class EndWatch:
    """Looks for the ends of one output. Text goes through it and comes out up to the first end."""

    def __init__(self, ends: Ends) -> None:
        self._ends = ends
        self._stops = StopMatcher((*ends.strings, *ends.task.strings))
        blocks: list[tuple[Ending, FinishDetail]] = [(BlockEnding(*block), "task_stop") for block in ends.task.blocks]
        self._endings = [*blocks, *([(JsonEnding(), "json")] if ends.on_json else [])]
        self._repetition = RepetitionDetector() if ends.on_repetition else None
        self.found: FinishDetail | None = None
        """The end that was reached; nothing passes after it."""

    def push(self, token_id: int, text: str, *, may_end: bool) -> str:
        """A token and the text it completed, in; the text that is surely wanted, out. Before `may_end` nothing counts as an end."""
        loops = self._repetition is not None and self._repetition.push(token_id)
        inside = self._inside(text)
        if not may_end:
            return text
        passed = self._stops.push(text if inside is None else text[: inside[0]])
        if self._stops.matched is not None:
            self.found = self._kind(self._stops.matched)
        elif inside is not None or loops:
            self.found = "repetition" if inside is None else inside[1]
            passed += self._stops.flush()
        return passed

    def finish(self, text: str) -> str:
        """The last text, when the engine ended the output; what is wanted of it and of what was held back."""
        passed = self._stops.push(text)
        if self._stops.matched is not None:
            self.found = self._kind(self._stops.matched)
            return passed
        return passed + self._stops.flush()

    def _kind(self, stop: str) -> FinishDetail:
        return "stop_string" if stop in self._ends.strings else "task_stop"

    def _inside(self, text: str) -> tuple[int, FinishDetail] | None:
        """The first end that an ending finds in the text."""
        found = [(at, detail) for ending, detail in self._endings if (at := ending.push(text)) is not None]
        return min(found, default=None)


def ends_of_task(named: Task | None, *, wants_stops: bool) -> TaskStops:
    """The presets of a request: none where it names no task, or wants none."""
    return TASK_STOPS[named] if named is not None and wants_stops else TaskStops()
