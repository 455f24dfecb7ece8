"""The server that members, operators and dashboards talk to."""
