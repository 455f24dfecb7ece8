// What MRC's connections know of the ways they take.
#pragma once

#include <algorithm>
#include <cstdint>

#include "farstep/sim/network.hpp"

namespace farstep::sim {

/// The way data takes from a port of its NIC, for a small packet.
template <class Policy>
ControlPath way_of_data(Network<Policy>& net, uint64_t route, uint32_t nic_port) {
    const FabricState& f = net.fabric();
    ControlPath w;
    w.route = route;
    w.nic_port = nic_port;
    uint32_t p = f.nic_port(nic_port).port;
    Tick delay = f.control_ticks(p, f.settings().control_bytes);
    w.hops = 1;
    while (!(f.port(p).target & kNicTarget)) {
        p = net.router().step(route, f.port(p).target);
        delay += f.control_ticks(p, f.settings().control_bytes);
        ++w.hops;
    }
    w.last_port = p;
    w.delay = static_cast<uint32_t>(delay);
    return w;
}

/// Longest round trip of these ways back: out with a full packet, back with an answer, nobody else on the way; 1 if none.
template <class Policy>
uint64_t longest_rtt_ns(Network<Policy>& net, const ControlPath* ways, uint32_t count) {
    if (count == 0) return 1;
    const FabricState& f = net.fabric();
    Tick longest = 0;
    for (uint32_t i = 0; i < count; ++i) {
        const ControlPath& w = ways[i];
        Tick there = 0;
        uint64_t route = w.route;
        uint32_t p = f.nic_port(w.nic_port).port;
        for (;;) {
            there += f.port(f.reverse(p)).delay;
            if (f.port(p).target & kNicTarget) break;
            p = net.router().step(route, f.port(p).target);
        }
        longest = std::max(longest, there + w.delay);
    }
    return f.clock().ns(longest);
}

}  // namespace farstep::sim
