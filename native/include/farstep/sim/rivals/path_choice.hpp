// How a sender without source routes spreads its packets: blindly, around paths that were bad, or on paths that were good.
//
// The algorithms are those of UET's reference simulator; REPS is that of Bonato
// et al. (2024).
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>

#include "farstep/counter_rng.hpp"
#include "farstep/storage.hpp"

namespace farstep::sim {

enum class Spread : uint8_t {
    Oblivious,    // every path in turn, in an order that changes with each pass
    Bitmap,       // the same, but paths with penalties are passed over until those are worn off
    Reps,         // paths that brought back good news once more, else one by chance
    Mixed,        // paths that brought good news once more, else Bitmap
    Permutation,  // the same, in an order drawn anew for each pass
    Random,
};

struct PathChoiceConfig {
    Spread spread = Spread::Oblivious;
    uint32_t num_paths = 64;        // per plane; a power of two for Oblivious, Bitmap and Mixed
    uint32_t ecn_penalty = 1, nack_penalty = 4, timeout_penalty = 15, max_penalty = 15;
    uint32_t recycled = 8;          // REPS: paths remembered
    uint64_t freeze_ns = 10'000'000;  // REPS: after a timeout only remembered paths are used for so long
    uint32_t explore = 16;          // REPS: packets on paths by chance after that
    uint64_t seed = 0;
};

enum class PathNews : uint8_t { Good, Marked, Refused, Silent };

class PathChoice {
public:
    /// One for all planes of a connection; they share nothing but the configuration.
    PathChoice(const PathChoiceConfig& c, uint32_t num_planes, Arena* arena)
        : config_(c), rng_(c.seed), planes_(num_planes, arena),
          penalty_(uses_penalties(c.spread) ? num_planes * c.num_paths : 0, arena),
          order_(c.spread == Spread::Permutation ? num_planes * c.num_paths : 0, arena),
          ring_(recycles(c.spread) ? num_planes * ring_size(c) : 0, arena) {
        assert(c.num_paths >= 1);
        assert(!rotates(c.spread) || (c.num_paths & (c.num_paths - 1)) == 0);
        for (uint32_t p = 0; p < num_planes; ++p) {
            planes_[p].index = c.num_paths;  // the first pass begins with the first packet
            for (uint32_t i = 0; c.spread == Spread::Permutation && i < c.num_paths; ++i)
                order_[p * c.num_paths + i] = static_cast<uint16_t>(i);
        }
    }

    /// `sequence` counts new packets of the connection; `window_packets` is what it may have in flight.
    uint16_t pick(uint32_t plane, uint64_t sequence, uint32_t window_packets) noexcept {
        Plane& p = planes_[plane];
        switch (config_.spread) {
            case Spread::Oblivious: return rotate(p);
            case Spread::Bitmap: return rotate_around_penalties(p);
            case Spread::Reps: return recycle_or_draw(p);
            case Spread::Mixed: return mixed(p, sequence, window_packets);
            case Spread::Permutation: return permute_around_penalties(p);
            case Spread::Random: return draw();
        }
        return 0;
    }

    void on_news(uint64_t now, uint32_t plane, uint16_t path, PathNews news) noexcept {
        assert(path < config_.num_paths);
        Plane& p = planes_[plane];
        if (uses_penalties(config_.spread)) penalise(p, path, news);
        if (config_.spread == Spread::Mixed && news == PathNews::Good) push_queue(p, path);
        if (config_.spread == Spread::Reps) recycle(p, now, path, news);
    }

    bool is_frozen(uint32_t plane) const noexcept { return planes_[plane].frozen; }
    uint32_t penalty(uint32_t plane, uint16_t path) const noexcept { return penalty_[plane * config_.num_paths + path]; }

private:
    struct Plane {
        uint32_t index = 0, turn = 0;                                          // rotation
        uint32_t head = 0, count = 0, fresh = 0, cursor = 0, explore = 0;  // what is remembered
        bool frozen = false;
        uint64_t thaw_ns = 0;
    };
    struct Remembered {
        uint16_t path = 0;
        bool fresh = false;
    };

    static constexpr bool rotates(Spread s) noexcept { return s == Spread::Oblivious || s == Spread::Bitmap || s == Spread::Mixed; }
    static constexpr bool uses_penalties(Spread s) noexcept { return s == Spread::Bitmap || s == Spread::Mixed || s == Spread::Permutation; }
    static constexpr bool recycles(Spread s) noexcept { return s == Spread::Reps || s == Spread::Mixed; }
    // Mixed forgets nothing it was told within a window; a queue of all paths is more than that.
    static constexpr uint32_t ring_size(const PathChoiceConfig& c) noexcept {
        return c.spread == Spread::Reps ? c.recycled : std::max(c.num_paths, 64u);
    }
    size_t number(const Plane& p) const noexcept { return static_cast<size_t>(&p - planes_.get()); }
    uint8_t& penalty_of(const Plane& p, uint16_t path) noexcept { return penalty_[number(p) * config_.num_paths + path]; }
    Remembered& remembered(const Plane& p, uint32_t i) noexcept {
        const uint32_t size = ring_size(config_);
        return ring_[number(p) * size + i % size];
    }

    uint16_t draw() noexcept { return static_cast<uint16_t>(rng_.below(config_.num_paths)); }

    uint16_t rotate(Plane& p) noexcept {
        if (p.index >= config_.num_paths) {
            p.index = 0;
            p.turn = rng_.below(config_.num_paths);
        }
        return static_cast<uint16_t>(p.index++ ^ p.turn);
    }
    // Of the penalised paths met by one packet only the first is worn off.
    uint16_t rotate_around_penalties(Plane& p) noexcept {
        uint16_t path = rotate(p);
        if (penalty_of(p, path) == 0) return path;
        --penalty_of(p, path);
        for (uint32_t i = 0; i < config_.num_paths && penalty_of(p, path) > 0; ++i) path = rotate(p);
        return path;
    }
    void penalise(Plane& p, uint16_t path, PathNews news) noexcept {
        const uint32_t more = news == PathNews::Marked    ? config_.ecn_penalty
                              : news == PathNews::Refused ? config_.nack_penalty
                              : news == PathNews::Silent  ? config_.timeout_penalty
                                                          : 0;
        uint8_t& penalty = penalty_of(p, path);
        penalty = static_cast<uint8_t>(std::min(penalty + more, config_.max_penalty));
    }

    uint16_t permute_around_penalties(Plane& p) noexcept {
        uint16_t path = permute(p);
        for (uint32_t i = 0; i < config_.num_paths && penalty_of(p, path) > 0; ++i) {
            --penalty_of(p, path);
            path = permute(p);
        }
        return path;
    }
    uint16_t permute(Plane& p) noexcept {
        uint16_t* const order = order_.get() + number(p) * config_.num_paths;
        if (p.index >= config_.num_paths) {
            p.index = 0;
            for (uint32_t i = config_.num_paths; i > 1; --i) std::swap(order[i - 1], order[rng_.below(i)]);
        }
        return order[p.index++];
    }

    // ---- mixed: a queue of good paths ----

    void push_queue(Plane& p, uint16_t path) noexcept {
        const uint32_t size = ring_size(config_);
        remembered(p, p.head + p.count).path = path;
        if (p.count < size) ++p.count;
        else p.head = (p.head + 1) % size;
    }
    uint16_t mixed(Plane& p, uint64_t sequence, uint32_t window_packets) noexcept {
        if (p.count == 0 || sequence < std::min(window_packets, config_.num_paths)) return rotate_around_penalties(p);
        const uint16_t path = remembered(p, p.head).path;
        p.head = (p.head + 1) % ring_size(config_);
        --p.count;
        return path;
    }

    // ---- REPS ----

    void recycle(Plane& p, uint64_t now, uint16_t path, PathNews news) noexcept {
        if (news == PathNews::Silent && !p.frozen && p.explore == 0) {
            p.frozen = true;
            p.thaw_ns = now + config_.freeze_ns;
        } else if (news == PathNews::Good && !p.frozen) {
            Remembered& r = remembered(p, p.head);
            if (!r.fresh) ++p.fresh;
            r = {path, true};
            p.head = (p.head + 1) % config_.recycled;
            if (p.count < config_.recycled) ++p.count;
        } else if (news == PathNews::Good && now > p.thaw_ns) {
            for (uint32_t i = 0; i < config_.recycled; ++i) remembered(p, i) = {};
            p = Plane{};
            p.explore = config_.explore;
        }
    }
    uint16_t recycle_or_draw(Plane& p) noexcept {
        if (p.explore > 0) {
            --p.explore;
            return draw();
        }
        if (p.frozen) {
            if (p.count == 0) return draw();
            p.cursor = (p.cursor + 1) % p.count;
            return remembered(p, p.cursor).path;
        }
        if (p.fresh == 0) return draw();
        Remembered& oldest = remembered(p, p.head + config_.recycled - p.fresh);
        assert(oldest.fresh);
        oldest.fresh = false;
        --p.fresh;
        return oldest.path;
    }

    PathChoiceConfig config_;
    CounterRng rng_;
    Table<Plane> planes_;
    Table<uint8_t> penalty_;
    Table<uint16_t> order_;
    Table<Remembered> ring_;
};

}  // namespace farstep::sim
