// All connections of one endpoint, without sockets: datagrams and time go in, bursts of packets and deadlines come out.
//
// Grammar: on_datagram(now, ...), on_timeout(now) and commands in; poll_transmit(now, burst) until it says no,
// poll_timeout() for when to call next. The event loop and the simulated networks of the tests drive the same calls.
#pragma once

#include <cassert>
#include <cstdint>
#include <memory>

#include "farstep/burst_packing.hpp"
#include "farstep/connection.hpp"
#include "farstep/counter_rng.hpp"
#include "farstep/destination.hpp"
#include "farstep/endpoint_config.hpp"
#include "farstep/pacing.hpp"
#include "farstep/port_proof.hpp"
#include "farstep/ready_ring.hpp"
#include "farstep/regions.hpp"
#include "farstep/wire.hpp"

namespace farstep {

class EndpointCore {
public:
    explicit EndpointCore(const EndpointConfig& c)
        : config_(c), regions_(c.max_regions), rng_(c.seed), connections_(new Slot[c.max_connections]),
          deadlines_(new uint64_t[c.max_connections]), active_(new uint32_t[c.max_connections]),
          ready_(round_up_power_of_two(c.max_connections)), destinations_(c.max_connections), pacer_(c),
          packer_(c.icrc), slot_mask_(round_up_power_of_two(c.max_connections) - 1) {
        assert(c.max_connections <= kMaxConnections && c.num_ports <= kMaxPorts);
        local_ports_ = c.num_ports >= 64 ? ~0ull : (1ull << c.num_ports) - 1;
        for (uint32_t i = 0; i < c.max_connections; ++i) deadlines_[i] = kNever;
    }

    RegionTable& regions() noexcept { return regions_; }
    const EndpointConfig& config() const noexcept { return config_; }
    const EndpointCounters& counters() const noexcept { return counters_; }

    // ---- connections -------------------------------------------------------------------------------------------------

    /// Reserves a connection; its queue pair number is known at once. kNoConnection when the table is full.
    static constexpr uint32_t kNoConnection = UINT32_MAX;
    uint32_t reserve_connection(uint32_t& qpn, uint32_t& start_psn) noexcept {
        for (uint32_t i = 0; i < config_.max_connections; ++i) {
            Slot& s = connections_[i];
            if (s.used) continue;
            s.used = true;
            s.has_farewell = false;
            // Low bits find the slot, the rest is random: a stray or forged packet must guess it.
            s.qpn = ((static_cast<uint32_t>(rng_.next()) & ~slot_mask_) | i) & wire::kQpnMask;
            if (s.qpn <= wire::kEndpointQpn) s.qpn |= 1u << 23;
            start_psn = static_cast<uint32_t>(rng_.next()) & wire::kPsnMask;
            s.start_psn = start_psn;
            qpn = s.qpn;
            return i;
        }
        return kNoConnection;
    }
    /// Whether open_connection(i) may be called.
    bool is_reserved(uint32_t i) const noexcept {
        return i < config_.max_connections && connections_[i].used && !connections_[i].connection;
    }
    /// Forgets what an unknown has said of the end of a connection that is about to be protected.
    void drop_farewell(uint32_t i) noexcept { connections_[i].has_farewell = false; }
    uint32_t reserved_qpn(uint32_t i) const noexcept { return connections_[i].qpn; }
    uint32_t reserved_start_psn(uint32_t i) const noexcept { return connections_[i].start_psn; }

    /// Starts a reserved connection. Entropy values are added by the caller through connection(i)->paths() first.
    Connection& open_connection(uint32_t i, uint64_t peer_id, const ConnectionConfig& c, const NsccConfig& cc,
                                const PlaneLink* links, uint32_t num_planes) {
        Slot& s = connections_[i];
        assert(s.used && !s.connection);
        s.destination = &destinations_.join(peer_id, cc);
        s.destination->sample_connection = i;
        s.connection.reset(new Connection(c, s.destination->cc, links, num_planes));
        active_[num_active_++] = i;
        return *s.connection;
    }
    void start(uint64_t now, uint32_t i) noexcept {
        Slot& s = connections_[i];
        const uint64_t planes = s.connection->planes_of_ports(local_ports_, s.destination->remote_ports);
        s.connection->set_usable_planes(now, planes);
        s.connection->start(now);
        if (planes == 0) s.connection->fail(ConnectionError::NoPort);
        else if (s.has_farewell) s.connection->on_nack(now, farewell(s));
        if (!s.connection->is_open()) on_failed(now, i);
        if (port_update_id_ != 0) request_port_update(*s.destination);  // the peer takes all ports for usable
        touch(now, i);
    }
    void close_connection(uint64_t now, uint32_t i) noexcept {
        Slot& s = connections_[i];
        if (s.connection) {
            s.connection->fail(ConnectionError::LocalAborted);
            drop_messages(*s.connection);
            for (uint32_t k = 0; k < num_active_; ++k)
                if (active_[k] == i) active_[k] = active_[--num_active_];
            Destination* d = s.destination;
            s.destination = nullptr;
            s.connection.reset();
            if (destinations_.leave(*d)) wake_destination(now, d);  // what was in flight no longer fills the shared window
        }
        if (s.used) regions_.forget_peer(s.qpn);
        deadlines_[i] = kNever;
        s.used = false;
    }
    Connection* connection(uint32_t i) noexcept {
        return i < config_.max_connections ? connections_[i].connection.get() : nullptr;
    }
    const Destination* destination(uint32_t i) const noexcept { return connections_[i].destination; }
    uint32_t num_active() const noexcept { return num_active_; }
    uint32_t active(uint32_t k) const noexcept { return active_[k]; }

    // ---- commands ----------------------------------------------------------------------------------------------------

    /// False when the send queue is full. The caller has pinned `r.local_key`.
    bool post(uint64_t now, uint32_t i, const WriteRequest& r) noexcept {
        Connection* c = connection(i);
        if (!c || !c->is_open() || c->sender().queue().is_full()) return false;
        c->sender().queue().post(r);
        touch(now, i);
        return true;
    }
    void abort_connection(uint64_t now, uint32_t i, ConnectionError why) noexcept {
        Connection* c = connection(i);
        if (!c || !c->is_open()) return;
        c->fail(why);
        drop_messages(*c);
        wake_destination(now, connections_[i].destination);
        touch(now, i);
    }
    void say_closed(uint64_t now, uint32_t i) noexcept {
        if (Connection* c = connection(i)) {
            c->say_fatal(FatalCode::Closed);
            touch(now, i);
        }
    }
    /// Next immediate of connection `i`, in the order they were posted; false when there is none. True in
    /// `must_transmit` when the peer has to hear of the room this made.
    bool pop_immediate(uint64_t now, uint32_t i, uint32_t& value, bool& must_transmit) noexcept {
        must_transmit = false;
        Connection* c = connection(i);
        if (!c || !c->receiver().pop_immediate(value)) return false;
        must_transmit = c->receiver().has_control();
        if (must_transmit) touch(now, i);
        return true;
    }
    /// The controller takes an entropy value out of use, or gives it back. Numbers that do not exist change nothing.
    void set_ev_denied(uint64_t now, uint32_t i, uint16_t ev, bool denied) noexcept {
        Connection* c = connection(i);
        if (!c || ev >= c->paths().size()) return;
        if (denied) c->paths().deny(now, ev);
        else c->paths().allow(now, ev);
        touch(now, i);
    }
    /// A local port went down or came back (MRC §5.4): its planes are left at once and every peer is told.
    void set_local_port(uint64_t now, uint32_t port, bool up) noexcept {
        const uint64_t bit = 1ull << port;
        if (((local_ports_ & bit) != 0) == up) return;
        local_ports_ ^= bit;
        ++port_update_id_;
        for (Destination& d : destinations_)
            if (d.connections) request_port_update(d);
        refresh_planes(now);
    }
    uint64_t local_ports() const noexcept { return local_ports_; }
    /// The receive queue of a socket overflowed: all senders are asked to slow down for a moment.
    void on_receive_overflow(uint64_t now, uint64_t dropped) noexcept {
        counters_.receive_overflow += dropped;
        for (uint32_t k = 0; k < num_active_; ++k) {
            Connection& c = *connections_[active_[k]].connection;
            c.receiver().penalise(kOverflowPenalty, now + kOverflowPenalty_ns);
        }
    }

    // ---- input -------------------------------------------------------------------------------------------------------

    void on_datagram(uint64_t now, const Arrival& a, const uint8_t* data, size_t bytes) noexcept {
        ++counters_.rx_datagrams;
        counters_.rx_bytes += bytes;
        counters_.port_rx_bytes[a.local_port % kMaxPorts] += bytes;
        wire::Packet& p = rx_packet_;
        if (a.trimmed && !is_whole(data, bytes)) {
            const wire::DecodeResult r = wire::decode_trimmed(data, bytes, p);
            if (r != wire::DecodeResult::Ok) return reject(r);
            return dispatch(now, a, p);
        }
        const wire::DecodeResult r = wire::decode(data, bytes, p);
        if (r != wire::DecodeResult::Ok) return reject(r);
        if (config_.icrc && !a.is_authentic && !verify(p, data, bytes)) return reject(wire::DecodeResult::BadIcrc);
        Arrival whole = a;
        whole.trimmed = 0;
        dispatch(now, whole, p);
    }

    void on_timeout(uint64_t now) noexcept {
        for (uint32_t k = 0; k < num_active_; ++k) {
            const uint32_t i = active_[k];
            if (deadlines_[i] > now) continue;
            Connection& c = *connections_[i].connection;
            const bool was_open = c.is_open();
            const int64_t inflight = c.sender().inflight_bytes();
            c.on_timeout(now);
            note_room(i, inflight);
            if (was_open && !c.is_open()) on_failed(now, i);
            touch(now, i);
        }
        wake_where_room_is(now);
    }

    // ---- output ------------------------------------------------------------------------------------------------------

    /// When to call on_timeout or poll_transmit again if nothing else happens.
    uint64_t poll_timeout(uint64_t now) const noexcept {
        uint64_t t = pacer_.next_ns();
        for (uint32_t k = 0; k < num_active_; ++k)
            if (deadlines_[active_[k]] < t) t = deadlines_[active_[k]];
        if (next_port_update_ns_ < t) t = next_port_update_ns_;
        return t < now ? now : t;
    }

    /// Next burst to send. False when nothing may leave now.
    bool poll_transmit(uint64_t now, TxBurst& b) noexcept {
        pacer_.begin();
        if (poll_endpoint_operations(now, b)) return true;
        uint32_t i;
        for (uint32_t n = ready_.size(); n; --n) {
            if (!ready_.pop(i)) break;
            Slot& s = connections_[i];
            s.queued = false;
            if (!s.connection) continue;
            if (transmit(now, i, b)) {
                enqueue(i);
                return true;
            }
            deadlines_[i] = s.connection->next_timeout_ns();
        }
        return false;
    }

    /// Next control packet of one connection, out of turn. False when there is none.
    bool poll_control(uint64_t now, uint32_t i, TxBurst& b) noexcept {
        Connection* c = connection(i);
        return c && transmit_control(now, i, *c, b);
    }

    /// Something an application may wait for has changed since the last call.
    bool take_progress() noexcept {
        const bool p = progress_;
        progress_ = false;
        return p;
    }

private:
    static constexpr uint32_t kMaxConnections = 1u << 12;  // leaves 12 bits of a queue pair number to chance
    static constexpr uint32_t kFusedCopyMin_bytes = 512;  // below, the look-up costs more than a second pass
    static constexpr uint8_t kOverflowPenalty = 32;  // of 128: a quarter of what is newly delivered, per SACK
    static constexpr uint64_t kOverflowPenalty_ns = 2'000'000;
    static constexpr uint64_t kPortUpdateRetry_ns = 5'000'000;
    static constexpr uint32_t kPortUpdateDoublings = 6;  // a third of a second at most: a peer that starts late still hears

    struct Slot {
        std::unique_ptr<Connection> connection;
        Destination* destination = nullptr;
        uint32_t qpn = 0, start_psn = 0;
        bool used = false, queued = false;
        bool has_farewell = false;  // the peer ended the connection before it was opened here
        uint8_t farewell_code = 0;
    };
    // Checks the iCRC. In the usual case, the next packet of a long message, the payload is copied to its place in the same
    // pass over it, which saves reading it twice.
    bool verify(wire::Packet& p, const uint8_t* data, size_t bytes) noexcept {
        uint8_t* target = nullptr;
        if (p.payload_bytes >= kFusedCopyMin_bytes) {
            const Slot* s = slot_of(p.bth.dest_qpn);
            if (s && s->connection->is_open()) target = s->connection->receiver().landing(p, regions_);
        }
        if (!target) return wire::icrc_matches(wire::icrc_seed_plain(), data, bytes);
        uint32_t crc = wire::icrc_begin(wire::icrc_seed_plain(), data, p.header_bytes);
        crc = crc32_copy(crc, target, p.payload, p.payload_bytes);
        if (wire::icrc_end(crc, p.payload + p.payload_bytes, p.bth.pad_bytes) != p.icrc) return false;
        p.payload = target;
        return true;
    }
    // Networks use the code points of trimmed packets for other things too (16 is CS2, 12 is AF12). What has a whole iCRC
    // was not trimmed, whatever it is marked as.
    bool is_whole(const uint8_t* data, size_t bytes) noexcept {
        return config_.icrc && wire::decode(data, bytes, rx_packet_) == wire::DecodeResult::Ok &&
               wire::icrc_matches(wire::icrc_seed_plain(), data, bytes);
    }
    void reject(wire::DecodeResult r) noexcept { ++counters_.rejected[static_cast<size_t>(r)]; }
    void enqueue(uint32_t i) noexcept {
        if (connections_[i].queued) return;
        connections_[i].queued = true;
        ready_.push(i);
    }
    // Called after anything that may have given connection `i` something to send or another deadline.
    void touch(uint64_t now, uint32_t i) noexcept {
        Connection* c = connections_[i].connection.get();
        if (!c) return;
        deadlines_[i] = c->next_timeout_ns();
        if (c->has_control(now) || (c->is_open() && c->sender().has_data())) enqueue(i);
    }
    // The window is shared: what leaves the flight of one connection may be another's to use.
    void note_room(uint32_t i, int64_t inflight_before) noexcept {
        const Slot& s = connections_[i];
        if (s.destination->connections == 1 || s.connection->sender().inflight_bytes() >= inflight_before) return;
        s.destination->has_room = has_room_ = true;
    }
    void wake_where_room_is(uint64_t now) noexcept {
        if (!has_room_) return;
        has_room_ = false;
        for (uint32_t k = 0; k < num_active_; ++k)
            if (connections_[active_[k]].destination->has_room) touch(now, active_[k]);
        for (Destination& d : destinations_) d.has_room = false;
    }
    void wake_destination(uint64_t now, const Destination* d) noexcept {
        for (uint32_t k = 0; k < num_active_; ++k)
            if (connections_[active_[k]].destination == d) touch(now, active_[k]);
    }
    void drop_messages(Connection& c) noexcept {
        c.drop_messages([this](uint32_t key) { regions_.unpin(key); });
        progress_ = true;
    }
    void on_failed(uint64_t now, uint32_t i) noexcept {
        drop_messages(*connections_[i].connection);
        wake_destination(now, connections_[i].destination);
    }

    Slot* slot_of(uint32_t qpn) noexcept {
        const uint32_t i = qpn & slot_mask_;
        if (i >= config_.max_connections || !connections_[i].connection || connections_[i].qpn != qpn) return nullptr;
        return &connections_[i];
    }

    void dispatch(uint64_t now, const Arrival& a, const wire::Packet& p) noexcept {
        using wire::Opcode;
        if (p.bth.opcode == Opcode::EndpointRequest || p.bth.opcode == Opcode::EndpointResponse)
            return on_endpoint_operation(now, p);
        Slot* s = slot_of(p.bth.dest_qpn);
        if (!s) {
            if (!keep_farewell(p)) ++counters_.unknown_qpn;
            return;
        }
        const uint32_t i = static_cast<uint32_t>(s - connections_.get());
        Connection& c = *s->connection;
        const bool was_open = c.is_open();
        const uint64_t raised = c.receiver().immediates_raised();
        if (a.trimmed) c.on_trimmed(p, a);
        else if (wire::is_data(p.bth.opcode)) c.on_data(now, p, a, regions_);
        else if (p.bth.opcode == Opcode::Sack) on_sack(now, *s, p);
        else if (p.bth.opcode == Opcode::Ack) on_ack(now, c, p);
        else if (p.bth.opcode == Opcode::Nack) on_nack(now, *s, p);
        else c.on_probe(now, p, a);
        if (c.receiver().immediates_raised() != raised) progress_ = true;
        if (was_open && !c.is_open()) on_failed(now, i);
        touch(now, i);
    }
    // A peer that opens its end, changes its mind and leaves is never heard of again. It has received nothing, so it names
    // the PSN we will begin with, which only it knows.
    bool keep_farewell(const wire::Packet& p) noexcept {
        const uint32_t i = p.bth.dest_qpn & slot_mask_;
        if (!is_reserved(i) || connections_[i].qpn != p.bth.dest_qpn) return false;
        Slot& s = connections_[i];
        const bool ends = p.bth.opcode == wire::Opcode::Nack && p.neth.reason == wire::NackReason::UnexpectedEvent;
        if (!ends || p.neth.nack_psn != s.start_psn) return false;
        s.has_farewell = true;
        s.farewell_code = p.neth.vendor;
        return true;
    }
    static wire::Packet farewell(const Slot& s) noexcept {
        wire::Packet p;
        p.neth.reason = wire::NackReason::UnexpectedEvent;
        p.neth.vendor = s.farewell_code;
        p.neth.nack_psn = s.start_psn;
        return p;
    }
    void on_sack(uint64_t now, Slot& s, const wire::Packet& p) noexcept {
        s.connection->on_sack(now, p);
        complete(*s.connection);
        // The window is shared: what one connection's SACK opens may be another's to use.
        if (s.destination->connections > 1) wake_destination(now, s.destination);
    }
    void on_nack(uint64_t now, Slot& s, const wire::Packet& p) noexcept {
        const int64_t inflight = s.connection->sender().inflight_bytes();
        s.connection->on_nack(now, p);
        note_room(static_cast<uint32_t>(&s - connections_.get()), inflight);
        wake_where_room_is(now);
    }
    void on_ack(uint64_t now, Connection& c, const wire::Packet& p) noexcept {
        c.on_ack(now, p.aeth.msn);
        complete(c);
    }
    void complete(Connection& c) noexcept {
        if (c.complete_messages([this](uint32_t key) { regions_.unpin(key); })) progress_ = true;
    }

    // ---- endpoint operations -------------------------------------------------------------------------------------------
    void on_endpoint_operation(uint64_t now, const wire::Packet& p) noexcept {
        const bool request = p.bth.opcode == wire::Opcode::EndpointRequest;
        const uint32_t context = request ? p.erth.context : p.eeth.context;
        Slot* s = slot_of(context & wire::kQpnMask);
        if (!s || !port_proof::is_proof(s->connection->config(), context, request ? p.erth.vendor : p.eeth.vendor, p.bth.psn)) {
            ++counters_.unknown_qpn;
            return;
        }
        Destination& d = *s->destination;
        const uint16_t id = static_cast<uint16_t>(p.bth.psn);
        if (!request) {
            if (id == d.port_update_id) d.port_update_deadline_ns = kNever;
            return;
        }
        // One that was overtaken by a newer one only gets its answer.
        if (p.erth.op == wire::EndpointOp::PortStatusUpdate &&
            (!d.heard_of_ports || static_cast<int16_t>(id - d.remote_update_id) > 0)) {
            ++counters_.port_updates;
            d.heard_of_ports = true;
            d.remote_update_id = id;
            d.remote_ports = p.erth.port_status_mask;
            refresh_planes(now);
        }
        d.owes_port_answer = true;
        d.port_answer_id = id;
        d.port_answer_timestamp = p.erth.timestamp;
        d.port_answer_op = p.erth.op;
        ++endpoint_work_;
    }
    void request_port_update(Destination& d) noexcept {
        d.owes_port_update = true;
        d.port_update_id = port_update_id_;
        d.port_update_tries = 0;
        ++endpoint_work_;
    }
    void refresh_planes(uint64_t now) noexcept {
        for (uint32_t k = 0; k < num_active_; ++k) {
            Slot& s = connections_[active_[k]];
            const uint64_t planes = s.connection->planes_of_ports(local_ports_, s.destination->remote_ports);
            if (planes == 0) {
                s.connection->fail(ConnectionError::NoPort);
                on_failed(now, active_[k]);
            } else {
                s.connection->set_usable_planes(now, planes);
            }
            touch(now, active_[k]);
        }
    }
    // Endpoint operations take the paths and the context of a connection that is open.
    bool choose_sample(Destination& d) noexcept {
        const Slot& current = connections_[d.sample_connection];
        if (current.destination == &d && current.connection && current.connection->is_open()) return true;
        for (uint32_t k = 0; k < num_active_; ++k) {
            const Slot& s = connections_[active_[k]];
            if (s.destination != &d || !s.connection->is_open()) continue;
            d.sample_connection = active_[k];
            return true;
        }
        return false;
    }
    bool poll_endpoint_operations(uint64_t now, TxBurst& b) noexcept {
        if (!endpoint_work_ && now < next_port_update_ns_) return false;
        for (Destination& d : destinations_) {
            if (d.port_update_deadline_ns <= now) d.owes_port_update = true;
            if (!endpoint_work_ && !d.owes_port_update) continue;
            if (!d.connections || !(d.owes_port_update || d.owes_port_answer)) continue;
            if (!choose_sample(d)) {  // nobody is left to tell
                d.owes_port_update = d.owes_port_answer = false;
                d.port_update_deadline_ns = kNever;
                continue;
            }
            Connection& c = *connections_[d.sample_connection].connection;
            wire::Packet& p = tx_packet_;
            p.bth = {};
            p.bth.dest_qpn = wire::kEndpointQpn;
            if (d.owes_port_answer) {
                d.owes_port_answer = false;
                p.bth.opcode = wire::Opcode::EndpointResponse;
                p.bth.psn = port_proof::psn_of(c.config(), d.port_answer_id);
                p.eeth = {};
                p.eeth.op = d.port_answer_op;
                p.eeth.timestamp = d.port_answer_timestamp;
                p.eeth.vendor = port_proof::vendor_of(c.config());
                p.eeth.context = port_proof::context_of(c.config());
            } else {
                d.owes_port_update = false;
                const uint32_t doublings = d.port_update_tries < kPortUpdateDoublings ? d.port_update_tries : kPortUpdateDoublings;
                const uint64_t rtt = c.sender().first_rtt_ns();
                d.port_update_deadline_ns = now + ((kPortUpdateRetry_ns + rtt + rtt / 2) << doublings);
                ++d.port_update_tries;
                if (d.port_update_deadline_ns < next_port_update_ns_) next_port_update_ns_ = d.port_update_deadline_ns;
                p.bth.opcode = wire::Opcode::EndpointRequest;
                p.bth.psn = port_proof::psn_of(c.config(), d.port_update_id);
                p.erth = {};
                p.erth.op = wire::EndpointOp::PortStatusUpdate;
                p.erth.port_status_mask = static_cast<uint32_t>(local_ports_);
                p.erth.timestamp = timestamp_of(now);
                p.erth.vendor = port_proof::vendor_of(c.config());
                p.erth.context = port_proof::context_of(c.config());
            }
            const EvIndex ev = c.control_ev(now);
            if (ev == kNoEv) continue;
            packer_.pack_control(d.sample_connection, c, p, ev, b);
            account(b);
            return true;
        }
        endpoint_work_ = 0;
        next_port_update_ns_ = kNever;
        for (const Destination& d : destinations_)
            if (d.port_update_deadline_ns < next_port_update_ns_) next_port_update_ns_ = d.port_update_deadline_ns;
        return false;
    }

    // ---- transmission ----------------------------------------------------------------------------------------------------

    bool transmit(uint64_t now, uint32_t i, TxBurst& b) noexcept {
        Slot& s = connections_[i];
        Connection& c = *s.connection;
        if (transmit_control(now, i, c, b)) return true;
        if (!c.is_open() || !c.sender().has_data()) return false;
        return transmit_data(now, i, s, b);
    }

    bool transmit_control(uint64_t now, uint32_t i, Connection& c, TxBurst& b) noexcept {
        if (!c.has_control(now)) return false;
        EvIndex ev = kNoEv;
        wire::Packet& p = tx_packet_;
        p.bth = {};
        if (!c.poll_control(now, p, ev)) return false;
        p.bth.dest_qpn = c.config().peer_qpn;
        packer_.pack_control(i, c, p, ev, b);
        account(b);
        return true;
    }

    bool transmit_data(uint64_t now, uint32_t i, Slot& s, TxBurst& b) noexcept {
        Connection& c = *s.connection;
        Destination& d = *s.destination;
        const double rate = pacer_.rate(d, c);
        const uint64_t planes = pacer_.may_send(now, d, rate) ? pacer_.free_planes(now, c) : 0;
        uint64_t psns[kMaxBurst_packets];
        EvIndex ev = kNoEv;
        uint32_t n = 0;
        if (planes) {
            const uint32_t limit = pacer_.burst_limit(rate, c.config().burst_packets, c.config().mtu_bytes);
            n = c.sender().poll_burst(now, planes, limit, ev, psns);
        }
        if (n == 0) {
            // Held back by the pace, or by paths of ports that are held back: looked at again when those are free.
            if (pacer_.next_ns() != kNever && !(planes && c.sender().is_window_limited())) enqueue(i);
            return false;
        }
        packer_.pack_data(i, c, ev, psns, n, b);
        account(b);
        pacer_.charge(now, d, rate, b);
        return true;
    }
    void account(const TxBurst& b) noexcept {
        ++counters_.tx_bursts;
        counters_.tx_packets += b.count;
        uint64_t bytes = 0;
        for (uint32_t k = 0; k < b.count; ++k) bytes += b.segments[k].bytes();
        counters_.tx_bytes += bytes;
        counters_.port_tx_bytes[b.local_port % kMaxPorts] += bytes;
    }

    EndpointConfig config_;
    RegionTable regions_;
    CounterRng rng_;
    std::unique_ptr<Slot[]> connections_;
    std::unique_ptr<uint64_t[]> deadlines_;
    std::unique_ptr<uint32_t[]> active_;
    uint32_t num_active_ = 0;
    ReadyRing ready_;
    DestinationTable destinations_;
    Pacer pacer_;
    BurstPacker packer_;
    uint64_t local_ports_ = 0;
    uint16_t port_update_id_ = 0;  // of all destinations: grows with every change, so that the newest can be told
    uint32_t endpoint_work_ = 0;
    uint64_t next_port_update_ns_ = kNever;  // never later than the earliest deadline of a destination
    uint32_t slot_mask_;  // slot part of a queue pair number; the rest is random
    bool has_room_ = false, progress_ = false;
    wire::Packet rx_packet_, tx_packet_;
    EndpointCounters counters_;
};

}  // namespace farstep
