// Fat trees for the drivers of the packet engine, with all shortest routes; any number of planes.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "farstep/sim/fabric_columns.hpp"

namespace fabric_kit {

struct Shape {
    uint32_t pods = 8, t0_per_pod = 4, nics_per_t0 = 4, t1_per_pod = 4, t2_per_t1 = 4;  // t2_per_t1 0: two tiers, one pod
    uint32_t planes = 1;
    double gbps = 100, latency_ns = 1000, switch_latency_ns = 0;
    // Routes leave out the cables between this T0 and this T1 of the first pod and plane, though they are there.
    uint32_t missing_t0 = UINT32_MAX, missing_t1 = UINT32_MAX;
};

/// Owns what FabricColumns points to.
class FatTree {
public:
    explicit FatTree(const Shape& s) : shape(s) {
        num_nics = s.pods * s.t0_per_pod * s.nics_per_t0;
        tier.assign(num_nics, -1);
        for (uint32_t plane = 0; plane < s.planes; ++plane) add_plane(plane);
        number_ports();
        build_routes();
    }
    farstep::sim::FabricColumns columns() const {
        farstep::sim::FabricColumns c;
        c.num_nics = num_nics;
        c.num_nodes = static_cast<uint32_t>(tier.size());
        c.num_links = static_cast<uint32_t>(source.size());
        c.num_planes = shape.planes;
        c.node_tier = tier.data();
        c.switch_latency_ns = switch_latency.data();
        c.out_offset = out_offset.data();
        c.out_links = out_links.data();
        c.link_source = source.data();
        c.link_target = target.data();
        c.link_rate_gbps = gbps.data();
        c.link_latency_ns = latency.data();
        c.link_plane = link_plane.data();
        c.link_port = link_port.data();
        c.node_block = block.data();
        c.node_row = row.data();
        c.node_column = column.data();
        c.block_next = block_next.data();
        c.block_columns = block_columns.data();
        c.block_set = block_set.data();
        c.num_blocks = block_next.size();
        c.next_set = next_set.data();
        c.next_set_size = next_set.size();
        c.set_offset = set_offset.data();
        c.num_sets = set_offset.size() - 1;
        c.set_links = set_links.data();
        c.num_set_links = set_links.size();
        return c;
    }
    /// Directed link from one node to another; the first where there are several.
    uint32_t link(uint32_t from, uint32_t to) const {
        for (uint32_t l = 0; l < source.size(); ++l)
            if (static_cast<uint32_t>(source[l]) == from && static_cast<uint32_t>(target[l]) == to) return l;
        return UINT32_MAX;
    }
    uint32_t t0_of(uint32_t nic, uint32_t plane) const { return first_t0[plane] + nic / shape.nics_per_t0; }
    uint32_t t1_of(uint32_t pod, uint32_t i, uint32_t plane) const { return first_t1[plane] + pod * shape.t1_per_pod + i; }

    Shape shape;
    uint32_t num_nics = 0;
    std::vector<int8_t> tier;
    std::vector<double> switch_latency, gbps, latency;
    std::vector<int64_t> out_offset;
    std::vector<int32_t> out_links, source, target, link_port;
    std::vector<int16_t> link_plane;
    std::vector<int16_t> block;
    std::vector<int32_t> row, column;
    std::vector<int64_t> block_next, block_set, set_offset;
    std::vector<int32_t> block_columns, next_set, set_links;
    std::vector<uint32_t> first_t0, first_t1;

private:
    bool is_missing(uint32_t a, uint32_t b) const {
        if (shape.missing_t0 == UINT32_MAX) return false;
        const uint32_t t0 = first_t0[0] + shape.missing_t0, t1 = first_t1[0] + shape.missing_t1;
        return (a == t0 && b == t1) || (a == t1 && b == t0);
    }
    void cable(uint32_t a, uint32_t b, uint32_t plane) {
        for (const bool back : {false, true}) {
            source.push_back(static_cast<int32_t>(back ? b : a));
            target.push_back(static_cast<int32_t>(back ? a : b));
            gbps.push_back(shape.gbps);
            latency.push_back(shape.latency_ns);
            link_plane.push_back(static_cast<int16_t>(plane));
        }
    }
    uint32_t nodes(uint32_t count, int8_t of_tier) {
        const auto first = static_cast<uint32_t>(tier.size());
        tier.insert(tier.end(), count, of_tier);
        return first;
    }
    void add_plane(uint32_t plane) {
        const Shape& s = shape;
        const uint32_t t0 = nodes(s.pods * s.t0_per_pod, 0), t1 = nodes(s.pods * s.t1_per_pod, 1);
        const uint32_t t2 = nodes(s.t1_per_pod * s.t2_per_t1, 2);
        first_t0.push_back(t0);
        first_t1.push_back(t1);
        for (uint32_t n = 0; n < num_nics; ++n) cable(n, t0 + n / s.nics_per_t0, plane);
        for (uint32_t pod = 0; pod < s.pods; ++pod)
            for (uint32_t i = 0; i < s.t1_per_pod; ++i) {
                for (uint32_t k = 0; k < s.t0_per_pod; ++k) cable(t0 + pod * s.t0_per_pod + k, t1 + pod * s.t1_per_pod + i, plane);
                for (uint32_t k = 0; k < s.t2_per_t1; ++k) cable(t1 + pod * s.t1_per_pod + i, t2 + i * s.t2_per_t1 + k, plane);
            }
    }
    void number_ports() {
        switch_latency.assign(tier.size(), 0);
        for (size_t n = num_nics; n < tier.size(); ++n) switch_latency[n] = shape.switch_latency_ns;
        out_offset.assign(tier.size() + 1, 0);
        for (const int32_t s : source) ++out_offset[static_cast<size_t>(s) + 1];
        for (size_t n = 0; n < tier.size(); ++n) out_offset[n + 1] += out_offset[n];
        out_links.resize(source.size());
        link_port.resize(source.size());
        std::vector<int64_t> at(out_offset.begin(), out_offset.end() - 1);
        for (size_t l = 0; l < source.size(); ++l) {
            const auto s = static_cast<size_t>(source[l]);
            link_port[l] = static_cast<int32_t>(at[s] - out_offset[s]);
            out_links[static_cast<size_t>(at[s]++)] = static_cast<int32_t>(l);
        }
    }
    void build_routes() {
        block.assign(tier.size(), -1);
        row.assign(tier.size(), -1);
        column.assign(tier.size(), -1);
        set_offset.push_back(0);
        const uint32_t per_plane = (static_cast<uint32_t>(tier.size()) - num_nics) / shape.planes;
        for (uint32_t plane = 0; plane < shape.planes; ++plane) {
            const uint32_t first = num_nics + plane * per_plane;
            std::vector<uint32_t> goals;
            for (uint32_t n = first; n < first + per_plane; ++n) {
                block[n] = static_cast<int16_t>(plane);
                row[n] = static_cast<int32_t>(n - first);
                if (tier[n] == 0) {
                    column[n] = static_cast<int32_t>(goals.size());
                    goals.push_back(n);
                }
            }
            const auto columns = static_cast<int32_t>(goals.size());
            block_next.push_back(static_cast<int64_t>(next_set.size()));
            block_columns.push_back(columns);
            block_set.push_back(static_cast<int64_t>(set_offset.size()) - 1);
            const auto base = static_cast<int32_t>(set_offset.size()) - 1;
            next_set.resize(next_set.size() + size_t{per_plane} * goals.size(), -1);
            std::map<std::vector<int32_t>, int32_t> known;
            for (int32_t g = 0; g < columns; ++g) {
                std::vector<int32_t> distance(per_plane, -1);
                std::deque<uint32_t> queue{goals[static_cast<size_t>(g)]};
                distance[queue.front() - first] = 0;
                while (!queue.empty()) {
                    const uint32_t n = queue.front();
                    queue.pop_front();
                    for (int64_t k = out_offset[n]; k < out_offset[n + 1]; ++k) {
                        const auto m = static_cast<uint32_t>(target[static_cast<size_t>(out_links[static_cast<size_t>(k)])]);
                        if (is_missing(n, m)) continue;
                        if (m < num_nics || distance[m - first] >= 0) continue;
                        distance[m - first] = distance[n - first] + 1;
                        queue.push_back(m);
                    }
                }
                for (uint32_t i = 0; i < per_plane; ++i) {
                    int32_t set = -2;
                    if (distance[i] > 0) {
                        std::vector<int32_t> links;
                        for (int64_t k = out_offset[first + i]; k < out_offset[first + i + 1]; ++k) {
                            const int32_t l = out_links[static_cast<size_t>(k)];
                            const auto m = static_cast<uint32_t>(target[static_cast<size_t>(l)]);
                            if (m >= num_nics && !is_missing(first + i, m) && distance[m - first] == distance[i] - 1) links.push_back(l);
                        }
                        const auto [it, is_new] = known.try_emplace(links, static_cast<int32_t>(set_offset.size()) - 1 - base);
                        if (is_new) {
                            set_links.insert(set_links.end(), links.begin(), links.end());
                            set_offset.push_back(static_cast<int64_t>(set_links.size()));
                        }
                        set = it->second;
                    } else if (distance[i] < 0) {
                        set = -1;
                    }
                    next_set[static_cast<size_t>(block_next.back()) + size_t{i} * goals.size() + static_cast<size_t>(g)] = set;
                }
            }
        }
    }
};

}  // namespace fabric_kit
