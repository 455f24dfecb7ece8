// Driver for the congestion window: `nscc_test [seed] [iterations] [verbose]`.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "farstep/nscc.hpp"
#include "path_model.hpp"

using namespace farstep;
using namespace farstep::model;

namespace {

bool g_verbose = false;

NsccConfig known(double gbps, uint64_t rtt_ns) {
    NsccConfig c;
    c.rate_bytes_per_s = gbps * 1e9 / 8;
    c.base_rtt_ns = rtt_ns;
    c.mtu_bytes = 4096;
    c.trimming = true;
    return c;
}
bool near(double got, double want, double relative) { return std::fabs(got - want) <= relative * std::fabs(want); }

// The scaling table of MRC for MTU 4096 with trimming.
void check_worked_values() {
    struct Row { double gbps; uint64_t rtt; double maxwnd, target, proportional, fair, eta, fi_scale; };
    const Row rows[] = {
        {100, 12'000, 225e3, 9'000, 12.288e3, 20.48e3, 614.4, 0.25},
        {400, 8'000, 600e3, 6'000, 21.845e3, 54.613e3, 1638.4, 0.6667},
        {800, 10'000, 1.5e6, 7'500, 68.267e3, 136.533e3, 4096, 1.6667},
        {800, 12'000, 1.8e6, 9'000, 98.304e3, 163.84e3, 4915.2, 2.0},
    };
    for (const Row& r : rows) {
        const Nscc n(known(r.gbps, r.rtt));
        CHECK(near(static_cast<double>(n.max_cwnd_bytes()), r.maxwnd, 1e-3), "%g Gb/s: %llu", r.gbps, (unsigned long long)n.max_cwnd_bytes());
        CHECK(n.cwnd_bytes() == n.max_cwnd_bytes(), "the first window is the largest");
        CHECK(n.target_ns() == static_cast<uint64_t>(r.target), "%llu", (unsigned long long)n.target_ns());
        CHECK(near(n.alpha() * r.target, r.proportional, 1e-3), "%g", n.alpha() * r.target);
        CHECK(near(n.fi_bytes(), r.fair, 1e-3), "%g", n.fi_bytes());
        CHECK(near(n.eta_bytes(), r.eta, 1e-3), "%g", n.eta_bytes());
        CHECK(near(n.fi_scale(), r.fi_scale, 1e-3), "%g", n.fi_scale());
    }
    NsccConfig no_trim = known(100, 12'000);
    no_trim.trimming = false;
    CHECK(Nscc(no_trim).target_ns() == 12'000, "the target without trimming is one base RTT");
}

// Acknowledges one whole window in packets at a constant delay; returns how much the window changed.
double one_window(Nscc& n, uint64_t& now, uint64_t rtt, bool ecn, uint64_t duration) {
    const double before = static_cast<double>(n.cwnd_bytes());
    const uint64_t packets = n.cwnd_bytes() / 4096;
    for (uint64_t i = 0; i < packets; ++i) n.on_send(now, 4096);
    for (uint64_t i = 0; i < packets; ++i) {
        now += duration / packets;
        n.on_sack(now, 4096, ecn, true, rtt);
    }
    return static_cast<double>(n.cwnd_bytes()) - before;
}
// Shrinks the window without touching anything else.
void shrink_to(Nscc& n, uint64_t now, uint64_t bytes) {
    const auto cut = static_cast<uint32_t>(n.cwnd_bytes() - bytes);
    n.on_send(now, cut);
    n.on_loss(now, cut);
}

void check_increases() {
    // Proportional: at a quarter of the target's delay three quarters of the greatest gain, plus one eta.
    NsccConfig c = known(100, 12'000);
    {
        Nscc n(c);
        uint64_t now = 1'000'000;
        n.on_sack(now, 0, false, true, 12'000);
        shrink_to(n, now, 100'000);
        double gain = 0;   // an increase is applied every nine packets, so one window alone is too grainy
        for (int i = 0; i < 4; ++i) gain += one_window(n, now, 12'000 + 2'250, false, 12'000) / 4;
        CHECK(near(gain, 0.75 * 12'288 + 614, 0.10), "%g", gain);
    }
    {
        Nscc n(c);
        uint64_t now = 1'000'000;
        shrink_to(n, now, 100'000);
        double gain = 0;
        for (int i = 0; i < 4; ++i) gain += one_window(n, now, 12'000 + 20'000, false, 12'000) / 4;
        CHECK(near(gain, 20'480 + 614, 0.15), "%g", gain);
    }
    {   // Fast: nothing special in the first window of zero delay, then fi_scale of every byte.
        Nscc n(c);
        uint64_t now = 1'000'000;
        shrink_to(n, now, 50'000);
        one_window(n, now, 12'000, false, 12'000);
        one_window(n, now, 12'000, false, 12'000);
        const uint64_t before = n.cwnd_bytes();
        n.on_send(now, 4096);
        n.on_sack(now + 1, 4096, false, true, 12'100);
        CHECK(n.cwnd_bytes() - before >= 1023 && n.cwnd_bytes() - before <= 1025, "%llu", (unsigned long long)(n.cwnd_bytes() - before));
    }
}

void check_decrease() {
    NsccConfig c = known(100, 12'000);
    c.quick_adapt = false;
    Nscc n(c);
    uint64_t now = 1'000'000;
    // Marks below the target only make the EV skip: the window stays.
    const uint64_t start = n.cwnd_bytes();
    for (int i = 0; i < 50; ++i) {
        n.on_send(now, 4096);
        n.on_sack(now += 100, 4096, true, true, 12'000 + 3'000);
    }
    CHECK(n.cwnd_bytes() == start, "%llu", (unsigned long long)n.cwnd_bytes());
    // Above it: once per base RTT, never more than half at once.
    int decreases = 0;
    uint64_t last = 0, before = n.cwnd_bytes();
    for (int i = 0; i < 2000; ++i) {
        n.on_send(now, 4096);
        n.on_sack(now += 500, 4096, true, true, 12'000 + 90'000);
        if (n.cwnd_bytes() < before) {
            CHECK(decreases == 0 || now - last >= 12'000, "%llu ns apart", (unsigned long long)(now - last));
            CHECK(n.cwnd_bytes() * 2 + 2 >= before, "%llu from %llu", (unsigned long long)n.cwnd_bytes(), (unsigned long long)before);
            last = now;
            ++decreases;
        }
        before = n.cwnd_bytes();
    }
    CHECK(decreases > 3, "%d", decreases);
    CHECK(n.cwnd_bytes() == n.min_cwnd_bytes(), "marks without end lead to the least window");
}

void check_quick_adapt() {
    const NsccConfig c = known(100, 12'000);
    {
        Nscc n(c);   // maxwnd 225,000: the gate is at 28,125 B per base RTT + target = 21 us
        uint64_t now = 1'000'000;
        for (int i = 0; i < 54; ++i) n.on_send(now, 4096);
        n.on_sack(now, 4096, false, true, 12'000);   // opens the first measuring period
        for (int i = 0; i < 3; ++i) n.on_sack(now += 1'000, 4096, false, true, 12'000);
        now += 20'000;
        n.on_trim(now, 4096, true);
        CHECK(n.quick_adapts() == 1, "a trim after a period in which 12 KB arrived");
        CHECK(n.cwnd_bytes() == 3 * 4096, "the window is what arrived: %llu", (unsigned long long)n.cwnd_bytes());
        // Marks of the window before the jump change nothing.
        const auto inflight = static_cast<uint64_t>(n.inflight_bytes());
        const uint64_t window = n.cwnd_bytes();
        for (uint64_t left = inflight; left >= 2 * 4096; left -= 4096) {
            n.on_sack(now += 10, 4096, true, true, 200'000);
            CHECK(n.cwnd_bytes() == window, "%llu", (unsigned long long)n.cwnd_bytes());
        }
        CHECK(n.quick_adapts() == 1, "%llu", (unsigned long long)n.quick_adapts());
    }
    {
        Nscc n(c);   // at a delivery above the gate a trim costs its own size
        uint64_t now = 1'000'000;
        for (int i = 0; i < 54; ++i) n.on_send(now, 4096);
        n.on_sack(now, 4096, false, true, 12'000);
        for (int i = 0; i < 10; ++i) n.on_sack(now += 1'000, 4096, false, true, 12'000);
        now += 20'000;
        const uint64_t before = n.cwnd_bytes();
        n.on_trim(now, 4096, false);
        CHECK(n.quick_adapts() == 0 && n.cwnd_bytes() == before - 4096, "%llu", (unsigned long long)n.cwnd_bytes());
    }
    {
        NsccConfig off = c;
        off.quick_adapt = false;
        Nscc n(off);
        uint64_t now = 1'000'000;
        for (int i = 0; i < 50; ++i) n.on_send(now, 4096);
        for (int i = 0; i < 20; ++i) n.on_trim(now += 30'000, 4096, true);
        CHECK(n.quick_adapts() == 0, "it is switched off");
    }
    {   // Without trimming a long delay triggers it, but only with a mark: a busy host delays too.
        NsccConfig drop = c;
        drop.trimming = false;
        for (const bool ecn : {false, true}) {
            Nscc n(drop);
            uint64_t now = 1'000'000;
            for (int i = 0; i < 54; ++i) n.on_send(now, 4096);
            n.on_sack(now, 4096, false, true, 12'000);
            const uint64_t before = n.cwnd_bytes();
            n.on_sack(now += 30'000, 4096, ecn, true, 5'000'000);
            CHECK(n.quick_adapts() == (ecn ? 1u : 0u), "ecn %d: %llu", ecn, (unsigned long long)n.quick_adapts());
            CHECK(ecn || n.cwnd_bytes() >= before, "a delay of 5 ms without a mark shrank the window");
        }
    }
}

void check_receiver_penalty() {
    NsccConfig c = known(100, 12'000);
    c.fi_bytes = c.eta_bytes = c.alpha = c.fi_scale = 0;   // only the penalty moves the window
    Nscc n(c);
    uint64_t now = 1'000'000;
    while (n.can_send(4096)) n.on_send(now, 4096);
    const double window = static_cast<double>(n.inflight_bytes());
    const uint64_t saved = n.cwnd_bytes();
    for (int64_t left = n.inflight_bytes(); left > 0; left -= 4096) {
        n.on_receiver_penalty(now += 100, 4096, 64, false);
        n.on_sack(now, 4096, false, true, 30'000);
        n.on_send(now, 4096);
    }
    CHECK(near(static_cast<double>(n.cwnd_bytes()), window / 2, 0.05), "64 for one RTT halves: %llu of %g", (unsigned long long)n.cwnd_bytes(), window);
    n.on_receiver_penalty(now, 0, 0, true);
    CHECK(n.cwnd_bytes() == saved, "%llu instead of %llu", (unsigned long long)n.cwnd_bytes(), (unsigned long long)saved);
    n.on_receiver_penalty(now, 0, 0, true);
    CHECK(n.cwnd_bytes() == saved, "a second restore has nothing to restore");
}

void check_gates_and_base_rtt() {
    NsccConfig c = known(100, 12'000);
    c.ack_threshold_bytes = 0;
    Nscc n(c);
    CHECK(n.can_send(9'000'000), "with nothing in flight one may always go");
    CHECK(!n.wants_ack(), "the window is wide open");
    while (n.can_send(4096)) n.on_send(1, 4096);
    CHECK(n.inflight_bytes() == 54 * 4096, "%lld", (long long)n.inflight_bytes());
    CHECK(n.wants_ack(), "the window is about to close");
    CHECK(!n.can_send(1), "a small packet is tested as a full one");
    n.on_forget(static_cast<uint32_t>(n.inflight_bytes()));
    CHECK(n.inflight_bytes() == 0 && n.can_send(4096), "%lld", (long long)n.inflight_bytes());
    // base RTT falls and takes the ceiling along; it never rises.
    n.on_sack(1'000'000, 0, false, true, 6'000);
    CHECK(n.base_rtt_ns() == 6'000 && n.max_cwnd_bytes() == 112'500, "%llu", (unsigned long long)n.max_cwnd_bytes());
    CHECK(n.cwnd_bytes() <= n.max_cwnd_bytes(), "%llu", (unsigned long long)n.cwnd_bytes());
    n.on_sack(1'000'001, 0, false, true, 600'000);
    CHECK(n.base_rtt_ns() == 6'000, "%llu", (unsigned long long)n.base_rtt_ns());
    n.on_sack(1'000'002, 0, false, true, 0);
    CHECK(n.base_rtt_ns() == 1, "an RTT of zero counts as the shortest there is");
    // Unknown rate: the first sample replaces the guess, even upward; then it only falls.
    NsccConfig u = c;
    u.rate_bytes_per_s = 0;
    Nscc m(u);
    m.on_sack(1'000, 0, false, true, 50'000'000);
    CHECK(m.base_rtt_ns() == 50'000'000, "%llu", (unsigned long long)m.base_rtt_ns());
    m.on_sack(2'000, 0, false, true, 60'000'000);
    CHECK(m.base_rtt_ns() == 50'000'000, "%llu", (unsigned long long)m.base_rtt_ns());
    NsccConfig tiny = known(0.001, 1'000);
    CHECK(Nscc(tiny).max_cwnd_bytes() >= 4096 + kNominalHeaderBytes, "never less than one packet");
    NsccConfig capped = known(100, 12'000);
    capped.max_cwnd_bytes = 50'000;
    CHECK(Nscc(capped).max_cwnd_bytes() == 50'000, "an explicit ceiling holds");
}

// Each of many connections has a small share of a large window in flight, below what the receiver answers by itself.
void check_shared_window() {
    NsccConfig c = known(100, 12'000);
    Nscc n(c);
    CHECK(!n.wants_ack(), "one connection has all of the window");
    n.set_sharers(static_cast<uint32_t>(n.cwnd_bytes() / c.ack_threshold_bytes) + 1);
    CHECK(n.wants_ack(), "a share of the window is small");
    n.set_sharers(1);
    CHECK(!n.wants_ack(), "the others have left");
}

// Anything may happen in any order; accounting and bounds hold.
void check_random_operations(uint64_t seed) {
    CounterRng rng(seed);
    NsccConfig c = known(1 + 799 * rng.unit(), 1'000 + rng.below(200'000));
    if (rng.below(3) == 0) c.rate_bytes_per_s = 0;
    c.trimming = rng.below(2) != 0;
    c.quick_adapt = rng.below(2) != 0;
    if (rng.below(4) == 0) c.max_cwnd_bytes = 4096 + rng.below(10'000'000);
    const bool calm = rng.below(4) == 0;   // no mark, trim, loss or penalty: the window must not shrink
    const uint64_t fixed_rtt = c.base_rtt_ns;
    Nscc n(c);
    std::vector<uint32_t> flying, given_up;
    uint64_t now = 1;
    n.on_sack(now, 0, false, true, fixed_rtt);
    for (int step = 0; step < 400; ++step) {
        now += rng.below(4) == 0 ? rng.below(5'000'000) : rng.below(20'000);
        const uint64_t before = n.cwnd_bytes();
        const uint32_t what = rng.below(calm ? 6 : 12);
        if (what < 3) {
            for (int k = 0; k < 16 && n.can_send(4096); ++k) {
                flying.push_back(1 + rng.below(4200));
                n.on_send(now, flying.back());
            }
        } else if (what < 6 && !flying.empty()) {
            const uint32_t k = 1 + rng.below(static_cast<uint32_t>(std::min<size_t>(flying.size(), 8)));
            uint32_t newly = 0;
            for (uint32_t i = 0; i < k; ++i) newly += flying.back(), flying.pop_back();
            const uint64_t rtt = fixed_rtt + (rng.below(8) == 0 ? rng.below(8'000'000) : rng.below(30'000));
            n.on_sack(now, newly, !calm && rng.below(3) == 0, rng.below(4) != 0, calm ? rtt : rtt - rng.below(900));
        } else if (what < 8 && !flying.empty()) {
            given_up.push_back(flying.back());
            flying.pop_back();
            n.on_loss(now, given_up.back());
        } else if (what == 8 && !flying.empty()) {
            const uint32_t size = flying.back();
            flying.pop_back();
            n.on_trim(now, size, rng.below(2) != 0);
        } else if (what == 9 && !given_up.empty()) {
            const uint32_t size = given_up.back();
            given_up.pop_back();
            n.on_spurious(size);
            n.on_sack(now, size, false, false, 0);
        } else if (what == 10 && !flying.empty()) {
            n.on_forget(flying.back());
            flying.pop_back();
        } else if (what == 11) {
            n.on_receiver_penalty(now, rng.below(65536), static_cast<uint8_t>(rng.below(128)), rng.below(8) == 0);
        }
        int64_t sum = 0;
        for (const uint32_t size : flying) sum += size;
        CHECK(n.inflight_bytes() == sum, "%lld instead of %lld", (long long)n.inflight_bytes(), (long long)sum);
        CHECK(n.cwnd_bytes() >= n.min_cwnd_bytes() && n.cwnd_bytes() <= n.max_cwnd_bytes(), "%llu", (unsigned long long)n.cwnd_bytes());
        CHECK(c.max_cwnd_bytes == 0 || n.max_cwnd_bytes() <= std::max(c.max_cwnd_bytes, n.min_cwnd_bytes()), "%llu", (unsigned long long)n.max_cwnd_bytes());
        CHECK(std::isfinite(n.rate_bytes_per_s()), "rate");
        if (calm) CHECK(n.cwnd_bytes() >= std::min(before, n.max_cwnd_bytes()), "%llu after %llu", (unsigned long long)n.cwnd_bytes(), (unsigned long long)before);
        if (calm && c.rate_bytes_per_s > 0) CHECK(n.cwnd_bytes() >= before, "delay alone shrank the window");
        if (g_failures > 0) return;
    }
    for (const uint32_t size : flying) n.on_sack(now += 10, size, false, false, 0);
    CHECK(n.inflight_bytes() == 0, "%lld at idle", (long long)n.inflight_bytes());
}

// ---- one sender over one bottleneck ------------------------------------------------------------------------------

struct Noise {
    uint64_t mean_interval_ns = 0;   // 0 = none
    uint64_t stall_ns = 0;
};
struct Outcome {
    double goodput_share = 0;     // of the link's rate, over the second half
    double startup_rtts = 0;      // until 90 % of the rate was delivered in one RTT
    double worst_share = 1;       // least share over any tenth of the second half
    uint64_t max_window = 0;
    double mean_queue_rtts = 0;
    double loss_share = 0;
};

Outcome run_bottleneck(const NsccConfig& config, Link link, uint64_t duration_ns, Noise noise, uint64_t seed,
                       double rate_factor_late = 1.0) {
    CounterRng rng(seed);
    Nscc n(config);
    Outcome out;
    const double first_rate = link.bytes_per_s;
    const uint64_t chunk_ns = duration_ns / 20;
    double chunks[20] = {};
    uint64_t now = 1'000'000, end = now + duration_ns;
    uint64_t next_stall = noise.mean_interval_ns ? now + rng.below(static_cast<uint32_t>(2 * noise.mean_interval_ns)) : UINT64_MAX;
    uint64_t sent = 0, lost = 0, delivered = 0, acked_in_rtt = 0, rtt_end = now + link.rtt_ns;
    double queue_sum = 0;
    uint64_t queue_samples = 0;
    bool reached = false, changed = false;
    while (now < end) {
        if (!changed && rate_factor_late != 1.0 && now - 1'000'000 > duration_ns / 4) {
            link.bytes_per_s *= rate_factor_late;
            changed = true;
        }
        if (now >= next_stall) {   // the sender's thread does not run: acknowledgements pile up
            now += noise.stall_ns;
            next_stall = now + rng.below(static_cast<uint32_t>(2 * noise.mean_interval_ns));
        }
        uint32_t newly = 0;
        bool ecn = false;
        uint64_t rtt = 0;
        while (!link.pending.empty() && link.pending.front().at_ns <= now) {
            const Delivery d = link.pending.front();
            link.pending.pop_front();
            if (d.lost) {
                lost += d.bytes;
                n.on_loss(now, d.bytes);
                continue;
            }
            newly += d.bytes;
            ecn = d.ecn;
            rtt = now - d.sent_ns;
            if (newly >= 16'384 || ecn) {   // one SACK per 16 KiB
                n.on_sack(now, newly, ecn, true, rtt);
                delivered += newly;
                acked_in_rtt += newly;
                const uint64_t chunk = std::min<uint64_t>((now - 1'000'000) / chunk_ns, 19);
                chunks[chunk] += newly;
                newly = 0;
            }
        }
        if (newly > 0) {
            n.on_sack(now, newly, ecn, true, rtt);
            acked_in_rtt += newly;
            chunks[std::min<uint64_t>((now - 1'000'000) / chunk_ns, 19)] += newly;
        }
        if (now >= rtt_end) {
            const double share = static_cast<double>(acked_in_rtt) / (first_rate * 1e-9 * static_cast<double>(now - rtt_end + link.rtt_ns));
            if (!reached && share > 0.9) {
                reached = true;
                out.startup_rtts = static_cast<double>(now - 1'000'000) / static_cast<double>(link.rtt_ns);
            }
            acked_in_rtt = 0;
            rtt_end = now + link.rtt_ns;
        }
        while (n.can_send(4096)) {
            n.on_send(now, 4096);
            link.send(now, 4096, 0, rng);
            sent += 4096;
        }
        queue_sum += static_cast<double>(link.backlog_bytes(now)) / link.bytes_per_s * 1e9 / static_cast<double>(link.rtt_ns);
        ++queue_samples;
        out.max_window = std::max(out.max_window, n.cwnd_bytes());
        now = std::min(std::max(link.next_ns(), now + 1), next_stall > now ? next_stall : now + 1);
    }
    double late = 0;
    for (int i = 10; i < 20; ++i) {
        late += chunks[i];
        out.worst_share = std::min(out.worst_share, chunks[i] / (link.bytes_per_s * static_cast<double>(chunk_ns) * 1e-9));
    }
    out.goodput_share = late / (link.bytes_per_s * static_cast<double>(10 * chunk_ns) * 1e-9);
    out.mean_queue_rtts = queue_sum / static_cast<double>(queue_samples);
    out.loss_share = sent ? static_cast<double>(lost) / static_cast<double>(sent) : 0;
    if (!reached) out.startup_rtts = INFINITY;
    if (g_verbose)
        std::printf("   goodput %.3f worst tenth %.3f start-up %.1f RTT max window %.1f KB queue %.2f RTT lost %.4f est %.1f MB/s maxwnd %.1f KB\n",
                    out.goodput_share, out.worst_share, out.startup_rtts, static_cast<double>(out.max_window) / 1e3, out.mean_queue_rtts, out.loss_share,
                    n.rate_bytes_per_s() / 1e6, static_cast<double>(n.max_cwnd_bytes()) / 1e3);
    return out;
}

void check_learning(uint64_t seed) {
    struct Case {
        const char* name;
        double mbit;
        uint64_t rtt, queue_rtts_percent;
        double loss;
        uint64_t duration;
        Noise noise;
        double least;
    };
    const Case cases[] = {
        {"loopback, 20 us", 16'000, 20'000, 100'000, 0, 40'000'000, {}, 0.97},
        {"loopback, 20 us, stalls of 4 ms", 8'000, 20'000, 100'000, 0, 400'000'000, {20'000'000, 4'000'000}, 0.75},
        {"loopback, shallow buffer", 8'000, 20'000, 1'000, 0, 100'000'000, {}, 0.90},
        {"LAN, 200 us", 1'000, 200'000, 500, 0, 200'000'000, {}, 0.97},
        {"WAN, 50 ms", 200, 50'000'000, 100, 0, 10'000'000'000, {}, 0.95},
        {"WAN, 50 ms, loss 0.1 %", 200, 50'000'000, 100, 0.001, 10'000'000'000, {}, 0.95},
        {"WAN, 50 ms, loss 1 %", 200, 50'000'000, 100, 0.01, 10'000'000'000, {}, 0.93},
        {"WAN, 50 ms, queue of 0.3 BDP", 200, 50'000'000, 30, 0, 10'000'000'000, {}, 0.90},
        {"WAN, 100 ms, stalls of 8 ms", 200, 100'000'000, 100, 0, 20'000'000'000, {50'000'000, 8'000'000}, 0.93},
        {"WAN, 20 ms, 50 Mbit/s", 50, 20'000'000, 200, 0, 10'000'000'000, {}, 0.95},
    };
    for (const Case& c : cases) {
        NsccConfig config;
        config.mtu_bytes = 4096;
        config.base_rtt_ns = 1'000'000;
        Link link;
        link.bytes_per_s = c.mbit * 1e6 / 8;
        link.rtt_ns = c.rtt;
        link.loss = c.loss;
        link.loss_delay_ns = c.rtt / 8;
        link.queue_bytes = static_cast<uint64_t>(link.bytes_per_s * 1e-9 * static_cast<double>(c.rtt) * static_cast<double>(c.queue_rtts_percent) / 100) + 65'536;
        if (g_verbose) std::printf("%s\n", c.name);
        const Outcome o = run_bottleneck(config, link, c.duration, c.noise, seed);
        CHECK(o.goodput_share >= c.least, "%s: %.3f of the rate", c.name, o.goodput_share);
        if (c.rtt >= 200'000) CHECK(o.startup_rtts < 16, "%s: start-up took %.1f RTT", c.name, o.startup_rtts);
        if (c.noise.mean_interval_ns == 0) CHECK(o.mean_queue_rtts < (c.rtt >= 1'000'000 ? 1.5 : 40.0), "%s: a queue of %.2f RTT", c.name, o.mean_queue_rtts);
    }
    // The capacity changes in mid-run.
    for (const double factor : {0.25, 4.0}) {
        NsccConfig config;
        config.mtu_bytes = 4096;
        Link link;
        link.bytes_per_s = 50e6 / 8 * (factor < 1 ? 4 : 1);
        link.rtt_ns = 40'000'000;
        link.queue_bytes = 2'000'000;
        link.loss_delay_ns = 5'000'000;
        if (g_verbose) std::printf("WAN, 40 ms, rate x %g\n", factor);
        const Outcome o = run_bottleneck(config, link, 20'000'000'000, {}, seed, factor);
        CHECK(o.goodput_share >= 0.93, "rate x %g: %.3f of the rate", factor, o.goodput_share);
    }
    // A host whose real round trips are far above the smallest one ever seen must not spiral down.
    {
        NsccConfig config;
        config.mtu_bytes = 4096;
        Link link;
        link.bytes_per_s = 1e9;
        link.rtt_ns = 20'000;
        Nscc n(config);
        uint64_t now = 1'000'000;
        n.on_send(now, 4096);
        n.on_sack(now += 20'000, 4096, false, true, 20'000);
        uint64_t delivered = 0;
        const uint64_t flight_ns = 3'000'000;   // every later round trip
        for (int round = 0; round < 2'000; ++round) {
            uint64_t batch = 0;
            while (n.can_send(4096) && batch < 3'000'000) n.on_send(now, 4096), batch += 4096;   // 1 GB/s
            now += flight_ns;
            for (uint64_t left = batch; left > 0;) {
                const auto part = static_cast<uint32_t>(std::min<uint64_t>(left, 16'384));
                n.on_sack(now, part, false, true, flight_ns);
                left -= part;
            }
            if (round >= 1'000) delivered += batch;
        }
        const double share = static_cast<double>(delivered) / (1'000.0 * 3'000'000);
        if (g_verbose) std::printf("3 ms round trips over a 20 us base: %.3f\n", share);
        CHECK(share >= 0.8, "long real round trips: %.3f of the rate", share);
    }
}

void check_known_wan(uint64_t seed) {
    for (const double loss : {0.0, 0.001, 0.01}) {
        NsccConfig config;
        config.mtu_bytes = 4096;
        config.rate_bytes_per_s = 25e6;
        config.base_rtt_ns = 50'000'000;
        Link link;
        link.bytes_per_s = 25e6;
        link.rtt_ns = 50'000'000;
        link.queue_bytes = 1'250'000;
        link.loss = loss;
        link.loss_delay_ns = 6'000'000;
        if (g_verbose) std::printf("known WAN, loss %g\n", loss);
        const Outcome o = run_bottleneck(config, link, 10'000'000'000, {}, seed);
        CHECK(o.goodput_share >= 0.95 * (1 - loss), "loss %g: %.3f", loss, o.goodput_share);
    }
}

}  // namespace

int main(int argc, char** argv) {
    const uint64_t seed = argument(argc, argv, 1, 1), iterations = argument(argc, argv, 2, 300);
    g_verbose = argc > 3;
    check_worked_values();
    check_increases();
    check_decrease();
    check_quick_adapt();
    check_receiver_penalty();
    check_gates_and_base_rtt();
    check_shared_window();
    for (uint64_t i = 0; i < iterations && g_failures == 0; ++i) {
        check_random_operations(seed + i);
        if (g_failures > 0) std::fprintf(stderr, "in iteration %llu (seed %llu)\n", (unsigned long long)i, (unsigned long long)(seed + i));
    }
    check_learning(seed);
    check_known_wan(seed);
    return finish("nscc_test", seed, iterations);
}
