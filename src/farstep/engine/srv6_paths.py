"""The paths of a connection in path mode `srv6`: every entropy value with the address that leads along it."""

from __future__ import annotations

import random

from farstep import _native
from farstep.engine.descriptor import ConnectionDescriptor
from farstep.engine.errors import EngineError
from farstep.mrc.addressing import Attachment
from farstep.mrc.profiles import EvProfile

__all__ = ["check_path_modes", "set_srv6_paths"]


def check_path_modes(own: ConnectionDescriptor, peer: ConnectionDescriptor) -> None:
    """Looks whether the ends agree on how packets find their way.

    Raises:
        EngineError: they do not, or no path joins them.
    """
    if own.path_mode != peer.path_mode:
        raise EngineError(
            f"this end has path mode {own.path_mode}, the peer {peer.path_mode}; where both ask for auto, one of the"
            " two hosts cannot do srv6, and its log says why"
        )
    if own.path_mode == "udp":
        return
    own_planes, peer_planes = ({port.plane for port in end.ports} for end in (own, peer))
    if not own_planes & peer_planes:
        raise EngineError(
            f"the ends share no plane: this one has {_listed(own_planes)}, the peer {_listed(peer_planes)}"
        )
    blocks = {port.attachment.block for end in (own, peer) for port in end.ports if port.attachment}
    if len(blocks) > 1:
        shown = " and ".join(sorted(f"{block >> 16:x}:{block & 0xFFFF:x}::/32" for block in blocks))
        raise EngineError(f"the ends are in networks of different uSID blocks, {shown}")


def set_srv6_paths(
    p: _native.ConnectionParameters,
    own: ConnectionDescriptor,
    peer: ConnectionDescriptor,
    links: list[tuple[int, int]],
    ev: EvProfile,
    rng: random.Random,
) -> None:
    """Chooses paths at random for every plane, each at most once, and gives each its address (MRC, section 4.1).

    A plane with fewer paths than the profile asks for uses all of them.
    """
    room = _native.MAX_ENTROPY_VALUES // len(links)
    active = min(ev.active_per_plane, room)
    wanted = min(active + ev.backup_per_plane, room)
    values: list[tuple[int, int, int, bool]] = []
    addresses: list[bytes] = []
    for plane, (local, remote) in enumerate(links):
        here, there = _attachment(own, local), _attachment(peer, remote)
        paths = list(here.evs_to(there, plane=own.ports[local].plane))
        rng.shuffle(paths)  # senders do not coordinate, so their choices must differ
        template = here.paths_to(there)
        for n, path in enumerate(paths[:wanted]):
            values.append((plane, len(addresses), path.value, n < active))
            addresses.append(template.path(path).address.packed)
    per_plane = [[is_active for at, _, _, is_active in values if at == plane] for plane in range(len(links))]
    p.active_per_plane = max(sum(flags) for flags in per_plane)
    p.backup_per_plane = max(len(flags) - sum(flags) for flags in per_plane)
    p.entropy_values, p.path_addresses = values, addresses
    # Of these the port counts; public addresses are for networks with translators.
    p.peer_addresses = [(port.host, port.port) for port in peer.ports]


def _attachment(end: ConnectionDescriptor, port: int) -> Attachment:
    attachment = end.ports[port].attachment
    assert attachment is not None  # by check_path_modes and the descriptor's own check
    return attachment


def _listed(planes: set[int]) -> str:
    return ", ".join(str(plane) for plane in sorted(planes))
