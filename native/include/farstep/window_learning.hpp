// How large the congestion window may be when nobody said how fast the way to the destination is.
//
// Start-up doubles the window every round trip while the delivered rate keeps growing by a quarter and no queue builds
// up; then the ceiling is 1.5 x (largest delivered rate) x base RTT plus an allowance for host scheduling, and a hill
// climb tests now and then whether a wider window delivers more, or a narrower one as much. The climb keeps a window
// alive whose real round trips are much longer than the smallest one ever seen: base RTT alone would shrink it round by
// round. Where buffers overflow, the room above one bandwidth-delay product is given up until they no longer do.
// All of it is farstep's own; NSCC assumes a known rate.
#pragma once

#include <algorithm>
#include <cstdint>

#include "farstep/pace_learning.hpp"
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
    static constexpr uint32_t kRttSamples = 8;           // in a row, whose least counts
    static constexpr uint64_t kQueueMinNs = 4'000'000;   // less than this may be scheduling
    static constexpr uint64_t kShortQueueNs = 1'000'000; // a buffer that overflows holds more than this, or a 16th of the round trip
    static constexpr double kMarkShare = 0.25;           // a standing queue marks more than this
    static constexpr double kLossHigh = 0.03;            // of at least kLossSampleBytes: the window overruns a buffer
    static constexpr double kLossLow = 0.015;            // random loss of a bad line stays below
    static constexpr uint64_t kLossSampleBytes = 262'144;
    static constexpr double kHeadroomMin = 0.2, kHeadroomStep = 0.2, kHeadroomRegrow = 0.01;
    static constexpr double kProbeGain = 1.25;
    static constexpr double kUpKeep = 1.16;              // a wider window is kept if it delivers this much more
    static constexpr double kDownKeep = 0.95;            // a narrower one if it delivers this much of it
    static constexpr double kHillDecay = 0.95;
    static constexpr double kExcessDecay = 1.0 / 32;     // per round
    static constexpr double kDrainGain = 2.0;
    static constexpr uint32_t kProbeEveryMin = 4;        // window-limited rounds between probes
    static constexpr uint32_t kProbeEveryMax = 64;
    static constexpr uint32_t kProbeRounds = 3;          // the first one still carries the old window

    // `inflight_bytes` includes this packet.
    void on_send(uint64_t now, int64_t inflight_bytes, uint32_t bytes, double cwnd) noexcept {
        rate_.on_send(now, inflight_bytes);
        peak_inflight_ = std::max(peak_inflight_, inflight_bytes);
        // Within two sends (or an eighth) of the window counts as limited by it: bursts do not fill it exactly.
        const double slack = std::max(2.0 * bytes, cwnd / 8);
        const bool full = static_cast<double>(inflight_bytes) + slack >= cwnd;
        pace_.on_send(now, bytes, full, inflight_bytes <= bytes);
        if (full) {
            rate_.on_window_full();
            limited_ = true;
        }
    }
    void on_loss(uint64_t now, uint32_t bytes) noexcept {
        rate_.on_loss(now, bytes);
        pace_.on_loss(bytes);
    }
    void on_loss_undone(uint32_t bytes) noexcept { rate_.on_loss_undone(bytes); }
    void abandon_round() noexcept { rate_.abandon_round(); }

    LearnStep on_delivered(uint64_t now, uint32_t newly, bool marked, uint64_t base_rtt_ns, double cwnd,
                           double max_window, double by_rate) noexcept {
        LearnStep step;
        pace_.on_delivered(now, newly, base_rtt_ns);
        // A round that brought less than a quarter may have been noise: go on, but gently. Not at all into a queue.
        if (phase_ == Phase::Starting && limited_ && !queueing_)
            step.grow_bytes = flat_rounds_ == 0 ? newly : newly / 4.0;
        RateRound round;
        if (!rate_.on_delivered(now, newly, marked, base_rtt_ns, round)) return step;
        step.refresh = true;
        limited_ = round.window_limited;
        // Start-up overruns by intent, and once.
        const bool overrun = phase_ != Phase::Starting && !draining_ && judge_losses(round);
        const double delivered = static_cast<double>(round.delivered_bytes);
        const bool marks = static_cast<double>(round.marked_bytes) > kMarkShare * delivered;
        if (phase_ == Phase::Starting) {
            const double lost = static_cast<double>(round.lost_bytes);
            const bool losing = lost > kStartupLossShare * (delivered + lost) && round.lost_bytes > kStartupLossBytes;
            start_round(round, losing || marks, by_rate, step);
        } else {
            climb_round(round, overrun || marks, cwnd, max_window, by_rate, step);
        }
        peak_inflight_ = 0;
        return step;
    }

    // The least of several round trips tells a queue from a busy host, which delays some packets but not all.
    void on_rtt(uint64_t rtt_ns, uint64_t base_rtt_ns) noexcept {
        rate_.on_rtt(rtt_ns);
        pace_.on_rtt(rtt_ns);
        least_rtt_ns_ = std::min(least_rtt_ns_, rtt_ns);
        if (++rtt_samples_ < kRttSamples) return;
        queue_seen_ |= least_rtt_ns_ > base_rtt_ns + std::max(base_rtt_ns / 16, kShortQueueNs);
        queueing_ = least_rtt_ns_ > base_rtt_ns + std::max(base_rtt_ns / 4, kQueueMinNs);
        least_rtt_ns_ = UINT64_MAX;
        rtt_samples_ = 0;
    }

    // Share of the room above one bandwidth-delay product that the buffers on the way can take, 0..1.
    double headroom() const noexcept { return headroom_; }

    // The window's ceiling where the rate is learned; `by_rate` is what rate, base RTT and headroom give.
    double max_window(double by_rate, double ceiling) const noexcept {
        if (phase_ == Phase::Starting) return ceiling;
        return std::min(std::max(by_rate, hill_bytes_), ceiling);
    }
    double rate_bytes_per_s() const noexcept { return rate_.bytes_per_s(); }
    // 0 = as fast as the window allows; so it is while that still finds out what it can be.
    double pace_bytes_per_s() const noexcept { return starting() ? 0 : pace_.bytes_per_s(); }
    bool starting() const noexcept { return phase_ == Phase::Starting; }

private:
    enum class Phase : uint8_t { Starting, Cruising, ProbingUp, ProbingDown };

    // Without trimming a full buffer drops what a window above one bandwidth-delay product puts into it, and every
    // drop costs a path its good name.
    bool judge_losses(const RateRound& round) noexcept {
        sample_lost_ += round.lost_bytes;
        sample_total_ += round.lost_bytes + round.delivered_bytes;
        if (sample_total_ < kLossSampleBytes) return false;
        const double share = static_cast<double>(sample_lost_) / static_cast<double>(sample_total_);
        sample_lost_ = sample_total_ = 0;
        const bool overruns = share > kLossHigh && queue_seen_;   // without a queue the line is bad, however much it loses
        queue_seen_ = queueing_;
        if (overruns) headroom_ = std::max(kHeadroomMin, headroom_ - kHeadroomStep);
        else if (share < kLossLow && round.window_limited) headroom_ = std::min(1.0, headroom_ + kHeadroomRegrow);
        return overruns;
    }

    void start_round(const RateRound& round, bool congested, double by_rate, LearnStep& step) noexcept {
        const bool grew = round.bytes_per_s > kStartupGrowth * start_best_;
        if (grew) {
            start_best_ = round.bytes_per_s;
            hill_bytes_ = static_cast<double>(peak_inflight_);   // the window of the last round that still paid
        }
        if (grew && !queueing_) flat_rounds_ = 0;
        else if (round.window_limited) ++flat_rounds_;
        if (!congested && flat_rounds_ < kFlatRounds) return;
        step.grow_bytes = 0;
        reference_rate_ = round.bytes_per_s;
        drain(by_rate);
    }
    // Start-up overshoots, and what it leaves in the queues holds up everybody, the acknowledgements of the other
    // direction too: the window is halved as long as that costs nothing.
    void drain(double by_rate) noexcept {
        draining_ = hill_bytes_ > by_rate;
        if (draining_) probe(Phase::ProbingDown, std::max(hill_bytes_ / kDrainGain, by_rate));
        else cruise(kProbeEveryMin);
    }

    void climb_round(const RateRound& round, bool congested, double cwnd, double max_window, double by_rate,
                     LearnStep& step) noexcept {
        if (congested) {
            if (phase_ != Phase::Cruising) hill_bytes_ = hill_before_;
            hill_bytes_ *= kHillDecay;
            cruise(probe_every_);
            return;
        }
        if (!round.window_limited) {
            // At the line's pace nothing is gained by what the rate does not ask for.
            if (pace_.is_limiting() && hill_bytes_ > by_rate) hill_bytes_ -= (hill_bytes_ - by_rate) * kExcessDecay;
            return;
        }
        ++rounds_;
        if (phase_ == Phase::Cruising) {
            remember(round.bytes_per_s);
            // What is wider than the rate asks for must earn its keep: two flows in opposite directions otherwise hold
            // each other's acknowledgements up, and the wider one wins for as long as it lasts.
            if (hill_bytes_ > by_rate) hill_bytes_ -= (hill_bytes_ - by_rate) * kExcessDecay;
            if (rounds_ < probe_every_) return;
            reference_rate_ = *std::max_element(recent_rates_, recent_rates_ + kProbeRounds);
            if (cwnd >= 0.9 * max_window) {
                probe(Phase::ProbingUp, kProbeGain * max_window);
                step.grow_bytes = hill_bytes_ - cwnd;
            } else if (hill_bytes_ > by_rate) {   // losses hold the window below a ceiling that is too high
                probe(Phase::ProbingDown, std::max(hill_bytes_ / kProbeGain, by_rate));
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
            if (draining_) drain(by_rate);
            else cruise(kProbeEveryMin);
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
        draining_ = false;
    }
    // What a probe is held against is what came just before it: earlier, others may have left more or less room.
    void remember(double bytes_per_s) noexcept { recent_rates_[rounds_ % kProbeRounds] = bytes_per_s; }

    RateEstimator rate_;
    PaceLearner pace_;
    Phase phase_ = Phase::Starting;
    bool queue_seen_ = false;         // in this sample of losses
    bool queueing_ = false;           // even the quickest of the last few packets had to wait
    uint64_t least_rtt_ns_ = UINT64_MAX;
    uint32_t rtt_samples_ = 0;
    bool draining_ = false;           // start-up has ended, its window has not been tested yet
    bool limited_ = false;            // by the window, in this round or the one before
    int64_t peak_inflight_ = 0;
    double start_best_ = 0;
    uint32_t flat_rounds_ = 0;
    double hill_bytes_ = 0, hill_before_ = 0;
    double headroom_ = 1.0;
    uint64_t sample_lost_ = 0, sample_total_ = 0;
    double recent_rates_[kProbeRounds] = {};
    double reference_rate_ = 0, probe_rate_ = 0;
    uint32_t rounds_ = 0;
    uint32_t probe_every_ = kProbeEveryMin;
};

}  // namespace farstep
