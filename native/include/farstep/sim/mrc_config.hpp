// How the two ends of a simulated MRC connection are configured: what they share with a host's, and what a simulation
// makes smaller.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "farstep/connection.hpp"
#include "farstep/sim/fabric_state.hpp"
#include "farstep/sim/transport.hpp"

namespace farstep::sim {

struct MrcSettings {
    uint32_t active_evs_per_plane = 64, backup_evs_per_plane = 32, answer_evs_per_plane = 4;
    uint32_t mpr = 0;                   // receive window in units of 128 packets; 0: what the largest window needs
    uint32_t sack_threshold_bytes = 16'384;
    uint32_t send_queue = 16;           // messages a connection holds at once; power of two
    uint32_t max_events = 8;            // changes of path states kept for one connection between two looks
    bool counts_per_ev = false;
    bool watches_skips = false;         // marks are news too: many
    ReliabilityConfig reliability;
    PathSetConfig paths;                // timing of probes and what they need; sizes and planes are set here
    NsccConfig congestion;              // rate and base round trip are set here where they are 0
    uint64_t seed = 1;
};

/// Configurations of the ends of connections over one fabric.
class MrcConfigs {
public:
    /// Both must outlive it.
    MrcConfigs(const MrcSettings& s, const FabricState& f, const ConnectionsAhead& ahead) : settings_(&s), fabric_(&f) {
        send_queue_ = round_up_power_of_two(static_cast<uint32_t>(std::clamp<uint64_t>(ahead.most_messages, 1, s.send_queue)));
        // One more than there are, so that what lies before the first packet is never taken for one of them.
        records_ = static_cast<uint32_t>(std::min<uint64_t>(ahead.most_packets + 1, kMaxMpr * kMprUnit_packets));
        for (uint32_t n = 0; n < f.num_nics(); ++n) {
            most_ports_ = std::max(most_ports_, f.num_nic_ports(n));
            widest_bytes_per_ns_ = std::max(widest_bytes_per_ns_, nic_gbps(n) / 8);
        }
    }
    uint32_t most_ports() const noexcept { return most_ports_; }
    uint32_t source_evs() const noexcept {
        return (settings_->active_evs_per_plane + settings_->backup_evs_per_plane) * most_ports_;
    }
    uint32_t target_evs() const noexcept { return settings_->answer_evs_per_plane * most_ports_; }
    ConnectionConfig config(bool is_source, uint32_t planes, uint64_t seed) const {
        ConnectionConfig c;
        c.mtu_bytes = fabric_->settings().mtu_bytes;
        c.mpr = c.peer_mpr = mpr();
        c.send_queue = is_source ? send_queue_ : 1;
        c.immediate_queue = 1;
        c.sack_threshold_bytes = settings_->sack_threshold_bytes;
        c.burst_packets = 1;
        c.send_records = is_source ? records_ : 1;
        c.receive_records = is_source ? 1 : records_;
        if (is_source) c.mpr = 1;
        c.max_nacks = is_source ? 1 : 4;
        c.max_sack_triggers = is_source ? 1 : 4;  // answers leave at once
        c.max_probe_replies = is_source ? 2 : 4;
        c.max_probes = is_source ? 8 : 4;
        c.num_ports = c.peer_num_ports = planes;
        c.seed = seed;
        c.reliability = settings_->reliability;
        c.paths = settings_->paths;
        c.paths.num_planes = planes;
        c.paths.max_evs = is_source ? source_evs() : target_evs();
        c.paths.max_events = is_source ? settings_->max_events : 1;
        if (settings_->watches_skips) c.paths.event_mask |= ev_state_bit(EvState::Skip);
        c.paths.counts_per_ev = is_source && settings_->counts_per_ev;
        c.paths.active_per_plane = is_source ? settings_->active_evs_per_plane : settings_->answer_evs_per_plane;
        c.paths.backup_per_plane = is_source ? settings_->backup_evs_per_plane : 0;
        c.paths.seed = seed;
        return c;
    }
    uint32_t mpr() const noexcept {
        if (settings_->mpr) return settings_->mpr;
        // Twice the largest window, so that what is out of order has room.
        const double window = settings_->congestion.max_cwnd_bytes ? static_cast<double>(settings_->congestion.max_cwnd_bytes)
                                                                  : 1.5 * widest_bytes_per_ns_ * assumed_rtt_ns();
        const double packets = 2.0 * window / fabric_->settings().mtu_bytes;
        return static_cast<uint32_t>(std::clamp(packets / kMprUnit_packets + 0.999, 1.0, double{kMaxMpr}));
    }
    /// The same for all ends alike, kept for as long as this.
    const ConnectionConfig& shared(bool is_source, uint32_t planes) {
        auto& kept = shared_[is_source][planes];
        if (!kept) kept = std::make_unique<ConnectionConfig>(config(is_source, planes, 0));
        return *kept;
    }
    const NsccConfig& shared(const NsccConfig& n) {
        return windows_.try_emplace({n.rate_bytes_per_s, n.base_rtt_ns}, n).first->second;
    }
    double assumed_rtt_ns() const noexcept {
        const double rtt = fabric_->settings().base_rtt_ns;
        return rtt > 0 ? rtt : 12'000.0;
    }
    double nic_gbps(uint32_t nic) const noexcept {
        const FabricState& f = *fabric_;
        double sum = 0;
        for (uint32_t p = f.first_port(nic); p < f.end_port(nic); ++p) sum += f.gbps(p);
        return sum;
    }

private:
    const MrcSettings* settings_;
    const FabricState* fabric_;
    uint32_t most_ports_ = 1, send_queue_ = 1, records_ = 0;
    double widest_bytes_per_ns_ = 0;  // all ports of one NIC
    std::unique_ptr<const ConnectionConfig> shared_[2][kMaxPlanes + 1];
    std::map<std::pair<double, uint64_t>, NsccConfig> windows_;  // those that differ, by what they differ in
};

}  // namespace farstep::sim
