// Driver for entropy values: `entropy_test [seed] [iterations] [verbose]`.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <set>
#include <vector>

#include "farstep/entropy.hpp"
#include "farstep/nscc.hpp"
#include "path_model.hpp"
#include "path_set_fixture.hpp"

using namespace farstep;
using namespace farstep::model;

namespace {

bool g_verbose = false;
void check_rotation() {
    auto a = make(shape(4, 16, 8, 1)), b = make(shape(4, 16, 8, 2)), again = make(shape(4, 16, 8, 1));
    std::vector<EvIndex> pa, pb, pc;
    for (int i = 0; i < 256; ++i) {
        pa.push_back(send(*a, 0));
        pb.push_back(send(*b, 0));
        pc.push_back(send(*again, 0));
    }
    CHECK(pa == pc, "the same seed gives the same order");
    CHECK(pa != pb, "different seeds give different orders");
    std::vector<std::vector<EvIndex>> passes(4);
    for (int pass = 0; pass < 4; ++pass) {
        passes[pass].assign(pa.begin() + 64 * pass, pa.begin() + 64 * (pass + 1));
        const std::set<EvIndex> distinct(passes[pass].begin(), passes[pass].end());
        CHECK(distinct.size() == 64, "pass %d visits each active EV once: %zu", pass, distinct.size());
    }
    CHECK(passes[0] != passes[1] && passes[1] != passes[2], "every pass has its own order");
    // Each EV follows each other one sometimes: no fixed successor.
    std::set<EvIndex> followers;
    auto one = make(shape(1, 8, 0));
    EvIndex before = kNoEv;
    for (int i = 0; i < 800; ++i) {
        const EvIndex ev = send(*one, 0);
        if (before == 3) followers.insert(ev);
        before = ev;
    }
    CHECK(followers.size() >= 7, "%zu successors", followers.size());
}

void check_equal_share() {
    auto s = make(shape(8, 16, 4));
    for (int i = 0; i < 8'000; ++i) send(*s, 0, i % 3 ? 4096 : 60'000);
    uint64_t bytes[8] = {};
    for (EvIndex ev = 0; ev < s->size(); ++ev) bytes[s->plane(ev)] += s->counters(ev).sent_bytes;
    CHECK(*std::max_element(bytes, bytes + 8) - *std::min_element(bytes, bytes + 8) <= 60'000, "planes differ by at most one burst");
    // A port that is busy now catches up later; one that was out starts level.
    for (int i = 0; i < 70; ++i) send(*s, 0, 4096, kNoEv, 0b11111110);
    for (int i = 0; i < 10; ++i) CHECK(s->plane(send(*s, 0)) == 0, "the plane that lags goes first");
    s->set_plane_mask(0, 0b11111101);
    for (int i = 0; i < 7'000; ++i) CHECK(s->plane(send(*s, 0)) != 1, "a plane that is out carries nothing");
    CHECK(s->plane_weight(1) == 0 && std::fabs(s->plane_weight(0) - 1.0 / 7) < 1e-9, "the others share equally");
    s->set_plane_mask(0, kAll);
    int of_returned = 0;
    for (int i = 0; i < 80; ++i) of_returned += s->plane(send(*s, 0)) == 1;
    CHECK(of_returned >= 9 && of_returned <= 12, "a plane that returns gets its share and no more: %d of 80", of_returned);
    CHECK(s->pick(0, 0, kNoEv, 1) == kNoEv, "no port is free");
    CHECK(s->plane(s->pick(0, 1ull << 5, kNoEv, 1)) == 5, "the only free port");
}

void check_skip() {
    auto s = make(shape(1, 8, 0));
    std::vector<EvIndex> pass;
    for (int i = 0; i < 8; ++i) pass.push_back(send(*s, 0));
    s->on_ecn(0, pass[2]);
    CHECK(s->state(pass[2]) == EvState::Skip && s->good_count() == 7, "a mark skips the EV");
    for (int i = 0; i < 7; ++i) CHECK(send(*s, 0) != pass[2], "it sits out one pass");
    int seen = 0;
    for (int i = 0; i < 8; ++i) seen += send(*s, 0) == pass[2];
    CHECK(seen == 1 && s->state(pass[2]) == EvState::Good, "and is back in the next");
    s->on_trimmed(0, pass[3], true, 4096);
    CHECK(s->state(pass[3]) == EvState::Good && s->counters(pass[3]).trims == 1, "incast blames nobody");
    s->on_trimmed(0, pass[3], false, 4096);
    CHECK(s->state(pass[3]) == EvState::Skip, "a trim within the network skips the EV");
    // More than half marked: the plane is congested, nothing more is skipped, nothing stalls.
    for (const EvIndex ev : pass) s->on_ecn(0, ev);
    CHECK(s->good_count() == 4, "%u", s->good_count());
    for (int i = 0; i < 100; ++i) {
        const EvIndex ev = send(*s, 0);
        CHECK(ev != kNoEv, "sending goes on");
        s->on_ecn(0, ev);
    }
    auto lone = make(shape(1, 1, 0));
    lone->on_ecn(0, 0);
    CHECK(send(*lone, 0) == 0, "the only EV is not skipped");
    // When the EVs that were not marked fail, those marked return at once.
    auto few = make(shape(1, 8, 0));
    for (EvIndex ev = 0; ev < 4; ++ev) few->on_ecn(0, ev);
    for (EvIndex ev = 4; ev < 8; ++ev) few->on_lost(0, ev, 0, false);
    CHECK(few->active_count(0) >= 1 && few->good_count() >= 1, "%u active, %u good", few->active_count(0), few->good_count());
    CHECK(send(*few, 0) != kNoEv, "sending goes on");
}

void check_loss_and_backup() {
    auto s = make(shape(2, 8, 4));
    EvEvent event;
    const EvIndex bad = send(*s, 5);
    const uint8_t p = s->plane(bad);
    s->on_lost(7, bad, 4096, false);
    CHECK(s->state(bad) == EvState::AssumedBad, "an untrimmed loss condemns at once");
    CHECK(s->active_count(p) == 8 && s->backup_count(p) == 3, "a backup of the same plane takes over");
    CHECK(s->plane_inflight(p) == 0, "%lld", (long long)s->plane_inflight(p));
    CHECK(s->poll_event(event) && event.ev == bad && event.state == EvState::AssumedBad && event.drop_count == 1 && event.now_ns == 7 && event.plane == p, "the controller hears of it");
    CHECK(!s->poll_event(event), "once");
    for (int i = 0; i < 64; ++i) CHECK(send(*s, 8) != bad, "no data on a bad EV");
    // The packet had only been late: the EV is as good as before.
    s->on_spurious_loss(9, bad, 4096);
    CHECK(s->state(bad) == EvState::Good && s->counters(bad).lost == 0, "cleared");
    CHECK(s->backup_count(p) == 4, "it waits as a backup: its place is taken");
    // Two losses, one of them spurious: still bad.
    const EvIndex twice = first_of(*s, 0);
    s->on_lost(10, twice, 0, false);
    s->on_lost(10, twice, 0, true);
    s->on_spurious_loss(11, twice, 0);
    CHECK(s->state(twice) == EvState::AssumedBad, "one loss remains");
    // What the receiver demanded no late packet undoes.
    const EvIndex demanded = first_of(*s, 1);
    s->on_always_skip(12, demanded);
    s->on_lost(12, demanded, 0, false);
    s->on_spurious_loss(13, demanded, 0);
    CHECK(s->state(demanded) == EvState::AssumedBad, "the receiver's demand stands");
    // The EV that lost a packet is not the one that repeats it, unless it is all there is.
    auto two = make(shape(1, 2, 0));
    for (int i = 0; i < 50; ++i) CHECK(send(*two, 0, 1, 1) == 0, "the other one");
    auto lone = make(shape(1, 1, 0));
    CHECK(send(*lone, 0, 1, 0) == 0, "there is no other");
    auto planes = make(shape(2, 1, 0));
    for (int i = 0; i < 50; ++i) CHECK(send(*planes, 0, 1, 0) == 1, "the other plane's");
}

void check_skip_passes() {
    for (const uint32_t passes : {0u, 1u, 2u, 7u}) {
        PathSetConfig c = shape(1, 8, 0);
        c.skip_passes = passes;
        auto s = make(c);
        EvIndex marked = kNoEv;
        for (int i = 0; i < 8; ++i) marked = send(*s, 0);
        s->on_ecn(0, marked);
        for (uint32_t i = 0; i < 7 * passes; ++i) CHECK(send(*s, 0) != marked, "it sits out %u passes", passes);
        int seen = 0;
        for (int i = 0; i < 8; ++i) seen += send(*s, 0) == marked;
        CHECK(seen == 1 && s->state(marked) == EvState::Good, "and is back after %u", passes);
    }
    // A turn that is still to come in this pass is the first of those it sits out.
    for (const uint32_t passes : {0u, 1u, 2u, 7u}) {
        PathSetConfig c = shape(1, 8, 0);
        c.skip_passes = passes;
        auto s = make(c);
        for (int i = 0; i < 8; ++i) send(*s, 0);
        const EvIndex visited = send(*s, 0), marked = visited == 0 ? 1 : 0;
        s->on_trimmed(0, marked, false, 4096);
        const uint32_t turns = std::max(passes, 1u);  // also with none: it sits out what is left of the pass
        for (uint32_t i = 0; i < 7 * turns - 1; ++i) CHECK(send(*s, 0) != marked, "it sits out %u turns", turns);
        int seen = 0;
        for (int i = 0; i < 8; ++i) seen += send(*s, 0) == marked;
        CHECK(seen == 1 && s->state(marked) == EvState::Good, "and is back after %u", turns);
    }
    // With one of two skipping for long and the other excluded, sending goes on all the same.
    PathSetConfig c = shape(1, 2, 0);
    c.skip_passes = 1'000;
    auto s = make(c);
    const EvIndex marked = send(*s, 0);
    s->on_ecn(0, marked);
    CHECK(s->state(marked) == EvState::Skip, "half of them skip");
    CHECK(send(*s, 0, 4096, 1 - marked) == 1 - marked, "the excluded one is all there is");
}

void check_floor() {
    // One plane, every EV loses: it shrinks to the floor and goes on.
    PathSetConfig c = shape(1, 32, 16);
    c.min_active = 8;
    auto s = make(c);
    for (uint64_t t = 0; t < 2'000; ++t) {
        const EvIndex ev = send(*s, t * kMs);
        CHECK(ev != kNoEv, "never silent");
        if (t % 3 == 0) s->on_lost(t * kMs, ev, 4096, false);
        else s->on_acked(t * kMs, ev, 4096, true, kMs);
        CHECK(s->good_count() >= 8, "%u at %llu", s->good_count(), (unsigned long long)t);
    }
    CHECK(s->active_count(0) == 8 && s->plane_inflight(0) == 0, "%u active", s->active_count(0));
    // Random loss on two planes: both keep a share of the EVs and half of the load each.
    PathSetConfig c2 = shape(2, 32, 16);
    c2.min_active = 16;
    auto w = make(c2);
    w->set_rtt(50 * kMs);
    CounterRng rng(7);
    uint64_t bytes[2] = {};
    for (uint64_t t = 0; t < 20'000; ++t) {
        const EvIndex ev = send(*w, t * kMs);
        bytes[w->plane(ev)] += 4096;
        if (rng.below(20) == 0) w->on_lost(t * kMs, ev, 4096, false);
        else w->on_acked(t * kMs, ev, 4096, true, 50 * kMs);
        uint8_t plane = 0;
        CHECK(!w->infer_plane_down(t * kMs, 50 * kMs, plane), "random loss is no plane failure");
    }
    CHECK(w->good_count(0) >= 8 && w->good_count(1) >= 8, "%u and %u", w->good_count(0), w->good_count(1));
    CHECK(bytes[0] == bytes[1], "%llu and %llu", (unsigned long long)bytes[0], (unsigned long long)bytes[1]);
}

// A plane that answers nothing goes silent, although both planes were down to the floor before.
void check_dead_plane(bool at_floor_before, bool call_infer) {
    PathSetConfig c = shape(2, 32, 16);
    c.min_active = 16;
    auto s = make(c);
    const uint64_t rtt = 10 * kMs;
    s->set_rtt(rtt);
    uint64_t t = kMs;
    CounterRng rng(3);
    if (at_floor_before)
        for (int i = 0; i < 4'000; ++i, t += kMs / 10) {
            const EvIndex ev = send(*s, t);
            if (rng.below(10) == 0) s->on_lost(t, ev, 4096, false);
            else s->on_acked(t, ev, 4096, true, rtt);
        }
    else
        for (EvIndex ev = 0; ev < s->size(); ++ev) s->on_acked(t, ev, 0, true, rtt);
    std::deque<std::pair<uint64_t, EvIndex>> flying;
    bool inferred = false;
    uint64_t inferred_at = 0, last_on_dead = 0;
    const uint64_t died = t;
    uint32_t lost = 0;
    for (int i = 0; i < 8'000; ++i, t += kMs / 20) {
        while (!flying.empty() && flying.front().first <= t) {
            const EvIndex ev = flying.front().second;
            flying.pop_front();
            if (s->plane(ev) == 1) s->on_lost(t, ev, 4096, true), ++lost;
            else s->on_acked(t, ev, 4096, true, rtt);
        }
        uint8_t plane = 0;
        if (call_infer && s->infer_plane_down(t, rtt, plane)) {
            CHECK(!inferred && plane == 1, "plane %u is down", plane);
            inferred = true;
            inferred_at = t;
        }
        const EvIndex ev = send(*s, t);
        CHECK(ev != kNoEv, "never silent");
        if (s->plane(ev) == 1) last_on_dead = t;
        flying.emplace_back(t + rtt + (s->plane(ev) == 1 ? rtt / 2 : 0), ev);
    }
    CHECK(s->good_count(1) == 0, "%u EVs of the dead plane are in service", s->good_count(1));
    CHECK(s->good_count(0) >= 16, "%u of the other", s->good_count(0));
    CHECK(s->plane_weight(0) == 1.0 && s->plane_weight(1) == 0.0, "all load on the living plane");
    CHECK(last_on_dead - died <= (call_infer ? 3 : 6) * rtt, "data went to it for %.1f RTT", static_cast<double>(last_on_dead - died) / static_cast<double>(rtt));
    CHECK(inferred == call_infer, "inferred");
    if (g_verbose)
        std::printf("dead plane (floor before %d, inference %d): last data after %.1f RTT, inferred after %.1f RTT, %u packets lost\n", at_floor_before,
                    call_infer, static_cast<double>(last_on_dead - died) / static_cast<double>(rtt), inferred ? static_cast<double>(inferred_at - died) / static_cast<double>(rtt) : 0.0, lost);
    if (!call_infer) return;
    // It comes back: a few answered probes and it is whole again.
    const uint64_t back = t;
    uint32_t probes = 0;
    while (s->plane_down(1) && t < back + 100'000 * kMs) {
        EvIndex ev = kNoEv;
        t = std::max(t, s->next_probe_ns());
        while (s->poll_probe(t, ev)) {
            if (s->plane(ev) == 1) ++probes;
            s->on_probe_reply(t, ev, kMarkNone, rtt);
        }
    }
    CHECK(!s->plane_down(1) && probes <= 6, "%u probes", probes);
    // Those condemned for their own losses before it died stay so.
    CHECK(s->good_count(1) >= (at_floor_before ? 8u : 32u), "%u EVs are back", s->good_count(1));
    if (g_verbose) std::printf("   back after %.0f RTT\n", static_cast<double>(t - back) / static_cast<double>(rtt));
}

// After the host slept, one plane's acknowledgements are read first and the other's packets look late.
void check_sleepy_host() {
    auto s = make(shape(2, 32, 16));
    s->set_rtt(50'000);
    uint64_t now = kMs;
    for (EvIndex ev = 0; ev < s->size(); ++ev) s->on_acked(now, ev, 0, true, 50'000);
    for (int sleep = 0; sleep < 50; ++sleep) {
        std::vector<EvIndex> flying;
        for (int i = 0; i < 40; ++i) flying.push_back(send(*s, now));
        now += 8 * kMs;
        uint8_t plane = 0;
        for (const EvIndex ev : flying)
            if (s->plane(ev) == 0) s->on_acked(now, ev, 4096, true, 8 * kMs);
        for (const EvIndex ev : flying)
            if (s->plane(ev) == 1) s->on_lost(now, ev, 4096, false);
        CHECK(!s->infer_plane_down(now, 50'000, plane), "a sleep of 8 ms is no plane failure");
        now += 100'000;
        for (const EvIndex ev : flying)
            if (s->plane(ev) == 1) s->on_spurious_loss(now, ev, 4096);
        CHECK(!s->infer_plane_down(now, 50'000, plane), "a sleep of 8 ms is no plane failure");
        now += 100'000;
    }
    CHECK(s->good_count(0) == 32 && s->good_count(1) == 32 && s->backup_count(1) == 16, "%u EVs are in service", s->good_count(1));
}

void check_probing() {
    PathSetConfig c = shape(1, 8, 4);
    c.probe_interval_ns = kMs;
    auto s = make(c);
    CHECK(s->next_probe_ns() == UINT64_MAX, "nothing to probe");
    const EvIndex ev = send(*s, 0);
    s->on_lost(1'000, ev, 4096, false);
    CHECK(s->next_probe_ns() == 1'000 + kMs, "%llu", (unsigned long long)s->next_probe_ns());
    EvIndex out = kNoEv;
    CHECK(!s->poll_probe(kMs, out), "not due yet");
    uint64_t t = s->next_probe_ns();
    const auto restore = [&](EvIndex e) {   // answers probes until the EV is back; how many it took
        uint32_t n = 0;
        while (s->state(e) == EvState::AssumedBad && n < 1'000) {
            t = s->next_probe_ns();
            CHECK(s->poll_probe(t, out) && out == e, "the bad EV is asked");
            CHECK(!s->poll_probe(t, out), "once per interval");
            s->on_probe_reply(t, e, kMarkNone, 1'000);
            ++n;
        }
        return n;
    };
    // A lost probe begins the count anew.
    for (int i = 0; i < 4; ++i) {
        t = s->next_probe_ns();
        CHECK(s->poll_probe(t, out) && out == ev, "asked");
        s->on_probe_reply(t, ev, kMarkNone, 1'000);
    }
    s->on_probe_lost(t, ev);
    CHECK(restore(ev) == 5, "five in a row");
    CHECK(s->counters(ev).restores == 1 && s->next_probe_ns() == UINT64_MAX, "restored");
    // Condemned again soon: 10, 20, ... up to the limit; after a clean minute five again.
    for (const uint32_t want : {10u, 20u, 40u, 80u, 160u, 160u}) {
        t += 1'000 * kMs;
        s->on_lost(t, ev, 0, false);
        CHECK(restore(ev) == want, "flap damping asks for %u", want);
    }
    t += 61'000 * kMs;
    s->on_lost(t, ev, 0, false);
    CHECK(restore(ev) == 5, "a clean minute forgives");
    // Neither soon nor long ago: the same count again.
    t += 1'000 * kMs;
    s->on_lost(t, ev, 0, false);
    CHECK(restore(ev) == 10, "soon");
    t += 30'000 * kMs;
    s->on_lost(t, ev, 0, false);
    CHECK(restore(ev) == 10, "half a minute");
    // The mark of the last answer decides between GOOD and SKIP.
    const EvIndex other = first_of(*s, 0);
    s->on_lost(t, other, 0, false);
    while (s->state(other) == EvState::AssumedBad) {
        t = s->next_probe_ns();
        s->poll_probe(t, out);
        s->on_probe_reply(t, other, kMarkAlwaysSkip, 1'000);
        if (++c.probe_interval_ns > kMs + 20) break;
    }
    CHECK(s->state(other) == EvState::AssumedBad, "the receiver still refuses it");
    for (int i = 0; i < 5; ++i) s->on_probe_reply(t, other, kMarkSkipOnce, 1'000);
    CHECK(s->state(other) == EvState::Skip || !s->is_active(other), "a marked answer restores to SKIP");
    // Several bad EVs take turns.
    auto m = make(c);
    for (EvIndex e = 0; e < 4; ++e) m->on_lost(0, e, 0, false);
    std::vector<EvIndex> order;
    for (t = 0; t < 10 * c.probe_interval_ns; t += 60'000)
        if (m->poll_probe(t, out)) order.push_back(out);
    CHECK(order.size() >= 32, "%zu", order.size());
    for (size_t i = 4; i < order.size(); ++i) CHECK(order[i] == order[i - 4], "round robin");
}

void check_controller() {
    auto s = make(shape(2, 4, 1));
    const EvIndex ev = first_of(*s, 0);
    s->deny(5, ev);
    CHECK(s->state(ev) == EvState::Denied && s->active_count(0) == 4 && s->backup_count(0) == 0, "the backup took over");
    s->on_lost(6, ev, 0, false);
    s->on_probe_reply(6, ev, kMarkNone, 1'000);
    CHECK(s->state(ev) == EvState::Denied && s->next_probe_ns() == UINT64_MAX, "nothing but the controller changes that");
    const EvIndex bad = first_of(*s, 0);
    s->on_lost(7, bad, 0, false);
    s->deny(8, bad);
    CHECK(s->state(bad) == EvState::Denied && s->next_probe_ns() == UINT64_MAX, "a bad EV that is denied is not probed");
    s->allow(9, ev);
    s->allow(9, bad);
    CHECK(s->state(ev) == EvState::Good && s->active_count(0) == 4 && s->backup_count(0) == 1, "both are back");
    for (EvIndex e = 0; e < s->size(); ++e) s->deny(10, e);
    CHECK(send(*s, 11) == kNoEv && s->good_count() == 0, "the controller may deny everything");
    EvEvent event;
    uint32_t events = 0;
    while (s->poll_event(event)) ++events;
    CHECK(events > 10 && s->dropped_events() == 0, "%u", events);
    for (uint32_t i = 0; i < 2 * kMaxEvEvents; ++i) i % 2 ? s->deny(20, 0) : s->allow(20, 0);
    CHECK(s->dropped_events() == kMaxEvEvents, "%llu events were dropped and counted", (unsigned long long)s->dropped_events());
}

// ---- anything may happen -----------------------------------------------------------------------------------------

struct Shadow { EvIndex ev; uint32_t bytes; bool lost; };

void check_random_operations(uint64_t seed) {
    CounterRng rng(seed);
    PathSetConfig c = shape(1 + rng.below(8), 1 + rng.below(24), rng.below(12), seed);
    c.min_active = rng.below(3) == 0 ? 0 : 1 + rng.below(c.num_planes * c.active_per_plane);
    c.share = rng.below(2) ? ShareMode::Capacity : ShareMode::Equal;
    if (rng.below(2)) c.event_mask = 0x0F;
    auto s = make(c);
    s->set_rtt(kMs);
    std::vector<Shadow> flying;
    std::vector<int64_t> inflight(c.num_planes, 0);
    std::vector<uint64_t> sent(s->size(), 0);
    uint64_t now = 1, events = 0, mask = kAll;
    for (int step = 0; step < 600; ++step) {
        now += rng.below(300'000);
        const uint32_t what = rng.below(24);
        const auto any = static_cast<EvIndex>(rng.below(s->size()));
        if (what < 8) {
            const uint64_t ports = rng.below(3) ? kAll : rng.next();
            const EvIndex exclude = rng.below(3) ? kNoEv : any;
            const uint32_t bytes = 1 + rng.below(60'000);
            const EvIndex ev = s->pick(now, ports, exclude, bytes);
            if (ev != kNoEv) {
                CHECK(s->state(ev) == EvState::Good && s->is_active(ev), "EV %u in state %d was picked", ev, static_cast<int>(s->state(ev)));
                CHECK(ports >> s->plane(ev) & mask >> s->plane(ev) & 1, "plane %u is not free or out", s->plane(ev));
                if (ev == exclude)
                    for (uint8_t p = 0; p < c.num_planes; ++p)
                        CHECK(!(ports >> p & mask >> p & 1) || s->good_count(p) == 0 || (p == s->plane(ev) && s->good_count(p) == 1), "the excluded EV was not the last resort");
                s->on_sent(now, ev, bytes);
                flying.push_back({ev, bytes, false});
                inflight[s->plane(ev)] += bytes;
                ++sent[ev];
            } else {
                for (uint8_t p = 0; p < c.num_planes; ++p) CHECK(!(ports >> p & mask >> p & 1) || s->good_count(p) == 0, "plane %u could have carried it", p);
            }
        } else if (what < 18 && !flying.empty()) {
            const size_t i = rng.below(static_cast<uint32_t>(flying.size()));
            Shadow& f = flying[i];
            const uint8_t p = s->plane(f.ev);
            if (f.lost) {
                if (rng.below(2)) s->on_spurious_loss(now, f.ev, f.bytes);
                f = flying.back();
                flying.pop_back();
            } else if (what < 14) {
                s->on_acked(now, f.ev, f.bytes, rng.below(2) != 0, 1 + rng.below(3'000'000));
                inflight[p] -= f.bytes;
                f = flying.back();
                flying.pop_back();
            } else if (what == 14) {
                s->on_trimmed(now, f.ev, rng.below(2) != 0, f.bytes);
                inflight[p] -= f.bytes;
                f = flying.back();
                flying.pop_back();
            } else {
                s->on_lost(now, f.ev, f.bytes, rng.below(2) != 0);
                inflight[p] -= f.bytes;
                f.lost = true;
            }
        } else if (what == 18) {
            s->on_ecn(now, any);
        } else if (what == 19) {
            if (rng.below(4) == 0) s->on_always_skip(now, any);
            else if (rng.below(2)) s->deny(now, any);
            else s->allow(now, any);
        } else if (what == 20) {
            if (rng.below(3) == 0) mask = kAll;
            else mask = rng.next();
            s->set_plane_mask(now, mask);
        } else if (what == 21) {
            uint8_t plane = 0;
            if (s->infer_plane_down(now, kMs, plane)) CHECK(s->plane_down(plane) && s->active_count(plane) == 0, "plane %u went down with EVs in service", plane);
        } else {
            EvIndex ev = kNoEv;
            if (s->poll_probe(now, ev)) {
                CHECK(s->state(ev) == EvState::AssumedBad, "EV %u in state %d was probed", ev, static_cast<int>(s->state(ev)));
                if (rng.below(3)) s->on_probe_reply(now, ev, static_cast<uint8_t>(rng.below(3)), 1 + rng.below(2'000'000));
                else s->on_probe_lost(now, ev);
            }
        }
        EvEvent event;
        while (s->poll_event(event)) ++events;
        uint32_t states[4] = {}, active = 0, usable_bad = 0;
        for (EvIndex ev = 0; ev < s->size(); ++ev) {
            const EvState state = s->state(ev);
            ++states[static_cast<int>(state)];
            if (s->is_active(ev)) {
                ++active;
                CHECK(state == EvState::Good || state == EvState::Skip, "EV %u in rotation is in state %d", ev, static_cast<int>(state));
            } else {
                CHECK(state != EvState::Skip, "EV %u skips outside the rotation", ev);
            }
            if (state == EvState::AssumedBad && (mask >> s->plane(ev) & 1)) ++usable_bad;
        }
        uint32_t counted = 0, in_rotation = 0;
        for (uint8_t p = 0; p < c.num_planes; ++p) {
            CHECK(s->plane_inflight(p) == inflight[p], "plane %u: %lld instead of %lld", p, (long long)s->plane_inflight(p), (long long)inflight[p]);
            CHECK(s->active_count(p) <= c.active_per_plane, "plane %u has %u active EVs", p, s->active_count(p));
            CHECK(s->active_count(p) == 0 || s->good_count(p) >= 1, "plane %u only skips", p);
            CHECK(2 * (s->active_count(p) - s->good_count(p)) <= s->active_count(p), "plane %u skips more than half", p);
            in_rotation += s->active_count(p);
            counted += s->backup_count(p) + s->active_count(p);
        }
        CHECK(in_rotation == active, "%u and %u", in_rotation, active);
        CHECK(counted == states[0] + states[1], "%u backups and active EVs, %u are good", counted, states[0] + states[1]);
        double weights = 0;
        bool serving = false, bad_left = usable_bad > 0;
        for (uint8_t p = 0; p < c.num_planes; ++p) {
            weights += s->plane_weight(p);
            serving |= (mask >> p & 1) && s->active_count(p) > 0;
        }
        CHECK(serving ? std::fabs(weights - 1) < 1e-9 : weights == 0, "weights add up to %g", weights);
        CHECK(serving || !bad_left || what != 20, "every usable EV is bad and none was taken back");
        if (g_failures > 0) return;
    }
    for (EvIndex ev = 0; ev < s->size(); ++ev) CHECK(s->counters(ev).sent_packets == sent[ev], "EV %u", ev);
}

}  // namespace

int main(int argc, char** argv) {
    const uint64_t seed = argument(argc, argv, 1, 1), iterations = argument(argc, argv, 2, 300);
    g_verbose = argc > 3;
    check_rotation();
    check_equal_share();
    check_skip();
    check_skip_passes();
    check_loss_and_backup();
    check_floor();
    for (const bool floor_before : {false, true})
        for (const bool infer : {false, true}) check_dead_plane(floor_before, infer);
    check_sleepy_host();
    check_probing();
    check_controller();
    for (uint64_t i = 0; i < iterations && g_failures == 0; ++i) {
        check_random_operations(seed + i);
        if (g_failures > 0) std::fprintf(stderr, "in iteration %llu: reproduce with seed %llu and 1 iteration\n", (unsigned long long)i, (unsigned long long)(seed + i));
    }
    return finish("entropy_test", seed, iterations);
}
