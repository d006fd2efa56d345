"""Attributes of OTLP messages, and who sends them."""

from collections.abc import Mapping
from dataclasses import dataclass

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

type Value = str | bool | int | float

SCOPE_NAME = "fairlane"


def attributes_of(values: Mapping[str, Value | None]) -> list[KeyValue]:
    """As OTLP writes them; what is None or empty is left out."""
    return [KeyValue(key=name, value=_any(value)) for name, value in values.items() if value is not None and value != ""]


def _any(value: Value) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case _:
            return AnyValue(string_value=value)


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends."""

    resource: Resource
    scope: InstrumentationScope


def sender_of(version: str, instance: str) -> Sender:
    """A process of this version; `instance` tells it from others."""
    values = {"service.name": SCOPE_NAME, "service.version": version, "service.instance.id": instance}
    return Sender(Resource(attributes=attributes_of(values)), InstrumentationScope(name=SCOPE_NAME, version=version))
