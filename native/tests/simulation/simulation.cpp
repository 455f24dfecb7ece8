// Deterministic simulation: from every seed a network, a workload and a fault plan, run on the shipped core in virtual
// time, with the invariants of flow.hpp and world.hpp judged at every event.
//
//   simulation SEED COUNT [SIZE]   runs the seeds SEED, SEED+1, ... ; SIZE multiplies the messages of each run
//
// Every 16th seed runs twice and must leave the same trace. Exit 0: nothing found.
#include <csignal>
#include <cstdlib>
#include <unistd.h>

#include "plan.hpp"

namespace {

using namespace farstep;

char reproduce[160];

// An assertion of the core ends the process before any exception: the seed is said from the signal.
void on_abort(int) {
    const ssize_t n = write(STDOUT_FILENO, reproduce, std::strlen(reproduce));
    (void)n;
    std::signal(SIGABRT, SIG_DFL);
}

struct Outcome {
    uint64_t trace = 0;
    sim::NetworkCounters counters;
    uint64_t virtual_ns = 0, retransmitted = 0;
};

Outcome run(uint64_t seed, uint32_t size) {
    sim::Plan plan(seed, size);
    sim::World world(seed, plan.num_endpoints());
    try {
        plan.run(world);
    } catch (const sim::Violation& v) {
        std::printf("seed %llu at %llu ns, event %llu: %s\n%s\n%s", static_cast<unsigned long long>(seed),
                    static_cast<unsigned long long>(world.now()),
                    static_cast<unsigned long long>(world.network.counters().events), v.what.c_str(), plan.describe().c_str(),
                    reproduce);
        std::exit(1);
    }
    Outcome o{world.network.trace(), world.network.counters(), world.now(), 0};
    for (sim::Flow& f : world.flows())
        if (Connection* c = world.connection(f)) o.retransmitted += c->sender().counters().retransmitted;
    return o;
}

}  // namespace

int main(int argc, char** argv) {
    const uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
    const uint64_t count = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 100;
    const uint32_t size = argc > 3 ? static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10)) : 1;
    std::signal(SIGABRT, on_abort);
    Outcome sum;
    for (uint64_t s = seed; s < seed + count; ++s) {
        std::snprintf(reproduce, sizeof reproduce, "seed %llu\nreproduce: simulation %llu 1 %u\n",
                      static_cast<unsigned long long>(s), static_cast<unsigned long long>(s), size);
        const Outcome o = run(s, size);
        if (s % 16 == 0 && run(s, size).trace != o.trace) {
            std::printf("two runs of one seed differ\n%s", reproduce);
            return 1;
        }
        sum.virtual_ns += o.virtual_ns;
        sum.retransmitted += o.retransmitted;
        sum.trace ^= o.trace;
        const sim::NetworkCounters& c = o.counters;
        sim::NetworkCounters& t = sum.counters;
        t.sent += c.sent, t.delivered += c.delivered, t.lost += c.lost, t.silenced += c.silenced;
        t.overflowed += c.overflowed, t.duplicated += c.duplicated, t.corrupted += c.corrupted;
        t.trimmed += c.trimmed, t.marked += c.marked, t.forged += c.forged, t.events += c.events;
    }
    const sim::NetworkCounters& t = sum.counters;
    std::printf("seeds %llu packets %llu delivered %llu events %llu lost %llu silenced %llu overflowed %llu duplicated %llu "
                "corrupted %llu trimmed %llu marked %llu forged %llu retransmitted %llu virtual_s %.1f trace %016llx\n",
                static_cast<unsigned long long>(count), static_cast<unsigned long long>(t.sent),
                static_cast<unsigned long long>(t.delivered), static_cast<unsigned long long>(t.events),
                static_cast<unsigned long long>(t.lost), static_cast<unsigned long long>(t.silenced),
                static_cast<unsigned long long>(t.overflowed), static_cast<unsigned long long>(t.duplicated),
                static_cast<unsigned long long>(t.corrupted), static_cast<unsigned long long>(t.trimmed),
                static_cast<unsigned long long>(t.marked), static_cast<unsigned long long>(t.forged),
                static_cast<unsigned long long>(sum.retransmitted), static_cast<double>(sum.virtual_ns) * 1e-9,
                static_cast<unsigned long long>(sum.trace));
    return 0;
}
