// Routing that follows failures and repairs, late: tables that take effect at their time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "farstep/sim/fabric_columns.hpp"

namespace farstep::sim {

/// The columns of a topology's routes, copied.
class OwnedRoutes {
public:
    explicit OwnedRoutes(const FabricColumns& c)
        : node_block_(c.node_block, c.node_block + c.num_nodes), node_row_(c.node_row, c.node_row + c.num_nodes),
          node_column_(c.node_column, c.node_column + c.num_nodes), block_next_(c.block_next, c.block_next + c.num_blocks),
          block_set_(c.block_set, c.block_set + c.num_blocks), set_offset_(c.set_offset, c.set_offset + c.num_sets + 1),
          block_columns_(c.block_columns, c.block_columns + c.num_blocks),
          next_set_(c.next_set, c.next_set + c.next_set_size), set_links_(c.set_links, c.set_links + c.num_set_links) {}
    FabricColumns columns() const noexcept {
        FabricColumns c;
        c.node_block = node_block_.data();
        c.node_row = node_row_.data();
        c.node_column = node_column_.data();
        c.num_nodes = static_cast<uint32_t>(node_block_.size());
        c.block_next = block_next_.data();
        c.block_set = block_set_.data();
        c.set_offset = set_offset_.data();
        c.block_columns = block_columns_.data();
        c.next_set = next_set_.data();
        c.set_links = set_links_.data();
        c.num_blocks = block_next_.size();
        c.num_sets = set_offset_.size() - 1;
        c.next_set_size = next_set_.size();
        c.num_set_links = set_links_.size();
        return c;
    }

private:
    std::vector<int16_t> node_block_;
    std::vector<int32_t> node_row_, node_column_;
    std::vector<int64_t> block_next_, block_set_, set_offset_;
    std::vector<int32_t> block_columns_, next_set_, set_links_;
};

class RerouteSchedule {
public:
    void add(uint64_t time_ns, const FabricColumns& routes) {
        const auto at = std::upper_bound(entries_.begin() + static_cast<std::ptrdiff_t>(next_), entries_.end(), time_ns,
                                         [](uint64_t t, const Entry& e) { return t < e.time_ns; });
        entries_.insert(at, {time_ns, std::make_unique<OwnedRoutes>(routes)});
    }
    uint64_t next_ns() const noexcept { return next_ < entries_.size() ? entries_[next_].time_ns : UINT64_MAX; }
    /// The tables that are in effect from now on, if that changes; null otherwise.
    std::unique_ptr<OwnedRoutes> poll(uint64_t now_ns) noexcept {
        std::unique_ptr<OwnedRoutes> found;
        while (next_ < entries_.size() && entries_[next_].time_ns <= now_ns) found = std::move(entries_[next_++].routes);
        return found;
    }

private:
    struct Entry {
        uint64_t time_ns;
        std::unique_ptr<OwnedRoutes> routes;
    };
    std::vector<Entry> entries_;
    size_t next_ = 0;
};

}  // namespace farstep::sim
