// The simulated fabric at one moment: every port with its queue, its rate and its health, and what the ports carried.
//
// A port is a directed link seen from its source. Ports of one node are neighbours in the table, so a route is a stack of
// port numbers relative to the switch they belong to.
#pragma once

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "farstep/sim/fabric_columns.hpp"
#include "farstep/sim/settings.hpp"
#include "farstep/sim/slot_clock.hpp"
#include "farstep/sim/virtual_array.hpp"

namespace farstep::sim {

inline constexpr uint32_t kNone = UINT32_MAX;
// Where a packet on a link arrives: at a port of a switch, at a NIC, or at a switch that chooses the port itself.
inline constexpr uint32_t kNicTarget = 1u << 31, kChoiceTarget = 1u << 30, kTargetMask = kChoiceTarget - 1;

/// The state that a packet crossing the port touches: half a cache line.
struct Port {
    enum Flag : uint8_t { kDown = 1, kLossy = 2, kPaused = 4, kFacesNic = 8, kAvoided = 16 };
    uint32_t head, tail;      // packets waiting, linked through the packets
    uint16_t depth, deepest;
    uint32_t target;          // first port of the switch at the other end, or the NIC there
    uint32_t delay;           // ticks from the start of service to arrival: on the wire, in the switch, on the way
    uint32_t free_slot;       // low bits of the first slot in which it may serve again
    uint32_t packets;         // served so far
    uint16_t debt_bytes;      // of control packets that took their share of the wire
    uint8_t kind;             // index into PortKind
    uint8_t flags;
};
static_assert(sizeof(Port) == 32);

/// What ports of one speed and place have in common.
struct PortKind {
    uint16_t limit = 0;                 // packets waiting at most
    uint16_t ecn_min = 0, ecn_max = 0;  // depth at dequeue from which packets are marked, and from which all are
    uint16_t period = 1;                // slots one packet takes
    double ecn_slope = 0;
    bool operator==(const PortKind&) const = default;
};

/// One port of a NIC: it is pulled, so it has no queue.
struct NicPort {
    Tick free = 0;            // end of the packet it sends
    uint32_t port = 0;        // its uplink
    uint16_t debt_bytes = 0;
    uint64_t control_bytes = 0;  // sent so far
};

/// Rarely touched counters of a port.
struct PortTally {
    uint64_t short_bytes = 0;  // by which packets were shorter than full ones
    uint64_t control_bytes = 0;
    uint32_t drops = 0, trims = 0, marks = 0;
};

/// Zero all over for a port that nothing ever happened to, so that those take no memory.
struct PortHealth {
    double loss;             // share of packets that vanish
    double changed_rate;     // share of the nominal one; 0: never changed
    double extra_delay_ns;
    bool down;
    double rate_factor() const noexcept { return changed_rate > 0 ? changed_rate : 1.0; }
};

class FabricState {
public:
    FabricState(const FabricColumns& c, const FabricSettings& s)
        : settings_(s), clock_(slot_ns(c, s)), num_nics_(c.num_nics), num_nodes_(c.num_nodes), num_ports_(c.num_links),
          num_planes_(c.num_planes), full_bytes_(s.mtu_bytes + s.overhead_bytes), ports_(c.num_links),
          tally_(c.num_links), health_(c.num_links), active_((c.num_links + 63) / 64) {
        if (c.num_links >= kTargetMask) throw std::invalid_argument("topology: more links than the engine can number");
        first_port_.assign(c.out_offset, c.out_offset + c.num_nodes + 1);
        link_of_port_.assign(c.out_links, c.out_links + c.num_links);
        port_of_link_.resize(c.num_links);
        source_.resize(c.num_links);
        target_node_.resize(c.num_links);
        plane_.resize(c.num_links);
        tier_.assign(c.node_tier, c.node_tier + c.num_nodes);
        latency_ns_.resize(c.num_links);
        gbps_.resize(c.num_links);
        for (uint32_t l = 0; l < c.num_links; ++l)
            port_of_link_[l] = static_cast<uint32_t>(c.out_offset[c.link_source[l]]) + static_cast<uint32_t>(c.link_port[l]);
        for (uint32_t p = 0; p < num_ports_; ++p) init_port(c, p);
        for (uint32_t p = 0; p < num_ports_; ++p) retime(p);
        init_nic_ports();
    }

    // ---- shape -----------------------------------------------------------------------------------------------------

    const SlotClock& clock() const noexcept { return clock_; }
    const FabricSettings& settings() const noexcept { return settings_; }
    uint32_t num_nics() const noexcept { return num_nics_; }
    uint32_t num_nodes() const noexcept { return num_nodes_; }
    uint32_t num_ports() const noexcept { return num_ports_; }
    uint32_t num_planes() const noexcept { return num_planes_; }
    uint32_t full_bytes() const noexcept { return full_bytes_; }
    uint32_t first_port(uint32_t node) const noexcept { return static_cast<uint32_t>(first_port_[node]); }
    uint32_t end_port(uint32_t node) const noexcept { return static_cast<uint32_t>(first_port_[node + 1]); }
    uint32_t port_of_link(uint32_t link) const noexcept { return port_of_link_[link]; }
    uint32_t link_of_port(uint32_t port) const noexcept { return link_of_port_[port]; }
    uint32_t reverse(uint32_t port) const noexcept { return port_of_link_[link_of_port_[port] ^ 1]; }
    uint32_t source_node(uint32_t port) const noexcept { return source_[port]; }
    uint32_t target_node(uint32_t port) const noexcept { return target_node_[port]; }
    uint16_t plane(uint32_t port) const noexcept { return plane_[port]; }
    int8_t tier(uint32_t node) const noexcept { return tier_[node]; }
    double gbps(uint32_t port) const noexcept { return gbps_[port]; }
    bool is_nic(uint32_t node) const noexcept { return node < num_nics_; }

    uint32_t first_nic_port(uint32_t nic) const noexcept { return nic_port_offset_[nic]; }
    uint32_t num_nic_ports(uint32_t nic) const noexcept { return nic_port_offset_[nic + 1] - nic_port_offset_[nic]; }
    NicPort& nic_port(uint32_t i) noexcept { return nic_ports_[i]; }
    const NicPort& nic_port(uint32_t i) const noexcept { return nic_ports_[i]; }
    uint32_t total_nic_ports() const noexcept { return static_cast<uint32_t>(nic_ports_.size()); }
    /// Number of the NIC port whose uplink this is.
    uint32_t nic_port_of(uint32_t port) const noexcept {
        return nic_port_offset_[source_[port]] + (port - first_port(source_[port]));
    }
    /// In how many slots, `most` at most, nothing a NIC does reaches a switch, and nothing it says another NIC.
    uint32_t slots_between_nics(uint32_t most) const noexcept {
        Tick there = start_of(most), answer_out = there, answer_in = there;
        for (uint32_t p = 0; p < num_ports(); ++p) {
            const Tick small = control_ticks(p, settings_.control_bytes);
            if (is_nic(source_node(p))) {
                there = std::min<Tick>(there, port(p).delay);
                answer_out = std::min(answer_out, small);
            }
            if (is_nic(target_node(p))) answer_in = std::min(answer_in, small);
        }
        return static_cast<uint32_t>(slot_of(std::min(there, answer_out + answer_in)));
    }

    // ---- ports -----------------------------------------------------------------------------------------------------

    Port& port(uint32_t p) noexcept { return ports_[p]; }
    const Port& port(uint32_t p) const noexcept { return ports_[p]; }
    const PortKind& kind(const Port& q) const noexcept { return kinds_[q.kind]; }
    PortTally& tally(uint32_t p) noexcept { return tally_[p]; }
    const PortTally& tally(uint32_t p) const noexcept { return tally_[p]; }
    const PortHealth& health(uint32_t p) const noexcept { return health_[p]; }
    VirtualArray<Port>& ports() noexcept { return ports_; }
    void prefetch_port(uint32_t p) const noexcept { ports_.prefetch(p); }
    uint64_t* active_words() noexcept { return active_.data(); }
    size_t num_active_words() const noexcept { return active_.size(); }
    void activate(uint32_t p) noexcept { active_[p >> 6] |= 1ull << (p & 63); }
    void deactivate(uint32_t p) noexcept { active_[p >> 6] &= ~(1ull << (p & 63)); }

    uint64_t bytes_carried(uint32_t p) const noexcept {
        const uint64_t own = is_nic(source_[p]) ? nic_ports_[nic_port_of(p)].control_bytes : 0;
        return static_cast<uint64_t>(ports_[p].packets) * full_bytes_ - tally_[p].short_bytes + tally_[p].control_bytes + own;
    }
    /// Ticks a packet of this size is on the wire of a port.
    Tick wire_ticks(uint32_t p, uint32_t bytes) const noexcept {
        const uint64_t t = uint64_t{kinds_[ports_[p].kind].period} * kTicksPerSlot * bytes;
        return (t + full_bytes_ / 2) / full_bytes_;
    }
    /// Ticks a control packet needs for one hop.
    Tick control_ticks(uint32_t p, uint32_t bytes) const noexcept {
        const uint32_t full = kinds_[ports_[p].kind].period * kTicksPerSlot;
        return ports_[p].delay - full + wire_ticks(p, bytes);
    }

    // ---- health ----------------------------------------------------------------------------------------------------

    /// Any port is down or loses packets: only then need control packets look at each hop.
    bool has_faults() const noexcept { return num_impaired_ > 0; }
    void set_down(uint32_t p, bool down) noexcept {
        const bool was = is_impaired(p);
        health_[p].down = down;
        set_flag(p, Port::kDown, down);
        note_impaired(was, is_impaired(p));
    }
    void set_loss(uint32_t p, double loss) noexcept {
        const bool was = is_impaired(p);
        health_[p].loss = loss;
        set_flag(p, Port::kLossy, loss > 0);
        note_impaired(was, is_impaired(p));
    }
    void set_rate_factor(uint32_t p, double factor) {
        health_[p].changed_rate = std::max(factor, 1e-9);  // the slowest there is, and not the 0 of no change
        retime(p);
    }
    void set_extra_delay(uint32_t p, double ns) {
        health_[p].extra_delay_ns = ns;
        retime(p);
    }
    void set_flag(uint32_t p, Port::Flag flag, bool on) noexcept {
        Port& q = ports_[p];
        q.flags = static_cast<uint8_t>(on ? q.flags | flag : q.flags & ~flag);
    }
    /// Slots a packet takes on this link, and by how much its rate had to be rounded for that.
    double rate_error(uint32_t p) const noexcept {
        const double exact = fastest_gbps_ / (gbps_[p] * health_[p].rate_factor());
        return kinds_[ports_[p].kind].period / exact - 1.0;
    }

private:
    static double slot_ns(const FabricColumns& c, const FabricSettings& s) {
        double fastest = 0;
        for (uint32_t l = 0; l < c.num_links; ++l) fastest = std::max(fastest, c.link_rate_gbps[l]);
        if (fastest <= 0) throw std::invalid_argument("topology: no link has a rate");
        if (s.mtu_bytes == 0 || s.mtu_bytes + s.overhead_bytes > 65'535)
            throw std::invalid_argument("mtu_bytes + overhead_bytes = " + std::to_string(s.mtu_bytes + s.overhead_bytes) +
                                        "; valid: 1 to 65535");
        return 8.0 * (s.mtu_bytes + s.overhead_bytes) / fastest;
    }

    void init_port(const FabricColumns& c, uint32_t p) {
        const uint32_t link = link_of_port_[p];
        const auto source = static_cast<uint32_t>(c.link_source[link]), target = static_cast<uint32_t>(c.link_target[link]);
        source_[p] = source;
        target_node_[p] = target;
        plane_[p] = static_cast<uint16_t>(c.link_plane[link]);
        gbps_[p] = c.link_rate_gbps[link];
        fastest_gbps_ = std::max(fastest_gbps_, gbps_[p]);
        latency_ns_[p] = c.link_latency_ns[link] + c.switch_latency_ns[source];
        if (is_nic(target)) latency_ns_[p] += settings_.host_latency_ns;
        Port& q = ports_[p];
        q.head = q.tail = kNone;
        q.target = is_nic(target) ? kNicTarget | target : static_cast<uint32_t>(c.out_offset[target]);
        q.flags = is_nic(target) ? Port::kFacesNic : 0;
    }
    void init_nic_ports() {
        nic_port_offset_.resize(num_nics_ + 1);
        for (uint32_t n = 0; n < num_nics_; ++n) {
            nic_port_offset_[n + 1] = nic_port_offset_[n] + (end_port(n) - first_port(n));
            if (num_nic_ports(n) > 32)
                throw std::invalid_argument("topology: NIC " + std::to_string(n) + " has more than 32 ports");
        }
        nic_ports_.resize(nic_port_offset_[num_nics_]);
        for (uint32_t n = 0; n < num_nics_; ++n)
            for (uint32_t k = 0; k < num_nic_ports(n); ++k) nic_ports_[nic_port_offset_[n] + k].port = first_port(n) + k;
    }

    // Derives period, delay and thresholds from rate, latency and health.
    void retime(uint32_t p) {
        const PortHealth& h = health_[p];
        Port& q = ports_[p];
        const double exact = fastest_gbps_ / (gbps_[p] * h.rate_factor());
        PortKind k;
        k.period = static_cast<uint16_t>(std::clamp(std::round(exact), 1.0, 65'535.0));
        const double rtt_ns = settings_.base_rtt_ns > 0 ? settings_.base_rtt_ns : 12'000.0;
        const double bdp = gbps_[p] / 8 * rtt_ns;  // of the sound link: switches are set up once
        const bool last = q.flags & Port::kFacesNic;
        const bool has_own = last && settings_.last_hop_limit_bytes > 0;
        double limit = has_own ? settings_.last_hop_limit_bytes : settings_.queue_limit_bytes;
        if (limit <= 0) limit = (last ? 1.5 : 1.0) * bdp;
        k.limit = packets_of(limit, 1);
        if (last && !settings_.last_hop_ecn) {
            k.ecn_min = k.ecn_max = UINT16_MAX;
        } else {
            k.ecn_min = packets_of(settings_.ecn_min_bytes >= 0 ? settings_.ecn_min_bytes : 0.2 * bdp, 0);
            k.ecn_max = std::max<uint16_t>(packets_of(settings_.ecn_max_bytes >= 0 ? settings_.ecn_max_bytes : 0.8 * bdp, 0),
                                           static_cast<uint16_t>(k.ecn_min + 1));
        }
        k.ecn_slope = settings_.ecn_max_share / (k.ecn_max - k.ecn_min + (k.ecn_max == k.ecn_min));
        q.kind = kind_of(k);
        const Tick delay = Tick{k.period} * kTicksPerSlot + clock_.ticks(latency_ns_[p] + h.extra_delay_ns);
        if (delay > UINT32_MAX)
            throw std::invalid_argument("link " + std::to_string(link_of_port_[p]) +
                                        ": latency above what the engine can count");
        q.delay = static_cast<uint32_t>(delay);
    }
    uint16_t packets_of(double bytes, uint16_t least) const noexcept {
        return static_cast<uint16_t>(std::clamp(std::floor(bytes / full_bytes_ + 0.5), static_cast<double>(least), 65'000.0));
    }
    uint8_t kind_of(const PortKind& k) {
        for (size_t i = 0; i < kinds_.size(); ++i)
            if (kinds_[i] == k) return static_cast<uint8_t>(i);
        if (kinds_.size() == 255) throw std::invalid_argument("topology: more than 255 kinds of ports (rates and queue sizes)");
        kinds_.push_back(k);
        return static_cast<uint8_t>(kinds_.size() - 1);
    }
    bool is_impaired(uint32_t p) const noexcept { return health_[p].down || health_[p].loss > 0; }
    void note_impaired(bool was, bool is) noexcept { num_impaired_ += static_cast<int>(is) - static_cast<int>(was); }

    FabricSettings settings_;
    SlotClock clock_;
    uint32_t num_nics_, num_nodes_, num_ports_, num_planes_, full_bytes_;
    VirtualArray<Port> ports_;
    VirtualArray<PortTally> tally_;
    VirtualArray<PortHealth> health_;
    VirtualArray<uint64_t> active_;
    std::vector<PortKind> kinds_;
    std::vector<int64_t> first_port_;
    std::vector<int32_t> link_of_port_;
    std::vector<uint32_t> port_of_link_, source_, target_node_;
    std::vector<uint16_t> plane_;
    std::vector<int8_t> tier_;
    std::vector<double> latency_ns_, gbps_;
    double fastest_gbps_ = 0;
    std::vector<uint32_t> nic_port_offset_;
    std::vector<NicPort> nic_ports_;
    int num_impaired_ = 0;
};

}  // namespace farstep::sim
