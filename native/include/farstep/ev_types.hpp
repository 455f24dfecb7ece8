// Entropy values: what a path is called, which states it goes through, and what is counted for it.
#pragma once

#include <cstdint>

namespace farstep {

using EvIndex = uint16_t;
inline constexpr EvIndex kNoEv = 0xFFFF;
inline constexpr uint32_t kMaxEvs = 1024;       // active and backup together; MRC uses 128 to 256
inline constexpr uint32_t kMaxPlanes = 32;      // width of the port status mask on the wire
inline constexpr uint32_t kMaxEvEvents = 512;   // events kept by default; more are counted, not kept

enum class EvState : uint8_t { Good, Skip, AssumedBad, Denied };

// The congestion mark a receiver puts into SACKs and probe replies.
inline constexpr uint8_t kMarkNone = 0, kMarkSkipOnce = 1, kMarkAlwaysSkip = 2;

struct EvValue {
    uint8_t local_port = 0;
    uint8_t remote_port = 0;
    uint16_t source = 0;   // source-port index in udp mode
    uint32_t value = 0;    // the 32 bits on the wire
};

enum class ShareMode : uint8_t {
    Equal,      // the same bytes on every usable plane
    Capacity,   // in proportion to what each plane turns out to carry
};

struct EvEvent {
    uint64_t now_ns = 0;
    uint64_t drop_count = 0;   // packets lost on this EV so far
    uint32_t value = 0;
    EvIndex ev = kNoEv;
    uint8_t plane = 0;
    EvState state = EvState::Good;
};

struct EvCounters {
    uint64_t sent_packets = 0, sent_bytes = 0, acked_bytes = 0;
    uint32_t lost = 0, ecn = 0, trims = 0;
    uint16_t condemned = 0, restores = 0;   // times it left and came back; stop at their largest value
};

constexpr uint8_t ev_state_bit(EvState state) noexcept {
    return static_cast<uint8_t>(1u << static_cast<uint8_t>(state));
}
inline constexpr uint8_t kWatchedByDefault =
    ev_state_bit(EvState::Good) | ev_state_bit(EvState::AssumedBad) | ev_state_bit(EvState::Denied);

struct PathSetConfig {
    uint32_t num_planes = 1;
    uint32_t max_evs = kMaxEvs;                     // room for this many; at most kMaxEvs
    uint32_t max_events = kMaxEvEvents;             // kept for the controller
    bool counts_per_ev = true;                      // else one set of counters for all, and no values: less memory to walk
    uint32_t active_per_plane = 64, backup_per_plane = 32;
    uint32_t min_active = 0;                        // 0 = a quarter of the active EVs, at least one per plane
    ShareMode share = ShareMode::Equal;
    uint64_t seed = 0;
    uint32_t skip_passes = 1;                       // turns a marked EV sits out, and what is left of the pass at least
    uint64_t probe_interval_ns = 0;                 // 0 = 32 RTT within 1 ms .. 250 ms, follows set_rtt
    uint64_t probe_spacing_ns = 50'000;             // least time between two probes of this set; at least RTT / 8
    uint32_t restore_successes = 5;                 // probes in a row that bring an EV back
    uint32_t restore_max = 160;                     // the most that flap damping asks for
    uint64_t damping_window_ns = 10'000'000'000;    // condemned again this soon after its return: twice as many
    uint64_t damping_reset_ns = 60'000'000'000;     // this long without: back to restore_successes
    uint32_t down_losses = 8;                       // losses in a row, no acknowledgement: the plane is suspect
    uint64_t settle_ns = 1'000'000;                 // least age of such a run, for hosts that sleep
    uint64_t first_answer_ns = 250'000'000;         // a plane's first answer may take so long: between any two places on Earth
    double capacity_floor = 0.02;                   // least share of a plane in Capacity mode
    double capacity_gain = 0.25;                    // EWMA weight of one window
    uint8_t event_mask = kWatchedByDefault;
};

}  // namespace farstep
