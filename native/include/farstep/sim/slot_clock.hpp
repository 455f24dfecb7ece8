// Simulated time. A slot is what a full packet takes on the fastest link; a tick is 1/256 of it.
//
// Ports serve whole packets at slot boundaries, but no part of a delay is thrown away: what exceeds whole slots travels
// with the packet as its phase, so an idle path takes exactly as long as its links say.
#pragma once

#include <cstdint>

namespace farstep::sim {

using Slot = uint64_t;
using Tick = uint64_t;

inline constexpr uint32_t kTickBits = 8;
inline constexpr uint32_t kTicksPerSlot = 1u << kTickBits;
inline constexpr Slot kNoSlot = UINT64_MAX;

constexpr Slot slot_of(Tick t) noexcept { return t >> kTickBits; }
constexpr Tick start_of(Slot s) noexcept { return s << kTickBits; }

class SlotClock {
public:
    explicit SlotClock(double slot_ns) noexcept
        : ns_per_tick_(slot_ns / kTicksPerSlot), ticks_per_ns_(kTicksPerSlot / slot_ns) {}
    uint64_t ns(Tick t) const noexcept { return static_cast<uint64_t>(static_cast<double>(t) * ns_per_tick_ + 0.5); }
    /// Nearest tick; times beyond what a double counts exactly are far beyond any simulation.
    Tick ticks(double ns) const noexcept { return static_cast<Tick>(ns * ticks_per_ns_ + 0.5); }
    double slot_ns() const noexcept { return ns_per_tick_ * kTicksPerSlot; }

private:
    double ns_per_tick_, ticks_per_ns_;
};

}  // namespace farstep::sim
