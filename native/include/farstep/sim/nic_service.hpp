// One NIC's turn to send.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "farstep/sim/fabric_state.hpp"
#include "farstep/sim/network.hpp"
#include "farstep/sim/nic.hpp"
#include "farstep/sim/slot_clock.hpp"
#include "farstep/sim/transport.hpp"

namespace farstep::sim {

/// Gives each free port of a NIC one packet, connections in turn. What is scheduled here happens from slot `horizon` on.
template <class Host, class Transport>
void serve_nic(Host& host, Transport& transport, NicRings& rings, uint32_t nic, Slot slot, Slot horizon) {
    auto& net = host.network();
    FabricState& f = net.fabric();
    const uint32_t first = f.first_nic_port(nic), count = f.num_nic_ports(nic);
    const Tick end = start_of(slot + 1);
    uint32_t free = 0;
    Tick soonest = UINT64_MAX;
    for (uint32_t k = 0; k < count; ++k) {
        const NicPort& n = f.nic_port(first + k);
        soonest = std::min(soonest, n.free);
        if (n.free < end && !(f.port(n.port).flags & Port::kPaused)) free |= 1u << k;
    }
    const Tick since = std::max(start_of(slot), rings.ring(nic).since);
    while (free && !rings.is_empty(nic)) {
        const uint32_t c = rings.first(nic);
        // What it sends starts when its port is free, and not before the NIC had something to send.
        Tick start = UINT64_MAX;
        for (uint32_t rest = free; rest; rest &= rest - 1)
            start = std::min(start, f.nic_port(first + static_cast<uint32_t>(std::countr_zero(rest))).free);
        start = std::max(start, since);
        Departure d;
        if (!transport.poll(host, c, f.clock().ns(start), free, d)) {
            // With a port busy or paused it may have wanted that one.
            if (free != (count >= 32 ? ~0u : (1u << count) - 1)) break;
            rings.remove_first(nic);
            continue;
        }
        NicPort& n = f.nic_port(first + d.port);
        net.inject(d.packet, first + d.port, std::max(n.free, start));
        rings.turn(nic);
        free &= ~(1u << d.port);
    }
    if (rings.is_empty(nic)) return;
    // All ports busy for longer than this slot: no use in asking before one is free.
    for (uint32_t k = 0; k < count; ++k) soonest = std::min(k ? soonest : UINT64_MAX, f.nic_port(first + k).free);
    const Slot at = slot_of(soonest);
    if (at <= slot + 1 || at < horizon) return;
    rings.sleep(nic);
    net.events().append(at, event(Happening::Wake, nic));
}

}  // namespace farstep::sim
