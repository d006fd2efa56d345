"""What can be wrong with an expression.

PromqlError
+-- Unparsable     it is no PromQL
+-- Unsupported    it is, but uses what this evaluator does not have
+-- Ambiguous      the data leave more than one answer: two series with one label set, or a one-to-one match with more partners
"""


class PromqlError(Exception):
    """An expression without an answer; the message says why."""


class Unparsable(PromqlError):
    pass


class Unsupported(PromqlError):
    pass


class Ambiguous(PromqlError):
    pass
