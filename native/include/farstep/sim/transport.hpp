// What a transport has to offer the engine, and what the engine offers it. Everything a rival of MRC needs to know.
//
// The engine owns time, packets, NICs and tasks; a transport owns what its two ends know. One object holds all
// connections of a run, by number. A connection carries messages from its source NIC to its target NIC, in order.
//
// A transport is a class T with
//
//   struct Settings;                              plain numbers
//   struct Policy {                               what the fabric must be able to do, see network.hpp
//       static constexpr bool kLossless, kAdaptive; };
//   T(const Settings&, Network<Policy>&, const ConnectionsAhead&);
//
//   template <class Host> bool open(Host&, uint32_t c, uint32_t source_nic, uint32_t target_nic);
//       first message of a connection is about to be posted: make routes and state. False: no path at all.
//   void close(uint32_t c);                       last message is complete at both ends; stray packets may still arrive
//   bool can_post(uint32_t c) const;              room for another message
//   template <class Host> void post(Host&, uint32_t c, uint64_t bytes);      at most kMaxMessage_bytes, maybe 0
//   template <class Host> bool poll(Host&, uint32_t c, uint64_t now_ns, uint32_t free_ports, Departure&);
//       next data packet for one of the NIC ports in the mask; false: nothing now, and the engine asks again only after
//       host.wake(c). The packet comes from host.network().new_packet(); the transport sets its cargo(), and of the
//       packet() the route, the bytes and its own flags (all others 0).
//   template <class Host> void on_data(Host&, uint32_t number);      a whole packet arrived (the engine frees it)
//   template <class Host> void on_control(Host&, const Control&);    also what is left of trimmed packets
//   template <class Host> void on_timer(Host&, uint32_t timer);      timers are numbered 2 c (source) and 2 c + 1 (target)
//   template <class Host> void on_nic_port(Host&, uint32_t nic, uint32_t ordinal, bool up, bool own);
//       a NIC learned that its own port (or, later, one of a peer's) went down or came back
//   void prefetch_poll(uint32_t c); void prefetch_data(const Cargo&); void prefetch_control(const Control&);  may do nothing
//   FlowCounters counters(uint32_t c) const;      totals of a connection so far
//   std::string waits_for(uint32_t c, uint64_t now_ns) const;    for the watchdog, in words
//   template <class F> void take_events(F&&);     changes of path states since the last call: f(PathEvent)
//
// and Host is the engine:
//
//   Network<Policy>& network();                   packets, ports, routes; send_control(path, host.now(), control)
//   Tick now(); uint64_t now_ns();                of what is being handled
//   void wake(uint32_t c);                        connection c may have a packet to send
//   void set_timer(uint32_t timer, uint64_t at_ns);   calls on_timer at that time or soon after; an earlier one counts,
//                                                 a later one is asked for again by the transport when it fires
//   void on_received(uint32_t c);                 the target has all of the oldest message it had not reported
//   void on_completed(uint32_t c);                the source knows that
//   void on_failed(uint32_t c, const char* why);  the connection gave up
//   void note_placed(uint64_t payload_bytes);     a packet that was not there before arrived: the run makes progress
//   void note_duplicate(uint32_t c);              a whole packet arrived that was there before
//   void note_retransmitted();                    poll() gave a packet that had been sent before
//
// Lossless fabrics: call network().set_pause_thresholds() once. Adaptive routing: set Packet::kAdaptive and a route word
// of the target's attachment switch with the port there that faces the NIC in its upper half.
#pragma once

#include <cstdint>
#include <string>

#include "farstep/sim/packet.hpp"

namespace farstep::sim {

/// What is known of the connections of a run before it begins: nobody need have room for more than that.
struct ConnectionsAhead {
    uint32_t count = 0;
    uint64_t most_messages = 0, most_packets = 0;  // on one connection, from its first to its last
};

/// A packet that leaves by a port of the NIC.
struct Departure {
    uint32_t packet = 0;
    uint32_t port = 0;     // ordinal among the ports of the NIC
};

/// Totals of one connection, as its sender counts them.
struct FlowCounters {
    uint64_t packets = 0, retransmitted = 0;
    uint64_t trims = 0;          // it was told of
    uint64_t declared_lost = 0;  // given up without word of what became of them
    uint64_t duplicates = 0;     // arrived whole though they were there: somebody sent them again for nothing
};

/// A path of a connection changed its state.
struct PathEvent {
    uint64_t time_ns = 0;
    uint32_t connection = 0;
    uint16_t path = 0;
    uint8_t port = 0;
    uint8_t state = 0;
};

}  // namespace farstep::sim
