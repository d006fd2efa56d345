"""What the pages work with: the same parts that the API works with."""

from collections.abc import Mapping
from dataclasses import dataclass

from appliance.dashboards.board import Board
from appliance.dashboards.viewer import Viewer
from appliance.domain.admission.service import Admission
from appliance.domain.explain.pages import DebugPages
from appliance.domain.explain.service import ExplainService
from appliance.domain.inference.backend import Backend
from appliance.domain.inference.cancelling import Canceller
from appliance.domain.inference.service import InferenceService
from appliance.domain.system.health import Health
from appliance.domain.tenants.bootstrap import Control
from appliance.domain.usage.recorder import UsageRecorder
from appliance.engines import Engines
from appliance.logs import LogLevel
from appliance.settings import Settings
from appliance.telemetry.hub import Telemetry
from appliance.ui.access import Doorkeeper
from appliance.ui.live import LiveHub
from appliance.ui.pulse import Pulse
from appliance.ui.start_log import StartLog
from appliance.ui.targets import TightestTargets
from appliance.ui.views import Views


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """The running appliance, as the pages read and change it."""

    settings: Settings
    control: Control
    telemetry: Telemetry
    health: Health
    admission: Admission
    backend: Backend
    inference: InferenceService
    explainer: ExplainService
    debug: DebugPages
    canceller: Canceller
    viewer: Viewer
    usage: UsageRecorder
    log_level: LogLevel
    engines: Engines
    starts: StartLog
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ui:
    """Every handler's dependency `ui`."""

    house: House
    doorkeeper: Doorkeeper
    views: Views
    live: LiveHub
    pulse: Pulse
    boards: Mapping[str, Board]
    """Dashboards by uid."""
    targets: TightestTargets
