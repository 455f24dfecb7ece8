// When a path assumed bad is asked whether it works again, and how many answers it takes.
//
// Bad EVs wait in one first-in first-out queue; all wait equally long, so the head is always the next due.
// Flap damping: an EV condemned again soon after its return needs twice as many successes, up to a limit.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>

#include "farstep/ev_types.hpp"
#include "farstep/storage.hpp"

namespace farstep {

// How many successes in a row bring back what was condemned: an EV, or a whole plane.
class FlapDamping {
public:
    void on_condemned(uint64_t now, const PathSetConfig& config) noexcept {
        const auto least = static_cast<uint16_t>(std::clamp(config.restore_successes, 1u, kMost));
        const auto most = static_cast<uint16_t>(std::clamp<uint32_t>(config.restore_max, least, kMost));
        if (needed_ == 0 || (returned_ && now - since_ns_ >= config.damping_reset_ns)) {
            needed_ = least;
        } else if (returned_ && now - since_ns_ < config.damping_window_ns) {
            needed_ = needed_ > most / 2 ? most : static_cast<uint16_t>(2 * needed_);
        }
        successes_ = 0;
        returned_ = false;
    }
    void on_returned(uint64_t now) noexcept {
        returned_ = true;
        since_ns_ = now;
    }
    bool on_success() noexcept {
        successes_ += successes_ < kMost;
        return successes_ >= needed_;
    }
    void on_failure() noexcept { successes_ = 0; }

    uint32_t needed() const noexcept { return needed_; }
    uint32_t successes() const noexcept { return successes_; }

protected:
    static constexpr uint32_t kMost = UINT16_MAX;
    uint64_t since_ns_ = 0;   // when it returned; free for others to use while it is condemned
    uint16_t needed_ = 0, successes_ = 0;
    bool returned_ = false;   // by probes, since it was last condemned
};

class EvProbing {
public:
    EvProbing(const PathSetConfig& config, Arena* arena)
        : capacity_(config.max_evs),
          queue_(config.max_evs, arena),
          records_(config.max_evs, arena),
          spacing_min_ns_(config.probe_spacing_ns),
          spacing_ns_(config.probe_spacing_ns),
          interval_fixed_(config.probe_interval_ns != 0),
          interval_ns_(interval_fixed_ ? config.probe_interval_ns : kIntervalMinNs) {}

    void set_rtt(uint64_t rtt_ns) noexcept {
        if (!interval_fixed_) {
            const uint64_t most = std::max(kIntervalMaxNs, kIntervalMinRtts * rtt_ns);
            interval_ns_ = std::clamp(kIntervalRtts * rtt_ns, kIntervalMinNs, most);
        }
        spacing_ns_ = std::max(spacing_min_ns_, rtt_ns / kProbesPerRtt);
    }
    uint64_t interval_ns() const noexcept { return interval_ns_; }

    // The EV became bad: how often it must answer is settled now.
    void condemn(uint64_t now, EvIndex ev, const PathSetConfig& config) noexcept {
        Record& r = records_[ev];
        r.on_condemned(now, config);
        r.bad = true;
        r.since_ns_ = now + wait_ns();
        enqueue(ev);
    }
    // The EV is no longer bad; `earned` if probes brought it back.
    void release(uint64_t now, EvIndex ev, bool earned) noexcept {
        Record& r = records_[ev];
        r.bad = false;
        if (earned) r.on_returned(now);
        drop_stale();
    }

    bool poll(uint64_t now, EvIndex& out) noexcept {
        if (count_ == 0 || now < next_ns()) return false;
        const EvIndex ev = queue_[head_];
        pop();
        records_[ev].since_ns_ = now + wait_ns();
        enqueue(ev);
        last_probe_ns_ = now;
        probed_ = true;
        drop_stale();
        out = ev;
        return true;
    }
    // The EV just polled was not probed after all: no spacing is due.
    void unspend() noexcept { probed_ = false; }
    uint64_t next_ns() const noexcept {
        if (count_ == 0) return UINT64_MAX;
        const uint64_t due = records_[queue_[head_]].since_ns_;
        return probed_ ? std::max(due, last_probe_ns_ + spacing_ns_) : due;
    }

    // True once the EV has answered often enough.
    bool on_reply(EvIndex ev) noexcept {
        lost_run_ = 0;
        return records_[ev].bad && records_[ev].on_success();
    }
    void on_lost(EvIndex ev) noexcept {
        records_[ev].on_failure();
        if (lost_run_ < UINT32_MAX) ++lost_run_;
    }

    uint32_t needed(EvIndex ev) const noexcept { return records_[ev].needed(); }

private:
    static constexpr uint64_t kIntervalMinNs = 1'000'000;
    static constexpr uint64_t kIntervalRtts = 32;
    // Far sites would wait seconds for a path that is back, although a few probes per second cost nothing.
    static constexpr uint64_t kIntervalMaxNs = 250'000'000;
    static constexpr uint64_t kIntervalMinRtts = 4;
    static constexpr uint64_t kProbesPerRtt = 8;   // on the way at once, whatever the number of bad EVs

    // With every bad EV silent for several rounds they are asked less often: a slow line must not be filled by probes that
    // wait for each other until they count as lost.
    static constexpr uint32_t kPatientRounds = 4, kSlowestShift = 5;
    uint64_t wait_ns() const noexcept {
        uint32_t shift = 0;
        while (!interval_fixed_ && shift < kSlowestShift && lost_run_ >= (kPatientRounds << shift) * (count_ + 1)) ++shift;
        return std::max(interval_ns_, std::min(interval_ns_ << shift, kIntervalMaxNs));
    }

    // While it is bad the time is that of its next probe.
    struct Record : FlapDamping {
        using FlapDamping::since_ns_;
        bool bad = false, queued = false;
    };
    static_assert(sizeof(Record) == 16);

    void enqueue(EvIndex ev) noexcept {
        if (records_[ev].queued) return;
        assert(count_ < capacity_);
        records_[ev].queued = true;
        queue_[(head_ + count_) % capacity_] = ev;
        ++count_;
    }
    void pop() noexcept {
        records_[queue_[head_]].queued = false;
        head_ = (head_ + 1) % capacity_;
        --count_;
    }
    void drop_stale() noexcept {
        while (count_ > 0 && !records_[queue_[head_]].bad) pop();
    }

    uint32_t capacity_;
    ColdTable<EvIndex> queue_;
    ColdTable<Record> records_;
    uint64_t spacing_min_ns_, spacing_ns_;
    bool interval_fixed_;
    uint64_t interval_ns_;
    uint64_t last_probe_ns_ = 0;
    uint32_t lost_run_ = 0;  // probes without an answer since the last answer
    bool probed_ = false;
    uint32_t head_ = 0, count_ = 0;
};

}  // namespace farstep
