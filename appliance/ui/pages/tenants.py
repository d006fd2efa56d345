"""All tenants: searched, sorted and paged on the server, so that ten thousand of them are as quick as ten. And making a new one."""

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any
from urllib.parse import urlencode

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter
from litestar.response import Redirect
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.domain.admins.guard import actor_of
from appliance.domain.admission.limit_use import LimitUse, limit_uses, tightest
from appliance.domain.slas.service import list_tiers
from appliance.domain.tenants.decisions import STATUSES
from appliance.domain.tenants.service import TenantOrder, TenantWithTier, create_tenant, list_slugs, tenants_by_slug
from appliance.errors import ApplianceError
from appliance.problems import problem_of
from appliance.route_access import READS, WRITES
from appliance.telemetry.slo import SloView
from appliance.ui.forms import Form, one_of, read_form
from appliance.ui.paging import Paging
from appliance.ui.parts import Ui
from appliance.ui.tenant_facts import worst_by_tenant
from appliance.ui.views import AnyRequest

STORED_ORDERS: tuple[TenantOrder, ...] = ("slug", "name", "tier", "status")
"""What the database sorts by; the other orders are of what the process knows."""
ORDERS = (*STORED_ORDERS, "use", "met")

Text = Annotated[str, QueryParameter(max_length=200)]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which tenants, in which order."""

    search: str = ""
    status: str = ""
    tier: str = ""
    sort: str = "slug"
    down: bool = False
    page: int = 1

    def query(self, **changes: Any) -> str:
        """Its address, with some of it changed."""
        plain, wanted = Wanted(), replace(self, **changes)
        names = [field.name for field in fields(self) if getattr(wanted, field.name) != getattr(plain, field.name)]
        return "?" + urlencode({name: int(value) if (value := getattr(wanted, name)) is True else value for name in names})

    def sorted_by(self, column: str) -> str:
        """The address that sorts by a column, the other way round where it does already. Numbers begin with the largest."""
        down = not self.down if column == self.sort else column in ("use",)
        return self.query(sort=column, down=down, page=1)


@dataclass(frozen=True, slots=True)
class TenantRow:
    found: TenantWithTier
    in_flight: int
    tightest: LimitUse | None
    worst: SloView | None


class TenantsController(Controller):
    """`/ui/tenants`. The form for another one has an address that no tenant's page can have."""

    @get("/tenants", opt=READS)
    async def list(
        self,
        request: AnyRequest,
        ui: NamedDependency[Ui],
        search: Text = "",
        status: Text = "",
        tier: Text = "",
        sort: Text = "slug",
        down: FromQuery[bool] = False,
        page: FromQuery[int] = 1,
    ) -> Response[str]:
        """A page of them."""
        async with ui.house.control.store.database.read() as session:
            tiers = [row.name for row in await list_tiers(session)]
            wanted = Wanted(search.strip(), one_of(status, STATUSES), one_of(tier, tiers), one_of(sort, ORDERS) or "slug", down, page)
            rows, paging = await _page_of(session, ui, wanted)
        values = {"rows": rows, "paging": paging, "wanted": wanted, "tiers": tiers, "statuses": STATUSES}
        return ui.views.page(request, "tenants/list.html", page="tenants", **values)

    @get("/new-tenant", opt=WRITES)
    async def new(self, request: AnyRequest, ui: NamedDependency[Ui], tier: Text = "standard") -> Response[str]:
        """The form."""
        return await _new_page(request, ui, Form({"tier": (tier,)}))

    @post("/tenants", opt=WRITES)
    async def create(self, request: AnyRequest, ui: NamedDependency[Ui]) -> Response[Any]:
        """Make it, and go on to its keys: without one nobody can use it."""
        form, control = await read_form(request), ui.house.control
        slug = form.text("slug")
        try:
            async with control.store.database.write() as session:
                await create_tenant(
                    session,
                    slug=slug,
                    name=form.text("name") or slug,
                    tier=form.text("tier"),
                    overrides={},
                    trust_group=form.text("trust_group"),
                    actor=actor_of(request),
                )
            await control.directory.refresh()
        except ApplianceError as error:
            return await _new_page(request, ui, form, error)
        return Redirect(f"/ui/tenants/{slug}/keys?done=tenant-created", status_code=303)


async def _new_page(request: AnyRequest, ui: Ui, form: Form, error: ApplianceError | None = None) -> Response[str]:
    async with ui.house.control.store.database.read() as session:
        tiers = await list_tiers(session)
    status = problem_of(error).status if error else 200
    return ui.views.page(request, "tenants/new.html", status, page="tenants", form=form, tiers=tiers, error=error)


async def _page_of(session: AsyncSession, ui: Ui, wanted: Wanted) -> tuple[list[TenantRow], Paging]:
    """Rows of the page, and where it is. Slugs are cheap: all are read, and only the rows that are shown in full."""
    stored: TenantOrder = "slug"
    for order in STORED_ORDERS:
        stored = order if order == wanted.sort else stored
    slugs = await list_slugs(session, search=wanted.search, status=wanted.status or None, tier=wanted.tier or None, order=stored)
    worst = worst_by_tenant(ui.house.telemetry.slo.views(counted_only=True))
    if wanted.sort == "met":
        slugs.sort(key=lambda slug: worst[slug].budget_left if slug in worst else float("inf"))
    elif wanted.sort == "use":
        ratios = {slug: _use_ratio(ui, slug) for slug in slugs}
        slugs.sort(key=lambda slug: ratios[slug])
    if wanted.down:
        slugs.reverse()
    paging = Paging.of(len(slugs), wanted.page)
    shown = await tenants_by_slug(session, slugs[paging.first : paging.end])
    return [_row(ui, found, worst.get(found.tenant.slug)) for found in shown], paging


def _row(ui: Ui, found: TenantWithTier, worst: SloView | None) -> TenantRow:
    use = ui.house.admission.use_of(found.policy)
    return TenantRow(found, use.in_flight, tightest(limit_uses(found.policy, use)), worst)


def _use_ratio(ui: Ui, slug: str) -> float:
    policy = ui.house.control.directory.snapshot.policies.get(slug)
    found = tightest(limit_uses(policy, ui.house.admission.use_of(policy))) if policy and ui.house.admission.knows(slug) else None
    return found.ratio if found else 0.0
