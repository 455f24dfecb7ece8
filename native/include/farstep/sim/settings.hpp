// Everything about a run that is not the topology, the work or the faults. Plain numbers; transports add their own.
#pragma once

#include <cstdint>

namespace farstep::sim {

struct FabricSettings {
    uint32_t mtu_bytes = 4096;          // payload of a full packet
    uint32_t overhead_bytes = 166;      // around it on the wire: MRC headers, SRv6, Ethernet, preamble and gap
    uint32_t control_bytes = 178;       // a SACK on the wire
    uint32_t trimmed_bytes = 162;       // what is left of a trimmed packet
    // Queue of one port, as time on the fastest link: packets beyond the limit are trimmed or dropped.
    double queue_limit_bytes = 0;       // 0: 1 BDP of a port (1.5 for ports that face a NIC)
    double last_hop_limit_bytes = 0;
    double ecn_min_bytes = -1, ecn_max_bytes = -1;  // < 0: 0.2 and 0.8 BDP of a port
    double ecn_max_share = 1;           // of packets marked just below the upper depth; beyond it all are
    bool trimming = true;               // else what finds no room is dropped
    bool last_hop_ecn = false;          // MRC: no marks at the port that faces the NIC
    double host_latency_ns = 0;         // in the receiving NIC, for every packet it gets
    double base_rtt_ns = 0;             // of the network; 0: of each connection's own path
    uint64_t seed = 1;
};

struct SeriesSettings {
    uint64_t interval_ns = 0;           // 0: no time series
    bool per_link = false;
};

struct RunLimits {
    uint64_t until_ns = UINT64_MAX;
    double max_wall_s = 0;              // 0: none
    uint64_t stall_ns = 10'000'000'000; // nothing delivered for this long: the run is stuck
};

}  // namespace farstep::sim
