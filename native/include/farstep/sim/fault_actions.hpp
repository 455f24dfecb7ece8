// What goes wrong, and when: timed changes of directed links, and of what NICs know of their ports.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "farstep/sim/fabric_state.hpp"

namespace farstep::sim {

enum class FaultKind : uint8_t {
    Down = 0,        // what is in its queue and what comes to it is lost, silently
    Up = 1,
    Loss = 2,        // value: share of packets that vanish
    Rate = 3,        // value: factor of the nominal rate
    Delay = 4,       // value: ns on top of the nominal latency
    PortKnownDown = 5,  // the NIC at either end of the link knows that this port is down, and so do its peers
    PortKnownUp = 6,
    NoticeOwn = 7,   // the engine's own: the NIC itself knows
    NoticePeers = 8,
    SwitchKnowsDown = 9,  // a switch that chooses ports packet by packet passes this one over
    SwitchKnowsUp = 10,
};

struct FaultAction {
    uint64_t time_ns = 0;
    FaultKind kind = FaultKind::Down;
    uint32_t link = 0;
    double value = 0;
};

/// Actions in order of time.
class FaultSchedule {
public:
    void add(const FaultAction& a, uint32_t num_links) {
        if (a.link >= num_links)
            throw std::invalid_argument("fault: link " + std::to_string(a.link) + "; valid: 0 to " +
                                        std::to_string(num_links - 1));
        if (a.kind == FaultKind::Loss && !(a.value >= 0 && a.value <= 1))
            throw std::invalid_argument("fault: loss " + std::to_string(a.value) + "; valid: 0 to 1");
        if (a.kind == FaultKind::Rate && !(a.value > 0 && a.value <= 1))
            throw std::invalid_argument("fault: rate factor " + std::to_string(a.value) + "; valid: above 0 to 1");
        if (a.kind == FaultKind::Delay && !(a.value >= 0))
            throw std::invalid_argument("fault: delay " + std::to_string(a.value) + " ns; valid: 0 or more");
        actions_.push_back(a);
        sorted_ = false;
    }
    uint64_t next_ns() {
        sort();
        return next_ < actions_.size() ? actions_[next_].time_ns : UINT64_MAX;
    }
    /// The next action due by `now`.
    bool poll(uint64_t now_ns, FaultAction& out) {
        sort();
        if (next_ == actions_.size() || actions_[next_].time_ns > now_ns) return false;
        out = actions_[next_++];
        return true;
    }
    size_t left() const noexcept { return actions_.size() - next_; }

private:
    void sort() {
        if (sorted_) return;
        std::stable_sort(actions_.begin() + static_cast<std::ptrdiff_t>(next_), actions_.end(),
                         [](const FaultAction& a, const FaultAction& b) { return a.time_ns < b.time_ns; });
        sorted_ = true;
    }
    std::vector<FaultAction> actions_;
    size_t next_ = 0;
    bool sorted_ = true;
};

}  // namespace farstep::sim
