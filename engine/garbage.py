"""Python's garbage collector, run where it delays nobody: between steps, the young often and the old seldom."""

import gc

STEPS_A_SWEEP = 256
SWEEPS_A_GENERATION = 16
"""Of a generation, before the next older one is swept too."""


def freeze_garbage() -> None:
    """What lives now lives until the end and need not be looked at again; from here on nothing is collected by chance."""
    gc.collect()
    gc.freeze()
    gc.disable()


class Sweeper:
    """Counts steps. A sweep of the youngest takes some 50 microseconds."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._is_clean = False

    def after_step(self) -> None:
        """Between two steps."""
        self._is_clean = False
        self._num_steps += 1
        sweep, is_odd = divmod(self._num_steps, STEPS_A_SWEEP)
        if not is_odd:
            oldest = (sweep % SWEEPS_A_GENERATION == 0) + (sweep % SWEEPS_A_GENERATION**2 == 0)
            gc.collect(oldest)

    def at_rest(self) -> None:
        """Nothing runs: everything is swept, once until the next step."""
        if not self._is_clean:
            gc.collect()
            self._is_clean = True
