// When a path assumed bad is asked whether it works again, and how many answers it takes.
//
// Bad EVs wait in one first-in first-out queue; all wait equally long, so the head is always the next due.
// Flap damping: an EV condemned again soon after its return needs twice as many successes, up to a limit.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>

#include "farstep/ev_types.hpp"

namespace farstep {

class EvProbing {
 public:
  explicit EvProbing(const PathSetConfig& config) noexcept
      : restore_successes_(std::max(config.restore_successes, 1u)),
        restore_max_(std::max(config.restore_max, restore_successes_)),
        damping_window_ns_(config.damping_window_ns),
        damping_reset_ns_(config.damping_reset_ns),
        spacing_ns_(config.probe_spacing_ns),
        interval_fixed_(config.probe_interval_ns != 0),
        interval_ns_(interval_fixed_ ? config.probe_interval_ns : kIntervalMinNs) {}

  void set_rtt(uint64_t rtt_ns) noexcept {
    if (!interval_fixed_) interval_ns_ = std::max(kIntervalMinNs, kIntervalRtts * rtt_ns);
  }
  uint64_t interval_ns() const noexcept { return interval_ns_; }

  // The EV became bad: how often it must answer is settled now.
  void condemn(uint64_t now, EvIndex ev) noexcept {
    Record& r = records_[ev];
    if (r.needed == 0 || (r.returned && now - r.returned_ns >= damping_reset_ns_)) {
      r.needed = restore_successes_;
    } else if (r.returned && now - r.returned_ns < damping_window_ns_) {
      r.needed = std::min(2 * r.needed, restore_max_);
    }
    r.successes = 0;
    r.bad = true;
    r.returned = false;
    r.due_ns = now + interval_ns_;
    enqueue(ev);
  }
  // The EV is no longer bad; `earned` if probes brought it back.
  void release(uint64_t now, EvIndex ev, bool earned) noexcept {
    Record& r = records_[ev];
    r.bad = false;
    if (earned) {
      r.returned = true;
      r.returned_ns = now;
    }
    drop_stale();
  }

  bool poll(uint64_t now, EvIndex& out) noexcept {
    if (count_ == 0 || now < next_ns()) return false;
    const EvIndex ev = queue_[head_];
    pop();
    records_[ev].due_ns = now + interval_ns_;
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
    const uint64_t due = records_[queue_[head_]].due_ns;
    return probed_ ? std::max(due, last_probe_ns_ + spacing_ns_) : due;
  }

  // True once the EV has answered often enough.
  bool on_reply(EvIndex ev) noexcept {
    Record& r = records_[ev];
    return r.bad && ++r.successes >= r.needed;
  }
  void on_lost(EvIndex ev) noexcept { records_[ev].successes = 0; }

  uint32_t needed(EvIndex ev) const noexcept { return records_[ev].needed; }
  uint32_t successes(EvIndex ev) const noexcept { return records_[ev].successes; }

 private:
  static constexpr uint64_t kIntervalMinNs = 1'000'000;
  static constexpr uint64_t kIntervalRtts = 32;

  struct Record {
    uint64_t due_ns = 0, returned_ns = 0;
    uint32_t successes = 0, needed = 0;
    bool bad = false, queued = false, returned = false;
  };

  void enqueue(EvIndex ev) noexcept {
    if (records_[ev].queued) return;
    assert(count_ < kMaxEvs);
    records_[ev].queued = true;
    queue_[(head_ + count_) % kMaxEvs] = ev;
    ++count_;
  }
  void pop() noexcept {
    records_[queue_[head_]].queued = false;
    head_ = (head_ + 1) % kMaxEvs;
    --count_;
  }
  void drop_stale() noexcept {
    while (count_ > 0 && !records_[queue_[head_]].bad) pop();
  }

  uint32_t restore_successes_, restore_max_;
  uint64_t damping_window_ns_, damping_reset_ns_, spacing_ns_;
  bool interval_fixed_;
  uint64_t interval_ns_;
  uint64_t last_probe_ns_ = 0;
  bool probed_ = false;
  uint32_t head_ = 0, count_ = 0;
  EvIndex queue_[kMaxEvs] = {};
  Record records_[kMaxEvs];
};

}  // namespace farstep
