// The transports MRC is compared with, over the packet engine: `sim_rivals_test [seed] [iterations]`, with ITERATIONS / 250
// random networks, random work and faults for each of them. Every run ends with a check of conservation.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "farstep/sim/packet_engine.hpp"
#include "farstep/sim/rivals/adaptive.hpp"
#include "farstep/sim/rivals/ndp.hpp"
#include "farstep/sim/rivals/rival_transport.hpp"
#include "farstep/sim/rivals/roce.hpp"
#include "farstep/sim/rivals/tcp.hpp"
#include "farstep/sim/rivals/uet.hpp"
#include "sim_support/check.hpp"
#include "sim_support/fat_tree.hpp"
#include "sim_support/work.hpp"

namespace {

using namespace farstep;
using namespace farstep::sim;
using fabric_kit::FatTree;
using fabric_kit::Shape;
using fabric_kit::Work;

using Uet = RivalTransport<UetRival>;
using Ndp = RivalTransport<NdpRival>;
using Tcp = RivalTransport<TcpRival>;
using Roce = RivalTransport<RoceRival, true>;
using LossyRoce = RivalTransport<RoceRival>;
using Adaptive = RivalTransport<AdaptiveRival, true, true>;

EngineSettings reference_settings(uint64_t seed) {
    EngineSettings s;
    s.fabric.mtu_bytes = 4086;
    s.fabric.overhead_bytes = s.fabric.control_bytes = s.fabric.trimmed_bytes = 64;
    s.fabric.queue_limit_bytes = s.fabric.last_hop_limit_bytes = 178'450;
    s.fabric.ecn_min_bytes = 37'350;
    s.fabric.ecn_max_bytes = 145'250;
    s.fabric.last_hop_ecn = true;
    s.fabric.seed = seed;
    return s;
}

Uet::Settings uet(Spread spread, uint64_t seed) {
    Uet::Settings s;
    s.seed = seed;
    s.protocol.choice.spread = spread;
    s.protocol.nscc.trimming = true;
    return s;
}
Uet::Settings rccc(uint64_t seed) {
    Uet::Settings s = uet(Spread::Oblivious, seed);
    s.protocol.sender_window = false;
    s.protocol.receiver_credit = true;
    s.pacer_share = 0.99;
    return s;
}
Ndp::Settings ndp(uint64_t seed) {
    Ndp::Settings s;
    s.seed = seed;
    s.protocol.paths.is_hashed = false;
    s.protocol.paths.per_plane = 64;
    return s;
}
Tcp::Settings tcp(TcpGrowth growth, uint64_t seed) {
    Tcp::Settings s;
    s.seed = seed;
    s.answer_paths = 1;
    s.protocol.paths.per_plane = 1;
    s.protocol.growth = growth;
    return s;
}
Roce::Settings roce(uint32_t queue_pairs, bool dcqcn, uint64_t seed) {
    Roce::Settings s;
    s.seed = seed;
    s.answer_paths = 1;
    s.protocol.queue_pairs = s.protocol.paths.per_plane = queue_pairs;
    s.protocol.dcqcn.enabled = dcqcn;
    return s;
}
Adaptive::Settings adaptive(uint64_t seed) {
    Adaptive::Settings s;
    s.seed = seed;
    s.protocol.paths.per_plane = 1;
    return s;
}

struct Outcome {
    std::vector<double> us;        // of each flow
    std::vector<double> gbps;
    TrafficCounters traffic;
    uint64_t retransmitted = 0, trims = 0, dropped = 0, digest = 0;
    double median() const { return at(0.5); }
    double at(double share) const {
        std::vector<double> sorted = us;
        std::sort(sorted.begin(), sorted.end());
        return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
    }
};

template <class T>
Outcome run(const FatTree& tree, const EngineSettings& s, const typename T::Settings& t, const Work& w, const char* what,
            const std::vector<FaultAction>& faults = {}, const FatTree* rerouted = nullptr, uint64_t reroute_ns = 0) {
    PacketEngine<T> e(tree.columns(), s, t);
    e.add_tasks(w.columns());
    for (const FaultAction& f : faults) e.add_fault(f);
    if (rerouted) e.add_reroute(reroute_ns, rerouted->columns());
    const RunStatus status = e.run(RunLimits{60'000'000'000, 0, 20'000'000'000}, {});
    const auto lines = e.unfinished(2);
    CHECK(status == RunStatus::Finished, "%s ended with status %d: %s", what, static_cast<int>(status), lines.empty() ? "" : lines[0].c_str());
    e.check_conservation();
    Outcome o;
    o.traffic = e.network().counters();
    for (size_t i = 0; i < e.outcomes().size(); ++i) {
        const TaskOutcome& k = e.outcomes()[i];
        CHECK(k.finish_ns >= k.start_ns && k.start_ns >= w.start[i], "%s: task %zu", what, i);
        o.us.push_back(static_cast<double>(k.finish_ns - k.start_ns) / 1e3);
        o.gbps.push_back(static_cast<double>(w.size[i]) * 8 / static_cast<double>(std::max<int64_t>(k.finish_ns - k.start_ns, 1)));
        o.retransmitted += k.retransmitted;
        o.trims += k.trims;
        o.dropped += k.dropped;
        o.digest = (o.digest ^ static_cast<uint64_t>(k.finish_ns)) * 0x9E3779B97F4A7C15ull;
    }
    o.digest ^= o.traffic.hops ^ o.traffic.control_sent << 20;
    return o;
}

Work permutation(uint32_t nics, int64_t bytes, uint64_t seed) {
    CounterRng rng(seed);
    std::vector<uint32_t> to(nics);
    for (uint32_t i = 0; i < nics; ++i) to[i] = i;
    for (uint32_t i = nics - 1; i > 0; --i) std::swap(to[i], to[rng.below(i)]);  // one cycle: nobody sends to itself
    Work w;
    for (uint32_t i = 0; i < nics; ++i) w.flow(i, to[i], bytes);
    return w;
}

// ---- arithmetic ------------------------------------------------------------------------------------------------------

// 489 full packets, five stores and forwards, the short last one, six links out and six back: 176.20 us, as htsim has it.
void one_flow_takes_what_arithmetic_says(uint64_t seed) {
    const FatTree tree(Shape{});
    Work w;
    w.flow(0, 127, 2'000'000);
    const EngineSettings s = reference_settings(seed);
    const double alone = 176.20;
    const auto near = [&](const Outcome& o, double us, const char* what) {
        CHECK(std::fabs(o.us[0] - us) < 0.02 * us, "%s: %.2f us, not %.2f", what, o.us[0], us);
        CHECK(o.retransmitted == 0, "%s sends something again", what);
    };
    near(run<Uet>(tree, s, uet(Spread::Mixed, seed), w, "uet"), alone, "uet");
    near(run<Uet>(tree, s, rccc(seed), w, "rccc"), alone, "rccc");
    near(run<Ndp>(tree, s, ndp(seed), w, "ndp"), alone, "ndp");
    near(run<Roce>(tree, s, roce(1, true, seed), w, "roce"), alone, "roce");
    near(run<Roce>(tree, s, roce(16, true, seed), w, "roce 16"), alone, "roce with 16 queue pairs");
    near(run<Adaptive>(tree, s, adaptive(seed), w, "adaptive"), alone, "adaptive");
    // Slow start from ten packets of 43: two round trips go by with a pipe half empty.
    near(run<Tcp>(tree, s, tcp(TcpGrowth::Reno, seed), w, "tcp"), alone + 20, "tcp");
}

// ---- what htsim found, at the size of a driver -------------------------------------------------------------------------

// Medians of 128 NICs sending 2 MB each (htsim, see the acceptance tests for the bands): the order of the balancers.
void balancers_keep_their_order(uint64_t seed) {
    const FatTree tree(Shape{});
    const Work w = permutation(128, 2'000'000, seed);
    const EngineSettings s = reference_settings(seed);
    const Outcome mixed = run<Uet>(tree, s, uet(Spread::Mixed, seed), w, "mixed");
    const Outcome oblivious = run<Uet>(tree, s, uet(Spread::Oblivious, seed), w, "oblivious");
    Uet::Settings one = uet(Spread::Oblivious, seed);
    one.protocol.paths.per_plane = 1;
    const Outcome ecmp = run<Uet>(tree, s, one, w, "one path");
    CHECK(mixed.median() < oblivious.median(), "mixed %.1f us, oblivious %.1f us", mixed.median(), oblivious.median());
    CHECK(1.4 * oblivious.median() < ecmp.median(), "oblivious %.1f us, one path %.1f us", oblivious.median(), ecmp.median());
    CHECK(std::fabs(mixed.median() / 191.4 - 1) < 0.04 && std::fabs(oblivious.median() / 200.2 - 1) < 0.04, "mixed %.1f us, oblivious %.1f us",
          mixed.median(), oblivious.median());
    Ndp::Settings blind = ndp(seed);
    blind.protocol.initial_packets = 50;  // htsim's
    const Outcome pulled = run<Ndp>(tree, s, blind, w, "ndp");
    CHECK(std::fabs(pulled.median() / 188.1 - 1) < 0.04 && pulled.trims == 0, "ndp %.1f us, %llu trims", pulled.median(),
          static_cast<unsigned long long>(pulled.trims));
}

// 32 senders of 1 MB: credit and pulls keep the last link full to the end.
void incast_keeps_the_last_link_full(uint64_t seed) {
    const FatTree tree(Shape{});
    Work w;
    for (uint32_t i = 1; i <= 32; ++i) w.flow(3 * i, 0, 1'000'000);
    const EngineSettings s = reference_settings(seed);
    const double bound = 32 * 245 * 0.332;  // packets times their time on the wire
    for (const Outcome& o : {run<Uet>(tree, s, rccc(seed), w, "rccc"), run<Ndp>(tree, s, ndp(seed), w, "ndp")})
        CHECK(o.at(1) > bound - 10 && o.at(1) < 1.02 * bound + 12, "the last of them after %.1f us; bound %.1f", o.at(1), bound);
}

// ---- lossless fabrics --------------------------------------------------------------------------------------------------

// Four racks of four NICs under four spines at 400 Gb/s.
Shape four_racks() {
    Shape s;
    s.pods = 1;
    s.t2_per_t1 = 0;
    s.gbps = 400;
    s.latency_ns = 300;
    s.switch_latency_ns = 600;
    return s;
}

// Seven send to one NIC, and one to its idle neighbour in the same rack. Pauses spread over what the victim shares with
// the others; a fabric that does not pause spares it. Nothing is ever dropped where ports pause.
void pauses_hurt_a_victim(uint64_t seed) {
    const FatTree tree(four_racks());
    Work w;
    for (uint32_t i = 4; i < 11; ++i) w.flow(i, 0, 20'000'000);
    w.flow(11, 1, 40'000'000);
    EngineSettings s = reference_settings(seed);
    s.fabric.ecn_min_bytes = 60'000;
    s.fabric.ecn_max_bytes = 240'000;
    s.fabric.base_rtt_ns = 6'000;
    const Outcome pausing = run<Roce>(tree, s, roce(8, false, seed), w, "pfc alone");
    CHECK(pausing.traffic.dropped() == 0 && pausing.traffic.trimmed == 0 && pausing.traffic.pauses > 100, "%llu dropped, %llu pauses",
          static_cast<unsigned long long>(pausing.traffic.dropped()), static_cast<unsigned long long>(pausing.traffic.pauses));
    CHECK(pausing.gbps[7] < 0.4 * 400, "the victim of pauses has %.0f Gb/s", pausing.gbps[7]);
    const Outcome slowed = run<Roce>(tree, s, roce(8, true, seed), w, "pfc and dcqcn");
    CHECK(slowed.traffic.pauses < pausing.traffic.pauses, "DCQCN keeps queues from filling: %llu pauses",
          static_cast<unsigned long long>(slowed.traffic.pauses));
    const Outcome spared = run<Uet>(tree, s, uet(Spread::Mixed, seed), w, "uet");
    CHECK(spared.gbps[7] > 0.93 * 400, "without pauses the victim has %.0f Gb/s", spared.gbps[7]);
    CHECK(spared.traffic.pauses == 0, "nobody pauses there");
}

// Eight flows over eight uplinks, hashed: they have the line, half of it, a third or a quarter.
void hashed_flows_collide(uint64_t seed) {
    const FatTree tree(four_racks());
    uint32_t whole = 0, shared = 0;
    for (uint64_t i = 0; i < 20; ++i) {
        Work w;
        for (uint32_t n = 0; n < 8; ++n) w.flow(n, 8 + n, 10'000'000);
        const Outcome o = run<Roce>(tree, reference_settings(seed + i), roce(1, false, seed + i), w, "collisions");
        for (const double gbps : o.gbps) {
            if (gbps > 0.9 * 390) ++whole;
            else ++shared;
            CHECK(gbps > 390 / 5.0, "a flow has %.0f Gb/s", gbps);
        }
    }
    CHECK(whole > 30 && shared > 60, "%u flows had the line, %u shared one", whole, shared);
    Work w;
    for (uint32_t n = 0; n < 8; ++n) w.flow(n, 8 + n, 10'000'000);
    const Outcome o = run<Adaptive>(tree, reference_settings(seed), adaptive(seed), w, "adaptive");
    for (const double gbps : o.gbps) CHECK(gbps > 0.9 * 390, "switches that choose leave a flow %.0f Gb/s", gbps);
}

// ---- failures ----------------------------------------------------------------------------------------------------------

// A spine's links to one rack die. Adaptive switches know their own at once; hashed flows wait for routing.
void routing_follows_late(uint64_t seed) {
    const FatTree tree(four_racks());
    Work w;
    for (uint32_t n = 0; n < 4; ++n) w.flow(n, 12 + n, 20'000'000);
    std::vector<FaultAction> faults;
    const uint32_t dead = tree.link(tree.t0_of(0, 0), tree.t1_of(0, 1, 0));
    for (const uint32_t l : {dead, dead ^ 1}) faults.push_back({100'000, FaultKind::Down, l, 0});
    Shape without = four_racks();
    without.missing_t0 = 0;
    without.missing_t1 = 1;
    const FatTree after(without);
    Roce::Settings hashed = roce(8, false, seed);
    hashed.protocol.rto_ns = 500'000;
    const Outcome late = run<Roce>(tree, reference_settings(seed), hashed, w, "reconvergence", faults, &after, 5'000'000);
    CHECK(late.traffic.dropped_down > 0 && late.at(1) > 4'900, "flows end after routing has, %.0f us", late.at(1));
    CHECK(late.at(1) < 9'000, "and soon after, %.0f us", late.at(1));
    std::vector<FaultAction> known = faults;
    for (const uint32_t l : {dead, dead ^ 1}) known.push_back({100'000, FaultKind::SwitchKnowsDown, l, 0});
    const Outcome soon = run<Adaptive>(tree, reference_settings(seed), adaptive(seed), w, "adaptive", known);
    CHECK(soon.at(1) < 3'000, "switches that choose go round it: %.0f us", soon.at(1));
}

// One of two planes dies under a NIC that is not told: it falls silent, and is left after the failover time.
void a_silent_plane_is_left(uint64_t seed) {
    Shape shape = four_racks();
    shape.planes = 2;
    const FatTree tree(shape);
    Work w;
    w.flow(0, 12, 400'000'000);
    const uint32_t dead = tree.link(tree.t0_of(12, 1), 12);
    const std::vector<FaultAction> faults{{500'000, FaultKind::Down, dead, 0}, {500'000, FaultKind::Down, dead ^ 1, 0}};
    Adaptive::Settings slow = adaptive(seed), fast = adaptive(seed);
    slow.protocol.failover_ns = 20'000'000;
    slow.protocol.rto_ns = 40'000'000;
    const Outcome soon = run<Adaptive>(tree, reference_settings(seed), fast, w, "3 ms", faults);
    const Outcome late = run<Adaptive>(tree, reference_settings(seed), slow, w, "20 ms", faults);
    CHECK(soon.dropped > 0 && soon.us[0] < 12'500, "%.0f us", soon.us[0]);
    CHECK(late.us[0] > soon.us[0] + 8'000, "%.0f us with 20 ms, %.0f with 3", late.us[0], soon.us[0]);
}

// ---- anything ------------------------------------------------------------------------------------------------------------

struct Drawn {
    Shape shape;
    Work work;
    EngineSettings settings;
    std::vector<FaultAction> faults;
};

Drawn draw(uint64_t seed, bool is_lossless) {
    CounterRng rng(seed);
    Drawn d;
    d.shape.pods = 1 + rng.below(3);
    d.shape.t0_per_pod = 1 + rng.below(3);
    d.shape.nics_per_t0 = 2 + rng.below(3);
    d.shape.t1_per_pod = 1 + rng.below(3);
    d.shape.t2_per_t1 = d.shape.pods > 1 ? 1 + rng.below(2) : rng.below(2);
    d.shape.planes = 1 + rng.below(3);
    d.shape.latency_ns = 200 + rng.below(3'000);
    d.settings = reference_settings(seed);
    d.settings.fabric.queue_limit_bytes = d.settings.fabric.last_hop_limit_bytes = 20'000.0 + rng.below(200'000);
    d.settings.fabric.ecn_min_bytes = 0.2 * d.settings.fabric.queue_limit_bytes;
    d.settings.fabric.ecn_max_bytes = 0.8 * d.settings.fabric.queue_limit_bytes;
    d.settings.fabric.trimming = rng.below(3) > 0;
    d.settings.completes_at_source = rng.below(2);
    const uint32_t nics = d.shape.pods * d.shape.t0_per_pod * d.shape.nics_per_t0;
    const uint32_t flows = 1 + rng.below(24), hot = rng.below(nics);
    for (uint32_t i = 0; i < flows; ++i) {
        const uint32_t to = rng.below(3) == 0 ? hot : rng.below(nics);
        const uint32_t from = (to + 1 + rng.below(nics - 1)) % nics;
        std::vector<int32_t> after;
        if (i > 0 && rng.below(3) == 0) after.push_back(static_cast<int32_t>(rng.below(i)));
        const int64_t bytes = rng.below(4) == 0 ? rng.below(9'000) : rng.below(600'000);
        d.work.flow(from, to, bytes, after, rng.below(50'000), rng.below(5'000), rng.below(4) == 0 ? int64_t{to} * nics + from : -1);
    }
    const FatTree tree(d.shape);
    for (uint32_t i = rng.below(4); i > 0; --i) {
        const auto link = rng.below(static_cast<uint32_t>(tree.source.size()));
        const uint64_t at = rng.below(100'000);
        switch (rng.below(is_lossless ? 3 : 4)) {
            case 0: d.faults.push_back({at, FaultKind::Loss, link, 0.02}); break;
            case 1: d.faults.push_back({at, FaultKind::Rate, link, 0.25}); break;
            case 2: d.faults.push_back({at, FaultKind::Delay, link, 5'000.0}); break;
            default:
                d.faults.push_back({at, FaultKind::Down, link, 0});
                d.faults.push_back({at + 300'000, FaultKind::Up, link, 0});
        }
    }
    return d;
}

template <class T>
void anything_ends(const char* name, const typename T::Settings& settings, uint64_t seed) {
    seed_of_run = seed;
    const Drawn d = draw(seed, T::Policy::kLossless);
    const FatTree tree(d.shape);
    const Outcome once = run<T>(tree, d.settings, settings, d.work, name, d.faults);
    if (T::Policy::kLossless)
        CHECK(once.traffic.dropped_full == 0 && once.traffic.trimmed == 0, "%s: a lossless fabric drops nothing for lack of room", name);
    if (seed % 3 == 0) CHECK(run<T>(tree, d.settings, settings, d.work, name, d.faults).digest == once.digest, "%s: equal seeds differ", name);
}

void a_random_network(uint64_t seed) {
    for (const Spread s : {Spread::Oblivious, Spread::Bitmap, Spread::Reps, Spread::Mixed}) anything_ends<Uet>("uet", uet(s, seed), seed);
    anything_ends<Uet>("rccc", rccc(seed), seed);
    anything_ends<Ndp>("ndp", ndp(seed), seed);
    for (const TcpGrowth g : {TcpGrowth::Reno, TcpGrowth::Cubic, TcpGrowth::Dctcp}) anything_ends<Tcp>("tcp", tcp(g, seed), seed);
    for (const uint32_t pairs : {1u, 3u, 16u}) {
        Roce::Settings r = roce(pairs, seed % 2, seed);
        r.protocol.rto_ns = 2'000'000;
        anything_ends<Roce>("roce", r, seed);
        LossyRoce::Settings l;
        l.protocol = r.protocol;
        l.seed = seed;
        l.answer_paths = 1;
        anything_ends<LossyRoce>("lossy roce", l, seed);
    }
    anything_ends<Adaptive>("adaptive", adaptive(seed), seed);
}

}  // namespace

int main(int argc, char** argv) {
    const uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
    const uint64_t iterations = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 2000;
    seed_of_run = seed;
    one_flow_takes_what_arithmetic_says(seed);
    balancers_keep_their_order(seed);
    incast_keeps_the_last_link_full(seed);
    pauses_hurt_a_victim(seed);
    hashed_flows_collide(seed);
    routing_follows_late(seed);
    a_silent_plane_is_left(seed);
    for (uint64_t i = 0; i < iterations / 250; ++i) a_random_network(seed * 1000 + i);
    std::printf("sim_rivals_test: ok\n");
    return 0;
}
