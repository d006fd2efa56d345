"""`python -m benchmarks.tail`: what tenants do to each other's tails, over HTTP, in an open loop. See benchmarks/README.md."""
