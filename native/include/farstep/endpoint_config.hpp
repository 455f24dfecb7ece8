// What an endpoint is built with and what it counts.
#pragma once

#include <cstdint>

#include "farstep/config.hpp"
#include "farstep/wire.hpp"

namespace farstep {

struct EndpointConfig {
    uint32_t num_ports = 1;
    uint32_t max_connections = 256;
    uint32_t max_regions = 4096;
    bool icrc = true;
    uint64_t seed = 0;
    double port_rate_bytes_per_s[kMaxPorts] = {};  // 0: not paced per port
    // What a late wake-up may catch up with at once: how late an overloaded host is. The window bounds the burst too.
    uint64_t pacing_catch_up_ns = 5'000'000;
};

struct EndpointCounters {
    uint64_t rx_datagrams = 0, rx_bytes = 0, tx_packets = 0, tx_bytes = 0, tx_bursts = 0;
    uint64_t unknown_qpn = 0, port_updates = 0, receive_overflow = 0;
    uint64_t rejected[static_cast<size_t>(wire::DecodeResult::Count)] = {};
    uint64_t port_tx_bytes[kMaxPorts] = {}, port_rx_bytes[kMaxPorts] = {};
};

}  // namespace farstep
