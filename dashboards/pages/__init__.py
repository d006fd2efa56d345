"""All pages, in the order of the folder."""

from dashboards.page import Page
from dashboards.pages.capacity import CAPACITY
from dashboards.pages.engine import ENGINE
from dashboards.pages.lanes import LANES
from dashboards.pages.overview import OVERVIEW
from dashboards.pages.tail import TAIL
from dashboards.pages.tenant import TENANT_PAGE

PAGES: tuple[Page, ...] = (OVERVIEW, LANES, TENANT_PAGE, TAIL, ENGINE, CAPACITY)
