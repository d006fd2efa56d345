"""Flags of `fairlane serve` that switch parts off. `fcfs` has no step limit: that is how servers without tenants work."""

FCFS = ("--scheduling-policy", "fcfs", "--max-step-ms", "0")
ABLATIONS: dict[str, tuple[str, ...]] = {
    "everything on": (),
    "fcfs": FCFS,
    "priority": ("--scheduling-policy", "priority"),
    "wrr": ("--scheduling-policy", "wrr"),
    "no step limit": ("--max-step-ms", "0"),
    "no chunks": ("--no-enable-chunked-prefill",),
    "no KV quota": ("--no-enable-kv-quota",),
    "no prefix cache": ("--no-enable-prefix-caching",),
}
"""By what is different."""
