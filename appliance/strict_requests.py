"""What a request says twice, or to nobody, is refused and never guessed: headers of identity, fields of JSON bodies, query parameters.

Fields that come twice are looked for in the bodies of administration only: msgspec takes the last one in silence, as OpenAI's API does,
and a second parse would cost a generating request several times what the first does.
"""

import contextlib
import json
from typing import Any

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.datastructures import Headers
from litestar.handlers import BaseRouteHandler
from litestar.params import QueryParameter

from appliance.errors import Invalid

MAX_LOOKED_AT_BYTES = 1024 * 1024
"""A longer body of administration is a configuration file, whose own reader finds keys that come twice."""


def sole_header(headers: Headers, name: str) -> str | None:
    """A header that says who asks, or for whom. Raises `Invalid` where it comes twice: a proxy may have looked at the other one."""
    values = headers.getall(name, [])
    if len(values) > 1:
        raise Invalid(f"the header {name} comes {len(values)} times: send it once", code="repeated_header", param=name)
    return values[0] if values else None


def refuse_unknown_query(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Raises `Invalid` for a query parameter that the route does not have, or that comes twice."""
    known = [
        parameter.kwarg_definition.name or name
        for name, parameter in handler.parsed_fn_signature.parameters.items()
        if isinstance(parameter.kwarg_definition, QueryParameter)
    ]
    for name in connection.query_params:
        if name not in known:
            there_are = f"the parameters are {', '.join(known)}" if known else "this route has none"
            raise Invalid(f"there is no query parameter {name[:64]!r}; {there_are}", code="unknown_parameter", param=name[:64])
        if len(connection.query_params.getall(name)) > 1:
            raise Invalid(f"the query parameter {name} comes more than once: send it once", code="repeated_parameter", param=name)


async def refuse_repeated_fields(request: Request[Any, Any, Any]) -> None:
    """A hook before a request. Raises `Invalid` where an object of its JSON body has a field twice."""
    body = await request.body()
    if len(body) <= MAX_LOOKED_AT_BYTES:
        with contextlib.suppress(ValueError):  # no JSON: whoever decodes it says what is wrong
            json.loads(body, object_pairs_hook=_refuse_repeated)


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)[:64]
        raise Invalid(
            f"the field {repeated!r} comes more than once in an object of the body: send it once", code="repeated_field", param=repeated
        )
    return found
