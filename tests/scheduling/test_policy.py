"""First come, first served."""

from engine.scheduling.policy import FirstComeFirstServed
from engine.scheduling.request import Sequence
from tests.scheduling.driver import make_submit


def make_sequence(arrival: int, preemptions: int = 0) -> Sequence:
    sequence = Sequence(make_submit(arrival, (5,)), arrival, [5], 1)
    sequence.preemptions = preemptions
    return sequence


def test_preempted_sequences_come_first_and_all_stand_by_arrival() -> None:
    queue = FirstComeFirstServed()
    for sequence in (make_sequence(4), make_sequence(3, 1), make_sequence(5), make_sequence(2, 2)):
        queue.add(sequence)
    assert [sequence.arrival for sequence in queue] == [2, 3, 4, 5]
    assert (len(queue), queue.oldest_received_ns()) == (4, 2)


def test_a_sequence_can_leave_from_anywhere_while_the_queue_is_walked() -> None:
    queue = FirstComeFirstServed()
    sequences = [make_sequence(1, 1), make_sequence(2), make_sequence(3)]
    for sequence in sequences:
        queue.add(sequence)
    for sequence in queue:
        queue.remove(sequence)
    assert (len(queue), queue.oldest_received_ns()) == (0, 0)
