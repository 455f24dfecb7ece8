// Checks when a thread leaves its processor, and that leaving it changes nothing but where the thread runs.
// Usage: processor_choice_test [seed]
#include "farstep/processor_choice.hpp"

#include <atomic>
#include <cstdio>
#include <ctime>
#include <thread>

using namespace farstep;

namespace {

void require(bool holds, const char* what, unsigned long long detail) {
    if (holds) return;
    std::printf("FAILED: %s (%llu)\n", what, detail);
    std::exit(1);
}

uint64_t now_ns() {
    timespec t;
    ::clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000ull + static_cast<uint64_t>(t.tv_nsec);
}

void check_rule() {
    constexpr uint64_t kLook = CrowdingRule::kLookEvery_bytes, kWaited = CrowdingRule::kWaited_ns;
    constexpr uint64_t kPause = CrowdingRule::kPauseMin_ns;
    CrowdingRule r;
    require(!r.is_due(0, kLook - 1), "short exchanges are left alone", 0);
    require(r.is_due(0, kLook), "a long one is looked at", 0);
    uint64_t moved = kLook, waited = kWaited - 1, now = 0;
    require(!r.has_waited(moved, waited), "a short wait is none", waited);
    require(!r.is_due(now, moved + kLook - 1), "counted from the last look", 0);
    // Waiting that goes on: the pauses between moves double, and stop growing.
    uint64_t pause = kPause;
    for (int k = 0; k < 12; ++k) {
        moved += kLook;
        waited += kWaited;
        require(r.is_due(now, moved), "due when the pause is over", now);
        require(r.has_waited(moved, waited), "waited since the last look", waited);
        r.on_moved(now);
        require(!r.is_due(now + pause - 1, moved + kLook), "pauses after a move", pause);
        now += pause;
        pause = std::min(2 * pause, CrowdingRule::kPauseMax_ns);
    }
    // One calm look, and the next move comes as soon as the first did.
    moved += kLook;
    require(!r.has_waited(moved, waited), "calm", waited);
    moved += kLook;
    waited += kWaited;
    require(r.has_waited(moved, waited), "waits again", waited);
    r.on_moved(now);
    require(r.is_due(now + kPause, moved + kLook), "the pause is short again", now);
}

void check_load() {
    ProcessorLoad load;
    require(load.waited_ns() == 0 && load.running() == UINT32_MAX, "says nothing before it is opened", 0);
    load.open();
    const uint64_t before = load.waited_ns();
    const uint32_t running = load.running();
    require(running >= 1, "this thread runs", running);
    require(load.waited_ns() >= before, "waiting is never undone", before);
    load.close();
    require(load.waited_ns() == 0 && load.running() == UINT32_MAX, "says nothing once closed", 0);
}

/// Shares a processor with a busy thread for a while: whether it is left depends on the machine, the set of processors
/// the thread may use stays what it was.
void check_set_is_kept() {
    cpu_set_t allowed, one, after;
    require(::sched_getaffinity(0, sizeof allowed, &allowed) == 0, "has a set", 0);
    CPU_ZERO(&one);
    CPU_SET(static_cast<unsigned>(::sched_getcpu()), &one);
    ::sched_setaffinity(0, sizeof one, &one);  // inherited by the busy thread
    std::atomic<bool> is_over{false};
    std::thread busy([&] {
        while (!is_over) {}
    });
    ProcessorChoice choice;
    ::sched_setaffinity(0, sizeof allowed, &allowed);
    uint64_t moved = 0;
    for (const uint64_t end = now_ns() + 100'000'000; now_ns() < end;) {
        const timespec nap{0, 100'000};
        ::nanosleep(&nap, nullptr);
        choice.after_sleep(now_ns(), moved += CrowdingRule::kLookEvery_bytes);
        ::sched_getaffinity(0, sizeof after, &after);
        require(CPU_EQUAL(&allowed, &after), "the set is kept", choice.moves());
    }
    is_over = true;
    busy.join();
    choice.close();
}

}  // namespace

int main(int argc, char** argv) {
    std::printf("seed %s\n", argc > 1 ? argv[1] : "0");
    check_rule();
    check_load();
    check_set_is_kept();
    std::printf("processor_choice_test: ok\n");
    return 0;
}
