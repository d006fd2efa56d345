"""Forms that change something: shown again with what is wrong, and two editors of one thing brought together."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from litestar import Response

from appliance.errors import Conflict, EditConflict, Invalid
from appliance.ui.forms import CSRF_FIELD, Form
from appliance.ui.parts import Ui
from appliance.ui.views import AnyRequest

VERSION = "version"
CONFIRM = "confirm"


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that two editors see differently."""

    field: str
    mine: Any
    present: Any


def check_confirmed(form: Form, name: str) -> None:
    """What can not be undone is confirmed by typing the name of what goes. Raises `Invalid`."""
    if form.text(CONFIRM) != name:
        raise Invalid(f"type {name} to confirm; nothing was changed", param=CONFIRM)


def conflict_page(
    ui: Ui,
    request: AnyRequest,
    edit: EditConflict,
    form: Form,
    mine: Mapping[str, Any],
    present: Mapping[str, Any] | None = None,
    *,
    what: str,
    action: str,
    back: str,
    page: str,
) -> Response[str]:
    """Both versions side by side. Applying mine sends the form again, on top of the present version.

    `present`: where the thing's own words for its fields are not the form's.
    """
    present = edit.present if present is None else present
    differences = [Difference(field, value, present.get(field)) for field, value in mine.items() if value != present.get(field)]
    resent = [(name, value) for name, values in form.values.items() if name not in (CSRF_FIELD, VERSION) for value in values]
    values = {"what": what, "edit": edit, "differences": differences, "resent": resent, "action": action, "back": back}
    return ui.views.page(request, "conflict.html", 409, page=page, **values)


def edit_of(error: Exception) -> EditConflict | None:
    """Two editors met; None for anything else."""
    return error.edit if isinstance(error, Conflict) else None
