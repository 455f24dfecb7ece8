"""The ports of a host in a fabric of uSIDs, from the file that says where every NIC hangs.

`farstep lab` writes such a file for the programs that run in it and names it in their environment. Whoever runs a
network of their own may write one, too:

```json
{"block": 4240161723, "uplinks": 2,
 "hosts": [{"leaf": 0, "downlink": 0, "ports": [{"plane": 0, "address": "fd00:fab:1::1"}]}]}
```
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farstep.engine.errors import EngineError
from farstep.engine.profile import PortConfig
from farstep.mrc.addressing import Attachment

__all__ = ["ADDRESSES_VARIABLE", "NIC_VARIABLE", "fabric_ports", "fabric_ports_here"]

ADDRESSES_VARIABLE = "FARSTEP_LAB_ADDRESSES"
"""Names the file."""
NIC_VARIABLE = "FARSTEP_LAB_NIC"
"""Number of the host's NIC in it."""


def fabric_ports_here(
    environment: Mapping[str, str] | None = None, *, port: int = 0
) -> list[PortConfig] | None:
    """Returns the ports of the host that this process runs at, one per plane; None outside a fabric.

    Args:
        environment: instead of the process's own.
        port: UDP port of each; 0 takes free ones.

    Raises:
        EngineError: the environment names a file that cannot be used.
    """
    environment = os.environ if environment is None else environment
    path, nic = environment.get(ADDRESSES_VARIABLE), environment.get(NIC_VARIABLE)
    if path is None or nic is None:
        return None
    if not (nic.isascii() and nic.isdigit()):
        raise EngineError(f"{NIC_VARIABLE} = {nic!r} is no number of a NIC")
    return fabric_ports(path, int(nic), port=port)


def fabric_ports(path: str | Path, nic: int, *, port: int = 0) -> list[PortConfig]:
    """Returns the ports of a NIC, one per plane, as a file says.

    Raises:
        EngineError: the file cannot be read, is of another form, or has no such NIC.
    """
    try:
        table: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        hosts = table["hosts"]
        if not 0 <= nic < len(hosts):
            raise EngineError(f"the addresses in {path} have no NIC {nic}; valid is 0 to {len(hosts) - 1}")
        host = hosts[nic]
        attachment = Attachment(
            block=table["block"], leaf=host["leaf"], downlink=host["downlink"], uplinks=table["uplinks"]
        )
        return [
            PortConfig(f"[{place['address']}]:{port}", plane=place["plane"], attachment=attachment)
            for place in host["ports"]
        ]
    except OSError as error:
        raise EngineError(f"the addresses in {path} cannot be read ({error.strerror})") from None
    except KeyError as error:
        raise EngineError(f"the addresses in {path} lack {error}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise EngineError(f"the addresses in {path} cannot be used ({error})") from None
