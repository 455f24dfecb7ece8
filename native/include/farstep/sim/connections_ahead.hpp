// What the connections of a run will carry at most, counted before it begins.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "farstep/sim/task_graph.hpp"
#include "farstep/sim/transport.hpp"

namespace farstep::sim {

/// Messages a flow is cut into; one of no bytes is a message, too.
constexpr uint32_t messages_of(uint64_t size_bytes, uint64_t max_message_bytes) noexcept {
    return std::max(1u, static_cast<uint32_t>((size_bytes + max_message_bytes - 1) / max_message_bytes));
}

inline ConnectionsAhead connections_ahead(const TaskGraph& tasks, uint32_t count, uint64_t max_message_bytes, uint64_t mtu_bytes) {
    std::vector<std::pair<uint64_t, uint64_t>> sums(count);  // messages and packets of each
    ConnectionsAhead ahead{count};
    for (uint32_t i = 0; i < tasks.size(); ++i) {
        if (!tasks.is_flow(i)) continue;
        auto& [messages, packets] = sums[tasks.at(i).connection];
        const uint64_t bytes = tasks.at(i).size_bytes, pieces = messages_of(bytes, max_message_bytes);
        messages += pieces;
        packets += bytes / mtu_bytes + pieces;  // each may end with a packet that is not full
        ahead.most_messages = std::max(ahead.most_messages, messages);
        ahead.most_packets = std::max(ahead.most_packets, packets);
    }
    return ahead;
}

}  // namespace farstep::sim
