"""Multipath Reliable Connection over UDP sockets: endpoints, registered memory, connections, completions.

```python
with Endpoint(ports=["127.0.0.1", "127.0.0.1"]) as endpoint:
    region = endpoint.register(numpy_array)
    connection = endpoint.create_connection(peer_name="rank1")
    ...  # exchange connection.descriptor and region.remote with the peer, over any channel
    connection.connect(peer_descriptor)
    connection.write(region, 0, region.length_bytes, peer_region, 0, immediate=1).wait(timeout_s=10)
```
"""

from farstep.engine.address_file import fabric_ports, fabric_ports_here
from farstep.engine.completion import Completion
from farstep.engine.connection import Connection
from farstep.engine.endpoint import Endpoint
from farstep.engine.errors import (
    ConnectionAborted,
    ConnectionFailed,
    EndpointClosed,
    EngineError,
    RegionError,
    SecurityError,
    WaitTimeout,
)
from farstep.engine.profile import EndpointProfile, PortConfig
from farstep.engine.region import Region, RemoteRegion
from farstep.engine.security import Identity, Protection, SecurityProfile
from farstep.engine.stats import (
    CongestionStats,
    ConnectionStats,
    EndpointStats,
    EvState,
    PathEvent,
    PathStats,
    PlaneStats,
    PortStats,
)
from farstep.mrc.addressing import Attachment
from farstep.mrc.errors import InvalidFieldError

__all__ = [
    "Attachment",
    "Completion",
    "CongestionStats",
    "Connection",
    "ConnectionAborted",
    "ConnectionFailed",
    "ConnectionStats",
    "Endpoint",
    "EndpointClosed",
    "EndpointProfile",
    "EndpointStats",
    "EngineError",
    "EvState",
    "Identity",
    "InvalidFieldError",
    "PathEvent",
    "PathStats",
    "PlaneStats",
    "PortConfig",
    "PortStats",
    "Protection",
    "Region",
    "RegionError",
    "RemoteRegion",
    "SecurityError",
    "SecurityProfile",
    "WaitTimeout",
    "fabric_ports",
    "fabric_ports_here",
]
