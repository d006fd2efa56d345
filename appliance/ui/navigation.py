"""The pages of the menu, in its order. A page that is added here appears on every other one."""

from dataclasses import dataclass

from appliance.domain.access.principal import Scope


@dataclass(frozen=True, slots=True)
class Entry:
    """A page. `name` is what its handler renders it under."""

    name: str
    title: str
    path: str
    needs: Scope = Scope.ADMIN_READ


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    entries: tuple[Entry, ...]


HOME = "/ui/"
MENU = (
    Group(
        "Now",
        (
            Entry("overview", "Overview", HOME),
            Entry("requests", "Live requests", "/ui/requests"),
            Entry("slow", "Slow requests", "/ui/slow"),
            Entry("dashboards", "Dashboards", "/ui/dashboards"),
        ),
    ),
    Group(
        "Tenants",
        (
            Entry("tenants", "Tenants", "/ui/tenants"),
            Entry("tiers", "SLA tiers", "/ui/tiers"),
            Entry("keys", "Keys", "/ui/keys"),
            Entry("usage", "Usage", "/ui/usage"),
        ),
    ),
    Group(
        "Machine",
        (
            Entry("scheduler", "Scheduler", "/ui/scheduler"),
            Entry("engine", "Engine", "/ui/engine"),
            Entry("health", "Health", "/ui/health"),
        ),
    ),
    Group("Administration", (Entry("audit", "Audit", "/ui/audit"), Entry("settings", "Settings", "/ui/settings"))),
)
PATHS = {entry.name: entry.path for group in MENU for entry in group.entries}
