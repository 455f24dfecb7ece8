// DCQCN (Zhu et al. 2015): the rate of one RoCE queue pair, lowered by congestion notifications, raised by time and bytes.
#pragma once

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>

namespace farstep::sim {

struct DcqcnConfig {
    bool enabled = true;
    uint64_t notify_interval_ns = 50'000;  // at the receiver, per queue pair
    uint64_t alpha_timer_ns = 55'000;
    uint64_t rate_timer_ns = 55'000;
    uint64_t byte_counter_bytes = 10'000'000;
    double g = 1.0 / 256;
    uint32_t fast_recovery = 5;            // steps half way back to where the rate was
    double additive_bytes_per_s = 0;       // 0: a twentieth of the line
    double hyper_bytes_per_s = 0;          // 0: a tenth of the line
    double min_bytes_per_s = 0;            // 0: a thousandth of the line
};

class Dcqcn {
public:
    Dcqcn() = default;
    Dcqcn(const DcqcnConfig& c, double line_bytes_per_s) noexcept
        : config_(c), line_(line_bytes_per_s), rate_(line_bytes_per_s), target_(line_bytes_per_s) {
        assert(line_bytes_per_s > 0);
        if (config_.additive_bytes_per_s <= 0) config_.additive_bytes_per_s = line_ / 20;
        if (config_.hyper_bytes_per_s <= 0) config_.hyper_bytes_per_s = line_ / 10;
        if (config_.min_bytes_per_s <= 0) config_.min_bytes_per_s = line_ / 1000;
    }

    double rate_bytes_per_s() const noexcept { return rate_; }
    double alpha() const noexcept { return alpha_; }

    void on_notification(uint64_t now) noexcept {
        if (!config_.enabled) return;
        advance(now);
        decay(now);
        target_ = rate_;
        rate_ = std::max(rate_ * (1 - alpha_ / 2), config_.min_bytes_per_s);
        alpha_ = (1 - config_.g) * alpha_ + config_.g;
        alpha_due_ns_ = now + config_.alpha_timer_ns;
        rate_due_ns_ = now + config_.rate_timer_ns;
        time_steps_ = byte_steps_ = 0;
        bytes_ = 0;
        active_ = notified_ = true;
    }

    /// The rate at which a packet leaves now; its bytes count toward the next step.
    double on_send(uint64_t now, uint32_t bytes) noexcept {
        if (!active_) return rate_;
        advance(now);
        for (bytes_ += bytes; bytes_ >= config_.byte_counter_bytes; bytes_ -= config_.byte_counter_bytes) {
            ++byte_steps_;
            increase();
        }
        return rate_;
    }

private:
    // Timers that ran out meanwhile. Nothing reads the rate between packets, so nothing else fires them.
    void advance(uint64_t now) noexcept {
        while (active_ && rate_due_ns_ <= now) {
            ++time_steps_;
            increase();
            rate_due_ns_ += config_.rate_timer_ns;
        }
    }
    // Alpha is read by notifications alone, so it decays when one comes, at line rate too.
    void decay(uint64_t now) noexcept {
        if (!notified_ || now < alpha_due_ns_) return;
        const uint64_t steps = (now - alpha_due_ns_) / config_.alpha_timer_ns + 1;
        alpha_ *= std::pow(1 - config_.g, static_cast<double>(steps));
    }
    void increase() noexcept {
        if (std::max(time_steps_, byte_steps_) > config_.fast_recovery) {
            const bool both = std::min(time_steps_, byte_steps_) > config_.fast_recovery;
            target_ += both ? config_.hyper_bytes_per_s : config_.additive_bytes_per_s;
        }
        target_ = std::min(target_, line_);
        rate_ = (rate_ + target_) / 2;
        if (target_ >= line_ && rate_ > line_ * (1 - 1e-6)) {  // but for a rounding
            rate_ = line_;
            active_ = false;
        }
    }

    DcqcnConfig config_;
    double line_ = 0, rate_ = 0, target_ = 0, alpha_ = 1;
    uint64_t alpha_due_ns_ = 0, rate_due_ns_ = 0, bytes_ = 0;
    uint32_t time_steps_ = 0, byte_steps_ = 0;
    bool active_ = false, notified_ = false;
};

}  // namespace farstep::sim
