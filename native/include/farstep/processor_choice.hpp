// Moves the loop's thread off a processor it has to wait for while another one stands idle.
//
// The kernel puts a woken thread where it ran before or where its waker runs. A halted processor of a virtual machine does
// not count as idle there, so that the two ends of a transfer, which wake each other, come to share one processor and stay
// on it, each waiting while the other works, until a timer tick moves one of them milliseconds later. That is longer than a
// transfer of 16 MiB lasts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

namespace farstep {

/// What the kernel says about waiting and running. Without /proc, or without the counters, nothing is ever moved.
class ProcessorLoad {
public:
    ProcessorLoad() = default;
    ProcessorLoad(const ProcessorLoad&) = delete;
    ~ProcessorLoad() { close(); }
    /// Called by the thread that is to be watched, when there is reason to: most endpoints never move enough. Later calls
    /// change nothing.
    void open() noexcept {
        if (is_open_) return;
        is_open_ = true;
        thread_ = ::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
        system_ = ::open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    }
    void close() noexcept {
        if (thread_ >= 0) ::close(thread_);
        if (system_ >= 0) ::close(system_);
        thread_ = system_ = -1;
        is_open_ = false;
    }
    /// Time this thread has been ready to run and did not, so far; 0 where that is not counted.
    uint64_t waited_ns() const noexcept {
        char text[96];
        if (!read(thread_, text, sizeof text)) return 0;
        const char* second = std::strchr(text, ' ');
        return second ? std::strtoull(second, nullptr, 10) : 0;
    }
    /// Threads that run or want to at this moment, this one included; a large number where that is not told.
    uint32_t running() const noexcept {
        char text[96];
        if (!read(system_, text, sizeof text)) return UINT32_MAX;
        char* slash = std::strchr(text, '/');
        while (slash && slash > text && slash[-1] != ' ') --slash;
        return slash ? static_cast<uint32_t>(std::strtoul(slash, nullptr, 10)) : UINT32_MAX;
    }

private:
    static bool read(int fd, char* text, size_t bytes) noexcept {
        const ssize_t n = fd < 0 ? -1 : ::pread(fd, text, bytes - 1, 0);
        text[n > 0 ? n : 0] = 0;
        return n > 0;
    }
    int thread_ = -1, system_ = -1;
    bool is_open_ = false;
};

/// When to move. Time, load and the count of processors come from outside.
class CrowdingRule {
public:
    static constexpr uint64_t kLookEvery_bytes = 128 << 10;  // a look costs as much as copying 10 KiB
    static constexpr uint64_t kWaited_ns = 60'000;           // more than a move costs
    static constexpr uint64_t kPauseMin_ns = 1'000'000, kPauseMax_ns = 64'000'000;

    /// Whether enough was moved since the last look to make another worth its cost: short exchanges never pay.
    bool is_due(uint64_t now, uint64_t moved_bytes) const noexcept {
        return moved_bytes - looked_bytes_ >= kLookEvery_bytes && now >= pause_until_ns_;
    }
    /// Whether the thread has waited long for its processor since the last look.
    bool has_waited(uint64_t moved_bytes, uint64_t waited_ns) noexcept {
        const uint64_t since = waited_ns - waited_ns_;
        looked_bytes_ = moved_bytes;
        waited_ns_ = waited_ns;
        if (since < kWaited_ns) pause_ns_ = kPauseMin_ns;
        return since >= kWaited_ns;
    }
    /// The thread has moved: if that does not end the waiting, the next move is put off for twice as long.
    void on_moved(uint64_t now) noexcept {
        pause_until_ns_ = now + pause_ns_;
        pause_ns_ = std::min(2 * pause_ns_, kPauseMax_ns);
    }

private:
    uint64_t looked_bytes_ = 0, waited_ns_ = 0, pause_until_ns_ = 0, pause_ns_ = kPauseMin_ns;
};

class ProcessorChoice {
public:
    void close() noexcept { load_.close(); }
    uint64_t moves() const noexcept { return moves_; }

    /// Called when the thread has slept. `moved_bytes` is what it has sent and received so far.
    void after_sleep(uint64_t now, uint64_t moved_bytes) noexcept {
        if (!rule_.is_due(now, moved_bytes)) return;
        load_.open();
        if (!rule_.has_waited(moved_bytes, load_.waited_ns())) return;
        cpu_set_t allowed, others;
        if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;  // more processors than the set holds
        const int here = ::sched_getcpu();
        if (here < 0 || !CPU_ISSET(here, &allowed)) return;
        const int count = CPU_COUNT(&allowed);
        if (load_.running() >= static_cast<uint32_t>(count)) return;  // it is not this processor alone that is busy
        others = allowed;
        CPU_CLR(here, &others);
        // Out and back: the thread may run where it might before, only now it is elsewhere.
        ::sched_setaffinity(0, sizeof others, &others);
        ::sched_setaffinity(0, sizeof allowed, &allowed);
        rule_.on_moved(now);
        ++moves_;
    }

private:
    ProcessorLoad load_;
    CrowdingRule rule_;
    uint64_t moves_ = 0;
};

}  // namespace farstep
