// A bottleneck in simulated time, for the drivers of congestion control and path choice: a drop-tail queue with a
// rate, a propagation delay, random loss and outages. Shorter than anything it tests.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>

#include "farstep/counter_rng.hpp"

namespace farstep::model {

inline int g_failures = 0;

#define CHECK(condition, ...)                                                  \
    do {                                                                       \
        if (!(condition)) {                                                    \
            std::fprintf(stderr, "%s:%d: %s is false: ", __FILE__, __LINE__, #condition); \
            std::fprintf(stderr, __VA_ARGS__);                                 \
            std::fputc('\n', stderr);                                          \
            ++farstep::model::g_failures;                                      \
        }                                                                      \
    } while (0)

struct Delivery {
    uint64_t at_ns = 0;     // when the sender learns of it
    uint64_t sent_ns = 0;
    uint32_t bytes = 0;
    uint16_t ev = 0;
    bool lost = false, ecn = false;
};

struct Link {
    double bytes_per_s = 0;
    uint64_t rtt_ns = 0;
    uint64_t queue_bytes = UINT64_MAX;   // beyond it packets are dropped
    uint64_t ecn_bytes = UINT64_MAX;     // beyond it packets are marked
    double loss = 0;
    bool down = false;
    uint64_t loss_delay_ns = 0;          // from the time the acknowledgement would have come to the loss being noticed
    uint64_t free_ns = 0;                // when the queue will be empty
    uint64_t delivered_bytes = 0;
    std::deque<Delivery> pending;        // in order of at_ns

    uint64_t backlog_bytes(uint64_t now) const {
        return free_ns <= now ? 0 : static_cast<uint64_t>(static_cast<double>(free_ns - now) * 1e-9 * bytes_per_s);
    }
    void send(uint64_t now, uint32_t bytes, uint16_t ev, CounterRng& rng) {
        Delivery d{0, now, bytes, ev, false, false};
        const uint64_t backlog = backlog_bytes(now);
        d.ecn = backlog > ecn_bytes;
        d.lost = down || backlog + bytes > queue_bytes || rng.unit() < loss;
        uint64_t leaves = free_ns > now ? free_ns : now;
        if (!down && backlog + bytes <= queue_bytes) {
            leaves += static_cast<uint64_t>(static_cast<double>(bytes) / bytes_per_s * 1e9);
            free_ns = leaves;
        }
        d.at_ns = leaves + rtt_ns + (d.lost ? loss_delay_ns : 0);
        pending.push_back(d);
    }
    // Next thing the sender learns from this link; losses may overtake nothing.
    uint64_t next_ns() const { return pending.empty() ? UINT64_MAX : pending.front().at_ns; }
};

inline int finish(const char* program, uint64_t seed, uint64_t iterations) {
    if (g_failures == 0) return 0;
    std::fprintf(stderr, "%d checks failed; reproduce: %s %llu %llu\n", g_failures, program,
                 static_cast<unsigned long long>(seed), static_cast<unsigned long long>(iterations));
    return 1;
}
inline uint64_t argument(int argc, char** argv, int i, uint64_t otherwise) {
    return argc > i ? std::strtoull(argv[i], nullptr, 10) : otherwise;
}

}  // namespace farstep::model
