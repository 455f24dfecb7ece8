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

#include "farstep/ev_probing.hpp"
#include "farstep/ev_rotation.hpp"
#include "farstep/ev_types.hpp"
#include "farstep/plane_share.hpp"

namespace farstep {

class PathSet {
 public:
  explicit PathSet(const PathSetConfig& config) noexcept
      : config_(config),
        rotation_(config.seed),
        probing_(config),
        share_(config.num_planes, config.share, config.capacity_floor, config.capacity_gain, config.seed) {}

  // Before traffic, or later to widen a plane whose backups have run out.
  void add(uint8_t plane, EvValue value, bool active) noexcept {
    assert(plane < config_.num_planes && size_ < kMaxEvs);
    const auto ev = static_cast<EvIndex>(size_++);
    evs_[ev].value = value;
    evs_[ev].plane = plane;
    rotation_.add(ev, plane, false);
    Plane& p = planes_[plane];
    if (active) {
      ++p.wanted;
      enter_rotation(ev);
    } else {
      ++p.backups;
    }
  }

  // The EV for the next packet or burst, of a plane whose port is free. `exclude` (the EV that lost the packet)
  // is taken only where nothing else is left. kNoEv if no plane can send.
  EvIndex pick(uint64_t now, uint64_t free_planes, EvIndex exclude, uint32_t burst_bytes) noexcept {
    (void)now;
    uint64_t candidates = free_planes & share_.usable() & serving_;
    bool excluded_seen = false;
    while (candidates != 0) {
      const uint8_t plane = share_.choose(candidates, burst_bytes);
      const EvIndex ev = pick_in(plane, exclude);
      if (ev != kNoEv) return ev;
      excluded_seen = true;
      candidates &= ~(1ull << plane);
    }
    return excluded_seen ? exclude : kNoEv;
  }

  const EvValue& value(EvIndex ev) const noexcept { return entry(ev).value; }
  uint8_t plane(EvIndex ev) const noexcept { return entry(ev).plane; }
  EvState state(EvIndex ev) const noexcept { return entry(ev).state; }
  const EvCounters& counters(EvIndex ev) const noexcept { return entry(ev).counters; }
  bool is_active(EvIndex ev) const noexcept { return rotation_.is_active(ev, plane(ev)); }

  void on_sent(uint64_t now, EvIndex ev, uint32_t bytes) noexcept {
    (void)now;
    Entry& e = entry(ev);
    ++e.counters.sent_packets;
    e.counters.sent_bytes += bytes;
    share_.on_sent(e.plane, bytes);
  }

  void on_acked(uint64_t now, EvIndex ev, uint32_t bytes, bool rtt_valid, uint64_t rtt_ns) noexcept {
    Entry& e = entry(ev);
    e.counters.acked_bytes += bytes;
    share_.on_left(e.plane, bytes);
    note_alive(now, e, rtt_valid, rtt_ns);
    share_.on_delivered(now, e.plane, bytes);
  }

  void on_ecn(uint64_t now, EvIndex ev) noexcept {
    ++entry(ev).counters.ecn;
    skip(now, ev);
  }

  // `bytes` leave the plane's flight. A trim at the last hop is incast: all paths are alike, nobody is blamed.
  void on_trimmed(uint64_t now, EvIndex ev, bool last_hop, uint32_t bytes = 0) noexcept {
    Entry& e = entry(ev);
    ++e.counters.trims;
    share_.on_left(e.plane, bytes);
    note_alive(now, e, false, 0);
    if (!last_hop) skip(now, ev);
  }

  void on_always_skip(uint64_t now, EvIndex ev) noexcept { condemn(now, ev, /*by_loss=*/false); }

  void on_lost(uint64_t now, EvIndex ev, uint32_t bytes, bool timeout) noexcept {
    (void)timeout;   // one loss and one timeout weigh the same
    Entry& e = entry(ev);
    ++e.counters.lost;
    share_.on_left(e.plane, bytes);
    Plane& p = planes_[e.plane];
    if (p.loss_run++ == 0) p.loss_run_ns = now;
    // Losses of a plane that is out are explained by that.
    if (share_.usable() >> e.plane & 1) condemn(now, ev, /*by_loss=*/true);
  }

  // The packet arrived after all. Its bytes left the flight when it was declared lost, and its acknowledgement
  // must not be reported again. An EV condemned for nothing else comes back at once.
  void on_spurious_loss(uint64_t now, EvIndex ev, uint32_t bytes) noexcept {
    Entry& e = entry(ev);
    if (e.counters.lost > 0) --e.counters.lost;
    e.counters.acked_bytes += bytes;
    note_alive(now, e, false, 0);
    if (e.state != EvState::AssumedBad || e.blame == 0 || --e.blame > 0) return;
    readmit(now, ev, /*earned=*/false);
  }

  // A bad EV due for its probe. A plane that is down as a whole is asked once per interval, not once per EV.
  bool poll_probe(uint64_t now, EvIndex& out) noexcept {
    for (uint32_t tries = 0; tries < kMaxEvs && probing_.poll(now, out); ++tries) {
      const uint8_t p = plane(out);
      if (!planes_[p].down || now >= planes_[p].next_probe_ns) {
        planes_[p].next_probe_ns = now + probing_.interval_ns();
        return true;
      }
      probing_.unspend();
    }
    return false;
  }
  uint64_t next_probe_ns() const noexcept { return probing_.next_ns(); }

  void on_probe_reply(uint64_t now, EvIndex ev, uint8_t mark, uint64_t rtt_ns) noexcept {
    Entry& e = entry(ev);
    note_rtt(e, rtt_ns);
    if (e.state != EvState::AssumedBad) return;
    if (mark == kMarkAlwaysSkip) {
      probing_.on_lost(ev);
      return;
    }
    Plane& p = planes_[e.plane];
    if (p.down) {
      if (++p.probe_successes >= config_.restore_successes) revive_plane(now, e.plane);
      return;
    }
    if (!probing_.on_reply(ev)) return;
    readmit(now, ev, /*earned=*/true);
    if (mark == kMarkSkipOnce) skip(now, ev);
  }
  void on_probe_lost(uint64_t now, EvIndex ev) noexcept {
    (void)now;
    probing_.on_lost(ev);
    planes_[plane(ev)].probe_successes = 0;
  }

  // Round-trip time toward the destination: sets the pace of probes, of learning and of inference.
  void set_rtt(uint64_t rtt_ns) noexcept {
    rtt_ns_ = rtt_ns;
    probing_.set_rtt(rtt_ns);
    share_.set_rtt(rtt_ns);
  }

  // Planes that both ends can use. EVs of the others keep their state and are not picked.
  void set_plane_mask(uint64_t now, uint64_t usable_planes) noexcept {
    share_.set_usable(usable_planes);
    keep_floor(now);
  }
  uint64_t plane_mask() const noexcept { return share_.usable(); }

  // A plane that lost everything while another one delivers: takes all its EVs out of service and reports it once.
  bool infer_plane_down(uint64_t now, uint64_t rtt_ns, uint8_t& plane) noexcept {
    rtt_ns_ = rtt_ns;
    for (uint64_t rest = share_.usable(); rest != 0; rest &= rest - 1) {
      const auto p = static_cast<uint8_t>(std::countr_zero(rest));
      if (planes_[p].down || !silent(now, p)) continue;
      take_down(now, p);
      plane = p;
      return true;
    }
    return false;
  }
  bool plane_down(uint8_t plane) const noexcept { return planes_[plane].down; }

  void deny(uint64_t now, EvIndex ev) noexcept {
    Entry& e = entry(ev);
    if (e.state == EvState::Denied) return;
    leave(now, ev, EvState::Denied);
    keep_floor(now);
  }
  void allow(uint64_t now, EvIndex ev) noexcept {
    if (entry(ev).state == EvState::Denied) readmit(now, ev, /*earned=*/false);
  }

  uint64_t ev_rtt_ns(EvIndex ev) const noexcept { return entry(ev).rtt_ns; }
  uint64_t plane_rtt_ns(uint8_t plane) const noexcept { return planes_[plane].rtt_ns; }
  int64_t plane_inflight(uint8_t plane) const noexcept { return share_.inflight(plane); }
  double plane_weight(uint8_t plane) const noexcept { return share_.weight(plane); }
  uint32_t size() const noexcept { return size_; }
  uint32_t num_planes() const noexcept { return config_.num_planes; }
  uint32_t active_count(uint8_t plane) const noexcept { return rotation_.active(plane); }
  uint32_t backup_count(uint8_t plane) const noexcept { return planes_[plane].backups; }
  // EVs in rotation and GOOD.
  uint32_t good_count(uint8_t plane) const noexcept { return rotation_.active(plane) - planes_[plane].skipping; }
  uint32_t good_count() const noexcept {
    uint32_t sum = 0;
    for (uint64_t rest = share_.usable(); rest != 0; rest &= rest - 1) sum += good_count(static_cast<uint8_t>(std::countr_zero(rest)));
    return sum;
  }

  bool poll_event(EvEvent& out) noexcept {
    if (event_count_ == 0) return false;
    out = events_[event_head_];
    event_head_ = (event_head_ + 1) % kMaxEvEvents;
    --event_count_;
    return true;
  }
  uint64_t dropped_events() const noexcept { return dropped_events_; }

 private:
  static constexpr uint64_t kDefaultRttNs = 1'000'000;   // until set_rtt

  struct Entry {
    EvValue value;
    EvState state = EvState::Good;
    uint8_t plane = 0;
    bool taken_down = false;      // condemned with its whole plane
    uint32_t skip_until = 0;      // last pass it sits out
    uint32_t blame = 0;           // losses that keep it condemned
    uint64_t rtt_ns = 0;
    uint64_t condemned_ns = 0;
    EvCounters counters;
  };

  struct Plane {
    uint32_t wanted = 0;          // active EVs it was set up with
    uint32_t backups = 0;         // GOOD, not in rotation
    uint32_t skipping = 0;        // in rotation, SKIP
    uint32_t loss_run = 0;        // losses since the last sign of life
    uint32_t probe_successes = 0;
    uint64_t loss_run_ns = 0, alive_ns = 0, down_ns = 0, next_probe_ns = 0;
    uint64_t rtt_ns = 0;
    bool seen = false;            // ever acknowledged anything
    bool down = false;
  };

  Entry& entry(EvIndex ev) noexcept {
    assert(ev < size_);
    return evs_[ev];
  }
  const Entry& entry(EvIndex ev) const noexcept {
    assert(ev < size_);
    return evs_[ev];
  }

  EvIndex pick_in(uint8_t plane, EvIndex exclude) noexcept {
    // At most half of the EVs skip, so two visits suffice on average. Three passes always do: the rest of this
    // one, and two whole ones should the last EV left be the excluded one.
    const uint32_t limit = 3 * rotation_.active(plane);
    for (uint32_t visits = 0; visits < limit; ++visits) {
      if (rotation_.at_pass_end(plane)) begin_pass(plane);
      const EvIndex ev = rotation_.visit(plane);
      if (evs_[ev].state == EvState::Good && ev != exclude) return ev;
    }
    return kNoEv;
  }

  void begin_pass(uint8_t plane) noexcept {
    rotation_.next_pass(plane);
    if (planes_[plane].skipping == 0) return;
    for (uint32_t i = 0; i < rotation_.active(plane); ++i) {
      Entry& e = evs_[rotation_.at(plane, i)];
      if (e.state == EvState::Skip && e.skip_until < rotation_.pass(plane)) end_skip(rotation_.at(plane, i));
    }
  }

  // ---- SKIP -----------------------------------------------------------------------------------------------

  void skip(uint64_t now, EvIndex ev) noexcept {
    Entry& e = entry(ev);
    Plane& p = planes_[e.plane];
    if (e.state == EvState::Skip) {
      e.skip_until = rotation_.pass(e.plane) + 1;
      return;
    }
    if (e.state != EvState::Good || !rotation_.is_active(ev, e.plane)) return;
    // With half of them marked the plane is congested, not the path: everything stays in service.
    if (2 * (p.skipping + 1) > rotation_.active(e.plane)) return;
    e.skip_until = rotation_.pass(e.plane) + 1;
    ++p.skipping;
    set_state(now, ev, EvState::Skip);
  }
  void end_skip(EvIndex ev) noexcept {
    --planes_[entry(ev).plane].skipping;
    set_state(last_event_ns_, ev, EvState::Good);
  }
  // After the rotation shrank: those that would return first return now.
  void bound_skips(uint8_t plane) noexcept {
    while (2 * planes_[plane].skipping > rotation_.active(plane)) {
      EvIndex first = kNoEv;
      for (uint32_t i = 0; i < rotation_.active(plane); ++i) {
        const EvIndex ev = rotation_.at(plane, i);
        if (evs_[ev].state == EvState::Skip && (first == kNoEv || evs_[ev].skip_until < evs_[first].skip_until)) first = ev;
      }
      assert(first != kNoEv);
      end_skip(first);
    }
  }

  // ---- in and out of service ------------------------------------------------------------------------------

  void enter_rotation(EvIndex ev) noexcept {
    const uint8_t plane = evs_[ev].plane;
    rotation_.activate(ev, plane);
    if (serving_ >> plane & 1) return;
    serving_ |= 1ull << plane;
    share_.level(plane);
  }
  void leave_rotation(EvIndex ev) noexcept {
    const uint8_t plane = evs_[ev].plane;
    rotation_.retire(ev, plane);
    if (rotation_.active(plane) == 0) serving_ &= ~(1ull << plane);
  }

  // Takes an EV out of service into `state`; a backup of its plane takes its place.
  void leave(uint64_t now, EvIndex ev, EvState state) noexcept {
    Entry& e = entry(ev);
    Plane& p = planes_[e.plane];
    const bool was_active = rotation_.is_active(ev, e.plane);
    if (e.state == EvState::Skip) --p.skipping;
    if (e.state == EvState::AssumedBad) {
      e.state = state;
      probing_.release(now, ev, false);
    } else if (!was_active) {
      --p.backups;
    }
    set_state(now, ev, state);
    if (!was_active) return;
    leave_rotation(ev);
    if (p.backups > 0) promote_backup(e.plane);
    bound_skips(e.plane);
  }

  void promote_backup(uint8_t plane) noexcept {
    // A random start keeps connections that share a profile from taking the same backup.
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

  void condemn(uint64_t now, EvIndex ev, bool by_loss) noexcept {
    Entry& e = entry(ev);
    if (e.state == EvState::Denied) return;
    if (by_loss) ++e.blame;
    if (e.state == EvState::AssumedBad) return;
    if (!may_leave(now, ev)) {
      e.blame = 0;
      return;
    }
    if (!by_loss) e.blame = 0;   // no late packet can clear what the receiver demanded
    go_bad(now, ev);
    keep_floor(now);
  }
  void go_bad(uint64_t now, EvIndex ev) noexcept {
    Entry& e = entry(ev);
    e.condemned_ns = now;
    e.taken_down = false;
    ++e.counters.condemned;
    leave(now, ev, EvState::AssumedBad);
    probing_.condemn(now, ev);
  }

  bool may_leave(uint64_t now, EvIndex ev) const noexcept {
    const uint8_t plane = evs_[ev].plane;
    const Plane& p = planes_[plane];
    if (!rotation_.is_active(ev, plane) || p.backups > 0) return true;
    if (silent(now, plane)) return true;
    return rotation_.active(plane) > plane_floor() && active_usable() > floor();
  }

  uint32_t floor() const noexcept {
    if (config_.min_active != 0) return config_.min_active;
    uint32_t wanted = 0;
    for (uint32_t p = 0; p < config_.num_planes; ++p) wanted += planes_[p].wanted;
    return std::max(wanted / 4, config_.num_planes);
  }
  uint32_t plane_floor() const noexcept {
    return std::max(floor() / std::max(std::popcount(share_.usable()), 1), 1u);
  }
  uint32_t active_usable() const noexcept {
    uint32_t sum = 0;
    for (uint64_t rest = share_.usable(); rest != 0; rest &= rest - 1) sum += rotation_.active(static_cast<uint8_t>(std::countr_zero(rest)));
    return sum;
  }

  // Puts an EV back into service, as active where its plane lacks one, else as backup.
  void readmit(uint64_t now, EvIndex ev, bool earned) noexcept {
    Entry& e = entry(ev);
    Plane& p = planes_[e.plane];
    const bool was_bad = e.state == EvState::AssumedBad;
    e.blame = 0;
    e.taken_down = false;
    if (earned) ++e.counters.restores;
    set_state(now, ev, EvState::Good);
    if (was_bad) probing_.release(now, ev, earned);
    if (rotation_.active(e.plane) < p.wanted) enter_rotation(ev);
    else ++p.backups;
  }

  // Where too few EVs are left, the longest condemned of the living planes come back; where none at all, of any.
  void keep_floor(uint64_t now) noexcept {
    while (active_usable() < floor()) {
      EvIndex best = oldest_bad(share_.usable(), now, /*living_only=*/true);
      if (best == kNoEv && (share_.usable() & serving_) == 0) best = oldest_bad(share_.usable(), now, false);
      if (best == kNoEv) return;
      readmit(now, best, /*earned=*/false);
    }
  }
  EvIndex oldest_bad(uint64_t planes, uint64_t now, bool living_only) const noexcept {
    EvIndex best = kNoEv;
    for (uint32_t ev = 0; ev < size_; ++ev) {
      const Entry& e = evs_[ev];
      if (e.state != EvState::AssumedBad || !(planes >> e.plane & 1)) continue;
      if (rotation_.active(e.plane) >= planes_[e.plane].wanted) continue;
      if (living_only && (planes_[e.plane].down || silent(now, e.plane))) continue;
      if (best == kNoEv || e.condemned_ns < evs_[best].condemned_ns) best = static_cast<EvIndex>(ev);
    }
    return best;
  }

  // ---- whole planes ---------------------------------------------------------------------------------------

  // Loses everything it is given, while another plane shows life.
  bool silent(uint64_t now, uint8_t plane) const noexcept {
    const Plane& p = planes_[plane];
    const uint64_t rtt = rtt_ns_ != 0 ? rtt_ns_ : kDefaultRttNs;
    if (p.down) return true;
    if (p.loss_run < config_.down_losses) return false;
    if (p.seen && now - p.alive_ns < rtt + rtt / 2) return false;
    for (uint64_t rest = share_.usable() & serving_ & ~(1ull << plane); rest != 0; rest &= rest - 1) {
      const Plane& other = planes_[std::countr_zero(rest)];
      if (other.seen && !other.down && other.loss_run < config_.down_losses && now - other.alive_ns < 5 * rtt) return true;
    }
    return false;
  }

  void take_down(uint64_t now, uint8_t plane) noexcept {
    Plane& p = planes_[plane];
    p.down = true;
    p.down_ns = now;
    p.probe_successes = 0;
    p.next_probe_ns = now + probing_.interval_ns();
    for (uint32_t i = 0; i < rotation_.total(plane);) {
      const EvIndex ev = rotation_.at(plane, i);
      Entry& e = evs_[ev];
      // Those condemned while it was dying share its fate and its return.
      if (e.state == EvState::AssumedBad && e.condemned_ns >= p.loss_run_ns) e.taken_down = true;
      if (e.state != EvState::Good && e.state != EvState::Skip) { ++i; continue; }
      go_bad(now, ev);
      e.taken_down = true;   // the table has moved: look at this position again
      i = 0;
    }
    keep_floor(now);
  }

  void revive_plane(uint64_t now, uint8_t plane) noexcept {
    Plane& p = planes_[plane];
    p.down = false;
    p.loss_run = 0;
    for (uint32_t ev = 0; ev < size_; ++ev) {
      Entry& e = evs_[ev];
      if (e.plane == plane && e.taken_down && e.state == EvState::AssumedBad) readmit(now, static_cast<EvIndex>(ev), true);
    }
  }

  void note_alive(uint64_t now, Entry& e, bool rtt_valid, uint64_t rtt_ns) noexcept {
    Plane& p = planes_[e.plane];
    p.loss_run = 0;
    p.alive_ns = now;
    p.seen = true;
    if (rtt_valid) note_rtt(e, rtt_ns);
  }
  void note_rtt(Entry& e, uint64_t rtt_ns) noexcept {
    e.rtt_ns = e.rtt_ns == 0 ? rtt_ns : e.rtt_ns - e.rtt_ns / 8 + rtt_ns / 8;
    uint64_t& plane_rtt = planes_[e.plane].rtt_ns;
    plane_rtt = plane_rtt == 0 ? rtt_ns : plane_rtt - plane_rtt / 16 + rtt_ns / 16;
  }

  // ---- events ---------------------------------------------------------------------------------------------

  void set_state(uint64_t now, EvIndex ev, EvState state) noexcept {
    Entry& e = entry(ev);
    const EvState before = e.state;
    e.state = state;
    last_event_ns_ = now;
    // Coming back from SKIP is news only to those who watch SKIP: it happens with every mark.
    const EvState watched = before == EvState::Skip && state == EvState::Good ? EvState::Skip : state;
    if (!(config_.event_mask & ev_state_bit(watched))) return;
    if (event_count_ == kMaxEvEvents) {
      ++dropped_events_;
      return;
    }
    EvEvent& out = events_[(event_head_ + event_count_) % kMaxEvEvents];
    out = EvEvent{now, e.counters.lost, e.value.value, ev, e.plane, state};
    ++event_count_;
  }

  PathSetConfig config_;
  EvRotation rotation_;
  EvProbing probing_;
  PlaneShare share_;
  CounterRng rng_{config_.seed + 1};
  uint64_t serving_ = 0;       // planes with at least one EV in rotation
  uint64_t rtt_ns_ = 0;
  uint64_t last_event_ns_ = 0;
  uint32_t size_ = 0;
  Plane planes_[kMaxPlanes];
  Entry evs_[kMaxEvs];
  uint32_t event_head_ = 0, event_count_ = 0;
  uint64_t dropped_events_ = 0;
  EvEvent events_[kMaxEvEvents];
};

}  // namespace farstep
