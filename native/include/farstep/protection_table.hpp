// Which connections of an endpoint are protected, and the way of packets through that: bursts are sealed just before they
// are sent, datagrams opened just after they came. The protocol between the two sees plain packets and knows of no keys.
#pragma once

#include <cassert>
#include <cstdint>
#include <cstring>
#include <memory>

#include "farstep/connection.hpp"
#include "farstep/packet_protection.hpp"
#include "farstep/wire.hpp"

namespace farstep {

struct ProtectionCounters {
    uint64_t sealed = 0, opened = 0;
    uint64_t forged = 0;       // wrong key, changed on the way, or cut
    uint64_t replayed = 0;     // came before, or so late that nobody knows
    uint64_t unprotected = 0;  // plain packets to a connection that takes none
    uint64_t unknown = 0;      // protected, for a connection that is not, or is none, or has no keys yet
    uint64_t key_updates = 0;
};

class ProtectionTable {
public:
    explicit ProtectionTable(uint32_t max_connections)
        : mask_(round_up_power_of_two(max_connections) - 1), entries_(new Entry[mask_ + 1]) {}

    /// From now on connection `i`, whose number here is `qpn`, sends and takes nothing unprotected.
    void add(uint32_t i, uint32_t qpn, const ConnectionConfig& c, std::unique_ptr<PacketProtection> keys) {
        Entry& e = entries_[i];
        assert(!e.protection && (qpn & mask_) == i);
        e.protection = std::move(keys);
        e.qpn = qpn;
        ++num_protected_;
        const size_t most = size_t{c.burst_packets} * (c.mtu_bytes + kPadMost + kProtectionBytes);
        if (most > staging_bytes_) {
            staging_ = std::make_unique<uint8_t[]>(most);
            staging_bytes_ = most;
        }
    }
    void remove(uint32_t i) noexcept {
        Entry& e = entries_[i];
        if (e.protection) {
            counters_.key_updates += e.protection->key_updates();
            e.protection.reset();
            --num_protected_;
        }
        e.early_bytes = 0;
    }
    bool is_protected(uint32_t i) const noexcept { return entries_[i].protection != nullptr; }

    /// Turns packets to be sent into what goes out. False: they must not be.
    bool seal(TxBurst& b) noexcept {
        PacketProtection* const p = num_protected_ ? entries_[b.connection].protection.get() : nullptr;
        if (!p) return true;
        uint8_t* out = staging_.get();
        for (uint32_t k = 0; k < b.count; ++k) {
            TxBurst::Segment& s = b.segments[k];
            const size_t pad = s.trailer_bytes - wire::kIcrcBytes;
            const uint8_t* const parts[] = {s.payload, s.trailer};
            const size_t sizes[] = {s.payload_bytes, pad};
            const size_t body = s.payload_bytes + pad;
            assert(out + body + kProtectionBytes <= staging_.get() + staging_bytes_);
            if (!p->seal(s.header, s.header_bytes, parts, sizes, 2, body, out)) return false;
            s.payload = out;
            s.payload_bytes = static_cast<uint32_t>(body + kProtectionBytes);
            s.trailer_bytes = 0;
            out += s.payload_bytes;
        }
        counters_.sealed += b.count;
        return true;
    }

    /// Whether a datagram may reach the protocol. One that was protected is as if it had not been, but for its mark.
    bool admit(Arrival& a, uint8_t* data, size_t& bytes) noexcept {
        if (bytes < wire::kMinPacketBytes) return true;  // which says why it does not take it
        const bool is_sealed = (data[1] & 0x0F) == kProtectedVersion;
        if (!is_sealed && !num_protected_) return true;
        const auto op = static_cast<wire::Opcode>(data[0]);
        const bool is_operation = op == wire::Opcode::EndpointRequest || op == wire::Opcode::EndpointResponse;
        if (is_operation && bytes < kContextAt + 3) return true;
        const uint32_t qpn = wire::load_be24(data + (is_operation ? kContextAt : kDestinationAt));
        Entry& e = entries_[qpn & mask_];
        if (!e.protection || e.qpn != qpn) {
            if (!is_sealed) return true;
            ++counters_.unknown;
            keep_early(e, op, data, bytes);
            return false;
        }
        if (!is_sealed) {
            ++counters_.unprotected;
            return false;
        }
        const size_t header = wire::is_known(op) ? wire::header_bytes_of(op, data[8] & 0x10) : 0;
        if (header == 0 || bytes < header + kProtectionBytes) {
            ++counters_.forged;
            return false;
        }
        const Opened opened = e.protection->open(data, header, bytes);
        if (opened != Opened::Ok) {
            ++(opened == Opened::Replayed ? counters_.replayed : counters_.forged);
            return false;
        }
        ++counters_.opened;
        data[1] &= 0xF0;
        bytes -= kProtectionBytes - wire::kIcrcBytes;
        a.is_authentic = true;
        a.trimmed = 0;  // whole, whatever the network has marked it as
        return true;
    }
    /// What the peer said before connection `i` had its keys: that it is gone. False if nothing.
    bool take_early(uint32_t i, uint8_t*& data, size_t& bytes) noexcept {
        Entry& e = entries_[i];
        data = e.early;
        bytes = e.early_bytes;
        e.early_bytes = 0;
        return bytes > 0;
    }

    ProtectionCounters counters() const noexcept {
        ProtectionCounters c = counters_;
        for (uint32_t i = 0; i <= mask_; ++i)
            if (entries_[i].protection) c.key_updates += entries_[i].protection->key_updates();
        return c;
    }

private:
    static constexpr size_t kDestinationAt = 5, kContextAt = 21;  // 24 bits each, of BTH and of endpoint operations
    static constexpr size_t kPadMost = 3;
    static constexpr size_t kFarewellBytes = wire::kBthBytes + wire::kNethBytes + kProtectionBytes;

    struct Entry {
        std::unique_ptr<PacketProtection> protection;
        uint32_t qpn = 0;
        uint8_t early_bytes = 0;
        uint8_t early[kFarewellBytes];
    };
    // A peer that leaves before we know its key says so only now. One such packet is kept: whether it is genuine shows later.
    static void keep_early(Entry& e, wire::Opcode op, const uint8_t* data, size_t bytes) noexcept {
        if (e.protection || op != wire::Opcode::Nack || bytes != kFarewellBytes) return;
        std::memcpy(e.early, data, bytes);
        e.early_bytes = static_cast<uint8_t>(bytes);
    }

    uint32_t mask_, num_protected_ = 0;
    std::unique_ptr<Entry[]> entries_;
    std::unique_ptr<uint8_t[]> staging_;
    size_t staging_bytes_ = 0;
    ProtectionCounters counters_;
};

}  // namespace farstep
