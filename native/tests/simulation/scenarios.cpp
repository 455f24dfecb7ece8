// Named scenarios with fixed expectations, in virtual time on the shipped core: cuts, losses, uneven planes, lost
// acknowledgements, wrap-arounds, slow applications, vanished peers.
//
//   scenarios SEED COUNT [NAME]   runs every scenario (or the one called NAME, or all whose names contain it) with COUNT
//                                 seeds from SEED; prints each with its figures. Exit 0: all hold.
#include <cstdlib>

#include "pair.hpp"

namespace {

using namespace farstep;
using namespace farstep::sim;

void figure(const char* name, double value) { std::printf("  %-40s %12.3f\n", name, value); }

std::vector<Line> lines(uint32_t count, double rate_bytes_per_s, uint64_t rtt_ns) {
    return std::vector<Line>(count, Line{rate_bytes_per_s, rtt_ns / 2, 0});
}

// ---- failures of paths ------------------------------------------------------------------------------------------------

void cut_one_of_eight(uint64_t seed, uint64_t rtt_ns, bool knows_rate, bool both_ways) {
    PairOptions o;
    o.seed = seed, o.knows_rate = knows_rate;
    o.lines = lines(8, 25 * kMbit, rtt_ns);
    Pair p(o);
    p.send_without_end();
    const uint64_t cut = 3 * kSecond + seed * 100'003;
    p.world.run(cut);
    const double before = p.meter.bytes_per_s(cut - std::max(kSecond, 10 * rtt_ns), cut);
    p.silence(3, true, true, both_ways);
    p.world.run(cut + 2 * kSecond);
    const uint64_t gap = p.meter.longest_gap_ns(cut - rtt_ns, cut + kSecond);
    // What was lost with the plane is made good within ten round trips; from there on seven eighths are left.
    const uint64_t recovered = cut + 10 * rtt_ns;
    const double after = p.meter.bytes_per_s(recovered, recovered + std::max(kSecond / 2, 10 * rtt_ns));
    figure("MB/s before the cut", before * 1e-6);
    figure("longest gap, ms", static_cast<double>(gap) * 1e-6);
    figure("goodput after ten round trips, of before", after / before);
    SIM_CHECK(gap <= 5 * kMs + 3 * rtt_ns, "longest gap %.1f ms", static_cast<double>(gap) * 1e-6);
    SIM_CHECK(after >= 0.85 * before, "goodput %.3f of before", after / before);
    SIM_CHECK(p.sender().is_open(), "connection ended");
}
void cut_plane_at_50_ms(uint64_t s) { cut_one_of_eight(s, 50 * kMs, true, true); }
void cut_plane_at_50_ms_rate_learned(uint64_t s) { cut_one_of_eight(s, 50 * kMs, false, true); }
void cut_plane_at_1_ms(uint64_t s) { cut_one_of_eight(s, kMs, true, true); }
void cut_plane_at_1_ms_rate_learned(uint64_t s) { cut_one_of_eight(s, kMs, false, true); }
void cut_plane_one_way(uint64_t s) { cut_one_of_eight(s, 50 * kMs, true, false); }

void cut_reverse_path(uint64_t seed) {
    PairOptions o;
    o.seed = seed, o.knows_rate = true;
    o.lines = lines(4, 50 * kMbit, 50 * kMs);
    Pair p(o);
    p.send_without_end();
    p.world.run(3 * kSecond);
    const double before = p.meter.bytes_per_s(2 * kSecond, 3 * kSecond);
    const uint64_t retransmitted = p.counters().retransmitted;
    p.silence(1, true, /*forward=*/false, /*reverse=*/true);
    p.world.run(6 * kSecond);
    const double after = p.meter.bytes_per_s(4 * kSecond, 6 * kSecond);
    figure("goodput, of before", after / before);
    figure("packets sent again", static_cast<double>(p.counters().retransmitted - retransmitted));
    SIM_CHECK(after >= 0.95 * before, "goodput %.3f of before although data arrives on every plane", after / before);
}

void restore_with_flap_damping(uint64_t seed) {
    PairOptions o;
    o.seed = seed;
    o.lines = lines(2, 100 * kMbit, kMs);
    o.knows_rate = true;
    o.config.paths.probe_interval_ns = 2 * kMs;
    Pair p(o);
    p.send_without_end();
    p.world.run(50 * kMs);
    uint64_t took[2] = {};
    for (uint64_t& t : took) {
        const EvIndex ev = 5;
        p.world.network.link(0, 1, 0, 0).silent_sources.push_back(5);
        const bool condemned = p.world.run(p.world.now() + kSecond, [&] { return p.sender().paths().state(ev) == EvState::AssumedBad; });
        SIM_CHECK(condemned, "a dead path stays in use");
        p.world.run(p.world.now() + 50 * kMs);
        SIM_CHECK(p.sender().paths().state(ev) == EvState::AssumedBad, "a dead path came back");
        SIM_CHECK(p.sender().paths().active_count(0) == 16, "no backup took its place");
        p.world.network.link(0, 1, 0, 0).silent_sources.clear();
        const uint64_t healed = p.world.now();
        const bool back = p.world.run(healed + kSecond, [&] { return p.sender().paths().state(ev) == EvState::Good; });
        SIM_CHECK(back, "a healed path stays condemned");
        t = p.world.now() - healed;
        // It may wait as a backup now: only one in rotation can fail again.
        const bool rotates = p.sender().paths().is_active(ev);
        if (!rotates) break;
    }
    figure("ms until restored, first time", static_cast<double>(took[0]) * 1e-6);
    figure("ms until restored, second time", static_cast<double>(took[1]) * 1e-6);
    SIM_CHECK(took[0] >= 8 * kMs && took[0] <= 30 * kMs, "five probes at 2 ms took %.1f ms", static_cast<double>(took[0]) * 1e-6);
    SIM_CHECK(took[1] == 0 || took[1] >= 18 * kMs, "ten probes at 2 ms took %.1f ms", static_cast<double>(took[1]) * 1e-6);
}

void plane_comes_back(uint64_t seed) {
    PairOptions o;
    o.seed = seed, o.knows_rate = true;
    o.lines = lines(4, 50 * kMbit, 20 * kMs);
    Pair p(o);
    p.send_without_end();
    p.world.run(2 * kSecond);
    const double before = p.meter.bytes_per_s(kSecond, 2 * kSecond);
    p.silence(2, true);
    p.world.run(5 * kSecond);
    const double during = p.meter.bytes_per_s(3 * kSecond, 5 * kSecond);
    p.silence(2, false);
    p.world.run(12 * kSecond);
    const double after = p.meter.bytes_per_s(11 * kSecond, 12 * kSecond);
    figure("goodput while down, of before", during / before);
    figure("goodput after its return, of before", after / before);
    SIM_CHECK(during >= 0.72 * before && during <= 0.76 * before, "three planes of four carried %.3f", during / before);
    SIM_CHECK(after >= 0.97 * before, "the plane is back, but goodput is %.3f", after / before);
}

void outage_of_everything(uint64_t seed) {
    PairOptions o;
    o.seed = seed;
    o.lines = lines(2, 100 * kMbit, 10 * kMs);
    Pair p(o);
    p.send_without_end();
    p.world.run(kSecond);
    for (uint32_t k = 0; k < 2; ++k) p.silence(k, true);
    p.world.run(9 * kSecond);
    for (uint32_t k = 0; k < 2; ++k) p.silence(k, false);
    const uint64_t healed = p.world.now(), placed = p.there->placed_bytes;
    const bool resumed = p.world.run(healed + 5 * kSecond, [&] { return p.there->placed_bytes > placed; });
    figure("ms until bytes flow again", static_cast<double>(p.world.now() - healed) * 1e-6);
    SIM_CHECK(resumed && p.world.now() - healed <= 2 * kSecond + 100 * kMs, "not resumed within the longest timeout");
}

// ---- rates and shares -----------------------------------------------------------------------------------------------------

void goodput(uint64_t seed, std::vector<Line> of, ShareMode share, bool knows_rate, double least_mb_per_s, uint64_t warm_up_ns) {
    PairOptions o;
    o.seed = seed, o.knows_rate = knows_rate, o.share = share, o.lines = std::move(of);
    Pair p(o);
    p.send_without_end();
    p.world.run(warm_up_ns + 6 * kSecond);
    const double rate = p.meter.bytes_per_s(warm_up_ns, warm_up_ns + 6 * kSecond) * 1e-6;
    figure("MB/s", rate);
    figure("share sent again", static_cast<double>(p.counters().retransmitted) / static_cast<double>(p.counters().packets));
    SIM_CHECK(rate >= least_mb_per_s, "%.2f MB/s, at least %.2f wanted", rate, least_mb_per_s);
}
std::vector<Line> uneven() { return {{200 * kMbit, 5 * kMs, 0}, {50 * kMbit, 5 * kMs, 0}}; }
void uneven_planes_rate_known(uint64_t s) { goodput(s, uneven(), ShareMode::Capacity, true, 28, 2 * kSecond); }
void uneven_planes_rate_learned(uint64_t s) { goodput(s, uneven(), ShareMode::Capacity, false, 28, 2 * kSecond); }
void two_planes_rate_known(uint64_t s) { goodput(s, lines(2, 200 * kMbit, 10 * kMs), ShareMode::Capacity, true, 45, kSecond); }
void two_planes_rate_learned(uint64_t s) { goodput(s, lines(2, 200 * kMbit, 10 * kMs), ShareMode::Capacity, false, 45, kSecond); }
void two_planes_equal_share(uint64_t s) { goodput(s, lines(2, 200 * kMbit, 10 * kMs), ShareMode::Equal, true, 45, kSecond); }

std::vector<Line> lossy() { return {{200 * kMbit, 25 * kMs, 0.01}}; }
void one_percent_loss_rate_known(uint64_t s) { goodput(s, lossy(), ShareMode::Equal, true, 18, kSecond); }
void one_percent_loss_rate_learned(uint64_t s) { goodput(s, lossy(), ShareMode::Equal, false, 18, 2 * kSecond); }
void no_loss_rate_learned(uint64_t s) { goodput(s, lines(1, 200 * kMbit, 50 * kMs), ShareMode::Equal, false, 20, kSecond); }

void skewed_planes(uint64_t seed) {
    PairOptions o;
    o.seed = seed, o.knows_rate = true;
    o.lines = {{100 * kMbit, 10 * kMs, 0}, {100 * kMbit, 40 * kMs, 0}};
    Pair p(o);
    p.send_without_end();
    p.world.run(3 * kSecond);
    const uint64_t retransmitted = p.counters().retransmitted;
    p.world.run(8 * kSecond);
    figure("MB/s", p.meter.bytes_per_s(3 * kSecond, 8 * kSecond) * 1e-6);
    figure("packets sent again", static_cast<double>(p.counters().retransmitted - retransmitted));
    SIM_CHECK(p.counters().retransmitted == retransmitted, "%llu retransmissions although nothing is lost",
              static_cast<unsigned long long>(p.counters().retransmitted - retransmitted));
}

// ---- single packets ---------------------------------------------------------------------------------------------------------

/// One message with its last data packet (or the packets of one kind) dropped once; returns how long it took.
template <class Drop>
uint64_t time_with_loss(uint64_t seed, uint64_t rtt_ns, uint32_t bytes, Drop&& drop, uint64_t* dropped = nullptr) {
    PairOptions o;
    o.seed = seed;
    o.lines = lines(4, 0, rtt_ns);
    Pair p(o);
    p.world.run(20 * rtt_ns);
    for (uint32_t k = 0; k < 10; ++k) {  // the connection is warm: its round trip is known
        p.send(1, bytes, true);
        SIM_CHECK(p.finish(kSecond), "the first messages do not arrive");
    }
    p.world.run(p.world.now() + 20 * rtt_ns);
    uint64_t count = 0;
    p.world.network.on_carry = [&](const Datagram& d) {
        const bool hit = drop(d, count);
        count += hit;
        return hit ? kNever : 0;
    };
    const uint64_t start = p.world.now();
    p.send(1, bytes, true);
    SIM_CHECK(p.finish(10 * kSecond), "the message does not arrive");
    if (dropped) *dropped = count;
    SIM_CHECK(count > 0, "nothing was dropped");
    return p.world.now() - start;
}
wire::Opcode opcode(const Datagram& d) { return static_cast<wire::Opcode>(d.bytes[0]); }

void last_packet_lost(uint64_t seed) {
    for (const uint64_t rtt : {kMs, 50 * kMs}) {
        const uint64_t took = time_with_loss(seed, rtt, 400'000, [](const Datagram& d, uint64_t n) {
            return n == 0 && opcode(d) == wire::Opcode::WriteLastImm;
        });
        figure("ms for a message whose last packet is lost", static_cast<double>(took) * 1e-6);
        SIM_CHECK(took <= rtt * 5 / 2 + 10 * kMs, "took %.2f ms at a round trip of %.0f ms", static_cast<double>(took) * 1e-6,
                  static_cast<double>(rtt) * 1e-6);
    }
}
void last_packet_lost_twice(uint64_t seed) {
    const uint64_t took = time_with_loss(seed, 10 * kMs, 400'000, [](const Datagram& d, uint64_t n) {
        return n < 2 && opcode(d) == wire::Opcode::WriteLastImm;
    });
    figure("ms", static_cast<double>(took) * 1e-6);
    SIM_CHECK(took <= 250 * kMs, "took %.2f ms", static_cast<double>(took) * 1e-6);
}
void single_packet_lost(uint64_t seed) {
    const uint64_t took = time_with_loss(seed, 50 * kMs, 1000, [](const Datagram& d, uint64_t n) {
        return n == 0 && opcode(d) == wire::Opcode::WriteOnlyImm;
    });
    figure("ms", static_cast<double>(took) * 1e-6);
    SIM_CHECK(took <= 135 * kMs, "took %.2f ms", static_cast<double>(took) * 1e-6);
}
// Paths keep the order, so one round trip tells: no need to wait until the packet is late.
void overtaken_packet(uint64_t seed) {
    PairOptions o;
    o.seed = seed, o.knows_rate = true;
    o.lines = lines(1, 200 * kMbit, 50 * kMs);
    o.config.paths.active_per_plane = 4, o.config.paths.backup_per_plane = 4;
    Pair p(o);
    p.send_without_end();
    p.world.run(kSecond);
    uint32_t lost_psn = 0;
    uint64_t lost_ns = 0, again_ns = 0;
    p.world.network.on_carry = [&](const Datagram& d) -> uint64_t {
        if (!wire::is_data(opcode(d))) return 0;
        const uint32_t psn = wire::load_be24(d.bytes.data() + 9);
        if (lost_ns == 0) {
            lost_psn = psn, lost_ns = p.world.now();
            return kNever;
        }
        if (psn == lost_psn && again_ns == 0) again_ns = p.world.now();
        return 0;
    };
    p.world.run(2 * kSecond);
    figure("ms until sent again", static_cast<double>(again_ns - lost_ns) * 1e-6);
    SIM_CHECK(p.counters().lost_order == 1 && p.counters().retransmitted == 1, "it was found by another rule");
    SIM_CHECK(again_ns - lost_ns <= p.sender().sender().round_trip().srtt_ns + 5 * kMs, "sent again after %.1f ms",
              static_cast<double>(again_ns - lost_ns) * 1e-6);
}
void completion_ack_lost(uint64_t seed) {
    const uint64_t took = time_with_loss(seed, 10 * kMs, 400'000, [](const Datagram& d, uint64_t n) {
        return n == 0 && opcode(d) == wire::Opcode::Ack;
    });
    figure("ms", static_cast<double>(took) * 1e-6);
    SIM_CHECK(took <= 120 * kMs, "took %.2f ms", static_cast<double>(took) * 1e-6);
}
// The completion comes first, the SACK it builds on two milliseconds later.
void completion_overtakes_its_sack(uint64_t seed) {
    PairOptions o;
    o.seed = seed;
    o.lines = lines(4, 0, 10 * kMs);
    Pair p(o);
    for (uint32_t k = 0; k < 10; ++k) {
        p.send(1, 40'000, true);
        SIM_CHECK(p.finish(kSecond), "the first messages do not arrive");
    }
    p.world.network.on_carry = [](const Datagram& d) { return opcode(d) == wire::Opcode::Sack ? 2 * kMs : 0; };
    const uint64_t start = p.world.now(), probes = p.sender().probes().sent;
    p.send(1, 40'000, true);
    SIM_CHECK(p.finish(kSecond), "the message does not arrive");
    const uint64_t took = p.world.now() - start;
    figure("ms", static_cast<double>(took) * 1e-6);
    SIM_CHECK(took <= 15 * kMs && p.sender().probes().sent == probes, "an early completion was forgotten");
}
void every_answer_lost_for_a_while(uint64_t seed) {
    const uint64_t took = time_with_loss(seed, 10 * kMs, 400'000, [](const Datagram& d, uint64_t n) {
        return n < 6 && (opcode(d) == wire::Opcode::Ack || opcode(d) == wire::Opcode::Sack);
    });
    figure("ms", static_cast<double>(took) * 1e-6);
    SIM_CHECK(took <= 300 * kMs, "took %.2f ms", static_cast<double>(took) * 1e-6);
}

// ---- wrap-arounds ------------------------------------------------------------------------------------------------------------

void packet_numbers_wrap(uint64_t seed) {
    PairOptions o;
    o.seed = seed;
    o.config.mtu_bytes = 64;
    o.config.start_psn = wire::kPsnMask - 1000;
    o.lines = {{0, 10'000, 0.01}, {0, 12'000, 0.01}};
    Pair p(o);
    p.send(60, 3000, true);
    p.send(60, 3000, true, p.back);
    SIM_CHECK(p.finish(20 * kSecond), "stuck at the wrap: %s", p.world.describe_stall().c_str());
    SIM_CHECK(p.there->sent_psns > 2000, "the wrap was not reached");
    p.world.check_idle();
}
// RQMSN and METH.MSN have 16 bits.
void message_numbers_wrap(uint64_t seed) {
    PairOptions o;
    o.seed = seed;
    o.lines = {{0, 5'000, 0.001}};
    o.slice_bytes = 1 << 16;
    Pair p(o);
    for (uint32_t k = 0; k < 70'000; ++k) p.there->plan.push_back({k % 3 ? 0u : 32u, true});
    p.world.after(0);
    SIM_CHECK(p.finish(600 * kSecond), "stuck at the wrap: %s", p.world.describe_stall().c_str());
    SIM_CHECK(p.there->popped == 70'000, "immediates are missing");
    p.world.check_idle();
}

// AETH.MSN has 24 bits: a completion that says 3 may mean 16,777,219.
void completion_numbers_wrap(uint64_t) {
    ConnectionConfig c;
    c.send_queue = 8;
    SendQueue q(c);
    uint64_t psn = 1ull << 24, done = 0;
    for (uint64_t k = 0; k < (1ull << 24) + 1000; ++k) {
        q.post(WriteRequest{});
        q.cut(psn++);
        q.claim(static_cast<uint32_t>(k) & wire::kPsnMask);  // what was said before
        SIM_CHECK(q.completions(psn) == 0, "message %llu completed by an old number", static_cast<unsigned long long>(k));
        q.claim(static_cast<uint32_t>(k + 1) & wire::kPsnMask);
        SIM_CHECK(q.completions(psn) == 1, "message %llu is not completed", static_cast<unsigned long long>(k));
        q.pop_front();
        done = q.completed();
    }
    SIM_CHECK(done == (1ull << 24) + 1000, "messages are missing");
}

// ---- applications and peers ------------------------------------------------------------------------------------------------

// A consumer that stops for a minute holds the sender back and costs no connection.
void slow_application(uint64_t seed) {
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
void peer_vanishes(uint64_t seed) {
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
void peer_of_a_waiting_receiver_vanishes(uint64_t seed) {
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
void data_never_arrives(uint64_t seed) {
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
void stale_nack(uint64_t seed) {
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
void closing_frees_the_shared_window(uint64_t seed) {
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
void idle_with_a_dead_plane(uint64_t seed) {
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
void abort_is_heard(uint64_t seed) {
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
void every_port_goes_down(uint64_t seed) {
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
void port_update_is_overtaken(uint64_t seed) {
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
void new_connection_in_an_old_slot(uint64_t seed) {
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

struct Scenario {
    const char* name;
    void (*run)(uint64_t seed);
};
#define SCENARIO(function) {#function, function}
constexpr Scenario kScenarios[] = {
    SCENARIO(cut_plane_at_50_ms),
    SCENARIO(cut_plane_at_50_ms_rate_learned),
    SCENARIO(cut_plane_at_1_ms),
    SCENARIO(cut_plane_at_1_ms_rate_learned),
    SCENARIO(cut_plane_one_way),
    SCENARIO(cut_reverse_path),
    SCENARIO(restore_with_flap_damping),
    SCENARIO(plane_comes_back),
    SCENARIO(outage_of_everything),
    SCENARIO(uneven_planes_rate_known),
    SCENARIO(uneven_planes_rate_learned),
    SCENARIO(two_planes_rate_known),
    SCENARIO(two_planes_rate_learned),
    SCENARIO(two_planes_equal_share),
    SCENARIO(one_percent_loss_rate_known),
    SCENARIO(one_percent_loss_rate_learned),
    SCENARIO(no_loss_rate_learned),
    SCENARIO(skewed_planes),
    SCENARIO(last_packet_lost),
    SCENARIO(last_packet_lost_twice),
    SCENARIO(single_packet_lost),
    SCENARIO(overtaken_packet),
    SCENARIO(completion_ack_lost),
    SCENARIO(completion_overtakes_its_sack),
    SCENARIO(every_answer_lost_for_a_while),
    SCENARIO(packet_numbers_wrap),
    SCENARIO(message_numbers_wrap),
    SCENARIO(completion_numbers_wrap),
    SCENARIO(slow_application),
    SCENARIO(peer_vanishes),
    SCENARIO(peer_of_a_waiting_receiver_vanishes),
    SCENARIO(idle_with_a_dead_plane),
    SCENARIO(data_never_arrives),
    SCENARIO(stale_nack),
    SCENARIO(closing_frees_the_shared_window),
    SCENARIO(abort_is_heard),
    SCENARIO(every_port_goes_down),
    SCENARIO(port_update_is_overtaken),
    SCENARIO(new_connection_in_an_old_slot),
};

bool holds(const Scenario& s, uint64_t seed) {
    std::printf("%s, seed %llu\n", s.name, static_cast<unsigned long long>(seed));
    try {
        s.run(seed);
    } catch (const Violation& v) {
        std::printf("  FAILED: %s\nreproduce: scenarios %llu 1 %s\n", v.what.c_str(), static_cast<unsigned long long>(seed), s.name);
        return false;
    }
    std::fflush(stdout);
    return true;
}

}  // namespace

int main(int argc, char** argv) {
    const uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
    const uint64_t count = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
    const char* only = argc > 3 ? argv[3] : "";
    bool is_name = false;
    for (const Scenario& s : kScenarios) is_name = is_name || std::strcmp(s.name, only) == 0;
    int failures = 0;
    for (const Scenario& s : kScenarios) {
        if (is_name ? std::strcmp(s.name, only) != 0 : !std::strstr(s.name, only)) continue;
        for (uint64_t k = 0; k < count; ++k) failures += !holds(s, seed + k);
    }
    return failures ? 1 : 0;
}
