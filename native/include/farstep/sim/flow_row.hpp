// Where the flows of one connection stand.
#pragma once

#include <cstdint>

#include "farstep/sim/task_graph.hpp"
#include "farstep/sim/transport.hpp"

namespace farstep::sim {

/// Low halves of what a sender counts: enough for what one flow adds.
struct FlowMark {
    uint32_t packets = 0, retransmitted = 0, declared_lost = 0;
    FlowMark() = default;
    explicit FlowMark(const FlowCounters& k) noexcept
        : packets(static_cast<uint32_t>(k.packets)), retransmitted(static_cast<uint32_t>(k.retransmitted)),
          declared_lost(static_cast<uint32_t>(k.declared_lost)) {}
};

struct FlowRow {
    uint32_t source = 0, target = 0;
    uint32_t posting = TaskGraph::kNoTask, last = TaskGraph::kNoTask;     // first flow not wholly posted; last started
    uint32_t receiving = TaskGraph::kNoTask, completing = TaskGraph::kNoTask;
    uint32_t pieces_received = 0, pieces_of_receiving = 0;
    uint32_t flows_left = 0;
    bool open = false, failed = false;
    uint64_t posted_bytes = 0;  // of the flow being posted
    FlowMark counted;           // when the flow before was done
};

static_assert(sizeof(FlowRow) == 64);

}  // namespace farstep::sim
