// What strangers and hostile peers can send: endpoints under packets whose every field is chosen by an attacker who knows
// queue pair numbers, windows and keys, and named cases of what once went wrong.
// Usage: hostile_test [seed [iterations]], one iteration to a hostile packet
//
// The sanitizers watch memory, assertions are on; beyond that nothing may transmit or fire timers without end.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "endpoint_rig.hpp"
#include "farstep/collective_run.hpp"

namespace {

// ---- an attacker who knows everything -------------------------------------------------------------------------------

class Attacker {
public:
    explicit Attacker(Rig& rig) : rig_(rig), rng_(seed * 77 + 5) {}

    void strike() {
        Side& s = chance(2) ? rig_.a : rig_.b;
        if (s.slots.empty()) return;
        Connection& c = *s.core.connection(s.slots[rng_.below(static_cast<uint32_t>(s.slots.size()))]);
        wire::Packet p;
        p.bth.dest_qpn = c.config().qpn;
        p.bth.rtx = chance(2);
        p.bth.ack_request = chance(2);
        switch (rng_.below(8)) {
            case 0:
            case 1: data(p, c, s); break;
            case 2:
            case 3: sack(p, c); break;
            case 4:
                p.bth.opcode = wire::Opcode::Ack;
                p.aeth.msn = near(c.sender().queue().completed(), 4) & wire::kPsnMask;
                break;
            case 5: nack(p, c); break;
            case 6:
                p.bth.opcode = wire::Opcode::Probe;
                p.peth.probe_id = static_cast<uint16_t>(rng_.next());
                break;
            default: endpoint_operation(p, c);
        }
        Bytes d = seal(p);
        if (chance(50)) d.resize(rng_.below(static_cast<uint32_t>(d.size()) + 1));
        Arrival at;
        at.local_port = static_cast<uint8_t>(rng_.below(rig_.options.ports));
        at.entropy = static_cast<uint32_t>(rng_.next());
        at.ecn_ce = chance(3);
        at.trimmed = chance(8) ? static_cast<uint8_t>(1 + rng_.below(2)) : 0;
        s.core.on_datagram(rig_.now, at, d.data(), d.size());
    }
    bool chance(uint32_t one_in) { return rng_.below(one_in) == 0; }
    uint32_t below(uint32_t n) { return rng_.below(n); }

private:
    uint32_t near(uint64_t value, uint32_t by) {
        return chance(10) ? static_cast<uint32_t>(rng_.next()) : static_cast<uint32_t>(value + rng_.below(2 * by) - by / 2);
    }
    uint16_t time() { return static_cast<uint16_t>(timestamp_of(rig_.now) - (chance(3) ? rng_.below(4) : rng_.below(400))); }

    void data(wire::Packet& p, const Connection& c, const Side& s) {
        static constexpr wire::Opcode kOpcodes[] = {wire::Opcode::WriteFirst,   wire::Opcode::WriteMiddle,
                                                    wire::Opcode::WriteLast,    wire::Opcode::WriteLastImm,
                                                    wire::Opcode::WriteOnly,    wire::Opcode::WriteOnlyImm};
        p.bth.opcode = kOpcodes[rng_.below(6)];
        p.bth.has_timestamp = chance(2);
        p.tseth.timestamp = time();
        p.bth.psn = near(c.receiver().expected_psn(), c.config().mpr * kMprUnit_packets) & wire::kPsnMask;
        p.meth = {static_cast<uint16_t>(chance(2) ? c.receiver().immediates_raised() + rng_.below(20) : rng_.next()),
                  static_cast<uint16_t>(c.receiver().messages_done() + rng_.below(3))};
        p.payload = body_;
        p.payload_bytes = chance(2) ? c.config().mtu_bytes : rng_.below(sizeof body_);
        const uint32_t keys[] = {s.key, s.key, s.key, s.readable_key, static_cast<uint32_t>(rng_.next()), 0, 0xFFFFFFFFu};
        p.reth = {edge(), keys[rng_.below(7)], chance(4) ? static_cast<uint32_t>(rng_.next()) : p.payload_bytes};
    }
    uint64_t edge() {
        switch (rng_.below(4)) {
            case 0: return kRegion_bytes - rng_.below(600);
            case 1: return 0 - static_cast<uint64_t>(rng_.below(600));
            case 2: return rng_.next();
            default: return rng_.below(kRegion_bytes);
        }
    }
    void sack(wire::Packet& p, const Connection& c) {
        const uint32_t window = c.config().peer_mpr * kMprUnit_packets;
        p.bth.opcode = wire::Opcode::Sack;
        p.seth.mark = static_cast<wire::SackMark>(rng_.below(3));
        p.seth.probe_reply = chance(3);
        p.seth.ack_psn_offset = static_cast<int16_t>(chance(2) ? near(0, window) : rng_.next());
        p.seth.cack_psn = near(c.sender().una(), window) & wire::kPsnMask;
        p.seth.sack_offset = static_cast<int16_t>(chance(2) ? near(0, window) : rng_.next());
        p.seth.bitmap = chance(4) ? ~0ull : rng_.next();
        p.cc.timestamp = time();
        p.cc.ooo_count = chance(2) ? 0 : rng_.below(1u << 15);
        p.cc.restore_cwnd = chance(4);
        p.cc.rcv_cwnd_pen = chance(4) ? rng_.below(128) : 0;
        p.cc.rcvd_units = rng_.below(1u << 24);
    }
    void nack(wire::Packet& p, const Connection& c) {
        static constexpr wire::NackReason kReasons[] = {
            wire::NackReason::Trimmed,        wire::NackReason::TrimmedLastHop, wire::NackReason::NoBitmap,
            wire::NackReason::NoPacketBuffer, wire::NackReason::NoResource,     wire::NackReason::PsnOutOfWindow,
            wire::NackReason::UnexpectedEvent};
        p.bth.opcode = wire::Opcode::Nack;
        p.neth.reason = kReasons[rng_.below(chance(20) ? 7 : 6)];
        p.neth.vendor = static_cast<uint8_t>(rng_.below(4));
        p.neth.nack_psn = near(c.sender().una(), 32) & wire::kPsnMask;
        p.neth.timestamp = time();
    }
    void endpoint_operation(wire::Packet& p, const Connection& c) {
        p.bth.dest_qpn = wire::kEndpointQpn;
        const uint32_t psn = c.config().peer_start_psn;
        p.bth.psn = (psn & 0xFF) << 16 | rng_.below(1u << 16);
        const uint32_t context = (psn >> 16) << 24 | c.config().qpn;
        if (chance(2)) {
            p.bth.opcode = wire::Opcode::EndpointResponse;
            p.eeth.vendor = static_cast<uint8_t>(psn >> 8), p.eeth.context = context;
            return;
        }
        p.bth.opcode = wire::Opcode::EndpointRequest;
        p.erth.op = static_cast<wire::EndpointOp>(rng_.below(2));
        p.erth.port_status_mask = chance(8) ? 0 : chance(4) ? static_cast<uint32_t>(rng_.next()) : ~0u;
        p.erth.vendor = static_cast<uint8_t>(psn >> 8), p.erth.context = context;
    }

    Rig& rig_;
    CounterRng rng_;
    uint8_t body_[400] = {1};
};

void endpoints_survive_an_attacker_who_knows_everything(uint64_t strikes) {
    RigOptions o;
    Rig rig(o);
    Attacker attacker(rig);
    for (uint64_t n = 0; n < strikes; ++n) {
        bool fresh = rig.a.slots.empty();
        for (Side* s : {&rig.a, &rig.b})
            for (uint32_t i : s->slots) fresh = fresh || !s->core.connection(i)->is_open();
        if (fresh && (rig.a.slots.empty() || attacker.chance(6))) {
            rig.restart();
            for (int k = 0; k < 3; ++k) rig.connect(1 + k % 2);
        }
        for (Side* s : {&rig.a, &rig.b}) {
            for (uint32_t k = attacker.below(4); k; --k)
                rig.post(*s, attacker.below(3), attacker.below(3) ? attacker.below(5000) : 0, attacker.chance(2));
            uint32_t value;
            bool must_transmit;
            for (uint32_t i : s->slots)
                if (attacker.chance(3)) s->core.pop_immediate(rig.now, i, value, must_transmit);
        }
        if (attacker.chance(40)) rig.a.core.set_local_port(rig.now, attacker.below(2), attacker.chance(2));
        attacker.strike();
        rig.now += attacker.chance(30) ? 30'000'000 : attacker.below(100'000);
        for (Side* s : {&rig.a, &rig.b}) {
            rig.let_time_act(*s);
            rig.pump(*s, [&](const Bytes&) { return !attacker.chance(4); });
        }
    }
}

// ---- named cases ----------------------------------------------------------------------------------------------------

wire::Packet port_update(uint32_t context, uint8_t vendor, uint32_t psn) {
    wire::Packet p;
    p.bth.opcode = wire::Opcode::EndpointRequest;
    p.bth.dest_qpn = wire::kEndpointQpn;
    p.bth.psn = psn;
    p.erth.op = wire::EndpointOp::PortStatusUpdate;
    p.erth.context = context, p.erth.vendor = vendor;
    return p;
}

void a_port_update_from_who_only_knows_the_queue_pair_number_is_ignored() {
    Rig rig(RigOptions{});
    rig.connect();
    rig.settle();
    Connection& c = *rig.a.core.connection(rig.a.slots[0]);
    wire::Packet p = port_update(c.config().qpn, 0, 1);
    const Bytes forged = seal(p);
    rig.a.core.on_datagram(rig.now, {}, forged.data(), forged.size());
    require(c.is_open(), "a stranger took the ports from a peer");
    require(rig.a.core.counters().port_updates == 0, "a stranger's port update was believed");
    const uint32_t psn = c.config().peer_start_psn;
    p = port_update((psn >> 16) << 24 | c.config().qpn, static_cast<uint8_t>(psn >> 8), (psn & 0xFF) << 16 | 1);
    p.erth.port_status_mask = 2;
    const Bytes real = seal(p);
    rig.a.core.on_datagram(rig.now, {}, real.data(), real.size());
    require(rig.a.core.counters().port_updates == 1, "the peer's own port update was not believed");
    require(c.is_open() && c.paths().plane_mask() == 2, "the peer's port is still in use", c.paths().plane_mask());
}

void port_updates_of_a_real_peer_arrive_and_are_answered() {
    Rig rig(RigOptions{});
    rig.connect();
    rig.settle();
    rig.b.core.set_local_port(rig.now, 0, false);
    rig.settle();
    require(rig.a.core.counters().port_updates == 1, "the update did not arrive");
    require(rig.a.core.connection(rig.a.slots[0])->paths().plane_mask() == 2, "the plane is still in use");
    rig.now += 10'000'000'000;
    uint32_t requests = 0;
    for (int n = 0; n < 20; ++n) {
        rig.now += 400'000'000;
        rig.b.core.on_timeout(rig.now);
        rig.pump(rig.b, [&](const Bytes& d) { return requests += d[0] == 0xD8, true; });
        rig.pump(rig.a, [](const Bytes&) { return true; });
    }
    require(requests == 0, "an answered update is sent again", requests);
}

void a_queue_pair_number_takes_more_than_a_few_thousand_guesses() {
    RigOptions o;
    o.max_connections = 256;
    uint32_t seen = 0;
    for (uint32_t n = 0; n < 64; ++n) {
        EndpointConfig c;
        c.max_connections = 256, c.max_regions = 1, c.seed = 1000 * seed + n;
        EndpointCore core(c);
        uint32_t qpn = 0, psn = 0;
        core.reserve_connection(qpn, psn);
        seen |= qpn;
    }
    require(__builtin_popcount(seen >> 8) == 16, "of 24 bits this many are random", __builtin_popcount(seen >> 8));
}

void a_connection_without_a_usable_port_fails_at_once() {
    Rig rig(RigOptions{});
    for (uint32_t port = 0; port < 2; ++port) rig.a.core.set_local_port(rig.now, port, false);
    rig.connect();
    require(rig.a.core.connection(rig.a.slots[0])->error() == ConnectionError::NoPort, "it is open and can never send");
}

/// Uses up the window of the first connection, so that the second has to wait.
void fill_window(Rig& rig, Bytes& first) {
    rig.post(rig.a, 0, 11 * 256, false);
    rig.pump(rig.a, [&](const Bytes& d) {
        if (first.empty()) first = d;
        return false;
    });
    rig.post(rig.a, 1, 256, false);
    uint32_t sent = rig.pump(rig.a, [](const Bytes&) { return false; });
    require(sent == 0, "the window is not full", sent);
}
RigOptions narrow() {
    RigOptions o;
    o.ports = 1;
    o.cc.max_cwnd_bytes = o.cc.initial_cwnd_bytes = 4096;
    return o;
}

void what_a_refused_packet_leaves_is_used_by_others() {
    Rig rig(narrow());
    rig.connect();
    rig.connect();
    rig.settle();
    Bytes first;
    fill_window(rig, first);
    wire::Packet p;
    require(wire::decode(first.data(), first.size(), p) == wire::DecodeResult::Ok, "not a packet");
    // The peer has no room for anything of the first connection.
    for (uint32_t n = 0; n < 64; ++n) {
        wire::Packet nack;
        nack.bth.opcode = wire::Opcode::Nack;
        nack.bth.dest_qpn = rig.a.core.connection(rig.a.slots[0])->config().qpn;
        nack.neth.reason = wire::NackReason::NoResource;
        nack.neth.nack_psn = (p.bth.psn + n) & wire::kPsnMask;
        nack.neth.timestamp = p.tseth.timestamp;
        const Bytes d = seal(nack);
        rig.a.core.on_datagram(rig.now, {}, d.data(), d.size());
    }
    uint32_t packets = 0;
    const uint32_t wanted = rig.a.core.connection(rig.a.slots[1])->config().peer_qpn;
    rig.pump(rig.a, [&](const Bytes& d) { return packets += wire::load_be24(d.data() + 5) == wanted, false; });
    require(packets > 0, "the second connection sleeps although the window is open");
}

void a_path_given_back_is_used_at_once() {
    Rig rig(narrow());
    rig.connect();
    rig.settle();
    const uint32_t i = rig.a.slots[0];
    for (uint16_t ev = 0; ev < 6; ++ev) rig.a.core.set_ev_denied(rig.now, i, ev, true);
    rig.post(rig.a, 0, 256, false);
    rig.pump(rig.a, [](const Bytes&) { return true; });
    rig.a.core.set_ev_denied(rig.now, i, 9999, false);
    rig.a.core.set_ev_denied(rig.now, i, 3, false);
    require(rig.pump(rig.a, [](const Bytes&) { return true; }) > 0, "the connection sleeps although it has a path again");
}

void whole_packets_in_the_class_of_trimmed_ones_are_taken() {
    Rig rig(RigOptions{});
    rig.connect();
    rig.settle();
    rig.post(rig.a, 0, 1000, true);
    Arrival at;
    at.trimmed = 2;
    rig.pump(rig.a, [&](const Bytes& d) { return rig.b.core.on_datagram(rig.now, at, d.data(), d.size()), false; });
    require(rig.b.core.connection(rig.b.slots[0])->receiver().immediates_raised() == 1, "a whole packet was refused");
}

void an_end_that_comes_before_the_beginning_is_kept() {
    for (const bool is_real : {true, false}) {
        Rig rig(RigOptions{});
        uint32_t qpn = 0, start_psn = 0;
        require(rig.a.core.reserve_connection(qpn, start_psn) == 0, "the first is number 0");
        wire::Packet p;
        p.bth.opcode = wire::Opcode::Nack;
        p.bth.dest_qpn = qpn;
        p.neth.reason = wire::NackReason::UnexpectedEvent;
        p.neth.vendor = static_cast<uint8_t>(FatalCode::Closed);
        p.neth.nack_psn = is_real ? start_psn : start_psn ^ 1;
        const Bytes d = seal(p);
        rig.a.core.on_datagram(rig.now, {}, d.data(), d.size());
        ConnectionConfig c = rig.options.config;
        c.qpn = qpn, c.start_psn = start_psn;
        rig.open(rig.a, 0, c, 1);
        const ConnectionError why = rig.a.core.connection(0)->error();
        require(why == (is_real ? ConnectionError::RemoteClosed : ConnectionError::None), "what the peer said got lost");
    }
}

void the_end_of_a_connection_is_told_out_of_turn() {
    RigOptions o;
    Rig rig(o);
    for (int n = 0; n < 6; ++n) rig.connect();
    rig.settle();
    for (size_t n = 0; n < 6; ++n) rig.post(rig.a, n, 5000, false);
    rig.a.core.say_closed(rig.now, rig.a.slots[5]);
    TxBurst burst;
    require(rig.a.core.poll_control(rig.now, rig.a.slots[5], burst), "nothing is said");
    require(burst.connection == rig.a.slots[5] && burst.segments[0].header[0] == 0xDD, "something else is said");
}

/// A loop whose connections have ended: nothing can be posted any more, what came before can still be taken.
class EndedLoop final : public LoopAccess {
public:
    std::vector<uint32_t> immediates;
    uint64_t post(const Write&) noexcept override { return kRejected; }
    bool pop_immediate(uint32_t, uint32_t& value) noexcept override {
        if (next_ == immediates.size()) return false;
        value = immediates[next_++];
        return true;
    }
    uint64_t completed(uint32_t) noexcept override { return 0; }
    bool is_open(uint32_t) noexcept override { return false; }
    uint64_t waiting(uint32_t) noexcept override { return 0; }

private:
    size_t next_ = 0;
};

/// A link all of whose chunks have come, in slots used in turn, by the time the peer has left.
CollectiveRun::Status receive_after_the_peer_left(uint32_t chunks, uint32_t slots) {
    constexpr uint32_t kSlot_bytes = 4096;
    Bytes inbox(kControlEntries * kControlEntry_bytes + slots * kSlot_bytes), outbox(inbox.size()), memory(chunks * 8);
    CollectiveLink link(0, {inbox.data(), outbox.data(), 1, 2, kSlot_bytes, slots});
    CollectivePlan plan;
    plan.links.resize(1);
    EndedLoop loop;
    const CollectiveTask task{1, 2, ElementType::uint8, Reduction::sum, 1};
    for (uint32_t c = 0; c < chunks; ++c) {
        plan.links[0].receives.push_back({c, 0, c * 8, 8, 0, 0, 0, true, false, true});
        plan.first.push_back(c);
        plan.order.push_back(0);
        loop.immediates.push_back(c % slots << 24 | kNoSlot << 18 | task.operation << kCheckBits | task.check);
    }
    plan.first.push_back(chunks);
    CollectiveRun run(plan, {&link}, task, MemorySpace({{0, memory.data(), 0}}), MemorySpace({{0, memory.data(), 0}}));
    require(run.advance(loop), "the run goes on without a peer");
    return run.status();
}
void a_peer_that_is_through_may_leave_before_it_has_its_credits() {
    require(receive_after_the_peer_left(16, 16) == CollectiveRun::Status::Done, "all chunks came, and yet it failed");
}
void a_peer_that_uses_slots_without_credit_does_no_harm() {
    require(receive_after_the_peer_left(200, 4) == CollectiveRun::Status::Done, "all chunks came, and yet it failed");
}

}  // namespace

int main(int argc, char** argv) {
    seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
    const uint64_t iterations = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 2000;
    a_port_update_from_who_only_knows_the_queue_pair_number_is_ignored();
    port_updates_of_a_real_peer_arrive_and_are_answered();
    a_queue_pair_number_takes_more_than_a_few_thousand_guesses();
    a_connection_without_a_usable_port_fails_at_once();
    what_a_refused_packet_leaves_is_used_by_others();
    a_path_given_back_is_used_at_once();
    whole_packets_in_the_class_of_trimmed_ones_are_taken();
    an_end_that_comes_before_the_beginning_is_kept();
    the_end_of_a_connection_is_told_out_of_turn();
    a_peer_that_is_through_may_leave_before_it_has_its_credits();
    a_peer_that_uses_slots_without_credit_does_no_harm();
    endpoints_survive_an_attacker_who_knows_everything(iterations);
    std::printf("hostile_test: ok\n");
    return 0;
}
