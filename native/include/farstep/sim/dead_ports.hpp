// Ports of NICs that are known to be down, for connections that begin later.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "farstep/sim/mrc_ends.hpp"

namespace farstep::sim {

class DeadPorts {
public:
    // The NIC itself (`own`) or its peers learn of a change of one of its ports.
    void note(uint32_t nic, uint32_t ordinal, bool up, bool own) {
        uint32_t& dead = own ? masks_[nic].own : masks_[nic].known_to_peers;
        dead = up ? dead & ~(1u << ordinal) : dead | 1u << ordinal;
    }
    // A connection that begins leaves out what its NICs know.
    void leave(uint32_t source_nic, uint32_t target_nic, MrcEnd& source, MrcEnd& target) const {
        if (masks_.empty()) return;
        const Mask s = of(source_nic), t = of(target_nic);
        leave(source, s.own, t.known_to_peers);
        leave(target, t.own, s.known_to_peers);
    }

private:
    struct Mask {
        uint32_t own = 0, known_to_peers = 0;  // by ordinal
    };
    Mask of(uint32_t nic) const {
        const auto at = masks_.find(nic);
        return at == masks_.end() ? Mask{} : at->second;
    }
    static void leave(MrcEnd& e, uint32_t own, uint32_t peers) {
        if ((own | peers) == 0) return;
        e.local_ports &= ~own;
        e.remote_ports &= ~peers;
        e.connection.set_usable_planes(0, e.connection.planes_of_ports(e.local_ports, e.remote_ports));
    }

    std::unordered_map<uint32_t, Mask> masks_;  // of those that ever had a port down
};

}  // namespace farstep::sim
