// Named scenarios with fixed expectations, in virtual time on the shipped core: cuts, losses, uneven planes, lost
// acknowledgements, wrap-arounds, slow applications, vanished peers.
//
//   scenarios SEED COUNT [NAME]   runs every scenario (or the one called NAME, or all whose names contain it) with COUNT
//                                 seeds from SEED; prints each with its figures. Exit 0: all hold.
#include <cstdlib>

#include "path_scenarios.hpp"
#include "peer_scenarios.hpp"

namespace {

using namespace farstep;
using namespace farstep::sim;

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
// The receiver slept, and its answers made the round trip look twenty times as long as it is. What is lost right
// afterwards is not waited for that long.
void last_packet_lost_after_a_sleep(uint64_t seed) {
    PairOptions o;
    o.seed = seed;
    o.lines = lines(2, 0, 10 * kMs);
    Pair p(o);
    for (uint32_t k = 0; k < 10; ++k) {
        p.send(1, 400'000, true);
        SIM_CHECK(p.finish(kSecond), "the first messages do not arrive");
    }
    p.world.stall(1, 300 * kMs);
    p.send(1, 400'000, true);
    SIM_CHECK(p.finish(2 * kSecond), "the message to the sleeping host does not arrive");
    bool dropped = false;
    p.world.network.on_carry = [&](const Datagram& d) {
        const bool hit = !dropped && opcode(d) == wire::Opcode::WriteOnlyImm;
        dropped = dropped || hit;
        return hit ? kNever : 0;
    };
    const uint64_t start = p.world.now();
    p.send(1, 1000, true);
    SIM_CHECK(p.finish(10 * kSecond), "the message does not arrive");
    const uint64_t took = p.world.now() - start;
    figure("ms", static_cast<double>(took) * 1e-6);
    SIM_CHECK(dropped && took <= 150 * kMs, "took %.1f ms", static_cast<double>(took) * 1e-6);
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
// What says that messages are complete gets lost unless it was asked for, while later messages keep packets under way: it
// is asked for before the few messages that may be posted have run out.
void completions_lost_under_load(uint64_t seed) {
    PairOptions o;
    o.seed = seed, o.knows_rate = true;
    o.lines = lines(2, 50 * kMbit, 10 * kMs);
    o.config.send_queue = 4;
    Pair p(o);
    p.send(4096, 256 << 10);
    p.world.run(2 * kSecond);
    const double before = p.meter.bytes_per_s(kSecond, 2 * kSecond);
    const uint64_t completed = p.sender().completed_messages();
    bool was_asked = false;
    p.world.network.on_carry = [&](const Datagram& d) -> uint64_t {
        if (d.to == 1 && opcode(d) == wire::Opcode::Probe) was_asked = true;
        if (d.from == 0 || opcode(d) != wire::Opcode::Ack) return 0;
        return std::exchange(was_asked, false) ? 0 : kNever;
    };
    p.world.run(4 * kSecond);
    const double after = p.meter.bytes_per_s(3 * kSecond, 4 * kSecond);
    const uint64_t gap = p.meter.longest_gap_ns(3 * kSecond, 4 * kSecond);
    figure("goodput, of before", after / before);
    figure("longest gap, ms", static_cast<double>(gap) * 1e-6);
    SIM_CHECK(p.sender().completed_messages() > completed + 50, "hardly any message completes");
    SIM_CHECK(after >= 0.98 * before, "goodput %.3f of before", after / before);
    SIM_CHECK(gap <= 5 * kMs, "longest gap %.1f ms", static_cast<double>(gap) * 1e-6);
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
    SCENARIO(most_ways_back_are_dead),
    SCENARIO(ways_die_one_by_one),
    SCENARIO(every_confirmed_way_back_dies),
    SCENARIO(the_plane_left_dies),
    SCENARIO(restore_with_flap_damping),
    SCENARIO(plane_comes_back),
    SCENARIO(outage_of_everything),
    SCENARIO(port_pace_longer_than_the_timeout),
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
    SCENARIO(last_packet_lost_after_a_sleep),
    SCENARIO(single_packet_lost),
    SCENARIO(overtaken_packet),
    SCENARIO(completion_ack_lost),
    SCENARIO(completions_lost_under_load),
    SCENARIO(completion_overtakes_its_sack),
    SCENARIO(every_answer_lost_for_a_while),
    SCENARIO(packet_numbers_wrap),
    SCENARIO(message_numbers_wrap),
    SCENARIO(completion_numbers_wrap),
    SCENARIO(slow_application),
    SCENARIO(refusals_put_off_no_timeout),
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
