"""The description of all routes: OpenAPI as JSON at /schema/openapi.json, and as a page that needs no other server at /schema."""

from typing import Any

import jinja2
import msgspec
from litestar import Litestar, Request, Router
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin
from litestar.openapi.spec import Components, OpenAPIMediaType, OpenAPIResponse, Reference, RequestBody, SecurityScheme

from appliance.docstrings import field_docs
from appliance.domain.inference import answers, schemas
from appliance.route_access import PUBLIC

REF_TEMPLATE = "#/components/schemas/{name}"

BODIES: dict[str, tuple[type[msgspec.Struct], type[msgspec.Struct]]] = {
    "/v1/completions": (schemas.CompletionRequest, answers.CompletionAnswer),
    "/v1/chat/completions": (schemas.ChatRequest, answers.ChatAnswer),
    "/generate": (schemas.GenerateRequest, answers.GenerateAnswer),
    "/tokenize": (schemas.TokenizeRequest, answers.TokenizeAnswer),
}
"""Bodies and answers of the routes that decode their own body."""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ info.title }} {{ info.version }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1d2733; }
summary { cursor: pointer; padding: .35rem 0; } summary b { display: inline-block; width: 4.5rem; color: #0b6b53; }
code { font-family: ui-monospace, monospace; } table { border-collapse: collapse; margin: .5rem 0 1rem; }
td, th { text-align: left; vertical-align: top; padding: .15rem .8rem .15rem 0; border-bottom: 1px solid #e3e8ee; }
details { border-top: 1px solid #e3e8ee; } details > div { padding-left: 4.5rem; }
</style></head><body>
<h1>{{ info.title }}</h1><p>{{ info.description }} As JSON: <a href="/schema/openapi.json">/schema/openapi.json</a>.</p>
{% for path, operations in paths.items() %}{% for method, operation in operations.items() %}
<details><summary><b>{{ method | upper }}</b> <code>{{ path }}</code> {{ operation.summary }}</summary><div>
<p>{{ operation.description }}</p>
{% for name in body_names(operation) %}
<h4>{{ name }}</h4><table><tr><th>field</th><th>type</th><th></th></tr>
{% for field, spec in components.schemas[name].properties.items() %}
<tr><td><code>{{ field }}</code></td><td><code>{{ type_name(spec) }}</code></td><td>{{ spec.description }}</td></tr>
{% endfor %}</table>{% endfor %}
<p>Answers: {% for status, response in operation.responses.items() %}<code>{{ status }}</code> {{ response.description }}
{%- if not loop.last %}, {% endif %}{% endfor %}</p>
</div></details>
{% endfor %}{% endfor %}
</body></html>"""


def openapi_config(version: str) -> OpenAPIConfig:
    """Where the description is served and what it says of the whole."""
    return OpenAPIConfig(
        title="Fairlane",
        version=version,
        description="An LLM serving appliance with a predictable tail. Identity comes from `Authorization: Bearer KEY`.",
        openapi_router=Router("/schema", route_handlers=[], opt=PUBLIC),
        render_plugins=[_Page(path="/"), JsonRenderPlugin(path="/openapi.json")],
        components=Components(security_schemes={"bearer": SecurityScheme(type="http", scheme="bearer")}),
        use_handler_docstrings=True,
    )


def describe_bodies(app: Litestar) -> None:
    """Add the bodies and answers that Litestar can not see in the handlers' signatures."""
    types = [body_type for pair in BODIES.values() for body_type in pair]
    references, components = msgspec.json.schema_components(types, ref_template=REF_TEMPLATE)
    by_type = {body_type: Reference(ref=reference["$ref"]) for body_type, reference in zip(types, references, strict=True)}
    for body_type in types:
        for field, text in field_docs(body_type).items():
            components[body_type.__name__]["properties"][field]["description"] = text
    schema = app.openapi_schema
    assert schema.components is not None and schema.paths is not None
    schema.components.schemas = {**(schema.components.schemas or {}), **components}  # pyright: ignore[reportAttributeAccessIssue]
    for path, (body_type, answer_type) in BODIES.items():
        operation = schema.paths[path].post
        assert operation is not None and operation.responses is not None
        operation.request_body = RequestBody(content={"application/json": OpenAPIMediaType(schema=by_type[body_type])}, required=True)
        answer = {"application/json": OpenAPIMediaType(schema=by_type[answer_type])}
        operation.responses["200"] = OpenAPIResponse(description="OK", content=answer)


class _Page(OpenAPIRenderPlugin):
    """The page. Everything in it is rendered here: an appliance without internet shows it too."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        environment = jinja2.Environment(autoescape=True)
        template = environment.from_string(_PAGE, globals={"type_name": _type_name, "body_names": _body_names})
        return template.render(openapi_schema).encode()


def _body_names(operation: dict[str, Any]) -> list[str]:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    reference = content.get("schema", {}).get("$ref", "")
    return [reference.rpartition("/")[2]] if reference else []


def _type_name(spec: dict[str, Any]) -> str:
    """A JSON schema's type in a few words."""
    if "anyOf" in spec:
        return " | ".join(dict.fromkeys(_type_name(option) for option in spec["anyOf"] if option.get("type") != "null"))
    if "$ref" in spec:
        return spec["$ref"].rpartition("/")[2]
    if "enum" in spec:
        return " | ".join(str(value) for value in spec["enum"] if value is not None)
    if spec.get("type") == "array":
        return f"list of {_type_name(spec['items'])}" if spec.get("items") else "list"
    return str(spec.get("type", "any"))
