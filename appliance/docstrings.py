"""The docstrings that follow the fields of a class, which Python itself does not keep."""

import ast
import inspect
import textwrap


def field_docs(struct: type) -> dict[str, str]:
    """Docstring by field name, of the class and those it is made from; fields without one are absent."""
    docs: dict[str, str] = {}
    for cls in reversed(struct.__mro__):
        if cls.__module__.partition(".")[0] == struct.__module__.partition(".")[0]:
            docs |= _own_field_docs(cls)
    return docs


def _own_field_docs(cls: type) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: " ".join(str(after.value.value).split())
        for field, after in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
    }
