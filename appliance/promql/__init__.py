"""PromQL over samples that this process keeps itself: what our dashboards and recording rules use of the language, and no more.

Parsing is promql-parser's. Evaluation follows Prometheus 3: a window is open to the left, a rate is extrapolated to its borders, a series
that has gone is stale at once. What is not understood raises `Unsupported` whatever the data, so a test of an expression needs none.
"""
