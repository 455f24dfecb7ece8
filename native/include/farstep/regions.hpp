// Registered memory: the only bytes the network may write. A remote key names a slot and its generation, addresses are
// offsets from the start of the region, so no pointer of this process ever leaves it.
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

    /// Returns the remote key, or 0 when every slot is taken. `generation` comes from the caller's random source.
    uint32_t add(uint8_t* base, uint64_t length_bytes, bool writable, uint16_t generation) noexcept {
        for (uint32_t n = 0; n < capacity_; ++n) {
            const uint32_t i = (next_ + n) % capacity_;
            Slot& s = slots_[i];
            if (s.used) continue;
            s.base = base;
            s.length_bytes = length_bytes;
            s.writable = writable;
            s.used = true;
            s.revoked = false;
            s.generation = generation ? generation : 1;  // a key is never 0
            next_ = i + 1;
            return key(i, s.generation);
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
    bool is_busy(uint32_t rkey) const noexcept {
        const Slot* s = find(rkey);
        return s && s->sends > 0;
    }
    /// Range check of one incoming packet, before anything is read or written through it.
    RegionCheck check(uint32_t rkey, uint64_t offset, uint64_t bytes, uint8_t*& out) const noexcept {
        const Slot* s = find(rkey);
        if (!s || s->revoked) return RegionCheck::UnknownKey;
        if (!s->writable) return RegionCheck::ReadOnly;
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
