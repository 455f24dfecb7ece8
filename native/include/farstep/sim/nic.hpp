// Who may send from each NIC: connections with data and window, served in turn.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "farstep/sim/slot_clock.hpp"
#include "farstep/sim/virtual_array.hpp"

namespace farstep::sim {

/// One NIC's ring of connections that may have a packet. Linked through the connections, so it costs two words a NIC.
struct NicRing {
    static constexpr uint32_t kEmpty = UINT32_MAX;
    uint32_t last = kEmpty;   // served last; its successor is next
    uint32_t ports_up = ~0u;  // as far as the NIC knows
    Tick since = 0;           // when it last became ready after having nothing to send
};

class NicRings {
public:
    NicRings(uint32_t num_nics, uint32_t num_connections)
        : rings_(num_nics), places_(num_connections), ready_((num_nics + 63) / 64) {
        for (NicRing& r : rings_) r = NicRing{};
        for (Place& p : places_) p = Place{};
    }
    void set_nic(uint32_t c, uint32_t nic) noexcept { places_[c].nic = nic; }

    /// Puts a connection behind the others of its NIC, unless it is there.
    void add(uint32_t c, Tick now) noexcept {
        if (places_[c].next != kOutside) return;
        const uint32_t nic = places_[c].nic;
        NicRing& r = rings_[nic];
        if (r.last == NicRing::kEmpty) {
            places_[c].next = c;
            r.since = now;
            set_ready(nic, true);
            ++num_ready_;
        } else {
            places_[c].next = places_[r.last].next;
            places_[r.last].next = c;
        }
        r.last = c;
    }
    uint32_t first(uint32_t nic) const noexcept { return places_[rings_[nic].last].next; }
    bool is_empty(uint32_t nic) const noexcept { return rings_[nic].last == NicRing::kEmpty; }
    /// The first one has had its turn.
    void turn(uint32_t nic) noexcept { rings_[nic].last = places_[rings_[nic].last].next; }
    /// The first one has nothing to send.
    void remove_first(uint32_t nic) noexcept {
        NicRing& r = rings_[nic];
        const uint32_t c = places_[r.last].next;
        if (c == r.last) {
            r.last = NicRing::kEmpty;
            set_ready(nic, false);
            --num_ready_;
        } else {
            places_[r.last].next = places_[c].next;
        }
        places_[c].next = kOutside;
    }
    NicRing& ring(uint32_t nic) noexcept { return rings_[nic]; }

    /// A NIC with something to send whose ports are all busy sleeps until one is free.
    void sleep(uint32_t nic) noexcept {
        set_ready(nic, false);
        --num_ready_;
    }
    void awake(uint32_t nic) noexcept {
        if (is_empty(nic) || is_ready(nic)) return;
        set_ready(nic, true);
        ++num_ready_;
    }
    uint32_t num_ready() const noexcept { return num_ready_; }
    uint64_t* words() noexcept { return ready_.data(); }
    size_t num_words() const noexcept { return ready_.size(); }
    bool is_ready(uint32_t nic) const noexcept { return ready_[nic >> 6] >> (nic & 63) & 1; }
    /// Appends the NICs of one word that may send, upward or downward.
    void list_ready(size_t w, bool forward, std::vector<uint32_t>& out) const {
        for (uint64_t word = ready_[w]; word;) {
            const int bit = forward ? std::countr_zero(word) : 63 - std::countl_zero(word);
            word &= ~(1ull << bit);
            out.push_back(static_cast<uint32_t>(w << 6) + static_cast<uint32_t>(bit));
        }
    }

private:
    static constexpr uint32_t kOutside = UINT32_MAX;
    struct Place {
        uint32_t next = kOutside;  // connection behind it in the ring
        uint32_t nic = 0;
    };
    void set_ready(uint32_t nic, bool on) noexcept {
        if (on) ready_[nic >> 6] |= 1ull << (nic & 63);
        else ready_[nic >> 6] &= ~(1ull << (nic & 63));
    }

    VirtualArray<NicRing> rings_;
    VirtualArray<Place> places_;  // by connection
    VirtualArray<uint64_t> ready_;
    uint32_t num_ready_ = 0;
};

}  // namespace farstep::sim
