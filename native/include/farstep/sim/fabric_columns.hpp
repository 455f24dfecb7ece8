// What the engine reads of a topology: flat columns, borrowed for as long as the engine is being built.
//
// They are the ones `farstep.fabric.topology.columns.engine_columns` documents.
#pragma once

#include <cstdint>

namespace farstep::sim {

struct FabricColumns {
    uint32_t num_nics = 0, num_nodes = 0, num_links = 0, num_planes = 1;
    // Per node.
    const int8_t* node_tier = nullptr;
    const double* switch_latency_ns = nullptr;
    const int64_t* out_offset = nullptr;  // [nodes + 1]
    const int32_t* out_links = nullptr;   // [links]
    // Per directed link; the way back of l is l ^ 1.
    const int32_t* link_source = nullptr;
    const int32_t* link_target = nullptr;
    const double* link_rate_gbps = nullptr;
    const double* link_latency_ns = nullptr;
    const int16_t* link_plane = nullptr;
    const int32_t* link_port = nullptr;
    // Ports of the NICs.
    const int64_t* port_offset = nullptr;  // [nics + 1]
    const int32_t* port_link = nullptr;
    const int16_t* port_plane = nullptr;
    const int32_t* port_switch = nullptr;
    // Routes.
    const int16_t* node_block = nullptr;
    const int32_t* node_row = nullptr;
    const int32_t* node_column = nullptr;
    const int64_t* block_next = nullptr;
    const int32_t* block_columns = nullptr;
    const int64_t* block_set = nullptr;
    const int32_t* next_set = nullptr;
    const int64_t* set_offset = nullptr;
    const int32_t* set_links = nullptr;
    uint64_t next_set_size = 0, num_sets = 0, num_set_links = 0, num_blocks = 0;
    const int32_t* via_switch = nullptr;
    uint32_t num_via = 0;
};

}  // namespace farstep::sim
