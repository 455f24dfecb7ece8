// What all connections to one peer share, and the table of it.
#pragma once

#include <cassert>
#include <cstdint>
#include <memory>
#include <new>

#include "farstep/config.hpp"
#include "farstep/nscc.hpp"
#include "farstep/wire.hpp"

namespace farstep {

/// Shared by all connections to one peer: the congestion context, the peer's usable ports, the pace.
struct Destination {
    explicit Destination(const NsccConfig& c) : cc(c) {}
    Nscc cc;
    uint64_t peer_id = 0;
    uint64_t remote_ports = ~0ull;
    uint64_t pace_free_ns = 0;
    uint32_t connections = 0;
    uint32_t sample_connection = 0;  // some live connection: endpoint operations borrow its paths
    bool has_room = false;  // the window opened and the connections have not been looked at yet
    bool owes_port_update = false;
    uint64_t port_update_deadline_ns = kNever;
    uint16_t port_update_id = 0;
    uint32_t port_update_tries = 0;
    bool heard_of_ports = false;
    uint16_t remote_update_id = 0;  // the newest the peer told us of its ports
    bool owes_port_answer = false;
    uint16_t port_answer_id = 0, port_answer_timestamp = 0;
    wire::EndpointOp port_answer_op = wire::EndpointOp::PortStatusUpdate;
};

class DestinationTable {
public:
    /// Room for as many peers as there can be connections.
    explicit DestinationTable(uint32_t capacity) : capacity_(capacity), storage_(new Storage[capacity]) {}
    ~DestinationTable() {
        for (Destination& d : *this) d.~Destination();
    }
    DestinationTable(const DestinationTable&) = delete;

    /// The destination of a peer, made anew if no connection to it is left.
    Destination& join(uint64_t peer_id, const NsccConfig& cc) noexcept {
        Destination* spare = nullptr;
        for (Destination& d : *this) {
            if (d.connections && d.peer_id == peer_id) return joined(d);
            if (!d.connections) spare = &d;
        }
        if (spare) {
            spare->~Destination();
        } else {
            assert(size_ < capacity_);
            spare = begin() + size_++;
        }
        new (spare) Destination(cc);
        spare->peer_id = peer_id;
        return joined(*spare);
    }
    /// A connection left; true if others remain.
    bool leave(Destination& d) noexcept {
        --d.connections;
        d.cc.set_sharers(d.connections);
        if (d.connections) return true;
        d.port_update_deadline_ns = kNever;
        d.owes_port_update = d.owes_port_answer = false;
        return false;
    }
    Destination* begin() noexcept { return reinterpret_cast<Destination*>(storage_.get()); }
    Destination* end() noexcept { return begin() + size_; }
    const Destination* begin() const noexcept { return reinterpret_cast<const Destination*>(storage_.get()); }
    const Destination* end() const noexcept { return begin() + size_; }

private:
    struct Storage {
        alignas(Destination) uint8_t bytes[sizeof(Destination)];
    };
    static Destination& joined(Destination& d) noexcept {
        ++d.connections;
        d.cc.set_sharers(d.connections);
        return d;
    }
    uint32_t capacity_, size_ = 0;
    std::unique_ptr<Storage[]> storage_;
};

}  // namespace farstep
