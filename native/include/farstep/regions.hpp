// Registered memory: the only bytes the network may write.
//
// A key has 64 bits of which 48 are chosen at random. The lower half goes into RETH as the remote key: slot and generation.
// The upper half is the upper half of the region's first address, so whoever writes must know it too, and no pointer of this
// process ever leaves it. A region may be for the peer of one connection alone.
#pragma once

#include <cstdint>
#include <memory>

namespace farstep {

enum class RegionCheck : uint8_t { Ok, UnknownKey, OutOfBounds, ReadOnly };

class RegionTable {
public:
    static constexpr uint32_t kCapacity = 1u << 16;  // slot index is half of the 32-bit remote key

    explicit RegionTable(uint32_t capacity)
        : capacity_(capacity < kCapacity ? capacity : kCapacity), slots_(new Slot[capacity_]) {}

    static constexpr uint32_t kAnyPeer = 0, kNoPeer = UINT32_MAX;
    static constexpr uint64_t first_address(uint64_t key) noexcept { return key & ~uint64_t{UINT32_MAX}; }

    /// Returns the key, or 0 when every slot is taken. `secret` comes from the caller's random source. `only_qpn`: the
    /// connection, by the queue pair number of this end, whose peer alone may write.
    uint64_t add(uint8_t* base, uint64_t length_bytes, bool writable, uint64_t secret, uint32_t only_qpn = kAnyPeer) noexcept {
        for (uint32_t n = 0; n < capacity_; ++n) {
            const uint32_t i = (next_ + n) % capacity_;
            Slot& s = slots_[i];
            if (s.used) continue;
            s.base = base;
            s.length_bytes = length_bytes;
            s.writable = writable;
            s.used = true;
            s.revoked = false;
            s.only_qpn = only_qpn;
            s.generation = static_cast<uint16_t>(secret) ? static_cast<uint16_t>(secret) : uint16_t{1};  // a key is never 0
            s.first_address = first_address(secret);
            next_ = i + 1;
            return s.first_address | key(i, s.generation);
        }
        return 0;
    }
    /// Ends remote access at once. The slot is freed when no local send still reads from it; true when that is now.
    bool remove(uint32_t rkey) noexcept {
        Slot* s = find(rkey);
        if (!s) return true;
        s->revoked = true;
        return release_if_idle(*s);
    }
    /// A connection is gone: what was for its peer alone is for nobody, whoever gets its number next.
    void forget_peer(uint32_t qpn) noexcept {
        for (uint32_t i = 0; i < capacity_; ++i)
            if (slots_[i].used && slots_[i].only_qpn == qpn) slots_[i].only_qpn = kNoPeer;
    }
    bool is_busy(uint32_t rkey) const noexcept {
        const Slot* s = find(rkey);
        return s && s->sends > 0;
    }
    /// Checks one incoming packet of connection `qpn`, before anything is read or written through it.
    RegionCheck check(uint32_t qpn, uint32_t rkey, uint64_t address, uint64_t bytes, uint8_t*& out) const noexcept {
        const Slot* s = find(rkey);
        if (!s || s->revoked) return RegionCheck::UnknownKey;
        if (s->only_qpn != kAnyPeer && s->only_qpn != qpn) return RegionCheck::UnknownKey;
        if (!s->writable) return RegionCheck::ReadOnly;
        const uint64_t offset = address - s->first_address;  // of an address below it: larger than any length
        if (offset > s->length_bytes || bytes > s->length_bytes - offset) return RegionCheck::OutOfBounds;
        out = s->base + offset;
        return RegionCheck::Ok;
    }
    /// Source of a local send; the slot stays alive until unpin().
    const uint8_t* pin(uint32_t rkey, uint64_t offset, uint64_t bytes) noexcept {
        Slot* s = find(rkey);
        if (!s || s->revoked || offset > s->length_bytes || bytes > s->length_bytes - offset) return nullptr;
        ++s->sends;
        return s->base + offset;
    }
    void unpin(uint32_t rkey) noexcept {
        Slot* s = find(rkey);
        if (!s) return;
        --s->sends;
        if (s->revoked) release_if_idle(*s);
    }

private:
    struct Slot {
        uint8_t* base = nullptr;
        uint64_t length_bytes = 0;
        uint64_t sends = 0;
        uint64_t first_address = 0;
        uint32_t only_qpn = kAnyPeer;
        uint16_t generation = 0;
        bool writable = false, used = false, revoked = false;
    };
    static constexpr uint32_t key(uint32_t index, uint16_t generation) noexcept { return index << 16 | generation; }
    Slot* find(uint32_t rkey) const noexcept {
        const uint32_t i = rkey >> 16;
        if (i >= capacity_ || !slots_[i].used || slots_[i].generation != (rkey & 0xFFFF)) return nullptr;
        return &slots_[i];
    }
    static bool release_if_idle(Slot& s) noexcept {
        if (s.sends) return false;
        s.used = false;
        s.base = nullptr;
        return true;
    }

    uint32_t capacity_, next_ = 0;
    std::unique_ptr<Slot[]> slots_;
};

}  // namespace farstep
