"""`/ui`: all pages behind one guard."""

from litestar import Controller, Router
from litestar.di import Provide
from litestar.handlers import BaseRouteHandler

from appliance.dashboards.board import read_boards
from appliance.domain.admins.guard import Connection
from appliance.ui.access import Doorkeeper
from appliance.ui.assets import Assets
from appliance.ui.live import LiveHub
from appliance.ui.pages.books import AuditPage, UsagePage
from appliance.ui.pages.dashboards import DashboardPages
from appliance.ui.pages.entry import EntryController
from appliance.ui.pages.keys import KeysController, TenantKeysController
from appliance.ui.pages.lost import LostController
from appliance.ui.pages.machine import MachineController
from appliance.ui.pages.overview import OverviewController
from appliance.ui.pages.requests import RequestPages
from appliance.ui.pages.settings import AdminPages, SettingsPages
from appliance.ui.pages.tenant import TenantController
from appliance.ui.pages.tenants import TenantsController
from appliance.ui.pages.tiers import TierPages
from appliance.ui.pages.trial import TrialController
from appliance.ui.parts import House, Ui
from appliance.ui.problems import exception_handlers
from appliance.ui.pulse import Pulse
from appliance.ui.targets import TightestTargets
from appliance.ui.views import Views

UI_PATH = "/ui"
CONTROLLERS: tuple[type[Controller], ...] = (
    EntryController,
    OverviewController,
    RequestPages,
    TenantsController,
    TenantController,
    TrialController,
    KeysController,
    TenantKeysController,
    TierPages,
    MachineController,
    UsagePage,
    AuditPage,
    SettingsPages,
    AdminPages,
    DashboardPages,
    LostController,
)


def build_ui(house: House, pulse: Pulse) -> Ui:
    """The pages' own parts on top of the house's."""
    doorkeeper = Doorkeeper(house.control.gatekeeper)
    targets = TightestTargets()
    house.control.directory.subscribe(targets.note)
    views = Views(doorkeeper, Assets(), house.version, lambda: house.health.ready()[1])
    return Ui(house=house, doorkeeper=doorkeeper, views=views, live=LiveHub(pulse), pulse=pulse, boards=read_boards(), targets=targets)


def ui_router(ui: Ui) -> Router:
    """All pages. Each route declares who may use it (`appliance/route_access.py`)."""
    assets = ui.views.assets

    async def guard(connection: Connection, handler: BaseRouteHandler) -> None:  # a plain function: Litestar copies guards
        await ui.doorkeeper.guard(connection, handler)

    return Router(
        UI_PATH,
        route_handlers=list(CONTROLLERS),
        guards=[guard],
        dependencies={
            "ui": Provide(lambda: ui, sync_to_thread=False),
            "assets": Provide(lambda: assets, sync_to_thread=False),
        },
        exception_handlers=exception_handlers(ui.views),
        include_in_schema=False,
    )
