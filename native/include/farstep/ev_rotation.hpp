// The order in which the active EVs of each plane carry packets.
//
// Every plane owns one stretch of a shared table: first its active EVs, then the rest. A pass over the active
// part is an incremental Fisher-Yates shuffle, so every EV is visited exactly once per pass, every pass has a
// new order, and one visit costs one draw and one swap.
#pragma once

#include <cassert>
#include <cstdint>
#include <utility>

#include "farstep/counter_rng.hpp"
#include "farstep/ev_types.hpp"
#include "farstep/storage.hpp"

namespace farstep {

class EvRotation {
public:
    EvRotation(uint64_t seed, uint32_t num_planes, uint32_t max_evs, Arena* arena)
        : rng_(seed), num_planes_(num_planes), max_evs_(max_evs), planes_(num_planes, arena), table_(max_evs, arena) {}

    // Appends an EV to its plane. Shifts the stretches behind it: set-up only.
    void add(EvIndex ev, uint8_t plane) noexcept {
        assert(plane < num_planes_ && size_ < max_evs_ && ev < max_evs_);
        const uint32_t at = planes_[plane].end;
        for (uint32_t i = size_; i > at; --i) table_[i] = table_[i - 1];
        table_[at] = ev;
        ++size_;
        planes_[plane].end++;
        for (uint32_t p = plane + 1u; p < num_planes_; ++p) planes_[p].begin++, planes_[p].end++;
    }

    void activate(EvIndex ev, uint8_t plane) noexcept {
        Stretch& s = planes_[plane];
        swap(find(ev, s.begin + s.active, s.end), s.begin + s.active);
        ++s.active;
    }

    // Takes an EV out of the rotation without disturbing who has been visited in this pass.
    void retire(EvIndex ev, uint8_t plane) noexcept {
        Stretch& s = planes_[plane];
        uint32_t at = find(ev, s.begin, s.begin + s.active);
        if (at < s.begin + s.cursor) {
            --s.cursor;
            swap(at, s.begin + s.cursor);
            at = s.begin + s.cursor;
        }
        --s.active;
        swap(at, s.begin + s.active);
    }

    uint32_t active(uint8_t plane) const noexcept { return planes_[plane].active; }
    uint32_t total(uint8_t plane) const noexcept { return planes_[plane].end - planes_[plane].begin; }
    // All EVs of a plane by position; the first active(plane) are in the rotation.
    EvIndex at(uint8_t plane, uint32_t position) const noexcept { return table_[planes_[plane].begin + position]; }
    uint32_t pass(uint8_t plane) const noexcept { return planes_[plane].pass; }
    // Its turn in this pass is over. Looks for it, as nothing is kept of a visit; that no place ends the search lets a
    // processor compare many at once.
    bool was_visited(EvIndex ev, uint8_t plane) const noexcept {
        const Stretch& s = planes_[plane];
        const EvIndex* const visited = table_.get() + s.begin;
        bool found = false;
        for (uint32_t i = 0; i < s.cursor; ++i) found |= visited[i] == ev;
        return found;
    }
    bool at_pass_end(uint8_t plane) const noexcept { return planes_[plane].cursor >= planes_[plane].active; }
    void next_pass(uint8_t plane) noexcept {
        planes_[plane].cursor = 0;
        ++planes_[plane].pass;
    }

    // The next EV of this pass. The caller begins a new pass first where one has ended.
    EvIndex visit(uint8_t plane) noexcept {
        Stretch& s = planes_[plane];
        assert(s.cursor < s.active);
        const uint32_t here = s.begin + s.cursor;
        swap(here, here + rng_.below(s.active - s.cursor));
        ++s.cursor;
        return table_[here];
    }

    /// Calls f(address, bytes) for what a pick touches.
    template <class F>
    void each_hot(F&& f) const noexcept {
        f(planes_.get(), num_planes_ * sizeof(Stretch));
        f(table_.get(), max_evs_ * sizeof(EvIndex));
    }

private:
    struct Stretch {
        uint32_t begin = 0, end = 0;   // of this plane in the table
        uint32_t active = 0;           // how many at the front rotate
        uint32_t cursor = 0;           // how many of those were visited in this pass
        uint32_t pass = 0;
    };

    // Who leaves or joins is looked for: that is rare, and a visit then touches no more than the two places it swaps.
    uint32_t find(EvIndex ev, uint32_t from, uint32_t end) const noexcept {
        while (from < end && table_[from] != ev) ++from;
        assert(from < end);
        return from;
    }
    void swap(uint32_t a, uint32_t b) noexcept { std::swap(table_[a], table_[b]); }

    CounterRng rng_;
    uint32_t num_planes_, max_evs_;
    Table<Stretch> planes_;
    Table<EvIndex> table_;
    uint32_t size_ = 0;
};

}  // namespace farstep
