"""The server that members, operators and dashboards talk to."""

from farstep.coordinator.body import Coordinator
from farstep.coordinator.server import ServerSettings, create_app, run_coordinator, serve_coordinator

__all__ = ["Coordinator", "ServerSettings", "create_app", "run_coordinator", "serve_coordinator"]
