// The parts rivals of MRC are made of, each against a model of itself: `sim_rival_parts_test [seed] [iterations]`.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "farstep/sim/rivals/adaptive.hpp"
#include "farstep/sim/rivals/dcqcn.hpp"
#include "farstep/sim/rivals/message_queue.hpp"
#include "farstep/sim/rivals/ndp.hpp"
#include "farstep/sim/rivals/path_choice.hpp"
#include "farstep/sim/rivals/receive_window.hpp"
#include "farstep/sim/rivals/receiver_pacer.hpp"
#include "farstep/sim/rivals/roce.hpp"
#include "farstep/sim/rivals/scoreboard.hpp"
#include "farstep/sim/rivals/tcp.hpp"
#include "farstep/sim/rivals/uet.hpp"
#include "path_model.hpp"

using namespace farstep;
using namespace farstep::sim;
using farstep::model::g_failures;

namespace {

PathChoiceConfig spread(Spread s, uint32_t paths, uint64_t seed) {
    PathChoiceConfig c;
    c.spread = s;
    c.num_paths = paths;
    c.seed = seed;
    return c;
}

void check_rotations(uint64_t seed) {
    Arena arena;
    for (const Spread s : {Spread::Oblivious, Spread::Bitmap, Spread::Permutation, Spread::Mixed}) {
        PathChoice choice(spread(s, 16, seed), 2, &arena);
        for (uint32_t pass = 0; pass < 5; ++pass) {
            std::set<uint16_t> seen;
            for (uint32_t i = 0; i < 16; ++i) seen.insert(choice.pick(1, 0, 100));
            CHECK(seen.size() == 16, "a pass meets every path once, got %zu", seen.size());
        }
    }
}

void check_penalties(uint64_t seed) {
    Arena arena;
    PathChoice choice(spread(Spread::Bitmap, 8, seed), 1, &arena);
    choice.on_news(0, 0, 3, PathNews::Refused);
    CHECK(choice.penalty(0, 3) == 4, "a trim weighs 4, got %u", choice.penalty(0, 3));
    uint32_t picks = 0;
    // Each turn is a new pass by chance, so within four turns it is met four times at the earliest.
    for (uint32_t i = 0; i < 3 * 7; ++i) picks += choice.pick(0, 0, 100) == 3;
    CHECK(picks == 0, "a path with four credits against it sits out three turns at least");
    for (uint32_t i = 0; i < 16; ++i) picks += choice.pick(0, 0, 100) == 3;
    CHECK(picks >= 1, "and then it is back");
    for (uint32_t i = 0; i < 9; ++i) choice.on_news(0, 0, 3, PathNews::Refused);
    CHECK(choice.penalty(0, 3) == 15, "15 at most, got %u", choice.penalty(0, 3));
    for (uint16_t p = 0; p < 8; ++p) choice.on_news(0, 0, p, PathNews::Silent);
    (void)choice.pick(0, 0, 100);  // all paths bad: it still names one
}

void check_reps(uint64_t seed) {
    Arena arena;
    PathChoice choice(spread(Spread::Reps, 64, seed), 1, &arena);
    for (uint16_t p = 0; p < 10; ++p) choice.on_news(0, 0, p, PathNews::Good);
    for (uint16_t p = 2; p < 10; ++p) {
        const uint16_t got = choice.pick(0, 0, 100);
        CHECK(got == p, "the oldest of the newest eight first: %u, not %u", p, got);
    }
    choice.on_news(1000, 0, 0, PathNews::Silent);
    CHECK(choice.is_frozen(0), "a timeout freezes");
    std::set<uint16_t> used;
    for (uint32_t i = 0; i < 100; ++i) used.insert(choice.pick(0, 0, 100));
    CHECK(used.size() == 8 && *used.begin() == 2 && *used.rbegin() == 9, "frozen: only what is remembered");
    choice.on_news(9'000'000, 0, 40, PathNews::Good);
    CHECK(choice.is_frozen(0), "for 10 ms");
    choice.on_news(10'002'000, 0, 40, PathNews::Good);
    CHECK(!choice.is_frozen(0), "then it thaws");
    used.clear();
    for (uint32_t i = 0; i < 16; ++i) used.insert(choice.pick(0, 0, 100));
    CHECK(used.size() > 10, "and explores by chance: %zu paths of 16 packets", used.size());
}

void check_mixed(uint64_t seed) {
    Arena arena;
    PathChoice choice(spread(Spread::Mixed, 16, seed), 1, &arena);
    choice.on_news(0, 0, 5, PathNews::Good);
    (void)choice.pick(0, 3, 100);  // within the first window: whatever the turn brings
    choice.on_news(0, 0, 6, PathNews::Good);
    CHECK(choice.pick(0, 100, 100) == 5 && choice.pick(0, 101, 100) == 6, "good paths once more, in their order");
}

void check_windows(uint64_t seed, uint64_t iterations) {
    CounterRng rng(seed);
    Arena arena;
    Scoreboard board(128, &arena);
    ReceiveWindow window(128, &arena);
    std::set<uint32_t> received;
    std::map<uint32_t, int> state;  // 1 in flight, 2 lost, 3 acknowledged
    uint64_t now = 0;
    for (uint64_t i = 0; i < iterations; ++i) {
        now += 10;
        const uint32_t draw = rng.below(10);
        if (draw < 5 && board.has_room()) {
            const bool again = board.num_lost() > 0;
            const uint32_t s = again ? board.oldest_lost() : board.next();
            if (again) CHECK(state[s] == 2, "sequence %u is not lost", s);
            board.send(now, s, 0);
            state[s] = 1;
        } else if (draw < 7 && board.next() != board.una()) {
            const uint32_t s = board.una() + rng.below(board.next() - board.una());
            CHECK(board.lose(s) == (state[s] == 1), "only what is in flight can be lost");
            if (state[s] == 1) state[s] = 2;
        } else if (board.next() != board.una()) {
            const uint32_t s = board.una() + rng.below(board.next() - board.una());
            CHECK(window.receive(s) == received.insert(s).second, "new or not");
            const uint32_t base = window.expected() + rng.below(40);
            const uint64_t bits = window.bitmap(base);
            for (uint32_t b = 0; b < 64; ++b)
                CHECK((bits >> b & 1) == (base + b < window.expected() + 128 && received.contains(base + b)), "bit %u from %u", b, base);
            board.acknowledge_bitmap(base, bits, [&](uint32_t q, const Scoreboard::Record&, bool was_lost) {
                CHECK(was_lost == (state[q] == 2), "lost or not");
                state[q] = 3;
            });
            board.acknowledge_below(window.expected(), [&](uint32_t q, const Scoreboard::Record&, bool) { state[q] = 3; });
        }
        uint32_t lost = 0, flying = 0;
        for (const auto& [s, st] : state) {
            lost += st == 2;
            flying += st == 1;
        }
        CHECK(board.num_lost() == lost && board.num_in_flight() == flying, "%u lost, %u in flight", board.num_lost(), board.num_in_flight());
        while (!state.empty() && state.begin()->first < board.una()) {
            CHECK(state.begin()->second == 3, "una passes only what is acknowledged");
            state.erase(state.begin());
        }
    }
}

void check_messages() {
    Arena arena;
    MessageQueue q(1000, 4, &arena);
    q.post(2500);
    q.post(0);
    q.post(1000);
    CHECK(q.end() == 5, "3 + 1 + 1 packets, got %u", q.end());
    CHECK(q.payload_bytes(0) == 1000 && q.payload_bytes(2) == 500 && q.payload_bytes(3) == 0 && q.payload_bytes(4) == 1000, "sizes");
    CHECK(q.is_last(2) && !q.is_last(1) && q.is_last(3), "ends");
    q.on_delivered(3);
    q.on_acked(5);
    CHECK(q.delivered() == 1 && q.acked() == 1, "nothing is acknowledged that is not there");
    q.post(1);
    q.post(1);
    CHECK(!q.can_post(), "four at once");
}

void check_dcqcn() {
    DcqcnConfig c;
    Dcqcn d(c, 12.5e9);
    CHECK(d.rate_bytes_per_s() == 12.5e9, "it starts at the line");
    d.on_notification(0);
    CHECK(d.rate_bytes_per_s() == 6.25e9, "the first notification halves");
    // Fast recovery: half way back to where it was, five times.
    double expected = 6.25e9;
    for (uint64_t i = 1; i <= 5; ++i) {
        expected = (expected + 12.5e9) / 2;
        const double rate = d.on_send(i * c.rate_timer_ns, 100);
        CHECK(std::fabs(rate - expected) < 1, "step %llu: %g, not %g", static_cast<unsigned long long>(i), rate, expected);
    }
    d.on_send(200 * c.rate_timer_ns, 100);
    CHECK(d.rate_bytes_per_s() == 12.5e9, "and at last the line again");
    const double alpha = d.alpha();
    d.on_notification(100'000'000);
    CHECK(d.alpha() < alpha, "alpha decayed meanwhile: %g", d.alpha());
    CHECK(d.rate_bytes_per_s() > 6.25e9, "so a lone notification costs less");
    for (uint32_t i = 0; i < 3000; ++i) d.on_notification(100'000'001 + i);
    CHECK(d.rate_bytes_per_s() == 12.5e6, "a thousandth of the line at least, got %g", d.rate_bytes_per_s());
    // Bytes count as steps too.
    Dcqcn e(c, 12.5e9);
    e.on_notification(0);
    const double before = e.rate_bytes_per_s();
    for (uint32_t i = 0; i < 2500; ++i) e.on_send(1, 4096);
    CHECK(e.rate_bytes_per_s() > before, "10 MB are a step");
}

void check_pacer() {
    ReceiverPacer pacer(1e9, 0.5, 137);  // 2 ns a byte
    std::vector<PacerLink> links(5);
    auto link = [&](uint32_t c) -> PacerLink& { return links[c]; };
    for (uint32_t c = 0; c < 5; ++c) pacer.request(c, link);
    pacer.request(2, link);
    std::vector<uint32_t> turns;
    uint64_t now = 0, bytes = 0;
    for (uint32_t i = 0; i < 1000; ++i) {
        now += 137;
        bool is_idle = false;
        for (uint32_t c; (c = pacer.poll(now, link, is_idle)) != kNobody;) {
            CHECK(!is_idle, "all of them wait");
            turns.push_back(c);
            pacer.granted(now, 100);
            bytes += 100;
            pacer.request(c, link);
        }
    }
    CHECK(std::fabs(static_cast<double>(bytes) / (0.5 * static_cast<double>(now)) - 1) < 0.01, "%llu bytes in %llu ns", static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(now));
    for (size_t i = 5; i < turns.size(); ++i) CHECK(turns[i] == turns[i - 5], "each in turn");
}

// In one step of the clock the ports of a NIC take one packet each: as many are asked for, and no more than a step's worth
// is made up for after a pause.
void check_pacer_of_several_ports() {
    for (const uint32_t ports : {1u, 2u, 4u, 8u}) {
        const double step_ns = 332;
        ReceiverPacer pacer(ports * 4150e9 / step_ns, 1.0, step_ns);
        PacerLink only;
        auto link = [&](uint32_t) -> PacerLink& { return only; };
        uint64_t now = 1'000'000;
        auto grants = [&] {
            uint32_t n = 0;
            bool is_idle = false;
            pacer.request(0, link);
            for (; pacer.poll(now, link, is_idle) != kNobody; ++n) {
                pacer.granted(now, 4150);
                pacer.request(0, link);
            }
            return n;
        };
        CHECK(grants() <= ports + 1, "after a pause one step's worth at once");
        uint32_t sum = 0;
        for (uint32_t i = 0; i < 1000; ++i) {
            now += 332;
            sum += grants();
        }
        CHECK(sum >= 1000 * ports - 1 && sum <= 1000 * ports + 1, "%u packets in 1000 steps of %u ports", sum, ports);
    }
}

// ---- two ends and a wire between them: fixed delay, random loss, trimming, marks and disorder ----

struct Wire {
    struct Flying {
        uint64_t at;
        RivalData data;
        Arrived how;
    };
    struct Back {
        uint64_t at;
        RivalAnswer answer;
    };
    double loss = 0, trim = 0, mark = 0;
    uint64_t delay_ns = 5'000, jitter_ns = 0;
    std::vector<Flying> there;
    std::vector<Back> back;
};

constexpr uint64_t kSlotNs = 300;  // what is overdue is looked at after so long

template <class P>
bool carry(P& p, Wire w, std::vector<uint64_t> messages, uint64_t seed, bool keeps_order, uint64_t& end_ns, FlowCounters& k) {
    CounterRng rng(seed);
    ReceiverPacer pacer(12.5e9, 1.0, kSlotNs);
    PacerLink link;
    auto link_of = [&](uint32_t) -> PacerLink& { return link; };
    std::deque<uint64_t> waiting(messages.begin(), messages.end());
    uint64_t now = 0, free_ns = 0, newest = 0;
    const uint64_t total = messages.size();
    for (uint64_t step = 0; step < 1'000'000; ++step) {
        while (!waiting.empty() && p.can_post()) {
            p.post(waiting.front());
            waiting.pop_front();
        }
        RivalData d;
        while (free_ns <= now && p.poll_data(now, 1, d)) {
            free_ns = std::max(free_ns, now) + d.bytes * 8 / 100;
            if (rng.unit() < w.loss) continue;
            Arrived how;
            how.trimmed = rng.unit() < w.trim;
            how.marked = rng.unit() < w.mark;
            uint64_t at = free_ns + w.delay_ns + (w.jitter_ns ? rng.below(static_cast<uint32_t>(w.jitter_ns)) : 0);
            if (keeps_order) at = newest = std::max(newest, at);
            w.there.push_back({at, d, how});
        }
        // The next thing that happens.
        uint64_t next = std::max(p.next_timeout_ns(), now + kSlotNs);
        if (free_ns > now) next = std::min(next, free_ns);
        for (const auto& f : w.there) next = std::min(next, f.at);
        for (const auto& b : w.back) next = std::min(next, b.at);
        if constexpr (requires(RivalAnswer a) { p.grant(a); }) next = std::min(next, std::max(pacer.next_timeout_ns(), now + kSlotNs));
        now = next;
        for (size_t i = 0; i < w.there.size();) {
            if (w.there[i].at > now) {
                ++i;
                continue;
            }
            const auto f = w.there[i];
            w.there.erase(w.there.begin() + static_cast<std::ptrdiff_t>(i));
            p.on_data(now, f.data, f.how);
            RivalAnswer a;
            while (p.poll_answer(a))
                if (rng.unit() >= w.loss) w.back.push_back({now + w.delay_ns, a});
            if constexpr (requires(RivalAnswer g) { p.grant(g); })
                if (p.wants_grant()) pacer.request(0, link_of);
        }
        for (size_t i = 0; i < w.back.size();) {
            if (w.back[i].at > now) {
                ++i;
                continue;
            }
            const RivalAnswer a = w.back[i].answer;
            w.back.erase(w.back.begin() + static_cast<std::ptrdiff_t>(i));
            p.on_answer(now, a);
        }
        if constexpr (requires(RivalAnswer g) { p.grant(g); }) {
            bool is_idle = false;
            while (pacer.poll(now, link_of, is_idle) != kNobody) {
                RivalAnswer a;
                const uint64_t bytes = p.grant(a, is_idle);
                if (!bytes) continue;
                pacer.granted(now, bytes);
                if (rng.unit() >= w.loss) w.back.push_back({now + w.delay_ns, a});
                if (p.wants_grant()) pacer.request(0, link_of);
                else if (p.takes_idle_grant()) pacer.offer(0, link_of);
            }
        }
        if (now >= p.next_timeout_ns()) p.on_timeout(now);
        RivalAnswer a;
        while (p.poll_answer(a)) w.back.push_back({now + w.delay_ns, a});
        if (p.messages_acked() == total) {
            end_ns = now;
            k = p.counters();
            return p.messages_delivered() == total;
        }
    }
    return false;
}

RivalWire wire_settings() {
    RivalWire w;
    w.mtu_bytes = 4096;
    w.overhead_bytes = 64;
    w.max_messages = 4;
    return w;
}

template <class P>
void check_delivery(const char* name, const typename P::Config& base, uint64_t seed, bool keeps_order, bool trims) {
    CounterRng rng(seed * 77 + 5);
    for (uint32_t round = 0; round < 8; ++round) {
        Arena arena;
        typename P::Config c = base;
        c.wire = wire_settings();
        c.paths.seed = rng.next();
        Wire w;
        if (round % 2) w.loss = 0.02;
        if (round % 3 == 1 && trims) w.trim = 0.1;
        if (round >= 4) w.mark = 0.2;
        if (round >= 5 && !keeps_order) w.jitter_ns = 20'000;
        std::vector<uint64_t> messages;
        for (uint32_t m = 0; m < 12; ++m) messages.push_back(rng.below(3) == 0 ? rng.below(5000) : rng.below(1'500'000));
        uint64_t end = 0, bytes = 0;
        for (const uint64_t m : messages) bytes += m;
        FlowCounters k;
        P p(c, &arena);
        const bool done = carry(p, w, messages, rng.next(), keeps_order, end, k);
        CHECK(done, "%s: round %u does not end: una %u next %u end %u", name, round, p.span().una, p.span().next, p.span().end);
        CHECK(w.loss > 0 || w.trim > 0 || w.jitter_ns > 0 || k.retransmitted == 0, "%s: %llu sent again without reason", name, static_cast<unsigned long long>(k.retransmitted));
        CHECK(static_cast<double>(end) * 12.5 >= static_cast<double>(bytes), "%s is faster than the wire", name);
        uint64_t end_again = 0;
        if (round == 7) {
            P q(c, &arena);
            CHECK(carry(q, w, messages, 9, keeps_order, end, k) && !(end == 0), "%s", name);
            P r(c, &arena);
            CHECK(carry(r, w, messages, 9, keeps_order, end_again, k) && end == end_again, "%s: equal seeds differ", name);
        }
    }
}

void check_transports(uint64_t seed) {
    for (const Spread s : {Spread::Oblivious, Spread::Bitmap, Spread::Reps, Spread::Mixed}) {
        UetConfig u;
        u.choice.spread = s;
        u.nscc.trimming = true;
        check_delivery<UetRival>("uet", u, seed, false, true);
    }
    UetConfig credit;
    credit.sender_window = false;
    credit.receiver_credit = true;
    check_delivery<UetRival>("uet with credit", credit, seed, false, true);
    UetConfig both = credit;
    both.sender_window = true;
    check_delivery<UetRival>("uet with window and credit", both, seed, false, true);
    NdpConfig n;
    n.choice.spread = Spread::Permutation;
    n.paths.is_hashed = false;
    n.paths.per_plane = 16;
    check_delivery<NdpRival>("ndp", n, seed, false, true);
    for (const TcpGrowth g : {TcpGrowth::Reno, TcpGrowth::Cubic, TcpGrowth::Dctcp}) {
        TcpConfig t;
        t.growth = g;
        t.paths.per_plane = 1;
        check_delivery<TcpRival>("tcp", t, seed, true, false);
    }
    for (const uint32_t pairs : {1u, 3u, 16u}) {
        RoceConfig r;
        r.queue_pairs = r.paths.per_plane = pairs;
        r.rto_ns = 1'000'000;
        check_delivery<RoceRival>("roce", r, seed, true, false);
    }
    AdaptiveConfig a;
    a.paths.per_plane = 1;
    check_delivery<AdaptiveRival>("adaptive", a, seed, false, false);
}

}  // namespace

int main(int argc, char** argv) {
    const uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
    const uint64_t iterations = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 2000;
    check_rotations(seed);
    check_penalties(seed);
    check_reps(seed);
    check_mixed(seed);
    check_windows(seed, iterations);
    check_messages();
    check_dcqcn();
    check_pacer();
    check_pacer_of_several_ports();
    check_transports(seed);
    if (g_failures) {
        std::printf("seed %llu: %d failures; run again with that seed\n", static_cast<unsigned long long>(seed), g_failures);
        return 1;
    }
    std::printf("sim_rival_parts_test: ok\n");
    return 0;
}
