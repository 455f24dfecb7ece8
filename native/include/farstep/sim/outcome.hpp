// What a run of the packet engine is told as a whole, and what comes of it.
#pragma once

#include <cstdint>
#include <string>

#include "farstep/sim/flow_row.hpp"
#include "farstep/sim/settings.hpp"
#include "farstep/sim/trace.hpp"
#include "farstep/sim/transport.hpp"

namespace farstep::sim {

enum class RunStatus : uint8_t { Finished, Until, WallLimit, Cancelled, Stalled };

struct EngineSettings {
    FabricSettings fabric;
    SeriesSettings series;
    uint64_t remap_delay_ns = 0;        // from a port's failure to the NIC's use of the others, and its peers' after it
    bool completes_at_source = true;    // a flow is done when its source knows; else when its target has it
};

/// Results of one task.
struct TaskOutcome {
    static constexpr int64_t kNever = -1;
    int64_t start_ns = kNever, finish_ns = kNever;
    uint32_t packets = 0, retransmitted = 0, declared_lost = 0;  // what the sender knows
    uint32_t duplicates = 0;                                     // what the receiver had before
    uint32_t trims = 0, dropped = 0;                             // what the network did

    /// Adds what a sender counted since `before`.
    void add(const FlowMark& now, const FlowMark& before) noexcept {
        packets += now.packets - before.packets;
        retransmitted += now.retransmitted - before.retransmitted;
        declared_lost += now.declared_lost - before.declared_lost;
    }
    /// Takes over what became of packets of its connection.
    void take(ConnectionFate& f) noexcept {
        trims += f.trimmed;
        dropped += f.dropped;
        duplicates += f.duplicates;
        f = {};
    }
};

/// A connection gave up.
struct ConnectionFailure {
    uint64_t time_ns;
    uint32_t connection;
    std::string why;
};

}  // namespace farstep::sim
