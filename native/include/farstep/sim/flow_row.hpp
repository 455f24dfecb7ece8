// Where the flows of one connection stand.
#pragma once

#include <cstdint>

#include "farstep/sim/task_graph.hpp"
#include "farstep/sim/transport.hpp"

namespace farstep::sim {

struct FlowRow {
    uint32_t source = 0, target = 0;
    uint32_t posting = TaskGraph::kNoTask, last = TaskGraph::kNoTask;     // first flow not wholly posted; last started
    uint32_t receiving = TaskGraph::kNoTask, completing = TaskGraph::kNoTask;
    uint32_t pieces_received = 0, pieces_of_receiving = 0;
    uint32_t flows_left = 0;
    bool open = false, failed = false;
    uint64_t posted_bytes = 0;  // of the flow being posted
    FlowCounters counted;       // when the flow before was done
};

}  // namespace farstep::sim
