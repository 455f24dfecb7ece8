// Path sets made and driven the way the drivers of native/tests want them.
#pragma once

#include <cstdint>
#include <memory>

#include "farstep/entropy.hpp"

namespace farstep::model {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kAll = ~0ull;

inline std::unique_ptr<PathSet> make(PathSetConfig c) {
    auto set = std::make_unique<PathSet>(c);
    uint32_t n = 0;
    for (uint32_t i = 0; i < c.active_per_plane + c.backup_per_plane; ++i)
        for (uint32_t p = 0; p < c.num_planes; ++p) {
            EvValue v;
            v.local_port = v.remote_port = static_cast<uint8_t>(p);
            v.source = static_cast<uint16_t>(i);
            v.value = n++;
            set->add(static_cast<uint8_t>(p), v, i < c.active_per_plane);
        }
    return set;
}
inline PathSetConfig shape(uint32_t planes, uint32_t active, uint32_t backup, uint64_t seed = 1) {
    PathSetConfig c;
    c.num_planes = planes;
    c.active_per_plane = active;
    c.backup_per_plane = backup;
    c.seed = seed;
    return c;
}
inline EvIndex send(PathSet& s, uint64_t now, uint32_t bytes = 4096, EvIndex exclude = kNoEv, uint64_t free_planes = kAll) {
    const EvIndex ev = s.pick(now, free_planes, exclude, bytes);
    if (ev != kNoEv) s.on_sent(now, ev, bytes);
    return ev;
}
inline EvIndex first_of(const PathSet& s, uint8_t plane, bool active = true) {
    for (EvIndex ev = 0; ev < s.size(); ++ev)
        if (s.plane(ev) == plane && s.is_active(ev) == active) return ev;
    return kNoEv;
}

}  // namespace farstep::model
