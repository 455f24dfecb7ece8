// Signs of life of one plane toward one destination, and whether it counts as down as a whole.
#pragma once

#include <algorithm>
#include <cstdint>

#include "farstep/ev_probing.hpp"

namespace farstep {

struct PlaneHealth {
    uint32_t loss_run = 0;        // losses since the last sign of life
    uint64_t loss_run_ns = 0;     // when that run began
    uint64_t alive_ns = 0;        // last sign of life
    uint64_t down_ns = 0;         // when it was taken down
    uint64_t next_probe_ns = 0;   // while down: one probe per interval for the whole plane
    uint64_t rtt_ns = 0;          // smoothed over its EVs
    uint64_t near_ns = 0;         // what the quicker packets take at present: falls at once, rises slowly
    FlapDamping damping;
    bool seen = false;            // ever acknowledged anything
    bool down = false;

    void on_loss(uint64_t now) noexcept {
        if (loss_run++ == 0) loss_run_ns = now;
    }
    void on_alive(uint64_t now) noexcept {
        loss_run = 0;
        alive_ns = now;
        seen = true;
    }
    // Lost that much in a row and has been quiet for longer than any packet on the way could explain. The run must be
    // a little old: after the host slept, losses are declared first and the acknowledgements that waited come next.
    // A plane that never answered may be much longer than the others: it gets `first_answer_ns`.
    bool quiet(uint64_t now, uint64_t rtt, uint32_t losses, uint64_t settle_ns, uint64_t first_answer_ns) const noexcept {
        if (loss_run < losses || now - loss_run_ns < std::max(rtt / 4, settle_ns)) return false;
        const uint64_t own = std::max(rtt, rtt_ns);   // the others may be much shorter
        if (!seen) return now - loss_run_ns >= first_answer_ns;
        return now - alive_ns >= own + own / 2;
    }
    // Lost something or owes an answer, and nothing has come back for longer than a round trip takes.
    bool failing(uint64_t now, uint64_t rtt, bool is_owed) const noexcept {
        return down || ((loss_run > 0 || is_owed) && now - alive_ns >= rtt + rtt / 2);
    }
    bool delivering(uint64_t now, uint64_t rtt, uint32_t losses) const noexcept {
        return seen && !down && loss_run < losses && now - alive_ns < 5 * std::max(rtt, near_ns);
    }
};

}  // namespace farstep
