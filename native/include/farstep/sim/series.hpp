// Samples over time: what NICs sent into each plane, what was delivered and lost, how deep queues became.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "farstep/sim/fabric_state.hpp"
#include "farstep/sim/settings.hpp"

namespace farstep::sim {

/// Links by the tier they start from and the tier they lead to; tier -1 is a NIC.
struct LinkGroup {
    int8_t from, to;
    bool operator==(const LinkGroup&) const = default;
};

/// Totals the engine has at the end of an interval.
struct SeriesTotals {
    uint64_t goodput_bytes = 0, dropped = 0, trims = 0, retransmitted = 0, marked = 0;
};

class Series {
public:
    Series(const SeriesSettings& s, const FabricState& f) : settings_(s), num_planes_(f.num_planes()) {
        if (!s.interval_ns) return;
        group_.resize(f.num_ports());
        for (uint32_t p = 0; p < f.num_ports(); ++p) {
            const LinkGroup g{f.tier(f.source_node(p)), f.tier(f.target_node(p))};
            size_t i = static_cast<size_t>(std::find(groups_.begin(), groups_.end(), g) - groups_.begin());
            if (i == groups_.size()) groups_.push_back(g);
            group_[p] = static_cast<uint8_t>(i);
        }
        last_group_.assign(groups_.size(), 0);
        last_plane_.assign(num_planes_, 0);
        if (s.per_link) last_link_.assign(f.num_ports(), 0);
        next_ns_ = s.interval_ns;
    }
    uint64_t next_ns() const noexcept { return next_ns_; }

    /// Closes the interval that ends at `now_ns`. Forgets the deepest queues, which start anew.
    void sample(uint64_t now_ns, FabricState& f, const SeriesTotals& t) {
        if (!time_ns.empty() && static_cast<uint64_t>(time_ns.back()) >= now_ns) return;
        time_ns.push_back(static_cast<int64_t>(now_ns));
        next_ns_ = now_ns + settings_.interval_ns;
        std::vector<uint64_t> group(groups_.size(), 0), plane(num_planes_, 0);
        std::vector<uint32_t> deepest(groups_.size(), 0);
        for (uint32_t p = 0; p < f.num_ports(); ++p) {
            const uint64_t bytes = f.bytes_carried(p);
            group[group_[p]] += bytes;
            if (f.is_nic(f.source_node(p))) plane[f.plane(p)] += bytes;
            Port& q = f.port(p);
            deepest[group_[p]] = std::max<uint32_t>(deepest[group_[p]], q.deepest);
            whole_run_deepest_.resize(f.num_ports());
            whole_run_deepest_[p] = std::max(whole_run_deepest_[p], q.deepest);
            q.deepest = q.depth;
            if (settings_.per_link) {
                link_bytes.push_back(bytes - last_link_[f.link_of_port(p)]);
                last_link_[f.link_of_port(p)] = bytes;
            }
        }
        put_differences(group_bytes, group, last_group_);
        put_differences(plane_bytes, plane, last_plane_);
        for (const uint32_t d : deepest) queue_max_bytes.push_back(uint64_t{d} * f.full_bytes());
        goodput_bytes.push_back(t.goodput_bytes - last_.goodput_bytes);
        dropped.push_back(t.dropped - last_.dropped);
        trims.push_back(t.trims - last_.trims);
        retransmitted.push_back(t.retransmitted - last_.retransmitted);
        marked.push_back(t.marked - last_.marked);
        last_ = t;
    }
    /// Deepest queue of a port so far.
    uint16_t deepest(uint32_t p, const FabricState& f) const noexcept {
        return p < whole_run_deepest_.size() ? std::max(whole_run_deepest_[p], f.port(p).deepest) : f.port(p).deepest;
    }
    const std::vector<LinkGroup>& groups() const noexcept { return groups_; }

    std::vector<int64_t> time_ns;  // ends of the intervals; the columns below have a row for each
    std::vector<uint64_t> goodput_bytes, dropped, trims, retransmitted, marked;
    std::vector<uint64_t> plane_bytes, group_bytes, queue_max_bytes, link_bytes;  // rows of several: by plane, group, port

private:
    static void put_differences(std::vector<uint64_t>& out, const std::vector<uint64_t>& now, std::vector<uint64_t>& last) {
        for (size_t i = 0; i < now.size(); ++i) out.push_back(now[i] - last[i]);
        last = now;
    }

    SeriesSettings settings_;
    uint32_t num_planes_;
    uint64_t next_ns_ = UINT64_MAX;
    std::vector<LinkGroup> groups_;
    std::vector<uint8_t> group_;
    std::vector<uint64_t> last_group_, last_plane_, last_link_;
    std::vector<uint16_t> whole_run_deepest_;
    SeriesTotals last_;
};

}  // namespace farstep::sim
