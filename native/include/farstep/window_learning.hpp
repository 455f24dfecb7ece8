// How large the congestion window may be when nobody said how fast the way to the destination is.
//
// Start-up doubles the window every round trip while the delivered rate keeps growing by a quarter; then the
// ceiling is 1.5 x (largest delivered rate) x base RTT plus an allowance for host scheduling, and a hill climb
// tests now and then whether a wider window delivers more, or a narrower one as much. The climb is what keeps a window alive whose real
// round trips are much longer than the smallest one ever seen: base RTT alone would shrink it round by round.
// All of it is farstep's own; NSCC assumes a known rate.
#pragma once

#include <algorithm>
#include <cstdint>

#include "farstep/rate_estimator.hpp"

namespace farstep {

struct LearnStep {
  double grow_bytes = 0;   // add to the window now
  bool refresh = false;    // rate or ceiling moved: derive the constants again
};

class WindowLearner {
 public:
  static constexpr double kStartupGrowth = 1.25;       // growth per round that keeps start-up going
  static constexpr uint32_t kFlatRounds = 3;           // rounds without it that end start-up
  static constexpr double kStartupLossShare = 0.2;     // of a round's bytes; far above random loss
  static constexpr uint64_t kStartupLossBytes = 65'536;
  static constexpr double kMarkShare = 0.25;           // a standing queue marks more than this
  static constexpr double kCruiseLossShare = 0.05;
  static constexpr double kProbeGain = 1.25;
  static constexpr double kUpKeep = 1.10;              // a wider window is kept if it delivers this much more
  static constexpr double kDownKeep = 0.95;            // a narrower one if it delivers this much of it
  static constexpr double kHillDecay = 0.95;
  static constexpr uint32_t kProbeEveryMin = 4;        // window-limited rounds between probes
  static constexpr uint32_t kProbeEveryMax = 64;
  static constexpr uint32_t kProbeRounds = 3;          // the first one still carries the old window

  // `inflight_bytes` includes this packet.
  void on_send(uint64_t now, int64_t inflight_bytes, uint32_t bytes, double cwnd) noexcept {
    rate_.on_send(now, inflight_bytes);
    peak_inflight_ = std::max(peak_inflight_, inflight_bytes);
    // Within two sends (or an eighth) of the window counts as limited by it: bursts do not fill it exactly.
    const double slack = std::max(2.0 * bytes, cwnd / 8);
    if (static_cast<double>(inflight_bytes) + slack >= cwnd) {
      rate_.on_window_full();
      limited_ = true;
    }
  }
  void on_loss(uint64_t now, uint32_t bytes) noexcept { rate_.on_loss(now, bytes); }
  void on_loss_undone(uint32_t bytes) noexcept { rate_.on_loss_undone(bytes); }
  void abandon_round() noexcept { rate_.abandon_round(); }

  LearnStep on_delivered(uint64_t now, uint32_t newly, bool marked, uint64_t base_rtt_ns, double cwnd,
                         double max_window, double by_rate) noexcept {
    LearnStep step;
    // A round that brought less than a quarter may have been noise: go on, but gently.
    if (phase_ == Phase::Starting && limited_) step.grow_bytes = flat_rounds_ == 0 ? newly : newly / 4.0;
    RateRound round;
    if (!rate_.on_delivered(now, newly, marked, base_rtt_ns, round)) return step;
    step.refresh = true;
    limited_ = round.window_limited;
    const double total = static_cast<double>(round.delivered_bytes + round.lost_bytes);
    const double loss_share = total > 0 ? static_cast<double>(round.lost_bytes) / total : 0.0;
    const bool marks = static_cast<double>(round.marked_bytes) > kMarkShare * static_cast<double>(round.delivered_bytes);
    if (phase_ == Phase::Starting) {
      const bool losing = loss_share > kStartupLossShare && round.lost_bytes > kStartupLossBytes;
      start_round(round, losing || marks, step);
    } else {
      climb_round(round, loss_share > kCruiseLossShare || marks, cwnd, max_window, by_rate, step);
    }
    peak_inflight_ = 0;
    return step;
  }

  // The window's ceiling: `by_rate` is 1.5 x rate x base RTT with the host allowance in it.
  double max_window(double by_rate, double ceiling) const noexcept {
    if (phase_ == Phase::Starting) return ceiling;
    return std::min(std::max(by_rate, hill_bytes_), ceiling);
  }
  double rate_bytes_per_s() const noexcept { return rate_.bytes_per_s(); }
  bool starting() const noexcept { return phase_ == Phase::Starting; }

 private:
  enum class Phase : uint8_t { Starting, Cruising, ProbingUp, ProbingDown };

  void start_round(const RateRound& round, bool congested, LearnStep& step) noexcept {
    if (round.bytes_per_s > kStartupGrowth * start_best_) {
      start_best_ = round.bytes_per_s;
      hill_bytes_ = static_cast<double>(peak_inflight_);   // the window of the last round that still paid
      flat_rounds_ = 0;
    } else if (round.window_limited) {
      ++flat_rounds_;
    }
    if (!congested && flat_rounds_ < kFlatRounds) return;
    phase_ = Phase::Cruising;
    step.grow_bytes = 0;
  }

  void climb_round(const RateRound& round, bool congested, double cwnd, double max_window, double by_rate,
                   LearnStep& step) noexcept {
    if (congested) {
      if (phase_ != Phase::Cruising) hill_bytes_ = hill_before_;
      hill_bytes_ *= kHillDecay;
      cruise(probe_every_);
      return;
    }
    if (!round.window_limited) return;
    ++rounds_;
    if (phase_ == Phase::Cruising) {
      reference_rate_ = std::max(reference_rate_, round.bytes_per_s);
      if (rounds_ >= probe_every_ && cwnd >= 0.9 * max_window) {
        probe(Phase::ProbingUp, kProbeGain * max_window);
        step.grow_bytes = hill_bytes_ - cwnd;
      }
      return;
    }
    if (rounds_ > 1) probe_rate_ = std::max(probe_rate_, round.bytes_per_s);
    if (rounds_ < kProbeRounds) return;
    if (phase_ == Phase::ProbingUp) {
      if (probe_rate_ >= kUpKeep * reference_rate_) {
        cruise(kProbeEveryMin);
        return;
      }
      hill_bytes_ = hill_before_;
      if (hill_bytes_ > by_rate) probe(Phase::ProbingDown, std::max(hill_bytes_ / kProbeGain, by_rate));
      else cruise(std::min(2 * probe_every_, kProbeEveryMax));
    } else if (probe_rate_ >= kDownKeep * reference_rate_) {
      cruise(kProbeEveryMin);
    } else {
      hill_bytes_ = hill_before_;
      cruise(std::min(2 * probe_every_, kProbeEveryMax));
    }
  }

  void probe(Phase phase, double hill) noexcept {
    phase_ = phase;
    hill_before_ = hill_bytes_;
    hill_bytes_ = hill;
    rounds_ = 0;
    probe_rate_ = 0;
  }
  void cruise(uint32_t rounds) noexcept {
    phase_ = Phase::Cruising;
    probe_every_ = rounds;
    rounds_ = 0;
    reference_rate_ = 0;
  }

  RateEstimator rate_;
  Phase phase_ = Phase::Starting;
  bool limited_ = false;            // by the window, in this round or the one before
  int64_t peak_inflight_ = 0;
  double start_best_ = 0;
  uint32_t flat_rounds_ = 0;
  double hill_bytes_ = 0, hill_before_ = 0;
  double reference_rate_ = 0, probe_rate_ = 0;
  uint32_t rounds_ = 0;
  uint32_t probe_every_ = kProbeEveryMin;
};

}  // namespace farstep
