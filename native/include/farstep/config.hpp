// What an endpoint and its connections are built with. Plain numbers: every limit named, with the reason beside it.
#pragma once

#include <cstdint>

#include "farstep/entropy.hpp"
#include "farstep/nscc.hpp"

namespace farstep {

inline constexpr uint64_t kNever = UINT64_MAX;
inline constexpr uint32_t kMaxPorts = 32;  // one bit each in the port status mask of an endpoint request
inline constexpr uint32_t kMprUnit_packets = 128;
inline constexpr uint32_t kMaxMpr = 255;          // one byte on the wire
inline constexpr uint32_t kMaxBurst_packets = 64;  // UDP_MAX_SEGMENTS of older kernels
// Nominal bytes around one UDP payload in congestion accounting: UDP header 8 + nominal IPv6 header 40 (MRC §6).
inline constexpr uint32_t kNominalOverhead_bytes = 48;
// Longest message of one WRITE. dmalen has 32 bits; 1 GiB keeps packet counts of a message inside 24-bit PSN halves.
inline constexpr uint64_t kMaxMessage_bytes = 1ull << 30;

struct ReliabilityConfig {
    uint64_t rto_base_ns = 67'108'864;     // 1.024 us * 2^16: above what an overloaded host needs to answer
    uint64_t rto_max_ns = 2'000'000'000;   // back-off stops here, so that a healed path is noticed within two seconds
    uint32_t linear_count = 3;             // timeouts at the base value before doubling (MRC §5.2)
    uint32_t exponential_count = 16;       // further timeouts before the retry budget is spent; 25 = without end
    uint64_t loss_slack_min_ns = 3'000'000;  // least time a packet may be late before another path's news condemns it
    uint64_t initial_rtt_ns = 1'000'000;   // until the first sample
    // Before anything was measured. Long enough for any two places on Earth: giving up too early would only load a path
    // whose length nobody knows yet.
    uint64_t first_timeout_ns = 250'000'000;
    // What a busy host may add to the answer to a probe; the least time between unasked probes, too.
    uint64_t host_delay_ns = 20'000'000;
    uint64_t plane_news_ns = 2'000'000;    // every plane is asked for an answer so often; a few hundred a second at most
    // Silence of a peer after which it is asked for a sign of life; a peer that stays silent for the whole retry budget
    // is given up even when nothing is being sent to it. 0: never asked.
    uint64_t keepalive_ns = 1'000'000'000;
};

struct ConnectionConfig {
    uint32_t qpn = 0;         // ours: the peer writes it into BTH
    uint32_t peer_qpn = 0;
    uint32_t start_psn = 0;       // of what we send
    uint32_t peer_start_psn = 0;  // of what we receive
    uint32_t mtu_bytes = 4096;    // payload of a full packet
    uint32_t mpr = 16;            // our receive window in units of 128 PSNs
    uint32_t peer_mpr = 16;
    uint32_t wimm = 128;          // write-immediates in flight at most
    uint32_t send_queue = 1024;   // messages posted and not completed; power of two
    uint32_t immediate_queue = 1024;  // immediates received and not consumed; power of two
    uint32_t sack_threshold_bytes = 16'384;  // UET default, MRC §5.1
    uint32_t burst_packets = 15;  // packets that leave on one entropy value: 15 * 4 KiB is what one offloaded send holds
    uint32_t send_records = 0;    // packets in flight at most, where fewer than the peer's window allows are meant; 0 = all of it
    uint32_t receive_records = 0; // PSNs told apart, where the peer will send fewer than our window allows; 0 = all of it
    uint32_t max_nacks = 64;      // waiting to be sent; trim storms beyond this are left to loss inference
    uint32_t max_sack_triggers = 16;  // entropy values with news in one batch; more share the last
    uint32_t max_probe_replies = 16;
    uint32_t max_probes = 64;     // of ours that wait for an answer; the oldest counts as lost beyond that
    uint32_t num_ports = 1;       // local ports = planes
    uint32_t peer_num_ports = 1;
    bool is_protected = false;    // packets leave through packet_protection.hpp, which replaces the iCRC
    uint64_t seed = 0;
    ReliabilityConfig reliability;
    PathSetConfig paths;
};

enum class ConnectionError : uint8_t {
    None,
    RetryExceeded,      // the retry budget is spent: no path answers
    RemoteFatal,        // the peer refused a packet: bad region, bad length, message beyond its queue
    RemoteClosed,       // the peer closed the connection
    RemoteAborted,      // the peer gave the connection up
    LocalAborted,       // abort() here
    LocalProtocol,      // the peer sent what no correct peer sends; we gave the connection up
    NoPort,             // no port is left that both ends can use
};
constexpr const char* name(ConnectionError e) noexcept {
    switch (e) {
        case ConnectionError::None: return "none";
        case ConnectionError::RetryExceeded: return "retry_exceeded";
        case ConnectionError::RemoteFatal: return "remote_refused";
        case ConnectionError::RemoteClosed: return "remote_closed";
        case ConnectionError::RemoteAborted: return "remote_aborted";
        case ConnectionError::LocalAborted: return "aborted";
        case ConnectionError::LocalProtocol: return "protocol_violation";
        case ConnectionError::NoPort: return "no_usable_port";
    }
    return "?";
}
// Carried in the vendor byte of a fatal NACK, so that the peer can say why.
enum class FatalCode : uint8_t { Refused = 0, Closed = 1, Aborted = 2 };

constexpr uint32_t round_up_power_of_two(uint32_t v) noexcept {
    uint32_t p = 1;
    while (p < v) p <<= 1;
    return p;
}
/// The 64-bit sequence number nearest to `reference` whose low 24 bits are `wire` (modular comparison, half range).
constexpr uint64_t expand24(uint32_t wire, uint64_t reference) noexcept {
    const int32_t delta = static_cast<int32_t>((wire - static_cast<uint32_t>(reference)) << 8) >> 8;
    return reference + static_cast<int64_t>(delta);
}
constexpr uint16_t timestamp_of(uint64_t now_ns) noexcept { return static_cast<uint16_t>(now_ns >> 7); }  // 128 ns ticks

}  // namespace farstep
