"""Errors of the engine, as a tree.

EngineError
├── ConfigError            a setting is impossible; the message names key, value, bound and remedy
├── ModelError             the model's files are missing, broken or of an unsupported kind
│   └── DoesNotFit         weights or KV pool exceed the memory there is; the message has the numbers
├── TraceError             a file that a simulation reads is missing or broken; the message has line and cure
├── InvalidSequence        a submitted sequence was refused at the engine's door (token id, length, parameter)
└── EngineGone             the engine process died or its connection broke; requests in flight end with this
"""


class EngineError(Exception):
    """Root of everything the engine raises on purpose."""


class ConfigError(EngineError):
    """A setting is impossible. The message names the key, its value, the bound and what to do."""


class ModelError(EngineError):
    """The model's files are missing, broken, or of a kind that is not supported."""


class DoesNotFit(ModelError):
    """Weights or KV pool exceed the memory there is; the message has the numbers and what to change."""


class TraceError(EngineError):
    """A trace, or another file that a simulation reads, is missing or broken. The message names file, line and cure."""


class InvalidSequence(EngineError):
    """A submitted sequence can not be run (token id out of range, too long, bad parameter)."""


class EngineGone(EngineError):
    """The engine process died or its connection broke."""
