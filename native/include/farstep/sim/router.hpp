// Routes as stacks of port labels, made once for every path of a connection; no packet ever looks anything up.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdint>
#include <numeric>
#include <vector>

#include "farstep/counter_rng.hpp"
#include "farstep/sim/fabric_columns.hpp"
#include "farstep/sim/fabric_state.hpp"
#include "farstep/sim/packet.hpp"

namespace farstep::sim {

/// Which of the paths between two NIC ports: number `index` of a walk through all of them in a random order.
struct PathWalk {
    uint64_t start = 0, stride = 1, count = 1;
    uint64_t at(uint64_t index) const noexcept { return (start + index % count * stride) % count; }
};

/// Numbers of sets, or -1, in half the memory where there are few sets: most of what a router holds.
class SetNumbers {
public:
    void assign(const int32_t* numbers, uint64_t count) {
        is_wide_ = std::any_of(numbers, numbers + count, [](int32_t n) { return n >= kNoSet; });
        wide_.assign(numbers, numbers + (is_wide_ ? count : 0));
        narrow_.resize(is_wide_ ? 0 : count);
        for (size_t i = 0; i < narrow_.size(); ++i) narrow_[i] = static_cast<uint16_t>(numbers[i]);
    }
    int32_t at(size_t i) const noexcept {
        if (is_wide_) return wide_[i];
        return narrow_[i] == kNoSet ? -1 : int32_t{narrow_[i]};
    }

private:
    static constexpr uint16_t kNoSet = UINT16_MAX;  // what -1 is cut to
    bool is_wide_ = false;
    std::vector<int32_t> wide_;
    std::vector<uint16_t> narrow_;
};

class Router {
public:
    static constexpr uint32_t kMaxHops = 32;

    Router(const FabricColumns& c, const FabricState& f)
        : fabric_(&f), via_(c.via_switch, c.via_switch + c.num_via) {
        set_tables(c);
        epoch_ = 0;
    }

    /// Ports on shortest ways from switch to attachment switch.
    struct Choice {
        const uint32_t* ports = nullptr;
        uint32_t count = 0;
    };
    Choice next_ports(uint32_t node, uint32_t attachment) const noexcept {
        const int16_t b = node_block_[node];
        if (b < 0 || b != node_block_[attachment] || node_column_[attachment] < 0) return {};
        const int64_t cell = block_next_[b] + int64_t{node_row_[node]} * block_columns_[b] + node_column_[attachment];
        const int32_t set = next_set_.at(static_cast<size_t>(cell));
        if (set < 0) return {};
        const int64_t at = block_set_[b] + set;
        return {set_ports_.data() + set_offset_[at], static_cast<uint32_t>(set_offset_[at + 1] - set_offset_[at])};
    }
    /// The downlinks by which packets that leave by a NIC port of this plane reach the NIC; of any plane where it has none.
    uint32_t downlinks(uint32_t uplink, uint32_t target_nic, uint32_t* out) const noexcept {
        const uint16_t plane = fabric_->plane(uplink);
        const uint32_t first = fabric_->first_port(target_nic), end = fabric_->end_port(target_nic);
        uint32_t n = 0;
        for (const bool same : {true, false}) {
            for (uint32_t p = first; p < end; ++p)
                if (!same || fabric_->plane(p) == plane) out[n++] = fabric_->reverse(p);
            if (n) break;
        }
        return n;
    }

    /// A random walk through the paths from an uplink to a NIC; count 0 where there is none.
    PathWalk walk(uint32_t uplink, uint32_t target_nic, CounterRng& rng) const noexcept {
        uint32_t down[kMaxHops];
        const uint32_t n = downlinks(uplink, target_nic, down);
        PathWalk w;
        w.count = n;
        if (n == 0) return w;
        if (!via_.empty()) w.count *= via_.size();
        uint32_t node = fabric_->target_node(uplink);
        const uint32_t goal = fabric_->source_node(down[0]);
        for (uint32_t hops = 0; node != goal && hops < kMaxHops; ++hops) {
            const Choice c = next_ports(node, goal);
            if (c.count == 0) return {0, 1, 0};
            if (w.count < (1ull << 40)) w.count *= c.count;
            node = fabric_->target_node(c.ports[0]);
        }
        w.start = rng.next() % w.count;
        do w.stride = 1 + rng.next() % w.count;
        while (std::gcd(w.stride, w.count) != 1);
        return w;
    }

    /// All paths that walk() counts exist: they are shortest ways to one switch.
    bool is_uniform(uint32_t uplink, uint32_t target_nic) const noexcept {
        uint32_t down[kMaxHops];
        return via_.empty() && downlinks(uplink, target_nic, down) == 1;
    }
    /// Ports of path `number` after the uplink, the one that faces the NIC last; 0 if there is no such path.
    uint32_t ports(uint32_t uplink, uint32_t target_nic, uint64_t number, uint32_t* out) const noexcept {
        uint32_t down[kMaxHops];
        const uint32_t n = downlinks(uplink, target_nic, down);
        if (n == 0) return 0;
        const uint32_t last = down[number % n];
        number /= n;
        uint32_t stops[2], num_stops = 0;
        if (!via_.empty()) {
            stops[num_stops++] = static_cast<uint32_t>(via_[number % via_.size()]);
            number /= via_.size();
        }
        stops[num_stops++] = fabric_->source_node(last);
        uint32_t node = fabric_->target_node(uplink), hops = 0;
        for (uint32_t i = 0; i < num_stops; ++i)
            while (node != stops[i]) {
                const Choice c = next_ports(node, stops[i]);
                if (c.count == 0 || hops + 1 >= kMaxHops) return 0;
                out[hops] = c.ports[number % c.count];
                number /= c.count;
                node = fabric_->target_node(out[hops++]);
            }
        out[hops++] = last;
        return hops;
    }

    /// The route word of a list of ports.
    uint64_t encode(const uint32_t* ports, uint32_t count) {
        bool fits = count <= Route::kMaxLabels;
        uint64_t word = 0;
        for (uint32_t i = 0; i < count && fits; ++i) {
            const uint64_t label = ports[i] - fabric_->first_port(fabric_->source_node(ports[i]));
            fits = label <= Route::kLabelMask;
            word |= label << (i * Route::kLabelBits);
        }
        if (fits) return word;
        const uint32_t at = take_row();
        for (uint32_t i = 0; i < count; ++i) table_[at + i] = ports[i];
        return Route::kTabled | at;
    }
    void release(uint64_t word) {
        if (word & Route::kTabled) free_rows_.push_back(static_cast<uint32_t>(word & ~Route::kTabled));
    }
    /// The port that comes next after a port whose target is a switch.
    uint32_t step(uint64_t& word, uint32_t first_port) const noexcept {
        if (static_cast<int64_t>(word) < 0) [[unlikely]] return table_[word++ & ~Route::kTabled];
        const uint32_t port = first_port + static_cast<uint32_t>(word & Route::kLabelMask);
        word >>= Route::kLabelBits;
        return port;
    }

    /// Replaces the next hops, as routing does after it noticed that links died or came back. Routes made before stay as
    /// they are; who depends on routing makes them again when it sees another epoch.
    void set_tables(const FabricColumns& c) {
        node_block_.assign(c.node_block, c.node_block + c.num_nodes);
        node_row_.assign(c.node_row, c.node_row + c.num_nodes);
        node_column_.assign(c.node_column, c.node_column + c.num_nodes);
        block_next_.assign(c.block_next, c.block_next + c.num_blocks);
        block_set_.assign(c.block_set, c.block_set + c.num_blocks);
        block_columns_.assign(c.block_columns, c.block_columns + c.num_blocks);
        set_offset_.assign(c.set_offset, c.set_offset + c.num_sets + 1);
        next_set_.assign(c.next_set, c.next_set_size);
        set_ports_.resize(c.num_set_links);
        for (uint64_t i = 0; i < c.num_set_links; ++i)
            set_ports_[i] = fabric_->port_of_link(static_cast<uint32_t>(c.set_links[i]));
        ++epoch_;
    }
    uint32_t epoch() const noexcept { return epoch_; }

private:
    uint32_t take_row() {
        if (!free_rows_.empty()) {
            const uint32_t at = free_rows_.back();
            free_rows_.pop_back();
            return at;
        }
        const auto at = static_cast<uint32_t>(table_.size());
        table_.resize(table_.size() + kMaxHops);
        return at;
    }

    const FabricState* fabric_;
    std::vector<int16_t> node_block_;
    std::vector<int32_t> node_row_, node_column_;
    std::vector<int64_t> block_next_, block_set_;
    std::vector<int32_t> block_columns_;
    SetNumbers next_set_;
    std::vector<int64_t> set_offset_;
    std::vector<uint32_t> set_ports_;
    std::vector<int32_t> via_;
    std::vector<uint32_t> table_, free_rows_;
    uint32_t epoch_ = 0;
};

}  // namespace farstep::sim
