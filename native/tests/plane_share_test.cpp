// Driver for shares over planes of unequal capacity: `plane_share_test [seed] [iterations] [verbose]`.
// One run of every case whatever the iterations; verbose prints the shares and what the path set costs per packet.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "farstep/entropy.hpp"
#include "farstep/nscc.hpp"
#include "path_model.hpp"
#include "path_set_fixture.hpp"

using namespace farstep;
using namespace farstep::model;

namespace {

bool g_verbose = false;

struct Change { uint64_t at_ns; uint32_t plane; double mbit; };   // 0 = silent death

struct Run {
    double share = 0;          // delivered / capacity, between from_ns and the end
    double weight0 = 0;
    double recovered_ms = 0;   // after the last change: until 20 RTT-ticks in a row are above 90 %
};

// One connection over several links: SACKs per 16 KiB and plane, losses noticed after another quarter RTT.
Run run_planes(std::vector<Link> links, ShareMode mode, bool known, uint64_t duration, uint64_t from_ns, std::vector<Change> changes, uint32_t burst,
               uint64_t seed) {
    CounterRng rng(seed);
    PathSetConfig pc = shape(static_cast<uint32_t>(links.size()), 32, 16, seed);
    pc.share = mode;
    auto paths = make(pc);
    NsccConfig nc;
    nc.mtu_bytes = 4096;
    uint64_t base = UINT64_MAX;
    double total = 0;
    for (Link& l : links) {
        base = std::min(base, l.rtt_ns);
        total += l.bytes_per_s;
        l.loss_delay_ns = l.rtt_ns / 4;
    }
    if (known) nc.rate_bytes_per_s = total;
    nc.base_rtt_ns = base;
    Nscc n(nc);
    uint64_t now = kMs, tick = now + base, tick_bytes = 0, counted = 0;
    double capacity_seconds = 0;
    Run out;
    int good_ticks = 0;
    uint64_t last_change = 0, recovered = 0;
    while (now < duration) {
        while (!changes.empty() && now >= changes.front().at_ns) {
            Link& l = links[changes.front().plane];
            l.down = changes.front().mbit == 0;
            if (!l.down) l.bytes_per_s = changes.front().mbit * 1e6 / 8;
            last_change = now;
            recovered = 0;
            good_ticks = 0;
            changes.erase(changes.begin());
        }
        for (size_t p = 0; p < links.size(); ++p) {
            uint32_t newly = 0;
            uint64_t rtt = 0;
            const auto report = [&] {
                if (newly) n.on_sack(now, newly, false, true, rtt);
                newly = 0;
            };
            while (links[p].next_ns() <= now) {
                const Delivery d = links[p].pending.front();
                links[p].pending.pop_front();
                if (d.lost) {
                    n.on_loss(now, d.bytes);
                    paths->on_lost(now, d.ev, d.bytes, false);
                    continue;
                }
                rtt = now - d.sent_ns;
                paths->on_acked(now, d.ev, d.bytes, true, rtt);
                rtt -= paths->detour_ns(d.ev);
                newly += d.bytes;
                tick_bytes += d.bytes;
                if (now >= from_ns) counted += d.bytes;
                if (newly >= 16'384) report();
            }
            report();
        }
        if (now >= tick) {
            double capacity = 0;
            for (const Link& l : links) capacity += l.down ? 0 : l.bytes_per_s;
            const double seconds = static_cast<double>(now - tick + base) * 1e-9;
            if (now >= from_ns) capacity_seconds += capacity * std::min(seconds, static_cast<double>(now - from_ns) * 1e-9);
            good_ticks = static_cast<double>(tick_bytes) > 0.9 * capacity * seconds ? good_ticks + 1 : 0;
            if (good_ticks == 20 && recovered == 0) recovered = now - 20 * base;
            tick_bytes = 0;
            tick = now + base;
            uint8_t plane = 0;
            paths->set_rtt(base);
            n.set_longest_rtt(paths->longest_rtt_ns());
            paths->infer_plane_down(now, base, plane);
            EvIndex ev = kNoEv;
            while (paths->poll_probe(now, ev)) {
                if (links[paths->plane(ev)].down) paths->on_probe_lost(now, ev);
                else paths->on_probe_reply(now, ev, kMarkNone, links[paths->plane(ev)].rtt_ns);
            }
        }
        while (n.can_send(burst)) {
            const EvIndex ev = paths->pick(now, kAll, kNoEv, burst);
            if (ev == kNoEv) break;
            for (uint32_t left = burst; left > 0; left -= 4096) {
                paths->on_sent(now, ev, 4096);
                n.on_send(now, 4096);
                links[paths->plane(ev)].send(now, 4096, ev, rng);
            }
        }
        uint64_t next = tick;
        for (const Link& l : links) next = std::min(next, l.next_ns());
        now = std::max(next, now + 1);
    }
    out.share = static_cast<double>(counted) / capacity_seconds;
    out.weight0 = paths->plane_weight(0);
    out.recovered_ms = recovered > last_change ? static_cast<double>(recovered - last_change) / 1e6 : 0;
    if (recovered == 0) out.recovered_ms = INFINITY;
    return out;
}

Link wan(double mbit, uint64_t rtt_ms, double queue_bdp = 20) {
    Link l;
    l.bytes_per_s = mbit * 1e6 / 8;
    l.rtt_ns = rtt_ms * kMs;
    l.queue_bytes = static_cast<uint64_t>(queue_bdp * l.bytes_per_s * static_cast<double>(l.rtt_ns) * 1e-9);
    return l;
}

Link lossy(double mbit, uint64_t rtt_ms, double loss) {
    Link l = wan(mbit, rtt_ms, 1);
    l.loss = loss;
    return l;
}

void check_capacity(uint64_t seed) {
    struct Case {
        const char* name;
        std::vector<Link> links;
        ShareMode mode;
        bool known;
        std::vector<Change> changes;
        double least, most, weight0;
        uint64_t from_s = 3;
    };
    const auto cap = ShareMode::Capacity;
    const std::vector<Case> cases = {
        {"200 + 50 Mbit/s, 20 ms", {wan(200, 20), wan(50, 20)}, cap, true, {}, 0.95, 1.01, 0.8},
        {"200 + 50 Mbit/s, 50 ms", {wan(200, 50), wan(50, 50)}, cap, true, {}, 0.95, 1.01, 0.8},
        {"200 + 50 Mbit/s, 20 ms, learned", {wan(200, 20), wan(50, 20)}, cap, false, {}, 0.95, 1.01, 0.8},
        {"200 + 50 Mbit/s, 50 ms, learned", {wan(200, 50), wan(50, 50)}, cap, false, {}, 0.95, 1.01, 0.8},
        {"200 + 50 Mbit/s, 50 ms, learned, queues of 1 BDP", {wan(200, 50, 1), wan(50, 50, 1)}, cap, false, {}, 0.94, 1.01, 0.8},
        {"200 + 200 Mbit/s, 50 ms", {wan(200, 50), wan(200, 50)}, cap, true, {}, 0.97, 1.01, 0.5},
        {"200 + 200 Mbit/s, 50 ms, learned", {wan(200, 50), wan(200, 50)}, cap, false, {}, 0.97, 1.01, 0.5},
        {"200 + 200 Mbit/s, 50 ms, equal", {wan(200, 50), wan(200, 50)}, ShareMode::Equal, true, {}, 0.97, 1.01, 0.5},
        {"200 + 50 Mbit/s, 50 ms, equal ties to 2 x 50", {wan(200, 50), wan(50, 50)}, ShareMode::Equal, true, {}, 0.38, 0.42, 0.5},
        {"200 -> 50 and 50 -> 200 at 4 s", {wan(200, 30), wan(50, 30)}, cap, true, {{4000 * kMs, 0, 50}, {4000 * kMs, 1, 200}}, 0.93, 1.01, 0.2},
        {"50 -> 200 at 4 s, learned", {wan(200, 30), wan(50, 30)}, cap, false, {{4000 * kMs, 1, 200}}, 0.90, 1.01, 0.5},
        {"the plane of 50 dies at 4 s", {wan(200, 30), wan(50, 30)}, cap, true, {{4000 * kMs, 1, 0}}, 0.93, 1.01, 1.0},
        {"the plane of 200 dies at 4 s", {wan(200, 30), wan(50, 30)}, cap, true, {{4000 * kMs, 0, 0}}, 0.80, 1.02, 0.0},
        {"one of 200 dies at 4 s, back at 6 s, equal", {wan(200, 30), wan(200, 30)}, ShareMode::Equal, true, {{4000 * kMs, 1, 0}, {6000 * kMs, 1, 200}}, 0.70, 1.01, 0.5},
        {"eight planes of 100, one dies", {wan(100, 20), wan(100, 20), wan(100, 20), wan(100, 20), wan(100, 20), wan(100, 20), wan(100, 20), wan(100, 20)}, ShareMode::Equal, true, {{4000 * kMs, 3, 0}}, 0.95, 1.01, 1.0 / 7},
        {"200 + 50 Mbit/s, 50 ms, learned, loss 1 %", {lossy(200, 50, 0.01), lossy(50, 50, 0.01)}, cap, false, {}, 0.94, 1.0, 0.8},
        {"200 + 200 Mbit/s, 50 ms, learned, loss 1 %, equal", {lossy(200, 50, 0.01), lossy(200, 50, 0.01)}, ShareMode::Equal, false, {}, 0.94, 1.0, 0.5},
        {"200 at 20 ms + 200 at 60 ms", {wan(200, 20), wan(200, 60)}, cap, true, {}, 0.95, 1.01, 0.25},
        {"200 at 20 ms + 200 at 60 ms, learned", {wan(200, 20), wan(200, 60)}, cap, false, {}, 0.95, 1.01, 0.25},
        {"50 at 20 ms + 200 at 60 ms, learned, loss 1 %", {lossy(50, 20, 0.01), lossy(200, 60, 0.01)}, cap, false, {}, 0.94, 1.01, 1.0 / 13},
        {"200 at 20 ms + 200 at 60 ms, equal", {wan(200, 20), wan(200, 60)}, ShareMode::Equal, true, {}, 0.95, 1.01, 0.5},
        {"1000 + 10 Mbit/s, 20 ms", {wan(1000, 20), wan(10, 20)}, cap, true, {}, 0.95, 1.01, 0.98},
    };
    for (const Case& c : cases)
        for (const uint32_t burst : {4096u, 61'440u}) {
            const Run r = run_planes(c.links, c.mode, c.known, 12'000 * kMs, c.from_s * 1000 * kMs, c.changes, burst, seed);
            if (g_verbose) std::printf("%-52s burst %5u: %.3f of the capacity, weight %.3f, 90 %% after %.0f ms\n", c.name, burst, r.share, r.weight0, r.recovered_ms);
            CHECK(r.share >= c.least && r.share <= c.most, "%s, burst %u: %.3f of the capacity", c.name, burst, r.share);
            // Where lengths differ, what every plane queues moves weights from the ratio of empty planes toward that of rates.
            const bool differ = c.links.front().rtt_ns != c.links.back().rtt_ns && c.mode == cap;
            const double most = differ ? std::max(c.weight0, c.links.front().bytes_per_s / (c.links.front().bytes_per_s + c.links.back().bytes_per_s)) : c.weight0;
            CHECK(r.weight0 > c.weight0 - 0.06 && r.weight0 < most + 0.06, "%s, burst %u: weight %.3f instead of %.3f", c.name, burst, r.weight0, c.weight0);
        }
    // Neutral where nothing is saturated: weights wander, but no plane is driven out.
    PathSetConfig pc = shape(2, 32, 0, seed);
    pc.share = ShareMode::Capacity;
    auto s = make(pc);
    s->set_rtt(kMs);
    CounterRng rng(seed);
    std::deque<std::pair<uint64_t, EvIndex>> flying;
    double least = 1;
    uint64_t now = kMs;
    for (int i = 0; i < 400'000; ++i, now += i & 1 ? 4'000 : rng.below(60'000)) {   // bursts at random times
        while (!flying.empty() && flying.front().first <= now) {
            s->on_acked(now, flying.front().second, 4096, true, kMs + rng.below(100'000));
            flying.pop_front();
        }
        const uint64_t arrives = std::max(now + kMs + rng.below(300'000), flying.empty() ? 0 : flying.back().first);
        const EvIndex ev = s->pick(now, kAll, kNoEv, 61'440);
        for (int k = 0; k < 15; ++k) {
            s->on_sent(now, ev, 4096);
            flying.emplace_back(arrives, ev);
        }
        least = std::min({least, s->plane_weight(0), s->plane_weight(1)});
    }
    if (g_verbose) std::printf("unsaturated: least weight in 6400 RTT %.3f\n", least);
    CHECK(least > 0.3, "an unsaturated plane was driven down to %.3f", least);
    for (; !flying.empty(); flying.pop_front()) s->on_acked(now, flying.front().second, 4096, false, 0);
    // One packet at a time goes to the heaviest plane and teaches nothing.
    for (int i = 0; i < 200'000; ++i, now += 20'000) s->on_acked(now, send(*s, now), 4096, false, 0);
    CHECK(s->plane_weight(0) > 0.3 && s->plane_weight(1) > 0.3, "%.3f", s->plane_weight(0));
}

void measure_cost() {
    const auto clock = [] { return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
    for (const uint32_t planes : {1u, 2u, 8u})
        for (const ShareMode mode : {ShareMode::Equal, ShareMode::Capacity}) {
            PathSetConfig c = shape(planes, 128 / planes, 64 / planes);
            c.share = mode;
            auto s = make(c);
            constexpr int kRounds = 2'000, kBatch = 256;
            EvIndex evs[kBatch];
            double pick = 0, sent = 0, acked = 0;
            for (int r = 0; r < kRounds; ++r) {
                const double t0 = clock();
                for (int i = 0; i < kBatch; ++i) evs[i] = s->pick(1, kAll, kNoEv, 4096);
                const double t1 = clock();
                for (int i = 0; i < kBatch; ++i) s->on_sent(1, evs[i], 4096);
                const double t2 = clock();
                for (int i = 0; i < kBatch; ++i) s->on_acked(1, evs[i], 4096, true, 1000);
                const double t3 = clock();
                pick += t1 - t0, sent += t2 - t1, acked += t3 - t2;
            }
            const double n = static_cast<double>(kRounds) * kBatch;
            std::printf("%u planes, %s: pick %.1f ns, on_sent %.1f ns, on_acked %.1f ns\n", planes, mode == ShareMode::Equal ? "equal" : "capacity", pick / n, sent / n, acked / n);
        }
    NsccConfig nc;
    nc.mtu_bytes = 4096;
    Nscc n(nc);
    const double t0 = clock();
    constexpr int kPackets = 500'000;
    for (int i = 0; i < kPackets; ++i) {
        n.on_send(static_cast<uint64_t>(i) * 1000, 4096);
        n.on_sack(static_cast<uint64_t>(i) * 1000 + 900, 4096, false, true, 900);
    }
    std::printf("nscc on_send + on_sack: %.1f ns\n", (clock() - t0) / kPackets);
}

}  // namespace

int main(int argc, char** argv) {
    const uint64_t seed = argument(argc, argv, 1, 1), iterations = argument(argc, argv, 2, 1);
    g_verbose = argc > 3;
    check_capacity(seed);
    if (g_verbose) measure_cost();
    return finish("plane_share_test", seed, iterations);
}
