// The paths of one connection: which entropy value the next packet takes, and what became of it.
//
// Life of an EV (MRC): GOOD carries data; an ECN mark or a trim sends it to SKIP for one pass of its plane's
// rotation; an untrimmed loss, a timeout or the receiver's demand makes it ASSUMED_BAD at once, a backup of the
// same plane takes its place, and probes bring it back; DENIED belongs to the controller.
//
// How the floor works, so that neither random loss nor a dead plane starves a connection:
//  * a loss that a backup can make up for always retires its EV;
//  * without a backup an EV stays in service where its plane, or the whole set, would fall below its floor;
//    shares are per plane, so a plane with few EVs left carries as much as before;
//  * a plane that loses everything and acknowledges nothing has no floor as long as another plane delivers;
//    what the set then lacks is taken back from the condemned EVs of the living planes.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdint>
#include <memory>
#include <utility>

#include "farstep/ev_probing.hpp"
#include "farstep/ev_table.hpp"
#include "farstep/ev_types.hpp"
#include "farstep/plane_health.hpp"
#include "farstep/plane_share.hpp"
#include "farstep/storage.hpp"

namespace farstep {

class PathSet {
public:
    explicit PathSet(const PathSetConfig& config) : PathSet(config, std::make_unique<Arena>()) {}
    // `shared`: the same but for the seed, for the time after construction; outlives it.
    PathSet(const PathSetConfig& config, Arena* arena, const PathSetConfig* shared = nullptr)
        : share_(config, arena),
          table_(config, arena),
          health_(config.num_planes, arena),
          mask_((1ull << config.num_planes) - 1),
          probing_(config, arena),
          config_(arena->keep(config, shared)) {
        share_.set_usable(0);   // planes join with their first EV
    }

    // Before traffic, or later to widen a plane whose backups have run out.
    void add(uint8_t plane, EvValue value, bool active) noexcept {
        assert(plane < config_->num_planes);
        table_.add(plane, value, active);
        share_.set_usable(mask_ & table_.serving());
    }

    // The EV for the next packet or burst, of a plane whose port is free. `exclude` (the EV that lost the packet)
    // is taken only where nothing else is left. kNoEv if no plane can send.
    EvIndex pick(uint64_t now, uint64_t free_planes, EvIndex exclude, uint32_t burst_bytes) noexcept {
        uint8_t plane = 0;
        return pick(now, free_planes, exclude, burst_bytes, plane);
    }
    // `plane` becomes that of the EV.
    EvIndex pick(uint64_t now, uint64_t free_planes, EvIndex exclude, uint32_t burst_bytes, uint8_t& plane) noexcept {
        (void)now;
        uint64_t candidates = free_planes & share_.usable();
        bool only_excluded = false;
        while (candidates != 0) {
            plane = share_.choose(candidates, burst_bytes);
            const EvIndex ev = table_.pick(plane, exclude);
            if (ev != kNoEv) return ev;
            only_excluded = true;
            candidates &= ~(1ull << plane);
        }
        if (!only_excluded) return kNoEv;
        plane = this->plane(exclude);
        return exclude;
    }

    const EvValue& value(EvIndex ev) const noexcept { return table_.value(ev); }
    uint8_t plane(EvIndex ev) const noexcept { return table_.at(ev).plane; }
    EvState state(EvIndex ev) const noexcept { return table_.at(ev).state; }
    const EvCounters& counters(EvIndex ev) const noexcept { return table_.counters(ev); }
    bool is_active(EvIndex ev) const noexcept { return table_.is_active(ev); }

    // ---- what became of packets -----------------------------------------------------------------------------

    void on_sent(uint64_t now, EvIndex ev, uint32_t bytes) noexcept {
        (void)now;
        on_sent(ev, plane(ev), bytes);
    }
    void on_sent(EvIndex ev, uint8_t plane, uint32_t bytes) noexcept {
        EvCounters& c = table_.counters(ev);
        ++c.sent_packets;
        c.sent_bytes += bytes;
        share_.on_sent(plane, bytes);
    }

    void on_acked(uint64_t now, EvIndex ev, uint32_t bytes, bool rtt_valid, uint64_t rtt_ns) noexcept {
        EvRecord& e = table_.at(ev);
        table_.counters(ev).acked_bytes += bytes;
        if (rtt_valid) note_rtt(e, rtt_ns);
        on_delivered(now, e.plane, bytes);
    }
    // The same in two parts, for many packets at once: what each EV delivered, and what its plane did.
    void count_acked(EvIndex ev, uint32_t bytes) noexcept { table_.counters(ev).acked_bytes += bytes; }
    void on_delivered(uint64_t now, uint8_t plane, uint32_t bytes) noexcept {
        share_.on_delivered(now, plane, bytes);
        note_alive(now, plane);
    }

    void on_ecn(uint64_t now, EvIndex ev) noexcept {
        ++table_.counters(ev).ecn;
        table_.skip(now, ev);
    }

    // `bytes` leave the plane's flight, undelivered. A trim at the last hop is incast: all paths are alike, nobody
    // is blamed.
    void on_trimmed(uint64_t now, EvIndex ev, bool last_hop, uint32_t bytes = 0) noexcept {
        EvRecord& e = table_.at(ev);
        ++table_.counters(ev).trims;
        share_.on_lost(e.plane, bytes);
        note_alive(now, e.plane);
        if (!last_hop) table_.skip(now, ev);
    }

    void on_always_skip(uint64_t now, EvIndex ev) noexcept {
        EvRecord& e = table_.at(ev);
        e.demanded = true;
        condemn(now, ev);
    }

    // One loss and one timeout weigh the same.
    void on_lost(uint64_t now, EvIndex ev, uint32_t bytes, bool timeout) noexcept {
        (void)timeout;
        EvRecord& e = table_.at(ev);
        ++table_.counters(ev).lost;
        share_.on_lost(e.plane, bytes);
        health_[e.plane].on_loss(now);
        if (!(mask_ >> e.plane & 1)) return;   // explained by the plane being out
        ++e.blame;
        condemn(now, ev);
    }

    // The packet arrived after all. Its bytes left the flight when it was declared lost, and it must not be reported
    // as acknowledged again. An EV condemned for nothing else comes back at once.
    void on_spurious_loss(uint64_t now, EvIndex ev, uint32_t bytes) noexcept {
        EvRecord& e = table_.at(ev);
        if (table_.counters(ev).lost > 0) --table_.counters(ev).lost;
        table_.counters(ev).acked_bytes += bytes;
        note_alive(now, e.plane);
        if (e.state != EvState::AssumedBad || e.blame == 0 || --e.blame > 0 || e.demanded) return;
        if (!health_[e.plane].down) readmit(now, ev, /*earned=*/false);
    }

    // ---- probing --------------------------------------------------------------------------------------------

    // A bad EV due for its probe. A plane that is down as a whole is asked once per interval, on any of its EVs.
    bool poll_probe(uint64_t now, EvIndex& out) noexcept {
        for (; urgent_ != 0; urgent_ &= urgent_ - 1) {
            const uint8_t plane = lowest(urgent_);
            out = table_.any_of(plane);
            if (table_.at(out).state != EvState::AssumedBad) continue;
            health_[plane].next_probe_ns = now + probing_.interval_ns();
            urgent_ &= urgent_ - 1;
            return true;
        }
        for (uint32_t tries = 0; tries < config_->max_evs && probing_.poll(now, out); ++tries) {
            PlaneHealth& h = health_[plane(out)];
            if (!h.down) return true;
            if (now >= h.next_probe_ns) {
                h.next_probe_ns = now + probing_.interval_ns();
                out = any_bad(plane(out), out);
                return true;
            }
            probing_.unspend();
        }
        return false;
    }
    uint64_t next_probe_ns() const noexcept { return urgent_ != 0 ? 0 : probing_.next_ns(); }
    // The sender ran out of patience. Where no plane in use brings anything across, those given up are asked at once.
    void on_timeout(uint64_t now) noexcept {
        if (!starved(now)) return;
        for (uint64_t rest = mask_; rest != 0; rest &= rest - 1)
            if (health_[lowest(rest)].down) urgent_ |= rest & -rest;
    }

    void on_probe_reply(uint64_t now, EvIndex ev, uint8_t mark, uint64_t rtt_ns) noexcept {
        EvRecord& e = table_.at(ev);
        note_rtt(e, rtt_ns);
        if (e.state != EvState::AssumedBad) return;
        if (mark == kMarkAlwaysSkip) {
            on_probe_lost(now, ev);
            return;
        }
        if (health_[e.plane].down) {
            if (health_[e.plane].damping.on_success() || starved(now)) bring_up(now, e.plane);
            return;
        }
        if (!probing_.on_reply(ev)) return;
        readmit(now, ev, /*earned=*/true);
        if (mark == kMarkSkipOnce) table_.skip(now, ev);
    }
    void on_probe_lost(uint64_t now, EvIndex ev) noexcept {
        (void)now;
        probing_.on_lost(ev);
        if (health_[plane(ev)].down) health_[plane(ev)].damping.on_failure();
    }

    // ---- planes ---------------------------------------------------------------------------------------------

    // Round-trip time toward the destination: sets the pace of probes, of learning and of inference.
    void set_rtt(uint64_t rtt_ns) noexcept {
        if (rtt_ns == 0 || rtt_ns == rtt_ns_) return;
        rtt_ns_ = rtt_ns;
        probing_.set_rtt(rtt_ns);
        share_.set_rtt(rtt_ns);
    }

    // Planes that both ends can use. EVs of the others keep their state and are not picked.
    void set_plane_mask(uint64_t now, uint64_t usable_planes) noexcept {
        mask_ = usable_planes & all_planes();
        share_.set_usable(mask_ & table_.serving());
        keep_floor(now);
    }
    uint64_t plane_mask() const noexcept { return mask_; }

    // A plane that loses everything while another one delivers. All its EVs leave service at once, so that not every
    // one of them has to lose a packet first; it is reported once.
    bool infer_plane_down(uint64_t now, uint64_t rtt_ns, uint8_t& plane) noexcept {
        set_rtt(rtt_ns);
        for (uint64_t rest = mask_; rest != 0; rest &= rest - 1) {
            const auto p = static_cast<uint8_t>(std::countr_zero(rest));
            if (health_[p].down || !silent(now, p)) continue;
            take_down(now, p);
            plane = p;
            return true;
        }
        return false;
    }
    bool plane_down(uint8_t plane) const noexcept { return health_[plane].down; }

    // ---- the controller -------------------------------------------------------------------------------------

    void deny(uint64_t now, EvIndex ev) noexcept {
        if (table_.at(ev).state == EvState::Denied) return;
        leave(now, ev, EvState::Denied, /*replace=*/true);
        keep_floor(now);
    }
    void allow(uint64_t now, EvIndex ev) noexcept {
        if (table_.at(ev).state == EvState::Denied) readmit(now, ev, /*earned=*/false);
    }
    bool poll_event(EvEvent& out) noexcept { return table_.events().poll(out); }
    uint64_t dropped_events() const noexcept { return table_.events().dropped(); }

    // ---- cache ----------------------------------------------------------------------------------------------

    // Calls f(address, bytes) for what sending touches, and for what acknowledging touches besides. A simulation of
    // many connections asks the cache for it ahead of time.
    template <class F>
    void each_hot(F&& f) const noexcept {
        table_.each_hot(f);
        share_.each_hot(f);
        f(&mask_, sizeof mask_);
    }
    // Asks the cache for what is known of an entropy value.
    void prefetch(uint32_t ev) const noexcept { table_.prefetch(ev); }
    // And for the plane of a few entropy values.
    template <class F>
    void each_hot_record(F&& f) const noexcept { table_.each_hot_record(f); }
    template <class F>
    void each_hot_on_ack(F&& f) const noexcept {
        f(health_.get(), config_->num_planes * sizeof(PlaneHealth));
    }

    // ---- figures --------------------------------------------------------------------------------------------

    uint64_t ev_rtt_ns(EvIndex ev) const noexcept { return table_.at(ev).rtt_ns; }
    uint64_t plane_rtt_ns(uint8_t plane) const noexcept { return health_[plane].rtt_ns; }
    // The smallest round trip of the slowest plane in use, for Nscc::set_longest_rtt. 0 = unknown.
    uint64_t longest_rtt_ns() const noexcept {
        uint64_t longest = 0;
        for (uint64_t rest = share_.usable(); rest != 0; rest &= rest - 1)
          longest = std::max(longest, share_.min_rtt_ns(lowest(rest)));
        return longest;
    }
    // How much longer this EV's plane is than the shortest one in use. Congestion control takes it off a round trip
    // first, so that distance is not taken for a queue.
    uint64_t detour_ns(EvIndex ev) const noexcept {
        const uint64_t own = share_.min_rtt_ns(plane(ev));
        uint64_t shortest = own;
        for (uint64_t rest = share_.usable(); rest != 0; rest &= rest - 1) {
            const uint64_t rtt = share_.min_rtt_ns(lowest(rest));
            if (rtt != 0 && rtt < shortest) shortest = rtt;
        }
        return own - shortest;
    }
    int64_t plane_inflight(uint8_t plane) const noexcept { return share_.inflight(plane); }
    // Share of what is in flight, 0..1; 0 for a plane that is out or has no EV in service.
    double plane_weight(uint8_t plane) const noexcept { return share_.weight(plane); }
    uint32_t size() const noexcept { return table_.size(); }
    uint32_t num_planes() const noexcept { return config_->num_planes; }
    uint32_t active_count(uint8_t plane) const noexcept { return table_.active(plane); }
    uint32_t backup_count(uint8_t plane) const noexcept { return table_.backups(plane); }
    // EVs in rotation and GOOD.
    uint32_t good_count(uint8_t plane) const noexcept { return table_.good(plane); }
    uint32_t good_count() const noexcept {
        uint32_t sum = 0;
        for (uint64_t rest = mask_; rest != 0; rest &= rest - 1) sum += good_count(lowest(rest));
        return sum;
    }
    // No fewer EVs than this stay in rotation while enough work to choose from.
    uint32_t floor() const noexcept {
        if (config_->min_active != 0) return config_->min_active;
        uint32_t wanted = 0;
        for (uint32_t p = 0; p < config_->num_planes; ++p) wanted += table_.wanted(static_cast<uint8_t>(p));
        return std::max(wanted / 4, config_->num_planes);
    }

private:
    PathSet(const PathSetConfig& config, std::unique_ptr<Arena> own) : PathSet(config, own.get()) { own_ = std::move(own); }

    static constexpr uint64_t kDefaultRttNs = 1'000'000;   // until set_rtt

    uint64_t rtt_or_default() const noexcept { return rtt_ns_ != 0 ? rtt_ns_ : kDefaultRttNs; }
    static uint8_t lowest(uint64_t planes) noexcept { return static_cast<uint8_t>(std::countr_zero(planes)); }
    uint64_t all_planes() const noexcept { return (1ull << config_->num_planes) - 1; }
    // Every change of service goes through these two, so that probes and shares follow.
    void leave(uint64_t now, EvIndex ev, EvState state, bool replace) noexcept {
        const bool was_bad = table_.at(ev).state == EvState::AssumedBad;
        table_.leave(now, ev, state, replace);
        if (was_bad) probing_.release(now, ev, /*earned=*/false);
        share_.set_usable(mask_ & table_.serving());
    }
    void readmit(uint64_t now, EvIndex ev, bool earned) noexcept {
        EvRecord& e = table_.at(ev);
        const bool was_bad = e.state == EvState::AssumedBad;
        e.blame = 0;
        e.demanded = false;
        e.taken_down = false;
        if (earned) table_.counters(ev).restores += table_.counters(ev).restores < UINT16_MAX;
        table_.readmit(now, ev);
        if (was_bad) probing_.release(now, ev, earned);
        share_.set_usable(mask_ & table_.serving());
    }

    void condemn(uint64_t now, EvIndex ev) noexcept {
        EvRecord& e = table_.at(ev);
        if (e.state == EvState::Denied || e.state == EvState::AssumedBad) return;
        if (may_leave(now, ev)) {
            go_bad(now, ev, /*replace=*/true);
            keep_floor(now);
        } else {
            e.blame = 0;
            e.demanded = false;
        }
    }
    void go_bad(uint64_t now, EvIndex ev, bool replace) noexcept {
        EvRecord& e = table_.at(ev);
        table_.condemned_ns(ev) = now;
        e.taken_down = false;
        table_.counters(ev).condemned += table_.counters(ev).condemned < UINT16_MAX;
        leave(now, ev, EvState::AssumedBad, replace);
        probing_.condemn(now, ev, *config_);
    }

    bool may_leave(uint64_t now, EvIndex ev) const noexcept {
        const uint8_t plane = table_.at(ev).plane;
        if (!table_.is_active(ev) || table_.backups(plane) > 0) return true;
        if (silent(now, plane)) return true;
        const uint32_t least = floor();
        const uint32_t plane_least = std::max(least / std::max<uint32_t>(std::popcount(mask_), 1), 1u);
        return table_.active(plane) > plane_least && active_usable() > least;
    }
    uint32_t active_usable() const noexcept {
        uint32_t sum = 0;
        for (uint64_t rest = mask_; rest != 0; rest &= rest - 1) sum += table_.active(lowest(rest));
        return sum;
    }

    // Where too few EVs are left, the longest condemned of the living planes come back; where none at all, of any.
    void keep_floor(uint64_t now) noexcept {
        const uint32_t least = floor();
        while (active_usable() < least) {
            EvIndex best = longest_condemned(now, /*living_only=*/true);
            if (best == kNoEv && active_usable() == 0) best = longest_condemned(now, /*living_only=*/false);
            if (best == kNoEv) return;
            health_[plane(best)].down = false;   // for want of any other
            readmit(now, best, /*earned=*/false);
        }
    }
    EvIndex longest_condemned(uint64_t now, bool living_only) const noexcept {
        uint64_t planes = mask_;
        for (uint64_t rest = living_only ? mask_ : 0; rest != 0; rest &= rest - 1)
          if (silent(now, lowest(rest))) planes &= ~(rest & -rest);
        EvIndex best = kNoEv;
        for (EvIndex ev = 0; ev < table_.size(); ++ev) {
            const EvRecord& e = table_.at(ev);
            if (e.state != EvState::AssumedBad || !(planes >> e.plane & 1)) continue;
            if (table_.active(e.plane) >= table_.wanted(e.plane)) continue;
            if (best == kNoEv || table_.condemned_ns(ev) < table_.condemned_ns(best)) best = ev;
        }
        return best;
    }

    // ---- whole planes ---------------------------------------------------------------------------------------

    // Nine tenths of its EVs, where it has but a few.
    uint32_t losses_to_suspect(uint8_t plane) const noexcept {
        return std::min(config_->down_losses, std::max((9 * table_.wanted(plane) + 9) / 10, 3u));
    }
    // Loses everything it is given, while another plane delivers.
    bool silent(uint64_t now, uint8_t plane) const noexcept {
        const PlaneHealth& h = health_[plane];
        if (h.down) return true;
        const uint32_t losses = losses_to_suspect(plane);
        if (h.loss_run < losses) return false;
        const uint64_t rtt = rtt_or_default();
        if (!h.quiet(now, rtt, losses, config_->settle_ns, config_->first_answer_ns)) return false;
        for (uint64_t rest = share_.usable() & ~(1ull << plane); rest != 0; rest &= rest - 1)
          if (health_[lowest(rest)].delivering(now, rtt, config_->down_losses)) return true;
        return false;
    }

    // Nothing comes back from any plane in use. Then a sign of life of one that was given up counts for more than its past:
    // to ask it for several in a row would hold everything up for as long.
    bool starved(uint64_t now) const noexcept {
        for (uint64_t rest = share_.usable(); rest != 0; rest &= rest - 1)
            if (!health_[lowest(rest)].failing(now, rtt_or_default(), share_.inflight(lowest(rest)) > 0)) return false;
        return true;
    }

    void take_down(uint64_t now, uint8_t plane) noexcept {
        PlaneHealth& h = health_[plane];
        h.down = true;
        h.down_ns = now;
        h.next_probe_ns = now + probing_.interval_ns();
        h.damping.on_condemned(now, *config_);
        for (EvIndex ev = 0; ev < table_.size(); ++ev) {
            EvRecord& e = table_.at(ev);
            if (e.plane != plane) continue;
            if (e.state == EvState::Good || e.state == EvState::Skip) {
                go_bad(now, ev, /*replace=*/false);
                e.taken_down = true;
            } else if (e.state == EvState::AssumedBad && table_.condemned_ns(ev) >= h.loss_run_ns) {
                e.taken_down = true;   // condemned while the plane was dying: shares its fate and its return
            }
        }
        keep_floor(now);
    }

    void bring_up(uint64_t now, uint8_t plane) noexcept {
        PlaneHealth& h = health_[plane];
        h.down = false;
        h.loss_run = 0;
        h.damping.on_returned(now);
        for (EvIndex ev = 0; ev < table_.size(); ++ev) {
            const EvRecord& e = table_.at(ev);
            if (e.plane == plane && e.taken_down && e.state == EvState::AssumedBad) readmit(now, ev, /*earned=*/true);
        }
    }

    EvIndex any_bad(uint8_t plane, EvIndex fallback) noexcept {
        const EvIndex ev = table_.any_of(plane);
        return table_.at(ev).state == EvState::AssumedBad ? ev : fallback;
    }

    void note_alive(uint64_t now, uint8_t plane) noexcept {
        PlaneHealth& h = health_[plane];
        h.on_alive(now);
        // What still arrives a round trip after the plane was given up proves it as well as a probe does.
        if (h.down && now - h.down_ns > rtt_ns_ && (h.damping.on_success() || starved(now))) bring_up(now, plane);
    }
    void note_rtt(EvRecord& e, uint64_t rtt_ns) noexcept {
        const auto sample = static_cast<uint32_t>(std::min<uint64_t>(rtt_ns, UINT32_MAX));
        e.rtt_ns = e.rtt_ns == 0 ? sample : e.rtt_ns - e.rtt_ns / 8 + sample / 8;
        PlaneHealth& h = health_[e.plane];
        h.rtt_ns = h.rtt_ns == 0 ? rtt_ns : h.rtt_ns - h.rtt_ns / 16 + rtt_ns / 16;
        h.near_ns = h.near_ns == 0 || rtt_ns < h.near_ns ? rtt_ns : h.near_ns + (rtt_ns - h.near_ns) / 8;
        share_.on_rtt(e.plane, rtt_ns);
    }

    PlaneShare share_;
    EvTable table_;
    Table<PlaneHealth> health_;
    uint64_t mask_;              // planes both ends can use
    uint64_t urgent_ = 0;        // planes that are down and to be asked at once
    uint64_t rtt_ns_ = 0;
    EvProbing probing_;
    const PathSetConfig* config_;
    std::unique_ptr<Arena> own_;
};

}  // namespace farstep
