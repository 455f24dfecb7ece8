// Driver for the pace of a line nobody told the rate of: `nscc_pace_test [seed] [unused] [verbose]`.
#include <algorithm>

#include "farstep/nscc.hpp"
#include "path_model.hpp"

using namespace farstep;
using namespace farstep::model;

namespace {

bool g_verbose = false;

struct PacedRun {
    double share = 0;            // delivered, of the line's rate
    double mean_queue_ms = 0;
    double pace_bytes_per_s = 0; // at the end
};
// A sender that keeps to the pace, from `from_ns` to `until_ns`; before that it runs in.
PacedRun run_paced(Nscc& n, Link& link, uint64_t& now, uint64_t from_ns, uint64_t until_ns, CounterRng& rng) {
    PacedRun out;
    uint64_t free_ns = now, delivered = 0, samples = 0;
    double queue_ms = 0;
    while (now < until_ns) {
        uint32_t newly = 0;
        uint64_t rtt = 0;
        while (link.next_ns() <= now) {
            const Delivery d = link.pending.front();
            link.pending.pop_front();
            if (d.lost) {
                n.on_loss(now, d.bytes);
                continue;
            }
            rtt = now - d.sent_ns;
            newly += d.bytes;
        }
        if (newly) n.on_sack(now, newly, false, true, rtt);
        if (now >= from_ns) delivered += newly;
        while (n.can_send(4096) && free_ns <= now) {
            n.on_send(now, 4096);
            link.send(now, 4096, 0, rng);
            const double pace = n.pace_bytes_per_s();
            if (pace > 0) free_ns = std::max(free_ns, now > 5'000'000 ? now - 5'000'000 : 0) + static_cast<uint64_t>(4096e9 / pace);
        }
        queue_ms += static_cast<double>(link.backlog_bytes(now)) / link.bytes_per_s * 1e3;
        ++samples;
        now = std::max(std::min(link.next_ns(), n.can_send(4096) ? free_ns : UINT64_MAX), now + 1);
    }
    out.share = static_cast<double>(delivered) / (link.bytes_per_s * static_cast<double>(until_ns - from_ns) * 1e-9);
    out.mean_queue_ms = queue_ms / static_cast<double>(samples);
    out.pace_bytes_per_s = n.pace_bytes_per_s();
    if (g_verbose) std::printf("   paced %.3f of the rate, queue %.1f ms, pace %.2f MB/s\n", out.share, out.mean_queue_ms, out.pace_bytes_per_s / 1e6);
    return out;
}
void check_pace(uint64_t seed) {
    constexpr uint64_t kSecond = 1'000'000'000;
    CounterRng rng(seed);
    for (const uint64_t rtt_ns : {400'000u, 20'000'000u, 100'000'000u})
        for (const double loss : {0.0, 0.01, 0.03}) {
            NsccConfig config;
            Nscc n(config);
            Link link;
            link.bytes_per_s = 25e6;
            link.rtt_ns = rtt_ns, link.loss = loss, link.loss_delay_ns = rtt_ns / 8 + 1'000'000;
            link.queue_bytes = 1'250'000;
            uint64_t now = 1'000'000;
            if (g_verbose) std::printf("pace at %g ms, loss %g\n", static_cast<double>(rtt_ns) * 1e-6, loss);
            run_paced(n, link, now, 0, 3 * kSecond, rng);
            PacedRun r = run_paced(n, link, now, now, now + 4 * kSecond, rng);
            CHECK(r.share >= 0.93 - loss, "%g ms, loss %g: %.3f of the rate", static_cast<double>(rtt_ns) * 1e-6, loss, r.share);
            CHECK(r.mean_queue_ms < std::max(9.0, 0.25e-6 * static_cast<double>(rtt_ns)), "a queue of %.1f ms stands", r.mean_queue_ms);
            if (loss > 0 || rtt_ns > 20'000'000) continue;
            link.bytes_per_s *= 4;
            run_paced(n, link, now, now, now + 3 * kSecond, rng);
            r = run_paced(n, link, now, now, now + 2 * kSecond, rng);
            CHECK(r.share >= 0.9, "four times the rate: %.3f of it", r.share);
            link.bytes_per_s /= 8;
            run_paced(n, link, now, now, now + 2 * kSecond, rng);
            r = run_paced(n, link, now, now, now + 2 * kSecond, rng);
            CHECK(r.share >= 0.93, "an eighth of that: %.3f of it", r.share);
            CHECK(r.mean_queue_ms < 40, "a queue of %.1f ms stands", r.mean_queue_ms);
        }
    {   // An application that sends little says nothing about the line.
        PaceLearner pace;
        uint64_t now = kSecond;
        const auto second_at = [&](double bytes_per_s) {
            for (const uint64_t end = now + kSecond; now < end; now += static_cast<uint64_t>(4096e9 / bytes_per_s)) {
                pace.on_send(now, 4096, false, false);
                pace.on_rtt(500'000);
                pace.on_delivered(now, 4096, 500'000);
            }
        };
        second_at(25e6);
        const double before = pace.bytes_per_s();
        CHECK(before > 0.79 * 25e6 && before < 1.21 * 25e6, "%g", before);
        second_at(1e6);
        CHECK(pace.bytes_per_s() >= 0.65 * before, "%g instead of %g", pace.bytes_per_s(), before);
        second_at(400e6);
        CHECK(pace.bytes_per_s() == 0, "a fast line is not paced, but %g", pace.bytes_per_s());
    }
    {   // A line that stood nearly still, and no longer does: one packet at a time, each held back by the pace alone.
        constexpr uint32_t kPacket = 16'384;
        PaceLearner pace;
        uint64_t now = kSecond;
        const auto packet = [&](uint64_t answer_ns) {
            pace.on_send(now, kPacket, true, true);
            pace.on_rtt(answer_ns);
            pace.on_delivered(now + answer_ns, kPacket, 300'000);
        };
        for (uint32_t k = 0; k < 20; ++k, now += 250'000'000) packet(250'000'000);
        const double slow = pace.bytes_per_s();
        CHECK(slow > 0 && slow < 1e6, "%g", slow);
        for (const uint64_t end = now + 3 * kSecond; now < end && pace.bytes_per_s() > 0;) {
            packet(400'000);
            if (pace.bytes_per_s() > 0) now += std::max<uint64_t>(400'000, static_cast<uint64_t>(kPacket * 1e9 / pace.bytes_per_s()));
        }
        CHECK(pace.bytes_per_s() > 20e6, "stays at %g, from %g", pace.bytes_per_s(), slow);
    }
    NsccConfig told;
    told.rate_bytes_per_s = 25e6;
    CHECK(Nscc(told).pace_bytes_per_s() == 0, "ports know their own rate");
}

}  // namespace

int main(int argc, char** argv) {
    const uint64_t seed = argument(argc, argv, 1, 1), iterations = argument(argc, argv, 2, 1);
    g_verbose = argc > 3;
    check_pace(seed);
    return finish("nscc_pace_test", seed, iterations);
}
