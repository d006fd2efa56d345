"""What a configuration document says, and how it differs from what is there. Pure.

A document speaks for whole objects: a field it leaves out has its default. Objects it does not name are left alone, unless
it is applied with `prune`. Keys are not in it: they are made where they are shown once.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec

from appliance.domain.slas.decisions import SLA_FIELDS, Sla, check_sla, sla_with
from appliance.domain.tenants.decisions import check_name, check_slug
from appliance.errors import Invalid

Status = Literal["active", "suspended"]


class TenantSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tenant as the document has it."""

    name: str | None = None
    """For people; the slug where left out."""
    tier: str = "standard"
    status: Status = "active"
    trust_group: str = ""
    overrides: dict[str, Any] = {}
    """SLA fields that differ from the tier's."""


TENANT_FIELDS = TenantSpec.__struct_fields__


class Configuration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A document. A part that is left out is not looked at, not even with `prune`."""

    tiers: dict[str, dict[str, Any]] | None = None
    """SLA fields by tier."""
    tenants: dict[str, TenantSpec] | None = None
    """By slug."""


class FieldChange(msgspec.Struct, frozen=True):
    field: str
    before: Any
    after: Any


class Change(msgspec.Struct, frozen=True):
    """One object to make, change or remove, with the fields that differ (of one to be removed: none)."""

    action: Literal["create", "update", "delete"]
    kind: Literal["tier", "tenant"]
    name: str
    fields: list[FieldChange] = []


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to bring the database from a version of its own to a document."""

    version: int
    changes: list[Change]
    """In the order in which they are made."""
    left_alone: list[str] = []
    """Objects that the document does not name, as `tenant acme`; `prune` would remove them."""


def check_configuration(wanted: Configuration) -> None:
    """Raises `Invalid` with the path of the value at fault as `param`, joined by dots: `tenants.acme.overrides.rpm`."""
    for name, fields in (wanted.tiers or {}).items():
        where = f"tiers.{name}"
        _at(where, lambda name=name: check_slug(name, "name of a tier"))
        sla = _sla(Sla(), fields, where)
        _at(where, lambda sla=sla, where=where: check_sla(sla, where))
    for slug, tenant in (wanted.tenants or {}).items():
        where = f"tenants.{slug}"
        _at(where, lambda slug=slug: check_slug(slug))
        _at(f"{where}.name", lambda tenant=tenant: check_name(tenant.name) if tenant.name is not None else "")
        _at(f"{where}.trust_group", lambda tenant=tenant: check_slug(tenant.trust_group) if tenant.trust_group else "")
        _sla(Sla(), tenant.overrides, f"{where}.overrides")


def plan_changes(version: int, present: Configuration, wanted: Configuration, *, prune: bool) -> Plan:
    """Compare a checked document with all that is there. Raises `Invalid` where a tenant's tier is in neither, or contradicts it."""
    there, new = _full_tiers(present), _full_tiers(wanted)
    tiers = _changes("tier", there, new)
    gone_tiers = [] if wanted.tiers is None else [name for name in there if name not in new]
    tenants = _changes("tenant", _full_tenants(present), _full_tenants(wanted))
    gone_tenants = [] if wanted.tenants is None else [slug for slug in present.tenants or {} if slug not in wanted.tenants]
    _check_tenants(wanted, {**there, **new}, set(gone_tiers) if prune else set())
    removed = [Change("delete", "tenant", slug) for slug in gone_tenants] + [Change("delete", "tier", name) for name in gone_tiers]
    left = [] if prune else [f"{change.kind} {change.name}" for change in removed]
    return Plan(version=version, changes=[*tiers, *tenants, *(removed if prune else [])], left_alone=left)


def refuse_unknown(given: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raises `Invalid` at the first name that is not known, with the nearest one that is."""
    known = tuple(known)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f": did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
            path = f"{where}.{name}".lstrip(".")
            raise Invalid(f"unknown field {name[:64]!r}{hint}", param=path)


def _changes(
    kind: Literal["tier", "tenant"], there: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, Mapping[str, Any]]
) -> list[Change]:
    changes: list[Change] = []
    for name, fields in wanted.items():
        before = there.get(name)
        if before is None:
            defaults = msgspec.to_builtins(Sla()) if kind == "tier" else {**msgspec.structs.asdict(TenantSpec(name=name)), "tier": None}
            differing = [FieldChange(field, None, value) for field, value in fields.items() if value != defaults.get(field)]
            changes.append(Change("create", kind, name, differing))
            continue
        differing = [FieldChange(field, before.get(field), value) for field, value in fields.items() if value != before.get(field)]
        if differing:
            changes.append(Change("update", kind, name, differing))
    return changes


def _full_tiers(configuration: Configuration) -> dict[str, dict[str, Any]]:
    """Every field of every tier, as JSON has it."""
    return {name: msgspec.to_builtins(_sla(Sla(), fields, f"tiers.{name}")) for name, fields in (configuration.tiers or {}).items()}


def _full_tenants(configuration: Configuration) -> dict[str, dict[str, Any]]:
    """Every field of every tenant; the name is the slug where there is none."""
    return {
        slug: {**msgspec.structs.asdict(tenant), "name": (tenant.name or slug).strip()}
        for slug, tenant in (configuration.tenants or {}).items()
    }


def _check_tenants(wanted: Configuration, tiers: Mapping[str, Mapping[str, Any]], gone: set[str]) -> None:
    known = [name for name in tiers if name not in gone]
    for slug, tenant in (wanted.tenants or {}).items():
        where = f"tenants.{slug}"
        if tenant.tier not in known:
            raise Invalid(f"there is no tier {tenant.tier[:64]!r}; the tiers are {', '.join(sorted(known))}", param=f"{where}.tier")
        base = msgspec.convert(tiers[tenant.tier], Sla)
        effective = sla_with(base, tenant.overrides)
        _at(f"{where}.overrides", lambda effective=effective: check_sla(effective))


def _sla(base: Sla, fields: Mapping[str, Any], where: str) -> Sla:
    """An SLA with some fields replaced; what is wrong is found field by field, so that its place is known."""
    refuse_unknown(fields, SLA_FIELDS, where)
    try:
        return sla_with(base, fields, param=where)
    except Invalid:
        for field, value in fields.items():
            _at(f"{where}.{field}", lambda field=field, value=value: sla_with(base, {field: value}, param=where))
        raise


def _at(where: str, check: Callable[[], object]) -> None:
    """Run a check; its refusal names the place."""
    try:
        check()
    except Invalid as error:
        raise Invalid(error.message, param=where) from error
