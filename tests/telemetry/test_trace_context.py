"""W3C Trace Context: what names a trace and what does not, and who is kept."""

import random

import pytest

from appliance.telemetry.trace_context import MAX_STATE_CHARS, TraceContext, context_of

TRACE, SPAN, OWN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "f" * 31 + "0"
PARENT = f"00-{TRACE}-{SPAN}-01"


def read(*parents: str, state: tuple[str, ...] = ()) -> TraceContext:
    headers = [(b"traceparent", parent.encode("latin-1")) for parent in parents]
    return context_of([(b"host", b"x"), *headers, *((b"tracestate", each.encode("latin-1")) for each in state)], OWN)


@pytest.mark.parametrize(
    "parent", [PARENT, f" {PARENT} ", f"00-{TRACE}-{SPAN}-00", f"cc-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01-what-more"]
)
def test_a_valid_traceparent_is_continued_with_a_span_of_ones_own(parent: str) -> None:
    context = read(parent)
    assert (context.trace_id, context.parent_span_id) == (TRACE, SPAN)
    assert len(context.span_id) == 16 and context.span_id != SPAN and int(context.span_id, 16)


@pytest.mark.parametrize(
    "parents",
    [
        (),
        ("",),
        ("what",),
        (PARENT.upper(),),
        (PARENT + "-more",),
        (PARENT + "1",),
        (PARENT + "\n",),
        (f"ff-{TRACE}-{SPAN}-01",),
        (f"cc-{TRACE}-{SPAN}-01x",),
        (f"00-{'0' * 32}-{SPAN}-01",),
        (f"00-{TRACE}-{'0' * 16}-01",),
        (f"00-{TRACE[1:]}-{SPAN}-01",),
        (f"00-{TRACE}-{SPAN}-0g",),
        (f"00-{TRACE}-{SPAN}",),
        ("00-٤" + PARENT[4:]).encode().decode("latin-1"),
        (PARENT, PARENT),
    ],
)
def test_an_invalid_traceparent_is_ignored_with_its_tracestate(parents: tuple[str, ...]) -> None:
    context = read(*((parents,) if isinstance(parents, str) else parents), state=("a=b",))
    assert (context.trace_id, context.parent_span_id, context.state) == (OWN, "", "")


def test_a_tracestate_is_kept_as_it_is_unless_it_is_too_long_or_no_text() -> None:
    assert read(PARENT, state=("a=1", "b=2")).state == "a=1,b=2"
    assert read(PARENT, state=("a" * (MAX_STATE_CHARS + 1),)).state == ""
    assert read(PARENT, state=("a=\xe9",)).state == ""


def test_the_same_traces_are_kept_everywhere_and_as_many_as_asked_for() -> None:
    rng = random.Random(1)
    contexts = [TraceContext(f"{rng.getrandbits(128):032x}", SPAN) for _ in range(20_000)]
    kept = {ratio: {each.trace_id for each in contexts if each.is_sampled(ratio)} for ratio in (0.0, 0.01, 0.1, 1.0)}
    assert kept[0.0] < kept[0.01] < kept[0.1] < kept[1.0]
    assert len(kept[0.0]) == 0 and len(kept[1.0]) == len(contexts) and 150 < len(kept[0.01]) < 250
    sampled = TraceContext("0" * 18 + "f" * 14, SPAN)
    assert sampled.response_header(0.01) == (b"traceresponse", f"00-{sampled.trace_id}-{SPAN}-01".encode())
    assert sampled.response_header(0.0)[1].endswith(b"-00")
