// Which entropy values control packets take.
//
// Answers go back over the plane that just delivered something, as long as probes on it get answered: it is alive in one
// direction at least, and since the peer sprays its data, its answers are spread too. State probes visit every plane in
// turn, so that no single dead plane can hide from them or silence them. Planes much longer than the shortest carry no
// answers while others can: news of quick packets must not take the slow way. A probe that came by a plane whose way back is
// in doubt is answered twice, by that plane as well: what is taken for dead may be the only plane left.
// Who sends data knows which entropy values work. Who only receives has them confirmed by its own probes (MRC §4.6, which
// keeps one per plane; here a few take turns, so that one that dies costs a share of the answers and not all of a plane's).
// One unanswered probe does not say which way it was lost, so it only puts its entropy value behind the others; and data
// that comes twice, or a question after a silence, says that answers went missing: what was confirmed before then takes turns
// with what was not, and stands behind what is confirmed from then on.
#pragma once

#include <cassert>
#include <cstdint>

#include "farstep/entropy.hpp"
#include "farstep/storage.hpp"

namespace farstep {

/// A way between one local and one remote port. Connections spread over these; MRC's plane, seen from the endpoint.
struct PlaneLink {
    uint8_t local_port = 0, remote_port = 0;
};

class ControlPaths {
public:
    ControlPaths(const PlaneLink* links, uint32_t num_planes, Arena* arena)
        : num_planes_(num_planes), num_ports_(ports_of(links, num_planes)), ways_(num_planes, arena),
          by_port_(num_ports_, arena) {
        assert(num_planes >= 1 && num_planes <= kMaxPlanes);
        for (uint32_t i = 0; i < num_planes; ++i) by_port_[links[i].local_port] |= 1u << i;
        last_port_ = links[0].local_port;
        arrivals_ = by_port_[last_port_];
    }

    /// Something came in on this port.
    void on_arrival(uint8_t local_port) noexcept {
        if (local_port == last_port_) return;
        last_port_ = local_port;
        if (const uint32_t planes = planes_of(local_port)) arrivals_ = planes;
    }
    /// The peer answered what we sent on this plane.
    void on_answered(uint8_t plane) noexcept {
        if (plane < num_planes_) ways_[plane].unanswered = 0;
    }
    void on_probe_answered(uint8_t plane, EvIndex ev) noexcept {
        on_answered(plane);
        if (plane < num_planes_) ways_[plane].confirmed.add(ev);
    }
    /// The peer sent again what had come, or asked: our answers do not get through.
    void on_answers_missed() noexcept {
        for (uint32_t p = 0; p < num_planes_; ++p) ways_[p].confirmed.doubt_all();
    }
    void on_unanswered(uint8_t plane, EvIndex ev) noexcept {
        if (plane >= num_planes_) return;
        Way& w = ways_[plane];
        if (w.unanswered < kSuspect) ++w.unanswered;
        w.confirmed.doubt(ev);
    }

    /// For an answer; kNoEv only where every entropy value is denied. `knows_paths`: data of ours tells which work.
    EvIndex answer(uint64_t now, PathSet& paths, bool knows_paths) noexcept {
        const uint64_t usable = paths.plane_mask(), trusted = usable & ~suspects();
        const uint64_t near = trusted & ~distant(paths);
        for (const uint64_t planes : {uint64_t{arrivals_} & near, near, trusted, usable}) {
            const EvIndex ev = in_turn(now, planes, next_answer_, paths, knows_paths ? From::Data : From::Trusted);
            if (ev != kNoEv) return ev;
        }
        return any(paths);
    }
    /// Probes on the planes of this port went unanswered.
    bool is_suspect(uint8_t local_port) const noexcept { return planes_of(local_port) & suspects(); }
    /// For an answer on a plane of this port, good or bad.
    EvIndex back_over(uint8_t local_port, const PathSet& paths) noexcept {
        return any(paths, paths.plane_mask() & planes_of(local_port));
    }
    EvIndex probe(uint64_t now, PathSet& paths, bool knows_paths) noexcept {
        // What was confirmed and what was not, in turn: the one may have died, the other may work.
        asks_confirmed_ = !asks_confirmed_;
        const From from = asks_confirmed_ ? From::Confirmed : knows_paths ? From::Data : From::All;
        const EvIndex ev = in_turn(now, paths.plane_mask(), next_probe_, paths, from);
        return ev == kNoEv ? any(paths) : ev;
    }

    /// Calls f(address, bytes) for what an answer touches; see PathSet.
    template <class F>
    void each_hot(F&& f) const noexcept {
        f(this, sizeof *this);
        f(ways_.get(), num_planes_ * sizeof(Way));
    }

private:
    static constexpr uint64_t kSameLength_ns = 1'000'000;  // what a busy host adds for no reason
    static constexpr uint8_t kSuspect = 2;  // probes in a row without an answer: one may be lost by chance

    /// Entropy values of one plane by which a probe of ours got through lately.
    class Confirmed {
    public:
        void add(EvIndex ev) noexcept {
            uint32_t i = 0;
            while (i < count_ && evs_[i] != ev) ++i;
            if (i == count_ && count_ < kMost) ++count_;
            else if (i == count_) i = oldest_++ % kMost;
            evs_[i] = ev;
            doubts_[i] = 0;
        }
        void doubt(EvIndex ev) noexcept {
            for (uint32_t i = 0; i < count_; ++i) {
                if (evs_[i] != ev || ++doubts_[i] < kDoubts) continue;
                evs_[i] = evs_[--count_];
                doubts_[i] = doubts_[count_];
                return;
            }
        }
        void doubt_all() noexcept {
            for (uint32_t i = 0; i < count_; ++i)
                if (doubts_[i] == 0) doubts_[i] = 1;
        }
        /// The next that is in no doubt; kNoEv every other time where all are, since others may do better.
        EvIndex next_trusted(const PathSet& paths) noexcept {
            const EvIndex ev = next(paths, false);
            if (ev != kNoEv) return ev;
            tries_others_ = !tries_others_;
            return tries_others_ ? kNoEv : next(paths, true);
        }
        /// The next to be asked again: one in doubt, else any.
        EvIndex next_to_ask(const PathSet& paths) noexcept {
            const EvIndex ev = next(paths, true);
            return ev != kNoEv ? ev : next(paths, false);
        }

    private:
        static constexpr uint32_t kMost = 4;
        static constexpr uint8_t kDoubts = 2;

        EvIndex next(const PathSet& paths, bool in_doubt) noexcept {
            for (uint32_t n = 0; n < count_; ++n) {
                const uint32_t i = turn_++ % count_;
                const EvState state = paths.state(evs_[i]);
                if ((doubts_[i] > 0) == in_doubt && (state == EvState::Good || state == EvState::Skip)) return evs_[i];
            }
            return kNoEv;
        }

        EvIndex evs_[kMost] = {};
        uint8_t doubts_[kMost] = {};
        uint8_t count_ = 0, oldest_ = 0, turn_ = 0;
        bool tries_others_ = false;
    };

    /// Whence an entropy value comes: what data would take; confirmed ones, for an answer and for a probe; every good one.
    enum class From : uint8_t { Data, Trusted, Confirmed, All };
    struct Way {
        Confirmed confirmed;
        uint8_t unanswered = 0;  // probes in a row
    };

    static uint32_t ports_of(const PlaneLink* links, uint32_t num_planes) noexcept {
        uint32_t ports = 1;
        for (uint32_t i = 0; i < num_planes; ++i) ports = links[i].local_port >= ports ? links[i].local_port + 1u : ports;
        return ports;
    }
    uint32_t planes_of(uint8_t local_port) const noexcept { return local_port < num_ports_ ? by_port_[local_port] : 0; }
    uint64_t suspects() const noexcept {
        uint64_t planes = 0;
        for (uint32_t p = 0; p < num_planes_; ++p)
            if (ways_[p].unanswered >= kSuspect) planes |= 1ull << p;
        return planes;
    }
    uint64_t distant(const PathSet& paths) const noexcept {
        if (num_planes_ == 1) return 0;
        uint64_t shortest = 0, planes = 0;
        for (uint8_t p = 0; p < num_planes_; ++p) {
            const uint64_t rtt = paths.plane_rtt_ns(p);
            if (rtt && (!shortest || rtt < shortest)) shortest = rtt;
        }
        const uint64_t limit = shortest + shortest / 4 + kSameLength_ns;
        for (uint8_t p = 0; p < num_planes_; ++p)
            if (paths.plane_rtt_ns(p) > limit) planes |= 1ull << p;
        return planes;
    }
    EvIndex in_turn(uint64_t now, uint64_t planes, uint32_t& next, PathSet& paths, From from) noexcept {
        for (uint32_t n = 0; n < num_planes_; ++n) {
            const uint32_t plane = (next + n) % num_planes_;
            if (!(planes >> plane & 1)) continue;
            EvIndex ev = kNoEv;
            if (from == From::Trusted) ev = ways_[plane].confirmed.next_trusted(paths);
            else if (from == From::Confirmed) ev = ways_[plane].confirmed.next_to_ask(paths);
            else if (from == From::All) ev = any(paths, 1ull << plane, /*only_good=*/true);
            if (ev == kNoEv) ev = paths.pick(now, 1ull << plane, kNoEv, 0);
            if (ev == kNoEv) continue;
            next = plane + 1;
            return ev;
        }
        return kNoEv;
    }
    // Every path looks bad: walk over all of them rather than fall silent.
    EvIndex any(const PathSet& paths) noexcept { return any(paths, paths.plane_mask()); }
    EvIndex any(const PathSet& paths, uint64_t planes, bool only_good = false) noexcept {
        for (uint32_t n = paths.size(); n; --n) {
            const EvIndex ev = static_cast<EvIndex>(any_cursor_++ % paths.size());
            const EvState state = paths.state(ev);
            if (state == EvState::Denied || (only_good && state == EvState::AssumedBad)) continue;
            if (planes >> paths.plane(ev) & 1) return ev;
        }
        return kNoEv;
    }

    uint32_t num_planes_, num_ports_;
    uint32_t arrivals_ = 0;              // planes the last packet may have come by
    uint32_t next_answer_ = 0, next_probe_ = 0, any_cursor_ = 0;
    uint8_t last_port_ = 0;
    bool asks_confirmed_ = true;
    Table<Way> ways_;           // by plane
    Table<uint32_t> by_port_;   // planes of each local port
};

}  // namespace farstep
