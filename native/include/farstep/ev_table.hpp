// The entropy values of one connection: state, counters, and which of them rotate.
//
// Keeps every EV in one of four states and every plane's rotation, backups and skips consistent with them; why an
// EV changes state is decided in entropy.hpp.
#pragma once

#include <cassert>
#include <cstdint>

#include "farstep/counter_rng.hpp"
#include "farstep/ev_events.hpp"
#include "farstep/ev_rotation.hpp"
#include "farstep/ev_types.hpp"
#include "farstep/storage.hpp"

namespace farstep {

struct EvRecord {
    EvState state = EvState::Good;
    uint8_t plane = 0;
    bool demanded = false;        // the receiver wants this path dropped
    bool taken_down : 1 = false;  // condemned with its whole plane
    bool active : 1 = false;      // in rotation
    uint32_t skip_until = 0;      // last pass it sits out
    uint32_t blame = 0;           // losses that keep it condemned
    uint32_t rtt_ns = 0;          // smoothed; 0 = unknown, more than four seconds counts as that
};
static_assert(sizeof(EvRecord) == 16, "every packet sent touches one");

class EvTable {
public:
    EvTable(const PathSetConfig& config, Arena* arena)
        : rotation_(config.seed, config.num_planes, config.max_evs, arena), good_((config.max_evs + 63) / 64, arena),
          evs_(config.max_evs, arena), counter_mask_(config.counts_per_ev ? kNoEv : 0),
          counters_(config.counts_per_ev ? config.max_evs : 1, arena), planes_(config.num_planes, arena),
          rng_(config.seed + 1), event_mask_(config.event_mask), num_planes_(config.num_planes), max_evs_(config.max_evs),
          skip_passes_(config.skip_passes),
          values_(config.counts_per_ev ? config.max_evs : 1, arena), condemned_ns_(config.max_evs, arena), events_(config.max_events, arena) {
        assert(max_evs_ <= kMaxEvs);
    }

    void add(uint8_t plane, EvValue value, bool active) noexcept {
        assert(plane < num_planes_ && size_ < max_evs_);
        const auto ev = static_cast<EvIndex>(size_++);
        values_[ev & counter_mask_] = value;
        evs_[ev].plane = plane;
        rotation_.add(ev, plane);
        note_good(ev, true);
        if (active) {
            ++planes_[plane].wanted;
            enter_rotation(ev);
        } else {
            ++planes_[plane].backups;
        }
    }

    uint32_t size() const noexcept { return size_; }
    EvRecord& at(EvIndex ev) noexcept {
        assert(ev < size_);
        return evs_[ev];
    }
    const EvRecord& at(EvIndex ev) const noexcept {
        assert(ev < size_);
        return evs_[ev];
    }
    const EvValue& value(EvIndex ev) const noexcept { return values_[ev & counter_mask_]; }
    EvCounters& counters(EvIndex ev) noexcept { return counters_[ev & counter_mask_]; }
    const EvCounters& counters(EvIndex ev) const noexcept { return counters_[ev & counter_mask_]; }
    uint64_t& condemned_ns(EvIndex ev) noexcept { return condemned_ns_[ev]; }
    uint64_t condemned_ns(EvIndex ev) const noexcept { return condemned_ns_[ev]; }
    EvEvents& events() noexcept { return events_; }
    const EvEvents& events() const noexcept { return events_; }

    bool is_active(EvIndex ev) const noexcept { return at(ev).active; }
    // In rotation: GOOD or SKIP.
    uint32_t active(uint8_t plane) const noexcept { return rotation_.active(plane); }
    uint32_t good(uint8_t plane) const noexcept { return rotation_.active(plane) - planes_[plane].skipping; }
    // GOOD, not in rotation.
    uint32_t backups(uint8_t plane) const noexcept { return planes_[plane].backups; }
    // Active ones the plane was set up with.
    uint32_t wanted(uint8_t plane) const noexcept { return planes_[plane].wanted; }
    // Planes with an EV in rotation.
    uint64_t serving() const noexcept { return serving_; }
    EvIndex any_of(uint8_t plane) noexcept { return rotation_.at(plane, rng_.below(rotation_.total(plane))); }

    // The next GOOD EV of a plane that serves; kNoEv if that could only be `exclude`.
    EvIndex pick(uint8_t plane, EvIndex exclude) noexcept {
        // At most half of the EVs skip, so two visits suffice on average, and the rest of this pass and the next one
        // always, unless the excluded EV is the only good one; then one more pass may end a skip.
        const uint32_t limit = 3 * rotation_.active(plane);
        for (uint32_t visits = 0; visits < limit; ++visits) {
            if (rotation_.at_pass_end(plane)) begin_pass(plane);
            const EvIndex ev = rotation_.visit(plane);
            if (is_good(ev) && ev != exclude) return ev;
        }
        return kNoEv;
    }

    // Sits out its next `skip_passes` turns, and what is left of this pass at least. A turn still to come in this pass is
    // the first of them.
    void skip(uint64_t now, EvIndex ev) noexcept {
        EvRecord& e = at(ev);
        Plane& p = planes_[e.plane];
        if (!e.active) return;
        if (e.state == EvState::Good) {
            // With half of them marked the plane is congested, not the path: then everything stays in service.
            if (2 * (p.skipping + 1) > rotation_.active(e.plane)) return;
            ++p.skipping;
            set_state(now, ev, EvState::Skip);
        }
        const bool turn_is_ahead = skip_passes_ > 0 && !rotation_.was_visited(ev, e.plane);
        e.skip_until = rotation_.pass(e.plane) + skip_passes_ - turn_is_ahead;
    }

    // Takes an EV out of service into `state`; with `replace`, a backup of its plane takes its place.
    void leave(uint64_t now, EvIndex ev, EvState state, bool replace) noexcept {
        EvRecord& e = at(ev);
        Plane& p = planes_[e.plane];
        const bool was_active = e.active;
        if (e.state == EvState::Skip) --p.skipping;
        if (e.state == EvState::Good && !was_active) --p.backups;
        set_state(now, ev, state);
        if (!was_active) return;
        rotation_.retire(ev, e.plane);
        e.active = false;
        if (rotation_.active(e.plane) == 0) serving_ &= ~(1ull << e.plane);
        if (replace && p.backups > 0) promote_backup(e.plane);
        bound_skips(e.plane);
    }

    // Puts an EV back into service: into the rotation where its plane lacks one, else as a backup.
    void readmit(uint64_t now, EvIndex ev) noexcept {
        EvRecord& e = at(ev);
        assert(e.state == EvState::AssumedBad || e.state == EvState::Denied);
        set_state(now, ev, EvState::Good);
        if (rotation_.active(e.plane) < planes_[e.plane].wanted) enter_rotation(ev);
        else ++planes_[e.plane].backups;
    }

    void prefetch(uint32_t ev) const noexcept { __builtin_prefetch(&evs_[ev], 1); }
    template <class F>
    void each_hot_record(F&& f) const noexcept { f(evs_.get(), (max_evs_ < kFewEvs ? max_evs_ : kFewEvs) * sizeof(EvRecord)); }
    /// Calls f(address, bytes) for what sending touches.
    template <class F>
    void each_hot(F&& f) const noexcept {
        f(this, static_cast<size_t>(reinterpret_cast<const char*>(&planes_) - reinterpret_cast<const char*>(this)));
        rotation_.each_hot(f);
        f(good_.get(), (max_evs_ + 63) / 64 * sizeof(uint64_t));
        if (counter_mask_ == 0) f(counters_.get(), sizeof(EvCounters));
    }

private:
    static constexpr uint32_t kFewEvs = 8;
    struct Plane {
        uint32_t wanted = 0, backups = 0;
        uint32_t skipping = 0;   // in rotation, SKIP
    };

    // The same as state == Good, packed: a pick then reads one line whatever EV it draws.
    bool is_good(EvIndex ev) const noexcept { return good_[ev / 64u] >> ev % 64u & 1; }
    void note_good(EvIndex ev, bool good) noexcept {
        if (good) good_[ev / 64u] |= 1ull << ev % 64u;
        else good_[ev / 64u] &= ~(1ull << ev % 64u);
    }
    void enter_rotation(EvIndex ev) noexcept {
        rotation_.activate(ev, evs_[ev].plane);
        evs_[ev].active = true;
        serving_ |= 1ull << evs_[ev].plane;
    }

    void begin_pass(uint8_t plane) noexcept {
        rotation_.next_pass(plane);
        if (planes_[plane].skipping == 0) return;
        for (uint32_t i = 0; i < rotation_.active(plane); ++i) {
            const EvIndex ev = rotation_.at(plane, i);
            if (evs_[ev].state == EvState::Skip && evs_[ev].skip_until < rotation_.pass(plane)) end_skip(ev);
        }
    }
    void end_skip(EvIndex ev) noexcept {
        --planes_[evs_[ev].plane].skipping;
        set_state(last_change_ns_, ev, EvState::Good);
    }
    // After the rotation shrank: those that would return first return now.
    void bound_skips(uint8_t plane) noexcept {
        while (2 * planes_[plane].skipping > rotation_.active(plane)) {
            EvIndex first = kNoEv;
            for (uint32_t i = 0; i < rotation_.active(plane); ++i) {
                const EvIndex ev = rotation_.at(plane, i);
                if (evs_[ev].state != EvState::Skip) continue;
                if (first == kNoEv || evs_[ev].skip_until < evs_[first].skip_until) first = ev;
            }
            assert(first != kNoEv);
            end_skip(first);
        }
    }

    // A random start keeps connections that share a profile from taking the same backup.
    void promote_backup(uint8_t plane) noexcept {
        const uint32_t active = rotation_.active(plane), rest = rotation_.total(plane) - active;
        const uint32_t start = rng_.below(rest);
        for (uint32_t i = 0; i < rest; ++i) {
            const EvIndex ev = rotation_.at(plane, active + (start + i) % rest);
            if (evs_[ev].state != EvState::Good) continue;
            --planes_[plane].backups;
            enter_rotation(ev);
            return;
        }
        assert(false && "a backup was counted that does not exist");
    }

    void set_state(uint64_t now, EvIndex ev, EvState state) noexcept {
        EvRecord& e = evs_[ev];
        const EvState before = e.state;
        e.state = state;
        note_good(ev, state == EvState::Good);
        last_change_ns_ = now;
        // Coming back from SKIP is news only to those who watch SKIP: it happens with every mark.
        const EvState watched = before == EvState::Skip && state == EvState::Good ? EvState::Skip : state;
        if (event_mask_ & ev_state_bit(watched))
          events_.push(EvEvent{now, counters(ev).lost, value(ev).value, ev, e.plane, state});
    }

    // What every packet touches comes first.
    EvRotation rotation_;
    Table<uint64_t> good_;
    uint32_t size_ = 0;
    Table<EvRecord> evs_;
    EvIndex counter_mask_;
    Table<EvCounters> counters_;
    uint64_t serving_ = 0;
    Table<Plane> planes_;
    CounterRng rng_;
    uint8_t event_mask_;
    uint32_t num_planes_, max_evs_, skip_passes_;
    uint64_t last_change_ns_ = 0;
    Table<EvValue> values_;
    ColdTable<uint64_t> condemned_ns_;   // when it last became bad
    EvEvents events_;
};

}  // namespace farstep
