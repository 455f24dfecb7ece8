// Moves packets: from NIC to port, from port to port, from port to NIC. It knows nothing of what they carry.
//
// A data packet waits in the queue of every port it crosses. A control packet never waits: it takes what its links and
// switches take, its bytes are charged to the first and the last port of its way (a port that owes a packet's worth sits
// one slot out), and it is lost if a link of its way is dead when it leaves. Control traffic is about one percent of a
// wire; what it would queue for is less than a slot.
//
// Policy says what a fabric can do, so that others pay nothing for it:
//   kLossless  ports pause the port they are fed by instead of dropping (PFC): see pause()
//   kAdaptive  packets flagged so let each switch choose among the ports on shortest ways the one with the least queue
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "farstep/counter_rng.hpp"
#include "farstep/sim/calendar.hpp"
#include "farstep/sim/fabric_state.hpp"
#include "farstep/sim/fault_actions.hpp"
#include "farstep/sim/packet.hpp"
#include "farstep/sim/router.hpp"
#include "farstep/sim/trace.hpp"

namespace farstep::sim {

struct TrafficCounters {
    uint64_t sent = 0, delivered = 0, trimmed = 0, dropped_full = 0, dropped_down = 0, dropped_loss = 0;
    uint64_t marked = 0, hops = 0, control_sent = 0, control_lost = 0, control_hops = 0, pauses = 0;
    uint64_t dropped() const noexcept { return dropped_full + dropped_down + dropped_loss; }
};

/// What the calendar of small events holds: the kind above, a number below.
enum class Happening : uint8_t { Control, Timer, Task, Pause, Resume, Wake };
constexpr uint64_t event(Happening what, uint64_t number) noexcept { return static_cast<uint64_t>(what) << 56 | number; }
constexpr Happening what_of(uint64_t e) noexcept { return static_cast<Happening>(e >> 56); }
constexpr uint64_t number_of(uint64_t e) noexcept { return e & ((1ull << 56) - 1); }

template <class Policy>
class Network {
public:
    struct Arrival {
        uint32_t packet, nic;
    };

    Network(const FabricColumns& c, const FabricSettings& s)
        : fabric_(c, s), router_(c, fabric_), packets_(kMaxPackets), cargo_(kMaxPackets), controls_(kMaxControls),
          arrivals_(fabric_.total_nic_ports() + 1), turn_(c.num_links), rng_(s.seed ^ 0x5D1E5D1E5D1E5D1Eull),
          order_(s.seed + 0x0123456789ABCDEFull), marks_(s.seed + 0xFEDCBA9876543210ull),
          xoff_(0), xon_(0), buffered_(Policy::kLossless ? c.num_links : 1),
          ingress_(Policy::kLossless ? kMaxPackets : 1), pausing_(Policy::kLossless ? c.num_links : 1) {}

    FabricState& fabric() noexcept { return fabric_; }
    const FabricState& fabric() const noexcept { return fabric_; }
    Router& router() noexcept { return router_; }
    const TrafficCounters& counters() const noexcept { return counters_; }
    uint64_t in_flight() const noexcept { return packets_.live(); }
    Packet& packet(uint32_t i) noexcept { return packets_[i]; }
    Cargo& cargo(uint32_t i) noexcept { return cargo_[i]; }
    Control& control(uint32_t i) noexcept { return controls_[i]; }
    void prefetch_arrival(uint32_t i) const noexcept {
        packets_.prefetch(i);
        cargo_.prefetch(i);
    }
    void prefetch_control(uint32_t i) const noexcept { controls_.prefetch(i); }
    CounterRng& rng() noexcept { return rng_; }
    SparseCalendar& events() noexcept { return events_; }
    /// Keeps account of the packets of so many connections from here on.
    void set_num_connections(uint32_t n) { fates_.assign(n, {}); }
    ConnectionFate& fate(uint32_t connection) noexcept { return fates_[connection]; }
    /// Tells of every packet of this connection from here on.
    void follow(uint32_t connection) {
        trace_.follow(connection);
        is_traced_ = true;
    }
    const PacketTrace& trace() const noexcept { return trace_; }
    bool is_traced() const noexcept { return is_traced_; }
    void trace_arrival(uint32_t number, Tick at) {
        trace_.end(number, Fate::Delivered, fabric_.clock().ns(at), kNone, packets_[number].flags & Packet::kMarked);
    }

    // ---- NICs ------------------------------------------------------------------------------------------------------

    /// A packet starts on the wire of a NIC port at tick `start`; the caller has set what belongs to the transport.
    uint32_t new_packet() {
        packets_.peek(kAhead, [&](uint32_t i) { prefetch_arrival(i); });
        return packets_.take();
    }
    void inject(uint32_t number, uint32_t nic_port, Tick start) {
        NicPort& n = fabric_.nic_port(nic_port);
        Port& q = fabric_.port(n.port);
        Packet& k = packets_[number];
        ++counters_.sent;
        ++q.packets;
        if (k.bytes != fabric_.full_bytes()) [[unlikely]] fabric_.tally(n.port).short_bytes += fabric_.full_bytes() - k.bytes;
        n.free = start + Tick{fabric_.kind(q).period} * kTicksPerSlot;
        if (is_traced_) [[unlikely]] trace_departure(number, k, n.port, start);
        if (q.flags & (Port::kDown | Port::kLossy)) [[unlikely]]
            if (is_lost_on(number, n.port, q, start)) return free_packet(number);
        if constexpr (Policy::kLossless) ingress_[number] = kNone;
        depart(number, k, n.port, q, start);
    }
    void free_packet(uint32_t number) noexcept { packets_.give(number); }

    // ---- control packets ---------------------------------------------------------------------------------------------

    /// The way of control packets over the path with these ports after the uplink of a NIC port.
    ControlPath control_path(uint32_t nic_port, const uint32_t* ports, uint32_t count) {
        ControlPath w;
        const uint32_t uplink = fabric_.nic_port(nic_port).port, bytes = fabric_.settings().control_bytes;
        w.route = router_.encode(ports, count);
        w.nic_port = nic_port;
        w.plane = fabric_.plane(uplink);
        w.last_port = ports[count - 1];
        w.hops = static_cast<uint16_t>(count + 1);
        Tick delay = fabric_.control_ticks(uplink, bytes);
        for (uint32_t i = 0; i < count; ++i) delay += fabric_.control_ticks(ports[i], bytes);
        w.delay = static_cast<uint32_t>(delay);
        return w;
    }
    /// Sends `c` at tick `now`; its `nic` is set here.
    void send_control(const ControlPath& w, Tick now, Control& c) {
        ++counters_.control_sent;
        counters_.control_hops += w.hops;
        NicPort& n = fabric_.nic_port(w.nic_port);
        const uint32_t bytes = fabric_.settings().control_bytes;
        charge_nic(n, bytes);
        charges_.push_back(w.last_port);
        if (fabric_.has_faults() && loses_control(n.port, w.route)) {
            ++counters_.control_lost;
            return;
        }
        c.nic = fabric_.target_node(w.last_port);
        deliver_control(now + w.delay, c);
    }
    void free_control(uint32_t i) noexcept { controls_.give(i); }

    // ---- one slot ----------------------------------------------------------------------------------------------------

    Slot next_arrival() { return wire_.next(); }
    void begin(Slot slot) noexcept { now_slot_ = slot; }

    /// What arrives in this slot: into queues, or into the list of what NICs receive.
    const Arrival* receive(Slot slot, size_t& count) {
        num_arrivals_ = 0;
        wire_.drain_runs(slot, [&](const uint64_t* entries, size_t n) {
            for (size_t i = 0; i < n; ++i) {
                if (i + kAhead < n) prefetch_target(static_cast<uint32_t>(entries[i + kAhead] >> 32));
                arrive(static_cast<uint32_t>(entries[i]), static_cast<uint32_t>(entries[i] >> 32), slot);
            }
        });
        counters_.delivered += num_arrivals_;
        count = num_arrivals_;
        return arrivals_.data();
    }

    /// Every port with something to send serves one packet. The walk over the ports begins at a random place and goes in
    /// a random direction in every slot, so that no port comes before another more often than after it.
    void serve(Slot slot) {
        settle();
        const uint64_t draw = order_.at(slot);
        const size_t words = fabric_.num_active_words();
        const uint64_t* const active = fabric_.active_words();
        size_t w = static_cast<size_t>((static_cast<unsigned __int128>(draw) * words) >> 64);
        const bool forward = draw & 1;
        uint32_t* out = turn_.data();
        for (size_t n = 0; n < words; ++n) {
            const auto base = static_cast<uint32_t>(w << 6);
            if (forward)
                for (uint64_t word = active[w]; word; word &= word - 1)
                    *out++ = base + static_cast<uint32_t>(std::countr_zero(word));
            else
                for (uint64_t word = active[w]; word;) {
                    const int bit = 63 - std::countl_zero(word);
                    word ^= 1ull << bit;
                    *out++ = base + static_cast<uint32_t>(bit);
                }
            if (forward) w = w + 1 == words ? 0 : w + 1;
            else w = w == 0 ? words - 1 : w - 1;
        }
        const auto count = static_cast<size_t>(out - turn_.data());
        Port* const ports = fabric_.ports().data();
        for (size_t i = 0; i < std::min(count, kAhead); ++i) packets_.prefetch(ports[turn_[i]].head);
        for (size_t i = 0; i < count; ++i) {
            if (i + kAhead < count) packets_.prefetch(ports[turn_[i + kAhead]].head);
            serve_port(turn_[i], ports[turn_[i]], slot);
        }
    }
    /// Sent = delivered + trimmed + dropped + in flight. Anything else is a bug of ours.
    void check_conservation() const {
        const TrafficCounters& k = counters_;
        const uint64_t accounted = k.delivered + k.trimmed + k.dropped() + in_flight();
        if (k.sent == accounted) return;
        throw std::logic_error("conservation violated: " + std::to_string(k.sent) + " packets sent, " +
                               std::to_string(accounted) + " accounted for");
    }
    /// Charges ports for the control packets sent since the last time; before ports are served or looked at.
    void settle() noexcept {
        const uint32_t bytes = fabric_.settings().control_bytes;
        const size_t count = charges_.size();
        for (size_t i = 0; i < count; ++i) {
            if (i + kAhead < count) {
                fabric_.prefetch_port(charges_[i + kAhead]);
                __builtin_prefetch(&fabric_.tally(charges_[i + kAhead]), 1);
            }
            charge(charges_[i], bytes);
        }
        charges_.clear();
    }
    bool has_waiting() const noexcept { return waiting_ > 0; }
    uint64_t waiting() const noexcept { return waiting_; }

    // ---- faults ------------------------------------------------------------------------------------------------------

    /// What happens to a port, and to what waits there. Only changes of ports themselves: NICs are told by the engine.
    void apply(FaultKind kind, uint32_t p, double value) {
        FabricState& f = fabric_;
        switch (kind) {
            case FaultKind::Down:
                f.set_down(p, true);
                if (!f.is_nic(f.source_node(p))) flush(p);
                break;
            case FaultKind::Up: f.set_down(p, false); break;
            case FaultKind::Loss: f.set_loss(p, value); break;
            case FaultKind::Rate: f.set_rate_factor(p, value); break;
            case FaultKind::Delay: f.set_extra_delay(p, value); break;
            case FaultKind::SwitchKnowsDown: f.set_flag(p, Port::kAvoided, true); break;
            case FaultKind::SwitchKnowsUp: f.set_flag(p, Port::kAvoided, false); break;
            default: assert(false);
        }
    }
    /// What waits in the queue of a port is lost.
    void flush(uint32_t p) {
        Port& q = fabric_.port(p);
        while (q.depth) {
            const uint32_t number = pop(p, q);
            ++counters_.dropped_down;
            drop(number, p, Fate::DroppedDown, start_of(now_slot_));
            forget(number);
            free_packet(number);
        }
    }

    // ---- lossless fabrics --------------------------------------------------------------------------------------------

    /// Buffered packets of one feeding port above which it is paused, and at which it may go on.
    void set_pause_thresholds(uint32_t xoff_packets, uint32_t xon_packets) noexcept {
        xoff_ = xoff_packets;
        xon_ = xon_packets;
    }
    /// A pause frame reached the port: it stops, or goes on. True if a NIC has to be looked at.
    bool pause(uint32_t p, bool on) {
        Port& q = fabric_.port(p);
        fabric_.set_flag(p, Port::kPaused, on);
        if (fabric_.is_nic(fabric_.source_node(p))) return !on;
        if (on) fabric_.deactivate(p);
        else if (q.depth) fabric_.activate(p);
        return false;
    }

private:
    static constexpr size_t kMaxPackets = size_t{1} << 27, kMaxControls = size_t{1} << 26;  // reserved, not resident

    static constexpr size_t kAhead = 20;  // entries between asking the cache for something and using it

    // ---- ports -------------------------------------------------------------------------------------------------------

    void prefetch_target(uint32_t next) const noexcept {
        if (!(next & (kNicTarget | kChoiceTarget))) fabric_.prefetch_port(next);
    }
    void arrive(uint32_t number, uint32_t next, Slot slot) {
        if (next & kNicTarget) {
            if (num_arrivals_ == arrivals_.size()) arrivals_.resize(2 * arrivals_.size());
            arrivals_[num_arrivals_++] = {number, next & kTargetMask};
            return;
        }
        if constexpr (Policy::kAdaptive)
            if (next & kChoiceTarget) next = choose(number, next & kTargetMask);
        push(number, next, slot);
    }
    void serve_port(uint32_t p, Port& q, Slot slot) {
        if (static_cast<int32_t>(q.free_slot - static_cast<uint32_t>(slot)) > 0) return;
        const PortKind& kind = fabric_.kind(q);
        q.free_slot = static_cast<uint32_t>(slot) + kind.period;
        if (q.debt_bytes >= fabric_.full_bytes()) [[unlikely]] {
            q.debt_bytes = static_cast<uint16_t>(q.debt_bytes - fabric_.full_bytes());
            return;
        }
        const uint16_t depth = q.depth;
        const uint32_t number = pop(p, q);
        Packet& k = packets_[number];
        if (depth > kind.ecn_min) mark(p, depth, kind, k, slot);
        ++q.packets;
        ++counters_.hops;
        if (k.bytes != fabric_.full_bytes()) [[unlikely]] fabric_.tally(p).short_bytes += fabric_.full_bytes() - k.bytes;
        if constexpr (Policy::kLossless) forget(number);
        if (q.flags & Port::kLossy) [[unlikely]]
            if (is_lost_on(number, p, q, start_of(slot) + k.phase)) return free_packet(number);
        depart(number, k, p, q, start_of(slot) + k.phase);
    }
    uint32_t pop(uint32_t p, Port& q) noexcept {
        const uint32_t number = q.head;
        q.head = packets_[number].next;
        --waiting_;
        if (--q.depth == 0) fabric_.deactivate(p);
        return number;
    }
    void push(uint32_t number, uint32_t p, Slot slot) {
        Port& q = fabric_.port(p);
        if (q.flags & Port::kDown) [[unlikely]] return lose_at(number, p);
        if constexpr (!Policy::kLossless)
            if (q.depth >= fabric_.kind(q).limit) [[unlikely]] return overflow(number, p, slot);
        if (q.depth == 0) {
            q.head = number;
            if (!(q.flags & Port::kPaused)) fabric_.activate(p);
        } else {
            packets_[q.tail].next = number;
        }
        q.tail = number;
        ++waiting_;
        if (++q.depth > q.deepest) q.deepest = q.depth;
        if constexpr (Policy::kLossless) remember(number, slot);
    }
    // Puts the packet on the wire of `p` at tick `start`.
    void depart(uint32_t number, Packet& k, uint32_t p, const Port& q, Tick start) {
        uint32_t next = q.target;
        Tick arrival = start + q.delay;
        if constexpr (Policy::kAdaptive)
            if (is_traced_ && (k.flags & Packet::kAdaptive)) [[unlikely]] trace_.cross(number, p);
        if (!(next & kNicTarget)) {
            if constexpr (Policy::kLossless) ingress_[number] = p;
            if (Policy::kAdaptive && (k.flags & Packet::kAdaptive)) next = kChoiceTarget | fabric_.target_node(p);
            else next = router_.step(k.route, next);
        } else if (k.bytes != fabric_.full_bytes()) [[unlikely]] {
            // A short packet is complete sooner, though not before the one ahead of it on this wire.
            // Nor within the slot under way, whose arrivals are dealt with.
            const Tick full = Tick{fabric_.kind(q).period} * kTicksPerSlot;
            arrival = std::max(arrival - (full - fabric_.wire_ticks(p, k.bytes)), start_of(now_slot_ + 1));
        }
        k.phase = static_cast<uint8_t>(arrival);
        wire_.append(slot_of(arrival), uint64_t{next} << 32 | number);
    }
    void mark(uint32_t p, uint16_t depth, const PortKind& kind, Packet& k, Slot slot) noexcept {
        if (depth < kind.ecn_max) {
            const double share = (depth - kind.ecn_min) * kind.ecn_slope;
            if (static_cast<double>(marks_.at(slot * fabric_.num_ports() + p) >> 11) * 0x1.0p-53 >= share) return;
        }
        if (k.flags & Packet::kMarked) return;
        k.flags |= Packet::kMarked;
        ++counters_.marked;
        ++fabric_.tally(p).marks;
    }

    // ---- losses ------------------------------------------------------------------------------------------------------

    // Books a packet as lost at a port.
    void drop(uint32_t number, uint32_t p, Fate fate, Tick at) {
        ++fabric_.tally(p).drops;
        ++fates_[cargo_[number].connection].dropped;
        if (is_traced_) [[unlikely]] trace_end(number, p, fate, at);
    }
    [[gnu::noinline]] bool is_lost_on(uint32_t number, uint32_t p, const Port& q, Tick at) {
        const bool is_down = q.flags & Port::kDown;
        if (is_down) ++counters_.dropped_down;
        else if (rng_.unit() < fabric_.health(p).loss) ++counters_.dropped_loss;
        else return false;
        drop(number, p, is_down ? Fate::DroppedDown : Fate::DroppedLoss, at);
        return true;
    }
    [[gnu::noinline]] void lose_at(uint32_t number, uint32_t p) {
        ++counters_.dropped_down;
        drop(number, p, Fate::DroppedDown, start_of(now_slot_) + packets_[number].phase);
        free_packet(number);
    }
    // ---- packets that are followed ---------------------------------------------------------------------------------------

    void trace_departure(uint32_t number, const Packet& k, uint32_t uplink, Tick start) {
        const Cargo& g = cargo_[number];
        if (!trace_.follows(g.connection)) return;
        TraceRow row;
        row.sent_ns = fabric_.clock().ns(start);
        row.connection = g.connection;
        row.sequence = g.sequence;
        row.path = g.path;
        row.bytes = k.bytes;
        if (!trace_.begin(number, row) || (k.flags & Packet::kAdaptive)) return;  // switches choose, hop by hop
        uint64_t route = k.route;
        for (uint32_t p = uplink;; p = router_.step(route, fabric_.port(p).target)) {
            trace_.cross(number, p);
            if (fabric_.port(p).target & kNicTarget) return;
        }
    }
    void trace_end(uint32_t number, uint32_t p, Fate fate, Tick at) {
        trace_.end(number, fate, fabric_.clock().ns(at), p, packets_[number].flags & Packet::kMarked);
    }
    // No room: the header goes on as a control packet, or the packet is gone.
    [[gnu::noinline]] void overflow(uint32_t number, uint32_t p, Slot slot) {
        Packet& k = packets_[number];
        if (!fabric_.settings().trimming) {
            ++counters_.dropped_full;
            drop(number, p, Fate::DroppedFull, start_of(slot) + k.phase);
            return free_packet(number);
        }
        ++counters_.trimmed;
        ++fabric_.tally(p).trims;
        ++fates_[cargo_[number].connection].trimmed;
        if (is_traced_) [[unlikely]] trace_end(number, p, Fate::Trimmed, start_of(slot) + k.phase);
        const uint32_t bytes = fabric_.settings().trimmed_bytes;
        Tick at = start_of(slot) + k.phase;
        uint64_t route = k.route;
        uint32_t hop = p, hops = 0;
        bool lost = false;
        for (;;) {
            ++hops;
            at += fabric_.control_ticks(hop, bytes);
            lost = lost || fails(hop);
            const uint32_t target = fabric_.port(hop).target;
            if (target & kNicTarget) break;
            hop = router_.step(route, target);
        }
        counters_.control_hops += hops;
        charge(hop, bytes);
        if (!lost) {
            Control c{};
            const Cargo& g = cargo_[number];
            c.connection = g.connection;
            c.kind = Control::kTrimmed;
            c.nic = fabric_.target_node(hop);
            c.put(Trimmed{g.sequence, g.stamp, g.path, k.bytes, k.flags, hop == p});
            deliver_control(at, c);
        } else {
            ++counters_.control_lost;
        }
        free_packet(number);
    }

    // ---- control -----------------------------------------------------------------------------------------------------

    void deliver_control(Tick at, Control& c) {
        const uint32_t number = controls_.take();
        at = std::max(at, start_of(events_.now()));  // ways may be shorter than what is left of the slot
        c.phase = static_cast<uint8_t>(at);
        controls_[number] = c;
        events_.append(slot_of(at), event(Happening::Control, number));
    }
    void charge(uint32_t p, uint32_t bytes) noexcept {
        Port& q = fabric_.port(p);
        fabric_.tally(p).control_bytes += bytes;
        q.debt_bytes = static_cast<uint16_t>(std::min(q.debt_bytes + bytes, 2 * fabric_.full_bytes()));
    }
    void charge_nic(NicPort& n, uint32_t bytes) noexcept {
        n.control_bytes += bytes;
        n.debt_bytes = static_cast<uint16_t>(n.debt_bytes + bytes);
        if (n.debt_bytes < fabric_.full_bytes()) return;
        n.debt_bytes = static_cast<uint16_t>(n.debt_bytes - fabric_.full_bytes());
        n.free += Tick{fabric_.kind(fabric_.port(n.port)).period} * kTicksPerSlot;
    }
    bool fails(uint32_t p) noexcept {
        const Port& q = fabric_.port(p);
        if (!(q.flags & (Port::kDown | Port::kLossy))) return false;
        return (q.flags & Port::kDown) || rng_.unit() < fabric_.health(p).loss;
    }
    bool loses_control(uint32_t uplink, uint64_t route) noexcept {
        if (fails(uplink)) return true;
        for (uint32_t p = uplink;;) {
            const uint32_t target = fabric_.port(p).target;
            if (target & kNicTarget) return false;
            p = router_.step(route, target);
            if (fails(p)) return true;
        }
    }

    // ---- lossless: what each feeding port has in the buffers of the switch it feeds ------------------------------------

    void remember(uint32_t number, Slot slot) {
        if constexpr (Policy::kLossless) {
            const uint32_t from = ingress_[number];
            if (++buffered_[from] < xoff_ || pausing_[from]) return;
            pausing_[from] = 1;
            ++counters_.pauses;
            events_.append(slot + pause_slots(from), event(Happening::Pause, from));
        }
    }
    void forget(uint32_t number) {
        if constexpr (Policy::kLossless) {
            const uint32_t from = ingress_[number];
            if (--buffered_[from] > xon_ || !pausing_[from]) return;
            pausing_[from] = 0;
            events_.append(now_slot_ + pause_slots(from), event(Happening::Resume, from));
        }
    }
    Slot pause_slots(uint32_t p) const noexcept {
        const Tick t = fabric_.port(p).delay - Tick{fabric_.kind(fabric_.port(p)).period} * kTicksPerSlot;
        return 1 + slot_of(t);
    }

    // ---- adaptive routing --------------------------------------------------------------------------------------------

    // Route word of an adaptive packet: the attachment switch it goes to, and above it the port there that faces the NIC.
    uint32_t choose(uint32_t number, uint32_t node) noexcept {
        const uint64_t route = packets_[number].route;
        const auto goal = static_cast<uint32_t>(route), last = static_cast<uint32_t>(route >> 32);
        if (node == goal) return last;
        const Router::Choice c = router_.next_ports(node, goal);
        if (c.count == 0) return last;  // cut off: lost there, as a packet without a route is
        const uint32_t start = rng_.below(c.count);
        uint32_t best = kNone;
        for (uint32_t i = 0; i < c.count; ++i) {
            const uint32_t p = c.ports[(start + i) % c.count];
            const Port& q = fabric_.port(p);
            // A dead port's queue is empty; unless its switch knows, it draws everything.
            if (q.flags & Port::kAvoided) continue;
            if (best == kNone || q.depth < fabric_.port(best).depth) best = p;
        }
        return best == kNone ? c.ports[start] : best;
    }

    FabricState fabric_;
    Router router_;
    Pool<Packet> packets_;
    VirtualArray<Cargo> cargo_;
    Pool<Control> controls_;
    Calendar wire_;
    SparseCalendar events_;
    std::vector<Arrival> arrivals_;
    std::vector<uint32_t> turn_, charges_;
    size_t num_arrivals_ = 0;
    CounterRng rng_, order_, marks_;
    TrafficCounters counters_;
    uint64_t waiting_ = 0;
    Slot now_slot_ = 0;  // of the step under way
    uint32_t xoff_, xon_;
    VirtualArray<uint32_t> buffered_, ingress_;  // by port; by packet
    VirtualArray<uint8_t> pausing_;
    std::vector<ConnectionFate> fates_;
    PacketTrace trace_;
    bool is_traced_ = false;
};

}  // namespace farstep::sim
