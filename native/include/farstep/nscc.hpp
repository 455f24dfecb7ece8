// NSCC: the sender's congestion window toward one destination, shared by the connections to it.
//
// Network signal congestion control of UET 1.0 (3.6.13), which MRC adopts: ECN and queueing delay steer a
// window between one packet and 1.5 bandwidth-delay products. Where the rate toward the destination is not
// known it is learned (window_learning.hpp). Times are nanoseconds, sizes nominal packet bytes.
//
// Without an ECN mark nothing but loss, a trim, a receiver penalty or a falling bandwidth-delay product ever
// shrinks the window: delay alone is what a busy host produces as well.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <memory>
#include <utility>

#include "farstep/window_learning.hpp"

namespace farstep {

inline constexpr double kReferenceBdpBytes = 150'000.0;   // 100 Gb/s x 12 us, the network NSCC was tuned on
inline constexpr double kReferenceRttNs = 12'000.0;
inline constexpr uint32_t kNominalHeaderBytes = 40;

// A knob left at 0 (or negative, for floating point) is derived by the scaling table; `disabled` values are named.
struct NsccConfig {
    double rate_bytes_per_s = 0;      // all ports toward the destination together; 0 = learned
    uint64_t base_rtt_ns = 0;         // 0 = the first measured RTT
    uint32_t mtu_bytes = 4096;        // payload bytes of a full packet
    bool trimming = false;            // switches trim instead of dropping
    bool quick_adapt = true;
    uint64_t ack_threshold_bytes = 16'384;   // below this window every packet asks for an acknowledgement
    uint64_t max_cwnd_bytes = 0;      // 0 = 1.5 BDP; when set, a hard ceiling whatever is learned
    uint64_t initial_cwnd_bytes = 0;  // 0 = maxwnd with a known rate, 32 packets with a learned one
    uint64_t target_delay_ns = 0;     // 0 = 0.75 base RTT with trimming, 1.0 without
    uint64_t adjust_bytes = 0;        // 0 = 8 MTU
    uint64_t adjust_period_ns = 0;    // 0 = base RTT
    double alpha = -1;                // bytes per ns of headroom; < 0 = 4 MTU a b / target, bounded (see derive)
    double fi_bytes = -1;             // < 0 = 5 MTU a
    double eta_bytes = -1;            // < 0 = 0.15 MTU a
    double fi_scale = -1;             // < 0 = 0.25 a
    double gamma = 0.8;
    double max_md_jump = 0.5;         // a decrease keeps at least this share
    double delay_weight = 0.0125;     // EWMA weight of one delay sample
    uint64_t zero_delay_ns = 1'000;   // queueing below this counts as none
    uint32_t qa_gate = 3;             // quick adapt only below maxwnd >> gate
    uint64_t qa_threshold_ns = 0;     // 0 = 4 target without trimming, off with it; kQaDelayOff = off
    bool qa_delay_needs_mark = true;  // a long delay without ECN is a busy host, not a queue
    int64_t host_noise_ns = -1;       // added to base RTT for the ceiling; < 0 = 0 with a known rate, else 0.3 ms
};
inline constexpr uint64_t kQaDelayOff = UINT64_MAX;

class Nscc {
public:
    explicit Nscc(const NsccConfig& config) : Nscc(std::make_unique<const NsccConfig>(config)) {}
    // Of a configuration shared by many, which outlives them.
    explicit Nscc(const NsccConfig* config)
        : rate_known_(config->rate_bytes_per_s > 0),
          rtt_known_(rate_known_ && config->base_rtt_ns != 0),
          config_(config),
          base_rtt_ns_(config->base_rtt_ns) {
        assert(config->mtu_bytes > 0);
        if (learns()) learner_ = std::make_unique<WindowLearner>();
        if (base_rtt_ns_ == 0) base_rtt_ns_ = kDefaultBaseRttNs;
        derive();
        uint64_t initial = config_->initial_cwnd_bytes;
        if (initial == 0) initial = rate_known_ ? max_cwnd_ : uint64_t{kInitialPackets} * config_->mtu_bytes;
        cwnd_ = static_cast<double>(initial);
        clamp();
    }

    // One packet (or one burst of `bytes`) may leave now. With nothing in flight one always may.
    bool can_send(uint32_t bytes) const noexcept {
        return inflight_ <= 0 || inflight_ + std::max<int64_t>(bytes, config_->mtu_bytes) <= static_cast<int64_t>(cwnd_);
    }

    void on_send(uint64_t now, uint32_t bytes) noexcept {
        inflight_ += bytes;
        if (learns()) learner_->on_send(now, inflight_, bytes, cwnd_);
    }

    // Connections that share the window. The receiver counts bytes per connection until it answers.
    void set_sharers(uint32_t connections) noexcept { sharers_ = connections; }
    // The header bit that asks the receiver for an acknowledgement: the window is about to close, or a share of it is small.
    bool wants_ack() const noexcept {
        const auto window = static_cast<int64_t>(cwnd_);
        return window - inflight_ < config_->mtu_bytes || window < static_cast<int64_t>(config_->ack_threshold_bytes * sharers_);
    }

    void on_sack(uint64_t now, uint32_t newly, bool ecn, bool rtt_valid, uint64_t rtt_ns) noexcept {
        inflight_ -= newly;
        received_ += newly;
        achieved_ += newly;
        ignored_bytes_ += newly;
        if (rtt_valid) {
            observe_rtt(std::max<uint64_t>(rtt_ns, 1));
            if (learns()) learner_->on_rtt(rtt_ns, std::max(base_rtt_ns_, longest_rtt_ns_));
            delay_ns_ = std::max<uint64_t>(rtt_ns, 1) - base_rtt_ns_;
            // A long delay without a mark says little about the queue, so it counts as a short one.
            const bool trusted = ecn || delay_ns_ <= target_ns_;
            average_delay(trusted ? static_cast<double>(delay_ns_) : 0.25 * static_cast<double>(base_rtt_ns_));
        }
        const uint64_t delay = delay_ns_;
        learn(now, newly, ecn);
        if (quick_adapt(now, /*loss=*/false, ecn, delay)) return;
        if (!ecn && learning()) {
            // start-up has its own growth
        } else if (!ecn) {
            increase(newly, delay);
            // Below what the rate asks for, a delay says little where nothing is marked: it may stand in a queue of the
            // way back, behind traffic of the other direction, and a window that waits for it to end is starved.
            if (learns() && cwnd_ < window_by_rate_) cwnd_ += kRegrowth * newly;
        } else if (delay >= target_ns_) {
            multiplicative_decrease(now);
        }
        clamp();
        if (received_ > adjust_bytes_ || now - last_fulfil_ns_ > adjust_period_ns_) fulfil(now);
    }

    // The receiver got only the header. `last_hop` does not soften the cut: no receiver credits stand behind it.
    void on_trim(uint64_t now, uint32_t bytes, bool last_hop) noexcept {
        (void)last_hop;
        inflight_ -= bytes;
        ignored_bytes_ += bytes;
        average_delay(static_cast<double>(base_rtt_ns_));
        trigger_qa_ = true;
        if (learns()) learner_->on_loss(now, bytes);
        if (!quick_adapt(now, /*loss=*/true, /*marked=*/true, 0)) cut(bytes);
    }

    // Inferred loss or timeout.
    void on_loss(uint64_t now, uint32_t bytes) noexcept {
        inflight_ -= bytes;
        ignored_bytes_ += bytes;
        if (learns()) learner_->on_loss(now, bytes);
        cut(bytes);
    }

    // A packet already taken out of flight was received after all: it goes back in, and the acknowledgement
    // that carries it takes it out once. The window cut for it is undone too.
    void on_spurious(uint32_t bytes) noexcept {
        inflight_ += bytes;
        cwnd_ += bytes;
        if (learns()) learner_->on_loss_undone(bytes);
        clamp();
    }

    // Host-side congestion at the receiver: `penalty` (0..127) of 128ths of what was newly received.
    void on_receiver_penalty(uint64_t now, uint32_t newly, uint8_t penalty, bool restore) noexcept {
        (void)now;
        if (restore && saved_cwnd_ > 0) {
            cwnd_ = std::max(cwnd_, saved_cwnd_);
            saved_cwnd_ = 0;
        } else if (penalty > 0) {
            if (saved_cwnd_ <= 0) saved_cwnd_ = cwnd_;
            const double cutback = static_cast<double>((static_cast<uint64_t>(penalty & 0x7F) * newly) >> 7);
            cwnd_ = std::min(cwnd_, static_cast<double>(std::max<int64_t>(inflight_, 0))) - cutback;
        }
        clamp();
    }

    // What was in flight is no more, and the network had no part in it: the connection ended, the peer had no room.
    void on_forget(uint32_t bytes) noexcept {
        inflight_ -= bytes;
        if (learns()) learner_->abandon_round();
    }

    // Where planes differ in length, the window has to fill the longest one: delays are still measured against
    // base RTT, but the ceiling is sized by `rtt_ns`. 0 = base RTT.
    void set_longest_rtt(uint64_t rtt_ns) noexcept {
        if (rtt_ns == longest_rtt_ns_) return;
        longest_rtt_ns_ = rtt_ns;
        derive();
        clamp();
    }

    int64_t inflight_bytes() const noexcept { return inflight_; }
    uint64_t cwnd_bytes() const noexcept { return static_cast<uint64_t>(cwnd_); }
    uint64_t min_cwnd_bytes() const noexcept { return uint64_t{config_->mtu_bytes} + kNominalHeaderBytes; }
    uint64_t max_cwnd_bytes() const noexcept { return max_cwnd_; }
    uint64_t base_rtt_ns() const noexcept { return base_rtt_ns_; }
    uint64_t target_ns() const noexcept { return target_ns_; }
    uint64_t avg_delay_ns() const noexcept { return static_cast<uint64_t>(avg_delay_ns_); }
    uint64_t quick_adapts() const noexcept { return quick_adapts_; }
    double rate_bytes_per_s() const noexcept {
        return rate_known_ ? config_->rate_bytes_per_s : learner_->rate_bytes_per_s();
    }
    // At which to send toward the destination; 0 = as fast as the window allows.
    double pace_bytes_per_s() const noexcept { return rate_known_ ? 0.0 : learner_->pace_bytes_per_s(); }
    bool learning() const noexcept { return !rate_known_ && learner_->starting(); }
    double alpha() const noexcept { return alpha_; }          // bytes per ns of headroom
    double fi_bytes() const noexcept { return fi_bytes_; }
    double eta_bytes() const noexcept { return eta_bytes_; }
    double fi_scale() const noexcept { return fi_scale_; }

    // Calls f(address, bytes) for what sending touches, and for what acknowledging touches besides; see PathSet.
    template <class F>
    void each_hot(F&& f) const noexcept {
        f(&inflight_, static_cast<size_t>(reinterpret_cast<const char*>(&base_rtt_ns_) - reinterpret_cast<const char*>(&inflight_)));
    }
    template <class F>
    void each_hot_on_ack(F&& f) const noexcept {
        f(&base_rtt_ns_, static_cast<size_t>(reinterpret_cast<const char*>(&quick_adapts_) - reinterpret_cast<const char*>(&base_rtt_ns_)));
    }

private:
    explicit Nscc(std::unique_ptr<const NsccConfig> own) : Nscc(own.get()) { own_config_ = std::move(own); }

    static constexpr uint64_t kDefaultBaseRttNs = 1'000'000;   // stands only until the first sample
    static constexpr uint32_t kInitialPackets = 32;
    static constexpr double kBdpFactor = 1.5;
    static constexpr double kRegrowth = 0.25;   // of what is delivered: a cut is made good within a few round trips
    // A busy host answers milliseconds late, which few slow lines notice and any router can hold; on a fast line it
    // would be more than a buffer. On a slow line the allowance follows the largest rate ever seen, not the present
    // one: traffic the other way delays acknowledgements, and a window that shrank with what it then delivers would
    // never win its share back.
    static constexpr double kLearnedHostNoiseNs = 300'000.0, kSlowLineHostNoiseNs = 8'000'000.0;
    static constexpr double kSlowLineNoiseBytes = 262'144.0;
    double learned_noise_bytes(double rate) const noexcept {
        return std::max(rate * kLearnedHostNoiseNs * 1e-9,
                        std::min(peak_rate_ * kSlowLineHostNoiseNs * 1e-9, kSlowLineNoiseBytes));
    }
    static constexpr double kHardCeilingBytes = 1073741824.0;   // 1 GiB: 40 Gb/s over 200 ms; bounds start-up

    // With trimming and a known rate this is NSCC as published; else rounds are measured.
    bool learns() const noexcept { return !rate_known_ || !config_->trimming; }

    // The constants of this network from those of the reference network (scaling table).
    void derive() noexcept {
        const double rtt = static_cast<double>(base_rtt_ns_);
        const double mtu = config_->mtu_bytes;
        const double rate = rate_bytes_per_s();
        const double bdp = std::max(rate * rtt * 1e-9, mtu);
        const double a = bdp / kReferenceBdpBytes;
        target_ns_ = config_->target_delay_ns;
        if (target_ns_ == 0) target_ns_ = config_->trimming ? base_rtt_ns_ - base_rtt_ns_ / 4 : base_rtt_ns_;
        target_ns_ = std::max<uint64_t>(target_ns_, 1);
        const double target = static_cast<double>(target_ns_);
        const double b = target / kReferenceRttNs;
        // The published gain grows with RTT x BDP: at 50 ms it would be hundreds of BDP per window. Beyond one BDP
        // per window it only overshoots, so there it stops.
        alpha_ = config_->alpha >= 0 ? config_->alpha : std::min(4.0 * mtu * a * b, bdp) / target;
        fi_bytes_ = config_->fi_bytes >= 0 ? config_->fi_bytes : 5.0 * mtu * a;
        eta_bytes_ = config_->eta_bytes >= 0 ? config_->eta_bytes : 0.15 * mtu * a;
        fi_scale_ = config_->fi_scale >= 0 ? config_->fi_scale : 0.25 * a;
        adjust_bytes_ = config_->adjust_bytes != 0 ? config_->adjust_bytes : 8ull * config_->mtu_bytes;
        adjust_period_ns_ = config_->adjust_period_ns != 0 ? config_->adjust_period_ns : base_rtt_ns_;
        qa_threshold_ns_ = config_->qa_threshold_ns;
        if (qa_threshold_ns_ == 0) qa_threshold_ns_ = config_->trimming ? kQaDelayOff : 4 * target_ns_;

        const bool capped = config_->max_cwnd_bytes != 0;
        const double ceiling = capped ? static_cast<double>(config_->max_cwnd_bytes) : kHardCeilingBytes;
        peak_rate_ = std::max(peak_rate_, rate);
        const double noise_bytes = config_->host_noise_ns >= 0 ? rate * static_cast<double>(config_->host_noise_ns) * 1e-9
                                                              : (rate_known_ ? 0.0 : learned_noise_bytes(rate));
        const double window_bdp = std::max(bdp, rate * static_cast<double>(longest_rtt_ns_) * 1e-9);
        const double room = learns() ? learner_->headroom() : 1.0;
        double window = window_bdp + room * ((kBdpFactor - 1.0) * window_bdp + kBdpFactor * noise_bytes);
        window_by_rate_ = window;
        if (!rate_known_) {
            window = learner_->max_window(window, ceiling);
        } else if (capped) {
            window = ceiling;
        }
        max_cwnd_ = std::max(static_cast<uint64_t>(std::min(window, ceiling)), min_cwnd_bytes());
    }

    // base_rtt only ever falls, with one exception: a configured value that goes with an unknown rate (or none at
    // all) is a guess, and the first valid sample replaces it.
    void observe_rtt(uint64_t rtt_ns) noexcept {
        if (rtt_known_ && rtt_ns >= base_rtt_ns_) return;
        rtt_known_ = true;
        base_rtt_ns_ = rtt_ns;
        derive();
        clamp();
    }

    void average_delay(double sample_ns) noexcept {
        avg_delay_ns_ += config_->delay_weight * (sample_ns - avg_delay_ns_);
    }

    void learn(uint64_t now, uint32_t newly, bool ecn) noexcept {
        if (!learns()) return;
        const LearnStep step = learner_->on_delivered(now, newly, ecn, base_rtt_ns_, cwnd_,
                                                     static_cast<double>(max_cwnd_), window_by_rate_);
        if (!rate_known_) cwnd_ += step.grow_bytes;
        if (step.refresh) derive();
        clamp();
    }

    void increase(uint32_t newly, uint64_t delay) noexcept {
        if (delay >= target_ns_) {
            fast_on_ = false;
            fast_bytes_ = 0;
            increase_ += fi_bytes_ * newly;
            return;
        }
        if (delay < config_->zero_delay_ns) {
            fast_bytes_ += newly;
            if (fast_on_ || static_cast<double>(fast_bytes_) > cwnd_) {
                fast_on_ = true;
                cwnd_ += fi_scale_ * newly;
                return;
            }
        } else {
            fast_on_ = false;
            fast_bytes_ = 0;
        }
        increase_ += alpha_ * newly * static_cast<double>(target_ns_ - delay);
    }

    void multiplicative_decrease(uint64_t now) noexcept {
        fast_on_ = false;
        fast_bytes_ = 0;
        const double target = static_cast<double>(target_ns_);
        if (avg_delay_ns_ <= target || (decreased_ && now - last_decrease_ns_ < base_rtt_ns_)) return;
        cwnd_ *= std::max(1.0 - config_->gamma * (avg_delay_ns_ - target) / avg_delay_ns_, config_->max_md_jump);
        last_decrease_ns_ = now;
        decreased_ = true;
    }

    void fulfil(uint64_t now) noexcept {
        cwnd_ += increase_ / cwnd_;
        if (now - last_fulfil_ns_ >= adjust_period_ns_) {
            cwnd_ += eta_bytes_;
            last_fulfil_ns_ = now;
        }
        increase_ = 0;
        received_ = 0;
        clamp();
    }

    // Under heavy incast jump straight to what was delivered in the last (base RTT + target), then ignore marks
    // that belong to the window before the jump. True: the caller leaves the window alone.
    bool quick_adapt(uint64_t now, bool loss, bool marked, uint64_t delay) noexcept {
        if (!config_->quick_adapt) return false;
        bool handled = false;
        if (ignored_bytes_ < bytes_to_ignore_ && marked) {
            handled = true;
        } else if (now >= qa_end_ns_) {
            const bool late = delay > qa_threshold_ns_ && (marked || !config_->qa_delay_needs_mark);
            if (qa_end_ns_ != 0 && (trigger_qa_ || loss || late) && achieved_ < max_cwnd_ >> config_->qa_gate) {
                cwnd_ = static_cast<double>(std::max<uint64_t>(achieved_, config_->mtu_bytes));
                clamp();
                bytes_to_ignore_ = inflight_ > 0 ? static_cast<uint64_t>(inflight_) : 0;
                ignored_bytes_ = 0;
                trigger_qa_ = false;
                ++quick_adapts_;
                handled = true;
            }
            achieved_ = 0;
            qa_end_ns_ = now + base_rtt_ns_ + target_ns_;
        }
        if (handled) {
            increase_ = 0;
            received_ = 0;
        }
        return handled;
    }

    void cut(uint32_t bytes) noexcept {
        cwnd_ -= bytes;
        clamp();
    }

    void clamp() noexcept {
        cwnd_ = std::clamp(cwnd_, static_cast<double>(min_cwnd_bytes()), static_cast<double>(max_cwnd_));
    }

    // What every packet touches comes first, then what every acknowledgement does.
    int64_t inflight_ = 0;      // signed: a late report may take it below zero for a moment
    double cwnd_ = 0;
    uint32_t sharers_ = 1;
    bool rate_known_, rtt_known_;
    bool fast_on_ = false, decreased_ = false, trigger_qa_ = false;
    const NsccConfig* config_;
    uint64_t base_rtt_ns_, target_ns_ = 1, longest_rtt_ns_ = 0;
    double avg_delay_ns_ = 0;
    uint64_t delay_ns_ = 0;     // of the last valid sample
    uint64_t max_cwnd_ = 0;
    double increase_ = 0;       // pending, in byte^2: divided by cwnd when fulfilled
    uint64_t received_ = 0, adjust_bytes_ = 0, adjust_period_ns_ = 0, last_fulfil_ns_ = 0;
    uint64_t fast_bytes_ = 0;
    uint64_t last_decrease_ns_ = 0;
    uint64_t achieved_ = 0, ignored_bytes_ = 0, bytes_to_ignore_ = 0, qa_end_ns_ = 0, qa_threshold_ns_ = 0;
    double alpha_ = 0, fi_bytes_ = 0, eta_bytes_ = 0, fi_scale_ = 0;
    uint64_t quick_adapts_ = 0;
    double saved_cwnd_ = 0;
    double window_by_rate_ = 0, peak_rate_ = 0;
    std::unique_ptr<WindowLearner> learner_;  // only where something is learned
    std::unique_ptr<const NsccConfig> own_config_;
};

}  // namespace farstep
