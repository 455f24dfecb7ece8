// Scenarios of paths: cuts, restorations, rates, shares, random loss, planes of different length.
#pragma once

#include "pair.hpp"

namespace farstep::sim {

// What still gets through is nearly all that did before.
inline void check_goodput(double before, double after) {
    figure("goodput, of before", after / before);
    SIM_CHECK(after >= 0.95 * before, "goodput %.3f of before", after / before);
}
// Never did so long pass without news.
inline void check_gap(Pair& p, uint64_t from_ns, uint64_t to_ns, uint64_t most_ns) {
    const uint64_t gap = p.meter.longest_gap_ns(from_ns, to_ns);
    figure("longest gap, ms", static_cast<double>(gap) * 1e-6);
    SIM_CHECK(gap <= most_ns, "longest gap %.1f ms", static_cast<double>(gap) * 1e-6);
}

// ---- failures of paths ------------------------------------------------------------------------------------------------

inline void cut_one_of_eight(uint64_t seed, uint64_t rtt_ns, bool knows_rate, bool both_ways) {
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
inline void cut_plane_at_50_ms(uint64_t s) { cut_one_of_eight(s, 50 * kMs, true, true); }
inline void cut_plane_at_50_ms_rate_learned(uint64_t s) { cut_one_of_eight(s, 50 * kMs, false, true); }
inline void cut_plane_at_1_ms(uint64_t s) { cut_one_of_eight(s, kMs, true, true); }
inline void cut_plane_at_1_ms_rate_learned(uint64_t s) { cut_one_of_eight(s, kMs, false, true); }
inline void cut_plane_one_way(uint64_t s) { cut_one_of_eight(s, 50 * kMs, true, false); }

inline void cut_reverse_path(uint64_t seed) {
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

// One way, and three quarters of the ways back swallow everything: answers keep to those that work.
inline void most_ways_back_are_dead(uint64_t seed) {
    PairOptions o;
    o.seed = seed, o.knows_rate = true;
    o.lines = lines(1, 100 * kMbit, 10 * kMs);
    Pair p(o);
    p.send_without_end();
    p.world.run(2 * kSecond);
    const double before = p.meter.bytes_per_s(kSecond, 2 * kSecond);
    for (uint16_t source = 0; source < 64; ++source)
        if (source % 4 != 3) p.world.network.link(1, 0, 0, 0).silent_sources.push_back(source);
    p.world.run(6 * kSecond);
    check_goodput(before, p.meter.bytes_per_s(3 * kSecond, 6 * kSecond));
    check_gap(p, 3 * kSecond, 6 * kSecond, 30 * kMs);
}

// The ways back die a quarter after the other, each time with data of the same quarter: what answers took a moment ago may
// be dead, and a probe that got lost may have got lost on its other leg.
inline void ways_die_one_by_one(uint64_t seed) {
    PairOptions o;
    o.seed = seed, o.knows_rate = true;
    o.lines = lines(1, 100 * kMbit, 10 * kMs);
    Pair p(o);
    p.send_without_end();
    p.world.run(2 * kSecond);
    const double before = p.meter.bytes_per_s(kSecond, 2 * kSecond);
    for (uint16_t quarter = 0; quarter < 3; ++quarter) {
        for (uint16_t source = quarter; source < 64; source += 4) {
            p.world.network.link(1, 0, 0, 0).silent_sources.push_back(source);
            p.world.network.link(0, 1, 0, 0).silent_sources.push_back(source);
        }
        const uint64_t cut = p.world.now();
        p.world.run(cut + 2 * kSecond);
        check_goodput(before, p.meter.bytes_per_s(cut + kSecond / 2, cut + 2 * kSecond));
        check_gap(p, cut, cut + 2 * kSecond, 10 * kMs);
    }
}

// Of all ways back just those die that answers take: only what the sender does without them tells the receiver.
inline void every_confirmed_way_back_dies(uint64_t seed) {
    PairOptions o;
    o.seed = seed, o.knows_rate = true;
    o.lines = lines(1, 100 * kMbit, 10 * kMs);
    Pair p(o);
    p.send_without_end();
    p.world.run(2 * kSecond);
    std::vector<uint16_t>& silent = p.world.network.link(1, 0, 0, 0).silent_sources;
    std::vector<uint16_t> taken;
    p.world.network.on_carry = [&](const Datagram& d) -> uint64_t {
        const auto source = static_cast<uint16_t>(d.arrival.entropy);
        const bool is_answer = opcode(d) == wire::Opcode::Sack && d.from == 1;
        if (is_answer && std::find(taken.begin(), taken.end(), source) == taken.end()) taken.push_back(source);
        return 0;
    };
    p.world.run(p.world.now() + 15 * kMs);
    const double before = p.meter.bytes_per_s(kSecond, 2 * kSecond);
    silent = taken;
    const uint64_t cut = p.world.now();
    p.world.run(cut + 2 * kSecond);
    const double after = p.meter.bytes_per_s(cut, cut + 2 * kSecond);
    figure("ways silenced", static_cast<double>(silent.size()));
    figure("goodput of the two seconds after, of before", after / before);
    SIM_CHECK(silent.size() <= 5, "answers took %zu ways within 15 ms", silent.size());
    check_gap(p, cut, cut + 2 * kSecond, 50 * kMs);
}

// A plane that was given up just now, and is back, must do at once where the other one dies.
inline void the_plane_left_dies(uint64_t seed) {
    PairOptions o;
    o.seed = seed;
    o.lines = lines(2, 100 * kMbit, 12 * kMs);
    o.config.paths.share = ShareMode::Capacity;
    Pair p(o);
    p.send_without_end();
    p.world.run(2 * kSecond);
    uint32_t alive = 0;
    for (int round = 0; round < 4; ++round) {
        p.silence(1 - alive, true);
        const bool noticed = p.world.run(p.world.now() + kSecond,
                                         [&] { return p.sender().paths().plane_down(static_cast<uint8_t>(1 - alive)); });
        SIM_CHECK(noticed, "a dead plane stays in use");
        p.silence(1 - alive, false);
        p.world.run(p.world.now() + 5 * kMs);
        const uint64_t cut = p.world.now();
        p.silence(alive, true);
        alive = 1 - alive;
        p.world.run(cut + 3 * kSecond);
        const uint64_t gap = p.meter.longest_gap_ns(cut, cut + 3 * kSecond);
        figure("longest gap, ms", static_cast<double>(gap) * 1e-6);
        SIM_CHECK(gap <= 200 * kMs, "longest gap %.1f ms", static_cast<double>(gap) * 1e-6);
        p.silence(1 - alive, false);
        p.world.run(p.world.now() + kSecond);
    }
    SIM_CHECK(p.sender().is_open(), "connection ended");
}

inline void restore_with_flap_damping(uint64_t seed) {
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

inline void plane_comes_back(uint64_t seed) {
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

inline void outage_of_everything(uint64_t seed) {
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

// A burst whose last packet asked for no answer, since another was to follow at once, and a port that then held that
// other one up for longer than the shortest timeout: silence is no loss.
inline void port_pace_longer_than_the_timeout(uint64_t seed) {
    PairOptions o;
    o.seed = seed, o.knows_rate = true;
    o.lines = {{115e6, 3'500, 0}, {115e6, 3'500, 0}};
    o.config.paths.active_per_plane = 4, o.config.paths.backup_per_plane = 0;
    o.config.reliability.rto_base_ns = o.config.reliability.loss_slack_min_ns = 200'000;
    Pair p(o);
    for (Link& l : p.world.network.links()) l.rate_bytes_per_s = 0;  // the port is the only one that is slow
    p.world.run(kMs);
    for (uint32_t k = 0; k < 200; ++k) {
        p.send(1, 4096);
        p.world.run(p.world.now() + 1'000 * (k % 100));
        p.send(3, 57'000);
        SIM_CHECK(p.finish(kSecond), "the messages do not arrive");
        p.world.run(p.world.now() + kMs);
    }
    const SenderCounters& c = p.counters();
    figure("timeouts", static_cast<double>(c.timeouts));
    SIM_CHECK(c.retransmitted == 0 && c.lost_timeout == 0, "%llu packets taken for lost on a network that loses nothing",
              static_cast<unsigned long long>(c.lost_timeout));
    for (uint8_t plane = 0; plane < 2; ++plane)
        SIM_CHECK(p.sender().paths().active_count(plane) == 4, "a healthy path was condemned");
}

// ---- rates and shares -----------------------------------------------------------------------------------------------------

inline void goodput(uint64_t seed, std::vector<Line> of, ShareMode share, bool knows_rate, double least_mb_per_s, uint64_t warm_up_ns) {
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
inline std::vector<Line> uneven() { return {{200 * kMbit, 5 * kMs, 0}, {50 * kMbit, 5 * kMs, 0}}; }
inline void uneven_planes_rate_known(uint64_t s) { goodput(s, uneven(), ShareMode::Capacity, true, 28, 2 * kSecond); }
inline void uneven_planes_rate_learned(uint64_t s) { goodput(s, uneven(), ShareMode::Capacity, false, 28, 2 * kSecond); }
inline void two_planes_rate_known(uint64_t s) { goodput(s, lines(2, 200 * kMbit, 10 * kMs), ShareMode::Capacity, true, 45, kSecond); }
inline void two_planes_rate_learned(uint64_t s) { goodput(s, lines(2, 200 * kMbit, 10 * kMs), ShareMode::Capacity, false, 45, kSecond); }
inline void two_planes_equal_share(uint64_t s) { goodput(s, lines(2, 200 * kMbit, 10 * kMs), ShareMode::Equal, true, 45, kSecond); }

inline std::vector<Line> lossy() { return {{200 * kMbit, 25 * kMs, 0.01}}; }
inline void one_percent_loss_rate_known(uint64_t s) { goodput(s, lossy(), ShareMode::Equal, true, 18, kSecond); }
inline void one_percent_loss_rate_learned(uint64_t s) { goodput(s, lossy(), ShareMode::Equal, false, 18, 2 * kSecond); }
inline void no_loss_rate_learned(uint64_t s) { goodput(s, lines(1, 200 * kMbit, 50 * kMs), ShareMode::Equal, false, 20, kSecond); }

inline void skewed_planes(uint64_t seed) {
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

}  // namespace farstep::sim
