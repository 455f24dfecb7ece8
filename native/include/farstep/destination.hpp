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
    static constexpr uint32_t kCapacity = 1024;  // peers of one endpoint with a live connection

    DestinationTable() : storage_(new Storage) {}

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
            assert(size_ < kCapacity);
            spare = begin() + size_++;
        }
        new (spare) Destination(cc);
        spare->peer_id = peer_id;
        return joined(*spare);
    }
    /// A connection left; true if others remain.
    bool leave(Destination& d) noexcept {
        if (--d.connections) return true;
        d.port_update_deadline_ns = kNever;
        d.owes_port_update = d.owes_port_answer = false;
        return false;
    }
    Destination* begin() noexcept { return reinterpret_cast<Destination*>(storage_->bytes); }
    Destination* end() noexcept { return begin() + size_; }
    const Destination* begin() const noexcept { return reinterpret_cast<const Destination*>(storage_->bytes); }
    const Destination* end() const noexcept { return begin() + size_; }

private:
    struct Storage {
        alignas(Destination) uint8_t bytes[sizeof(Destination) * kCapacity];
    };
    static Destination& joined(Destination& d) noexcept {
        ++d.connections;
        return d;
    }
    std::unique_ptr<Storage> storage_;
    uint32_t size_ = 0;
};

}  // namespace farstep
