// Scenarios of applications and peers: slow ones, vanished ones, ended connections, ports, forgery.
#pragma once

#include "pair.hpp"

namespace farstep::sim {

// ---- applications and peers ------------------------------------------------------------------------------------------------

// A consumer that stops for a minute holds the sender back and costs no connection.
inline void slow_application(uint64_t seed) {
    for (const uint32_t queue : {1024u, 256u, 16u}) {
        PairOptions o;
        o.seed = seed;
        o.lines = lines(2, 0, kMs);
        o.config.wimm = 128;
        o.config.immediate_queue = queue;
        Pair p(o);
        p.there->consume_every_ns = 60 * kSecond;
        p.send(2000, 100, true);
        p.world.run(50 * kSecond);
        SIM_CHECK(p.sender().is_open(), "a slow application ended the connection: %s", name(p.sender().error()));
        const uint64_t sent = p.world.network.counters().sent;
        p.world.run(59 * kSecond);
        figure("packets per second while it sleeps", static_cast<double>(p.world.network.counters().sent - sent) / 9);
        SIM_CHECK(p.world.network.counters().sent - sent < 9 * 100, "the waiting is busy");
        SIM_CHECK(queue < 256 || p.counters().nacks == 0, "a sender that keeps to half of the queue was refused");
        p.there->consume_every_ns = 0;
        SIM_CHECK(p.finish(70 * kSecond), "not finished: %s", p.world.describe_stall().c_str());
        p.world.check_idle();
    }
}
// One packet is lost and the one after it is refused again and again for want of room: that one's news must not put off
// the search for the other, whose arrival may be what makes room.
inline void refusals_put_off_no_timeout(uint64_t) {
    ConnectionConfig config;
    PathSet paths(config.paths);
    for (uint16_t k = 0; k < 4; ++k) paths.add(0, {0, 0, k, k}, true);
    NsccConfig window;
    window.quick_adapt = false;  // the window lets both out at any time
    Nscc cc(window);
    Sender sender(config, cc, paths);
    const uint64_t first = sender.next_psn();
    for (uint32_t k = 0; k < 2; ++k) sender.queue().post(WriteRequest{});
    uint64_t now = 1000, newest_tx_ns = 0, refusals = 0;
    for (; now < 2 * kSecond && sender.counters().lost_timeout == 0; now += kMs) {
        bool wants_probe = false;
        if (sender.next_timeout_ns() <= now) SIM_CHECK(sender.on_timeout(now, wants_probe), "it gave up");
        EvIndex ev = kNoEv;
        uint64_t psns[kMaxBurst_packets];
        while (sender.poll_burst(now, 1, 1, ev, psns)) newest_tx_ns = now;
        wire::Packet refusal;
        refusal.neth.reason = wire::NackReason::NoResource;
        refusal.neth.nack_psn = static_cast<uint32_t>(first + 1) & wire::kPsnMask;
        refusal.neth.timestamp = timestamp_of(newest_tx_ns);
        const int64_t inflight = sender.inflight_bytes();
        SIM_CHECK(sender.on_nack(now, refusal), "it gave up");
        refusals += sender.inflight_bytes() < inflight;
    }
    figure("ms until the lost one is given up", static_cast<double>(now) * 1e-6);
    SIM_CHECK(refusals > 3, "the second packet was refused %llu times only", static_cast<unsigned long long>(refusals));
    SIM_CHECK(sender.counters().lost_timeout > 0, "the first packet was never given up");
    sender.release_inflight();
}
inline void peer_vanishes(uint64_t seed) {
    PairOptions o;
    o.seed = seed;
    o.lines = lines(2, 0, kMs);
    Pair p(o);
    p.send_without_end();
    p.world.run(100 * kMs);
    p.world.vanish(1);
    const uint64_t gone = p.world.now();
    const bool learned = p.world.run(gone + 60 * kSecond, [&] { return p.there->failed; });
    figure("seconds until the sender gives up", static_cast<double>(p.world.now() - gone) * 1e-9);
    SIM_CHECK(learned && p.there->error == ConnectionError::RetryExceeded, "the sender never learns that its peer is gone");
    p.world.run(p.world.now() + kSecond);
    p.world.check_idle();
}
inline void peer_of_a_waiting_receiver_vanishes(uint64_t seed) {
    PairOptions o;
    o.seed = seed;
    o.lines = lines(2, 0, kMs);
    Pair p(o);
    p.send(1, 1000, true);
    SIM_CHECK(p.finish(kSecond), "the first message does not arrive");
    p.world.vanish(0);
    const uint64_t gone = p.world.now();
    const bool learned = p.world.run(gone + 60 * kSecond, [&] { return p.back->failed; });
    figure("seconds until the receiver gives up", static_cast<double>(p.world.now() - gone) * 1e-9);
    SIM_CHECK(learned && p.back->error == ConnectionError::RetryExceeded, "an idle receiver never learns that its peer is gone");
}
// A path that carries probes and no payload, as one with too small an MTU does: the peer lives, and yet it must end.
inline void data_never_arrives(uint64_t seed) {
    PairOptions o;
    o.seed = seed;
    o.lines = lines(2, 0, kMs);
    Pair p(o);
    p.there->may_fail = p.back->may_fail = true;
    p.world.network.on_carry = [](const Datagram& d) { return wire::is_data(opcode(d)) ? kNever : 0; };
    p.send(4, 100'000);
    const bool ended = p.world.run(60 * kSecond, [&] { return p.there->failed; });
    figure("seconds until the sender gives up", static_cast<double>(p.world.now()) * 1e-9);
    SIM_CHECK(ended && p.there->error == ConnectionError::RetryExceeded, "a sender whose data never arrives goes on for ever");
}
// A NACK about an earlier transmission, or about none, removes nothing.
inline void stale_nack(uint64_t seed) {
    PairOptions o;
    o.seed = seed;
    o.lines = lines(2, 0, 10 * kMs);
    Pair p(o);
    p.send(1, 100'000);
    p.world.run(kMs);
    for (uint32_t k = 0; k < 20; ++k) {
        wire::Packet n;
        n.bth.opcode = wire::Opcode::Nack;
        n.bth.dest_qpn = p.there->config.qpn;
        n.neth.reason = k % 2 ? wire::NackReason::Trimmed : wire::NackReason::NoResource;
        n.neth.nack_psn = static_cast<uint32_t>(p.sender().sender().una() + k) & wire::kPsnMask;
        n.neth.timestamp = static_cast<uint16_t>(timestamp_of(p.world.now()) + 1000);
        uint8_t bytes[wire::kMaxHeaderBytes + 4];
        const size_t size = wire::encode_header(n, bytes);
        wire::store_le32(bytes + size, wire::icrc(wire::icrc_seed_plain(), bytes, size, nullptr, 0));
        const uint32_t i = p.world.network.make();
        Datagram& d = p.world.network.datagram(i);
        d.bytes.assign(bytes, bytes + size + 4);
        d.arrival = {}, d.from = 1, d.to = 0;
        p.world.network.inject(i, p.world.now());
    }
    SIM_CHECK(p.finish(kSecond), "the message does not arrive");
    SIM_CHECK(p.counters().nacks == 20 && p.counters().retransmitted == 0, "%llu packets sent again for nothing",
              static_cast<unsigned long long>(p.counters().retransmitted));
}
// Two connections share the window to a peer. What one of them leaves, the other takes at once.
inline void closing_frees_the_shared_window(uint64_t seed) {
    PairOptions o;
    o.seed = seed, o.knows_rate = true;
    o.lines = lines(1, 80 * kMbit, 10 * kMs);
    Pair p(o);
    ConnectOptions again = p.connect_options();
    again.slice_bytes = 1 << 16;
    Flow& other = p.world.flow(p.world.connect(0, 1, again));
    p.world.run(50 * kMs);
    p.silence(0, true);
    p.send(4, 1 << 20);
    p.world.run(p.world.now() + 40 * kMs);  // the window is full of what will never arrive
    other.plan.assign(1, {10'000, false});
    p.world.after(0);
    SIM_CHECK(p.world.connection(other)->sender().counters().packets == 0, "the window was not full");
    p.world.close(*p.there);
    p.world.run(p.world.now() + 2 * kMs);
    SIM_CHECK(p.world.connection(other)->sender().counters().packets > 0, "nobody woke the other connection");
}
// With one plane dead and nothing to send, the two still know that the other is there.
inline void idle_with_a_dead_plane(uint64_t seed) {
    for (uint32_t plane = 0; plane < 4; ++plane) {
        PairOptions o;
        o.seed = seed;
        o.lines = lines(4, 0, kMs);
        Pair p(o);
        p.send(1, 1000, true);
        SIM_CHECK(p.finish(kSecond), "the first message does not arrive");
        p.silence(plane, true);
        p.world.run(120 * kSecond);
        p.send(1, 1000, true);
        SIM_CHECK(p.finish(kSecond), "the connection did not outlive two idle minutes");
    }
}
// The one packet that says so gets lost; the peer learns all the same.
inline void abort_is_heard(uint64_t seed) {
    for (const bool peer_sends : {true, false}) {
        PairOptions o;
        o.seed = seed;
        o.lines = lines(2, 0, kMs);
        Pair p(o);
        p.send(4096, 1 << 16);
        if (!peer_sends) p.send(1, 1000, true, p.back);
        p.world.run(20 * kMs);
        uint32_t dropped = 0;
        p.world.network.on_carry = [&](const Datagram& d) { return opcode(d) == wire::Opcode::Nack && dropped++ < 4 ? kNever : 0; };
        Flow& aborts = peer_sends ? *p.back : *p.there;
        Flow& hears = peer_sends ? *p.there : *p.back;
        p.world.abort(aborts);
        const uint64_t when = p.world.now();
        SIM_CHECK(p.world.run(when + 5 * kSecond, [&] { return hears.failed; }), "the peer never hears of the abort");
        figure("ms until heard", static_cast<double>(p.world.now() - when) * 1e-6);
        SIM_CHECK(p.world.now() - when <= 20 * kMs, "it took %.1f ms", static_cast<double>(p.world.now() - when) * 1e-6);
        SIM_CHECK(hears.error == ConnectionError::RemoteAborted, "it heard %s", name(hears.error));
    }
}
inline void every_port_goes_down(uint64_t seed) {
    PairOptions o;
    o.seed = seed;
    o.lines = lines(2, 0, kMs);
    Pair p(o);
    p.send_without_end();
    p.world.run(20 * kMs);
    p.there->may_fail = p.back->may_fail = true;
    p.world.set_port(0, 0, false);
    p.world.run(p.world.now() + 10 * kMs);
    SIM_CHECK(!p.there->failed && p.receiver().paths().plane_mask() == 2, "the peer did not hear of the port");
    p.world.set_port(1, 1, false);  // nothing is left that both can use
    SIM_CHECK(p.back->failed && p.back->error == ConnectionError::NoPort, "it goes on without a port");
    SIM_CHECK(p.world.run(p.world.now() + 60 * kSecond, [&] { return p.there->failed; }), "the other side never learns");
}
// "Port 1 is down" arrives after "it is up again".
inline void port_update_is_overtaken(uint64_t seed) {
    PairOptions o;
    o.seed = seed;
    o.lines = lines(2, 0, kMs);
    Pair p(o);
    p.world.run(20 * kMs);
    uint32_t requests = 0;
    p.world.network.on_carry = [&](const Datagram& d) {
        return opcode(d) == wire::Opcode::EndpointRequest && requests++ == 0 ? 20 * kMs : 0;
    };
    p.world.set_port(0, 1, false);
    p.world.run(p.world.now() + kMs);
    p.world.set_port(0, 1, true);
    p.world.run(p.world.now() + 10 * kMs);
    SIM_CHECK(p.receiver().paths().plane_mask() == 3, "the peer did not hear that the port is up");
    p.world.run(p.world.now() + 100 * kMs);
    SIM_CHECK(requests >= 2 && p.receiver().paths().plane_mask() == 3, "an old update took a plane away");
}
inline void new_connection_in_an_old_slot(uint64_t seed) {
    PairOptions o;
    o.seed = seed;
    o.lines = lines(2, 0, 10 * kMs);
    o.slice_bytes = 1 << 20;
    Pair p(o);
    p.send(100, 1 << 16);
    p.world.run(25 * kMs);
    // Its packets are still on the way when the next one starts in the same place.
    p.world.close(*p.there);
    p.world.close(*p.back);
    ConnectOptions again = p.connect_options();
    again.slice_bytes = 1 << 16;
    Flow& next = p.world.flow(p.world.connect(0, 1, again));
    SIM_CHECK(next.from_slot == p.there->from_slot, "the slot was not used again");
    next.plan.assign(50, {20'000, true});
    p.world.after(0);
    p.world.after(1);
    SIM_CHECK(p.world.run(p.world.now() + 20 * kSecond, [&] { return next.is_done(); }), "the new connection does not work");
}

}  // namespace farstep::sim
