// A data packet and a control packet on their way through the simulated fabric.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace farstep::sim {

/// What the ports on a packet's way need of it. It stays where it is while queues and calendars pass its number around.
struct Packet {
    enum Flag : uint8_t { kMarked = 1, kAdaptive = 2, kOwn = 4 };  // bits from kOwn on belong to the transport
    uint64_t route;        // what is left of it; see Route
    uint32_t next;         // the packet behind it in the queue
    uint16_t bytes;        // on the wire
    uint8_t flags;
    uint8_t phase;         // ticks beyond the slot
};
static_assert(sizeof(Packet) == 16);

/// What its ends need of it. All but the connection belongs to the transport.
struct Cargo {
    uint32_t connection;
    uint32_t sequence;
    uint16_t stamp;
    uint16_t path;
};
static_assert(sizeof(Cargo) == 12);

/// Ports still to be crossed: ten bits each, the next one lowest, relative to the switch it belongs to; or, for routes
/// with more or wider hops, the top bit and an index into a table of targets.
struct Route {
    static constexpr uint32_t kLabelBits = 10, kMaxLabels = 6;
    static constexpr uint64_t kLabelMask = (1u << kLabelBits) - 1, kTabled = 1ull << 63;
};

/// What ends tell each other: acknowledgements, refusals, probes, and the rest of trimmed packets. It never waits in a
/// queue; see Network::send_control.
struct Control {
    static constexpr size_t kBodyBytes = 48;
    uint32_t connection;
    uint8_t kind;          // the transport's; kTrimmed is the fabric's
    uint8_t to_source;     // 1: toward the end that sends data, 0: toward the one that receives it
    uint8_t phase;
    uint8_t port;          // this and the next: the transport's
    uint16_t path;
    uint16_t spare;
    uint32_t nic;          // where it arrives
    unsigned char body[kBodyBytes];

    static constexpr uint8_t kTrimmed = 0xFF;
    template <class T>
    void put(const T& value) noexcept {
        static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kBodyBytes);
        std::memcpy(body, &value, sizeof value);
    }
    template <class T>
    T get() const noexcept {
        static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kBodyBytes);
        T value;
        std::memcpy(&value, body, sizeof value);
        return value;
    }
};
static_assert(sizeof(Control) == 64);

/// Body of a Control of kind kTrimmed.
struct Trimmed {
    uint32_t sequence;
    uint16_t stamp, path;
    uint16_t bytes;
    uint8_t flags;
    bool last_hop;
};

/// A way for control packets: computed once, then as cheap as an addition.
struct ControlPath {
    uint64_t route = 0;      // from the first switch on
    uint32_t nic_port = 0;   // the NIC port it leaves by
    uint32_t last_port = 0;  // the port that faces the NIC where it arrives
    uint32_t delay = 0;      // ticks, for a packet of control_bytes
    uint16_t hops = 0;
    uint16_t plane = 0;
};

}  // namespace farstep::sim
