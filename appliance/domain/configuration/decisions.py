"""What a configuration document says, and how it differs from what is there. Pure.

A document speaks for whole objects: a field it leaves out has its default. Objects it does not name are left alone, unless
it is applied with `prune`. Keys are not in it: they are made where they are shown once.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from appliance.domain.slas.decisions import SLA_FIELDS, Sla, contradictions, sla_with, stored_sla
from appliance.domain.tenants.decisions import check_name, check_slug
from appliance.errors import Fault, Invalid

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
    warnings: list[str] = []
    """Of the database once the document is applied: worth a second look."""


def refuse(faults: Sequence[Fault]) -> None:
    """Raises `Invalid` where there are faults, telling all of them."""
    if faults:
        message = "; ".join(f"{fault.param}: {fault.message}" for fault in faults)
        raise Invalid(message, param=faults[0].param, faults=tuple(faults))


def configuration_faults(wanted: Configuration) -> list[Fault]:
    """All that is wrong with a document by itself."""
    faults: list[Fault] = []
    for name, fields in (wanted.tiers or {}).items():
        where = f"tiers.{name}"
        faults += _fault(where, lambda name=name: check_slug(name, "name of a tier"))
        of_fields = sla_faults(fields, where)
        faults += of_fields or _contradictions(sla_with(Sla(), fields), fields, where)
    for slug, tenant in (wanted.tenants or {}).items():
        where = f"tenants.{slug}"
        faults += _fault(where, lambda slug=slug: check_slug(slug))
        faults += _fault(f"{where}.name", lambda tenant=tenant: check_name(tenant.name) if tenant.name is not None else "")
        faults += _fault(f"{where}.trust_group", lambda tenant=tenant: check_slug(tenant.trust_group) if tenant.trust_group else "")
        faults += sla_faults(tenant.overrides, f"{where}.overrides")
    return faults


def sla_faults(fields: Mapping[str, Any], where: str) -> list[Fault]:
    """What is wrong with fields of an SLA, each by itself."""
    faults = unknown_fields(fields, SLA_FIELDS, where)
    for field, value in fields.items():
        if field in SLA_FIELDS:
            faults += _fault(f"{where}.{field}", lambda field=field, value=value: sla_with(Sla(), {field: value}, param=where))
    return faults


def plan_changes(version: int, present: Configuration, wanted: Configuration, *, prune: bool) -> tuple[Plan, list[Fault]]:
    """Compare a document without faults of its own with all that is there; and what is wrong between the two: tenants whose tier is in
    neither, or contradicts them."""
    there, new = _full_tiers(present), _full_tiers(wanted)
    tiers = _changes("tier", there, new)
    gone_tiers = [] if wanted.tiers is None else [name for name in there if name not in new]
    tenants = _changes("tenant", _full_tenants(present), _full_tenants(wanted))
    gone_tenants = [] if wanted.tenants is None else [slug for slug in present.tenants or {} if slug not in wanted.tenants]
    faults = _tenant_faults(wanted, {**there, **new}, set(gone_tiers) if prune else set())
    removed = [Change("delete", "tenant", slug) for slug in gone_tenants] + [Change("delete", "tier", name) for name in gone_tiers]
    left = [] if prune else [f"{change.kind} {change.name}" for change in removed]
    return Plan(version=version, changes=[*tiers, *tenants, *(removed if prune else [])], left_alone=left), faults


def contracts_after(present: Configuration, wanted: Configuration, *, prune: bool) -> list[int | None]:
    """`committed_tpm` of every tenant there is once a document without faults is applied."""
    slas = {name: msgspec.convert(fields, Sla) for name, fields in {**_full_tiers(present), **_full_tiers(wanted)}.items()}
    left = {} if prune and wanted.tenants is not None else present.tenants or {}
    tenants = {**left, **(wanted.tenants or {})}
    return [stored_sla(slas[tenant.tier], tenant.overrides)[0].committed_tpm for tenant in tenants.values()]


def unknown_fields(given: Iterable[str], known: Iterable[str], where: str) -> list[Fault]:
    """Names that are not known, each with the nearest one that is."""
    known = tuple(known)
    faults: list[Fault] = []
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f": did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
            faults.append(Fault(f"{where}.{name}".lstrip("."), f"unknown field {name[:64]!r}{hint}"))
    return faults


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
    return {name: msgspec.to_builtins(sla_with(Sla(), fields)) for name, fields in (configuration.tiers or {}).items()}


def _full_tenants(configuration: Configuration) -> dict[str, dict[str, Any]]:
    """Every field of every tenant; the name is the slug where there is none."""
    return {
        slug: {**msgspec.structs.asdict(tenant), "name": (tenant.name or slug).strip()}
        for slug, tenant in (configuration.tenants or {}).items()
    }


def _tenant_faults(wanted: Configuration, tiers: Mapping[str, Mapping[str, Any]], gone: set[str]) -> list[Fault]:
    """Tenants whose tier is not there, or contradicts their overrides."""
    known = [name for name in tiers if name not in gone]
    faults: list[Fault] = []
    for slug, tenant in (wanted.tenants or {}).items():
        where = f"tenants.{slug}"
        if tenant.tier not in known:
            faults.append(Fault(f"{where}.tier", f"there is no tier {tenant.tier[:64]!r}; the tiers are {', '.join(sorted(known))}"))
        else:
            effective = sla_with(msgspec.convert(tiers[tenant.tier], Sla), tenant.overrides)
            faults += _contradictions(effective, tenant.overrides, f"{where}.overrides", f"with tier {tenant.tier!r}, ")
    return faults


def _contradictions(sla: Sla, named: Mapping[str, Any], where: str, preface: str = "") -> list[Fault]:
    """At the first of the contradicting fields that the document names here."""
    faults: list[Fault] = []
    for each in contradictions(sla):
        field = next((field for field in each.fields if field in named), None)
        faults.append(Fault(f"{where}.{field}" if field else where, preface + each.message))
    return faults


def _fault(where: str, check: Callable[[], object]) -> list[Fault]:
    """What a check refuses, with its place."""
    try:
        check()
    except Invalid as error:
        return [Fault(where, error.message)]
    return []
