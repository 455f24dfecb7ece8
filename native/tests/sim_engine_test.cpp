// The packet engine against arithmetic and against its own invariants.
//
//   sim_engine_test SEED ITERATIONS     ITERATIONS / 100 random networks with random work and faults
//
// Every run checks that sent = delivered + trimmed + dropped + in flight, and that packets of one path stay in order.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "farstep/sim/mrc_transport.hpp"
#include "farstep/sim/packet_engine.hpp"
#include "sim_support/check.hpp"
#include "sim_support/fat_tree.hpp"
#include "sim_support/work.hpp"

namespace {

using namespace farstep;
using namespace farstep::sim;
using fabric_kit::FatTree;
using fabric_kit::Shape;
using fabric_kit::Work;

/// MRC, and a look at every arrival: first transmissions of one path of a connection come in the order they were sent.
class WatchedMrc : public MrcTransport {
public:
    using MrcTransport::MrcTransport;
    template <class Host>
    void on_data(Host& host, uint32_t number) {
        const Packet& k = host.network().packet(number);
        const bool is_again = k.flags & (Packet::kOwn << 2);
        if (checks_order && !is_again) {
            const Cargo& g = host.network().cargo(number);
            uint32_t& last = newest_[uint64_t{g.connection} << 16 | g.path];
            CHECK(last == 0 || ((g.sequence - last) & 0xFFFFFF) < 0x800000, "packet %u of path %u came after %u", g.sequence, g.path, last);
            last = g.sequence;
        }
        MrcTransport::on_data(host, number);
    }
    inline static bool checks_order = true;

private:
    std::map<uint64_t, uint32_t> newest_;
};
using Engine = PacketEngine<WatchedMrc>;

EngineSettings reference_settings(uint64_t seed) {
    EngineSettings s;
    s.fabric.mtu_bytes = 4086;
    s.fabric.overhead_bytes = s.fabric.control_bytes = s.fabric.trimmed_bytes = 64;
    s.fabric.queue_limit_bytes = s.fabric.last_hop_limit_bytes = 178'450;
    s.fabric.ecn_min_bytes = 37'350;
    s.fabric.ecn_max_bytes = 145'250;
    s.fabric.base_rtt_ns = 14'019;
    s.fabric.seed = seed;
    return s;
}
MrcSettings mrc(uint64_t seed) {
    MrcSettings m;
    m.seed = seed;
    m.active_evs_per_plane = 16;
    m.backup_evs_per_plane = 8;
    m.reliability.rto_base_ns = 100'000;
    m.reliability.rto_max_ns = 10'000'000;
    m.reliability.loss_slack_min_ns = 10'000;
    m.reliability.initial_rtt_ns = 14'000;
    m.reliability.keepalive_ns = 0;
    return m;
}
std::unique_ptr<Engine> engine(const FatTree& tree, const EngineSettings& s, const MrcSettings& m, const Work& w) {
    auto e = std::make_unique<Engine>(tree.columns(), s, m);
    e->add_tasks(w.columns());
    return e;
}
void run_to_end(Engine& e, const char* what) {
    const RunStatus status = e.run(RunLimits{20'000'000'000, 0, 2'000'000'000}, {});
    const auto lines = e.unfinished(3);
    CHECK(status == RunStatus::Finished, "%s ended with status %d: %s", what, static_cast<int>(status), lines.empty() ? "" : lines[0].c_str());
    e.check_conservation();
}

// One flow alone: packets x wire time, and store and forward, and the way there and back.
void one_flow_takes_what_arithmetic_says() {
    const FatTree tree(Shape{});
    for (const auto& [bytes, expected_us] : {std::pair{2'000'000, 176.20}, {64'000, 18.89}}) {
        Work w;
        w.flow(127, 0, bytes);
        const auto e = engine(tree, reference_settings(1), mrc(1), w);
        run_to_end(*e, "one flow");
        const double us = static_cast<double>(e->outcomes()[0].finish_ns) * 1e-3;
        CHECK(std::abs(us - expected_us) < 0.06, "%d bytes took %.3f us, not %.2f", bytes, us, expected_us);
        CHECK(e->outcomes()[0].retransmitted == 0, "an idle network lost something");
    }
}

// An incast is as fast as the last link, and loses nothing for good.
void incast_is_bound_by_the_last_link() {
    const FatTree tree(Shape{});
    Work w;
    for (uint32_t i = 1; i <= 16; ++i) w.flow(i * 7, 0, 500'000);
    const auto e = engine(tree, reference_settings(2), mrc(2), w);
    run_to_end(*e, "incast");
    int64_t last = 0;
    for (const TaskOutcome& o : e->outcomes()) last = std::max(last, o.finish_ns);
    const double bound_us = 16 * 123 * 0.332;
    const double us = static_cast<double>(last) * 1e-3;
    CHECK(us >= bound_us && us < 1.15 * bound_us + 30, "%.1f us where the wire needs %.1f", us, bound_us);
    CHECK(e->network().counters().trimmed > 0, "nothing was trimmed");
}

// No host is favoured for its number: two senders share a link fairly, whichever comes first.
void numbers_do_not_matter() {
    const FatTree tree(Shape{});
    double first = 0, second = 0;
    for (uint64_t seed = 1; seed <= 8; ++seed) {
        Work w;
        w.flow(20, 0, 400'000);
        w.flow(90, 0, 400'000);
        const auto e = engine(tree, reference_settings(seed), mrc(seed), w);
        run_to_end(*e, "two to one");
        first += static_cast<double>(e->outcomes()[0].finish_ns);
        second += static_cast<double>(e->outcomes()[1].finish_ns);
    }
    CHECK(std::abs(first - second) < 0.1 * first, "sender 20 took %.0f ns on average, sender 90 %.0f", first / 8, second / 8);
}

void dependencies_are_kept() {
    const FatTree tree(Shape{});
    Work w;
    const int32_t a = w.flow(0, 64, 100'000);
    const int32_t wait = w.pause(64, 50'000, {a});
    const int32_t b = w.flow(64, 0, 100'000, {wait});
    const int32_t c = w.flow(1, 65, 100'000, {a, b}, 0, 7'000);
    EngineSettings s = reference_settings(3);
    s.completes_at_source = false;
    const auto e = engine(tree, s, mrc(3), w);
    run_to_end(*e, "a chain");
    const auto& o = e->outcomes();
    CHECK(o[wait].finish_ns - o[a].finish_ns == 50'000, "the delay took %lld ns", static_cast<long long>(o[wait].finish_ns - o[a].finish_ns));
    CHECK(o[b].start_ns == o[wait].finish_ns, "the second flow started at %lld", static_cast<long long>(o[b].start_ns));
    CHECK(o[c].start_ns == o[b].finish_ns + 7'000, "the third flow started at %lld", static_cast<long long>(o[c].start_ns));
}

// Both ends cut off: the run ends by itself and says who waits for what.
void a_stalled_run_says_so() {
    const FatTree tree(Shape{});
    Work w;
    w.flow(0, 64, 1'000'000);
    MrcSettings m = mrc(4);
    m.reliability.exponential_count = 25;  // never gives up
    auto e = engine(tree, reference_settings(4), m, w);
    e->add_fault({20'000, FaultKind::Down, tree.link(0, tree.t0_of(0, 0)), 0});
    const RunStatus status = e->run(RunLimits{UINT64_MAX, 0, 500'000'000}, {});
    const auto lines = e->unfinished(3);
    CHECK(status == RunStatus::Stalled && lines.size() == 1, "status %d, %zu lines", static_cast<int>(status), lines.size());
    CHECK(lines[0].find("NIC 0 to NIC 64 waits for") != std::string::npos, "%s", lines[0].c_str());
    e->check_conservation();
}

// A plane dies: what it held is sent again on the others, and the flow ends as fast as those allow.
void a_plane_dies() {
    Shape shape;
    shape.planes = 4;
    shape.gbps = 25;
    const FatTree tree(shape);
    Work w;
    w.flow(0, 100, 2'000'000);
    MrcSettings m = mrc(5);
    auto e = engine(tree, reference_settings(5), m, w);
    const uint32_t uplink = tree.link(0, tree.t0_of(0, 2));
    e->add_fault({50'000, FaultKind::Down, uplink, 0});
    e->add_fault({50'000, FaultKind::Down, uplink ^ 1, 0});
    e->add_fault({150'000, FaultKind::PortKnownDown, uplink, 0});
    run_to_end(*e, "a dead plane");
    CHECK(e->network().counters().dropped_down > 0, "nothing was lost on the dead link");
    const double us = static_cast<double>(e->outcomes()[0].finish_ns) * 1e-3;
    CHECK(us > 180 && us < 600, "%.1f us", us);
    CHECK(!e->path_events().empty(), "nobody heard of it");
}

// A flow that is followed tells of every packet: by which ports it went, how long it took and how it ended.
void a_followed_flow_tells_of_every_packet() {
    const FatTree tree(Shape{});
    Work w;
    for (uint32_t i = 1; i <= 16; ++i) w.flow(i * 7, 0, 500'000);
    w.flow(1, 100, 500'000);
    auto e = engine(tree, reference_settings(7), mrc(7), w);
    const uint32_t uplink = tree.link(7, tree.t0_of(7, 0));
    e->add_fault({20'000, FaultKind::Loss, uplink, 0.2});
    e->network().follow(e->connection_of(0));
    run_to_end(*e, "an incast that is followed");
    e->settle();
    const PacketTrace& trace = e->network().trace();
    uint64_t fates[6] = {}, dropped = 0, trimmed = 0;
    for (const TraceRow& r : trace.rows()) {
        ++fates[static_cast<int>(r.fate)];
        CHECK(r.hops == 6 || r.hops == 4 || r.hops == 2, "a way of %u ports", r.hops);
        const uint32_t last = trace.port(r, r.hops - 1u);
        CHECK(e->network().fabric().target_node(last) == 0, "the way ends at node %u", e->network().fabric().target_node(last));
        const bool is_whole = r.fate == Fate::Delivered;
        CHECK(is_whole == (r.where == UINT32_MAX), "what arrived ended at a port");
        CHECK(!is_whole || r.ended_ns > static_cast<int64_t>(r.sent_ns) + 2'000 * r.hops / 2, "%lld ns", static_cast<long long>(r.ended_ns));
    }
    const TaskOutcome& o = e->outcomes()[0];
    CHECK(trace.rows().size() == o.packets, "%zu of %u packets", trace.rows().size(), o.packets);
    CHECK(fates[2] == o.trims && fates[3] + fates[4] + fates[5] == o.dropped, "fates differ from counts");
    CHECK(o.dropped > 0 && o.trims > 0, "%u dropped, %u trimmed", o.dropped, o.trims);
    for (const TaskOutcome& each : e->outcomes()) dropped += each.dropped, trimmed += each.trims;
    const TrafficCounters& k = e->network().counters();
    CHECK(dropped == k.dropped() && trimmed == k.trimmed, "flows and network count differently");
}

// ---- random networks -------------------------------------------------------------------------------------------------

struct Drawn {
    Shape shape;
    EngineSettings settings;
    MrcSettings mrc;
    Work work;
    std::vector<FaultAction> faults;
    bool keeps_order = true;
};

Drawn draw(uint64_t seed) {
    CounterRng rng(seed);
    Drawn d;
    d.shape.pods = 1 + rng.below(3);
    d.shape.t0_per_pod = 2 + rng.below(3);
    d.shape.nics_per_t0 = 1 + rng.below(4);
    d.shape.t1_per_pod = 1 + rng.below(4);
    d.shape.t2_per_t1 = 1 + rng.below(3);
    d.shape.planes = 1 + rng.below(4);
    d.shape.latency_ns = rng.below(4) == 0 ? 500'000 : 100 + rng.below(3000);
    d.shape.switch_latency_ns = rng.below(800);
    d.settings = reference_settings(seed);
    d.settings.fabric.trimming = rng.below(3) > 0;
    d.settings.fabric.last_hop_ecn = rng.below(2);
    d.settings.fabric.base_rtt_ns = 0;
    d.settings.fabric.host_latency_ns = rng.below(1000);
    d.settings.completes_at_source = rng.below(2);
    d.settings.series.interval_ns = rng.below(2) ? 20'000 : 0;
    d.settings.series.per_link = rng.below(2);
    d.mrc = mrc(seed);
    d.mrc.active_evs_per_plane = 4 + rng.below(20);
    d.mrc.backup_evs_per_plane = rng.below(10);
    d.mrc.mpr = rng.below(2);
    const uint32_t nics = d.shape.pods * d.shape.t0_per_pod * d.shape.nics_per_t0;
    const uint32_t flows = 1 + rng.below(40);
    for (uint32_t i = 0; i < flows; ++i) {
        const uint32_t from = rng.below(nics);
        uint32_t to = rng.below(nics);
        if (to == from) to = (to + 1) % nics;
        if (nics == 1) continue;
        std::vector<int32_t> after;
        if (i && rng.below(3) == 0) after.push_back(static_cast<int32_t>(rng.below(static_cast<uint32_t>(d.work.kind.size()))));
        if (rng.below(6) == 0) d.work.pause(from, rng.below(50'000), after);
        else d.work.flow(from, to, rng.below(8) == 0 ? 0 : 1 + rng.below(200'000), after, rng.below(30'000), rng.below(2000), rng.below(2) ? -1 : rng.below(3));
    }
    return d;
}
// Silent outages that end, losses, slow and long links.
void draw_faults(Drawn& d, const FatTree& tree, uint64_t seed) {
    CounterRng rng(seed ^ 0xFA01);
    if (rng.below(2) == 0) return;
    const auto links = static_cast<uint32_t>(tree.source.size());
    for (uint32_t n = rng.below(6); n; --n) {
        const uint32_t link = rng.below(links);
        const uint64_t at = rng.below(100'000), end = at + 1000 + rng.below(300'000);
        switch (rng.below(4)) {
            case 0:
                d.faults.push_back({at, FaultKind::Down, link, 0});
                d.faults.push_back({end, FaultKind::Up, link, 0});
                if (rng.below(2) && tree.tier[static_cast<size_t>(tree.source[link])] < 0) {
                    d.faults.push_back({at, FaultKind::PortKnownDown, link, 0});
                    d.faults.push_back({end, FaultKind::PortKnownUp, link, 0});
                }
                break;
            case 1:
                d.faults.push_back({at, FaultKind::Loss, link, 0.01 * rng.below(20)});
                d.faults.push_back({end, FaultKind::Loss, link, 0});
                break;
            case 2:
                d.faults.push_back({at, FaultKind::Rate, link, 1.0 / (1 + rng.below(8))});
                d.faults.push_back({end, FaultKind::Rate, link, 1});
                break;
            case 3:
                d.faults.push_back({at, FaultKind::Delay, link, 1.0 * rng.below(20'000)});
                d.faults.push_back({end, FaultKind::Delay, link, 0});
                d.keeps_order = false;  // when the detour ends, what comes later overtakes
                break;
        }
    }
}

uint64_t digest(const Engine& e) {
    uint64_t h = 1469598103934665603ull;
    const auto mix = [&](uint64_t v) { h = (h ^ v) * 1099511628211ull; };
    for (const TaskOutcome& o : e.outcomes()) {
        mix(static_cast<uint64_t>(o.start_ns));
        mix(static_cast<uint64_t>(o.finish_ns));
        mix(o.packets);
    }
    mix(e.network().counters().hops);
    mix(e.network().counters().marked);
    return h;
}

void a_random_network(uint64_t seed) {
    seed_of_run = seed;
    Drawn d = draw(seed);
    if (d.work.kind.empty()) return;
    const FatTree tree(d.shape);
    draw_faults(d, tree, seed);
    WatchedMrc::checks_order = d.keeps_order;
    uint64_t first = 0;
    for (uint32_t again = 0; again < (seed % 4 == 0 ? 2u : 1u); ++again) {
        auto e = engine(tree, d.settings, d.mrc, d.work);
        for (const FaultAction& f : d.faults) e->add_fault(f);
        run_to_end(*e, "a random network");
        for (uint32_t i = 0; i < d.work.kind.size(); ++i)
            CHECK(e->outcomes()[i].finish_ns >= e->outcomes()[i].start_ns && e->outcomes()[i].start_ns >= d.work.start[i], "task %u", i);
        if (again) CHECK(digest(*e) == first, "the same seed gave another result");
        first = digest(*e);
    }
    WatchedMrc::checks_order = true;
}

}  // namespace

int main(int argc, char** argv) {
    const uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
    const uint64_t iterations = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 2000;
    seed_of_run = seed;
    one_flow_takes_what_arithmetic_says();
    incast_is_bound_by_the_last_link();
    numbers_do_not_matter();
    dependencies_are_kept();
    a_stalled_run_says_so();
    a_plane_dies();
    a_followed_flow_tells_of_every_packet();
    for (uint64_t i = 0; i < iterations / 100; ++i) a_random_network(seed * 1000 + i);
    std::printf("sim_engine_test: ok\n");
    return 0;
}
