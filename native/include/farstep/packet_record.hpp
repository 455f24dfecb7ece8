// What the sender remembers of one packet until the peer has it.
#pragma once

#include <cstdint>

#include "farstep/ev_types.hpp"

namespace farstep {

enum class RecordState : uint8_t { Free, InFlight, Lost, Held, Acked };  // Held: refused for lack of room
enum class LossRule : uint8_t { None, Order, Late, Timer };

struct PacketRecord {
    uint64_t tx_ns = 0;
    uint32_t size_bytes = 0;  // nominal, as congestion control counts
    uint16_t message = 0;  // low bits of its number
    uint16_t ev_index = 0;  // position among the packets sent on this entropy value, low bits
    uint16_t ev : 11 = 0, plane : 5 = 0;
    EvIndex previous_ev = kNoEv;  // of the transmission before, when it was given up
    uint16_t previous_timestamp = 0;
    uint8_t transmissions = 0;
    RecordState state : 4 = RecordState::Free;
    LossRule given_up_by : 4 = LossRule::None;  // the transmission before, or this one once Lost
};
static_assert(sizeof(PacketRecord) == 24 && kMaxEvs <= 1u << 11 && kMaxPlanes <= 1u << 5);

struct SenderCounters {
    uint64_t packets = 0, bytes = 0, sacks = 0, retransmitted = 0, lost_order = 0, lost_late = 0, lost_timeout = 0, trimmed = 0;
    uint64_t spurious = 0, soft_timeouts = 0, timeouts = 0, nacks = 0, acks = 0, invalid_sacks = 0;
};

}  // namespace farstep
