"""Flags of `fairlane serve` that switch parts off. `fcfs` has no step limit: that is how servers without tenants work."""

FCFS = ("--scheduling-policy", "fcfs", "--max-step-ms", "0")
ABLATIONS: dict[str, tuple[str, ...]] = {
    "everything on": (),
    "fcfs": FCFS,
    "priority": ("--scheduling-policy", "priority"),
    "wrr": ("--scheduling-policy", "wrr"),
    "no step limit": ("--max-step-ms", "0"),
    "fixed chunks of 256": ("--fixed-chunk-tokens", "256"),
    "no chunks": ("--no-enable-chunked-prefill",),
    "no deadline order": ("--no-enable-deadline-order",),
    "contiguous memory": ("--kv-allocation", "contiguous"),
    "no step interrupts": ("--no-enable-step-interrupts",),
    "no batch preemption": ("--no-enable-batch-preemption",),
    "no KV quota": ("--no-enable-kv-quota",),
    "no prefix cache": ("--no-enable-prefix-caching",),
    "no admission": ("--no-admission",),
}
"""By what is different."""
