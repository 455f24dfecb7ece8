// What an event loop is built with, and what it tells.
#pragma once

#include <cstdint>
#include <vector>

#include "farstep/endpoint_config.hpp"
#include "farstep/udp_socket.hpp"

namespace farstep {

struct LoopConfig {
    EndpointConfig core;
    std::vector<SocketAddress> ports;
    PathMode path_mode = PathMode::Udp;
    uint32_t sources_per_port = 12;  // UDP source ports = entropy values of a plane; 1 in mode Srv6
    size_t datagram_bytes = 0;       // longest that peers send, where none are merged; 0: not known
    int receive_buffer_bytes = 4 << 20;
    int send_buffer_bytes = 4 << 20;
};

enum class WaitResult : uint8_t { Ready, TimedOut, Failed, Closed };

struct PathEvent {
    uint32_t connection;
    EvEvent event;
};

}  // namespace farstep
