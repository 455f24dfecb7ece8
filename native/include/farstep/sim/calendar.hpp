// What happens at which slot: entries of 64 bits, appended to a slot and drained in the order they were appended.
//
// Near slots have a bucket each; what lies further ahead waits in coarse buckets of a whole turn, and beyond those in a
// heap. A bucket is a chain of chunks, and a chunk that was drained is the next one handed out, so the memory in use is
// that of the entries there are.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdint>
#include <memory>
#include <vector>

#include "farstep/sim/slot_clock.hpp"

namespace farstep::sim {

/// `ChunkEntries`: what one chunk holds. Every slot with entries has at least one.
template <size_t ChunkEntries>
class CalendarOf {
public:
    CalendarOf() : near_(new Bucket[kNear]()), far_(new Bucket[kFar]()) {}
    CalendarOf(const CalendarOf&) = delete;

    /// `slot` lies after the one drained last.
    [[gnu::always_inline]] void append(Slot slot, uint64_t entry) {
        assert(slot >= now_);
        ++size_;
        if (slot - now_ < kNear) [[likely]] {
            Bucket& b = near_[slot & (kNear - 1)];
            if (b.write == b.end) grow(b, near_bits_, slot & (kNear - 1));
            *b.write++ = entry;
            return;
        }
        append_far(slot, entry);
    }

    /// Calls f(entry) for every entry of `slot`, after which time is `slot + 1`. Entries may be appended meanwhile,
    /// to later slots.
    template <class F>
    void drain(Slot slot, F&& f) {
        drain_runs(slot, [&](const uint64_t* entries, size_t count) {
            for (size_t i = 0; i < count; ++i) f(entries[i]);
        });
    }
    /// The same in runs: f(entries, count).
    template <class F>
    void drain_runs(Slot slot, F&& f) {
        advance(slot);
        const size_t index = slot & (kNear - 1);
        Bucket b = near_[index];
        near_[index] = Bucket{};
        clear_bit(near_bits_, index);
        now_ = slot + 1;
        if (is_turn(now_)) turn();  // only now: the last slot of the new turn has the bucket just emptied
        for (Chunk* c = b.first; c;) {
            uint64_t* const end = c->next ? c->entries + kChunkEntries : b.write;
            f(static_cast<const uint64_t*>(c->entries), static_cast<size_t>(end - c->entries));
            size_ -= static_cast<uint64_t>(end - c->entries);
            Chunk* const next = c->next;
            c->next = free_;
            free_ = c;
            c = next;
        }
    }

    /// The first slot from now on that may have entries: of what lies further ahead only the turn is known. Time does not
    /// pass here, as something else may happen before. kNoSlot when there are none at all.
    Slot next() const noexcept {
        if (size_ == 0) return kNoSlot;
        const Slot near = next_near();
        if (near < (now_ / kNear + 1) * kNear) return near;
        return std::min(near, next_far_turn());
    }
    uint64_t size() const noexcept { return size_; }
    /// The first slot that was not drained: nothing can be appended before it.
    Slot now() const noexcept { return now_; }

private:
    static constexpr size_t kNear = 1024, kFar = 4096;  // slots; turns of that many slots
    static constexpr size_t kChunkEntries = ChunkEntries;
    struct Chunk {
        Chunk* next;
        uint64_t entries[kChunkEntries];
    };
    struct Bucket {
        uint64_t *write = nullptr, *end = nullptr;
        Chunk *first = nullptr, *last = nullptr;
    };
    struct Later {
        Slot slot;
        uint64_t sequence, entry;
        bool operator<(const Later& o) const noexcept { return slot != o.slot ? slot > o.slot : sequence > o.sequence; }
    };

    static bool is_turn(Slot s) noexcept { return (s & (kNear - 1)) == 0; }
    static void set_bit(uint64_t* bits, size_t i) noexcept { bits[i >> 6] |= 1ull << (i & 63); }
    static void clear_bit(uint64_t* bits, size_t i) noexcept { bits[i >> 6] &= ~(1ull << (i & 63)); }
    // First set bit at or after `from`, cyclically; SIZE_MAX if none.
    static size_t find(const uint64_t* bits, size_t words, size_t from) noexcept {
        size_t w = from >> 6;
        uint64_t word = bits[w] & (~0ull << (from & 63));
        for (size_t n = 0; n <= words; ++n) {
            if (word) return (w << 6) + static_cast<size_t>(std::countr_zero(word));
            w = w + 1 == words ? 0 : w + 1;
            word = bits[w];
        }
        return SIZE_MAX;
    }

    [[gnu::noinline]] void grow(Bucket& b, uint64_t* bits, size_t index) {
        Chunk* c = free_;
        if (c) free_ = c->next;
        else {
            chunks_.push_back(std::make_unique<Chunk>());
            c = chunks_.back().get();
        }
        c->next = nullptr;
        if (b.last) b.last->next = c;
        else {
            b.first = c;
            set_bit(bits, index);
        }
        b.last = c;
        b.write = c->entries;
        b.end = c->entries + kChunkEntries;
    }
    void put(Bucket& b, uint64_t* bits, size_t index, uint64_t entry) {
        if (b.write == b.end) grow(b, bits, index);
        *b.write++ = entry;
    }
    [[gnu::noinline]] void append_far(Slot slot, uint64_t entry) {
        const Slot turn = slot / kNear;
        if (turn - now_ / kNear < kFar) {
            const size_t index = turn & (kFar - 1);
            put(far_[index], far_bits_, index, slot);
            put(far_[index], far_bits_, index, entry);
            return;
        }
        later_.push_back({slot, sequence_++, entry});
        std::push_heap(later_.begin(), later_.end());
    }

    // Time passes up to `slot`, over slots without entries.
    void advance(Slot slot) {
        while (now_ < slot) {
            const Slot turn_at = (now_ / kNear + 1) * kNear;
            if (slot < turn_at) {
                now_ = slot;
                return;
            }
            now_ = turn_at;
            turn();
        }
    }
    // A new turn begins at now_: what waited for it gets its slots.
    void turn() {
        const size_t index = (now_ / kNear) & (kFar - 1);
        Bucket b = far_[index];
        if (b.first) {
            far_[index] = Bucket{};
            clear_bit(far_bits_, index);
            Slot slot = 0;
            bool is_slot = true;
            for (Chunk* c = b.first; c;) {
                uint64_t* const end = c->next ? c->entries + kChunkEntries : b.write;
                for (uint64_t* e = c->entries; e != end; ++e, is_slot = !is_slot) {
                    if (is_slot) slot = *e;
                    else put(near_[slot & (kNear - 1)], near_bits_, slot & (kNear - 1), *e);
                }
                Chunk* const next = c->next;
                c->next = free_;
                free_ = c;
                c = next;
            }
        }
        while (!later_.empty() && later_.front().slot / kNear <= now_ / kNear) {
            const Later l = later_.front();
            std::pop_heap(later_.begin(), later_.end());
            later_.pop_back();
            put(near_[l.slot & (kNear - 1)], near_bits_, l.slot & (kNear - 1), l.entry);
        }
    }

    Slot next_near() const noexcept {
        const size_t from = now_ & (kNear - 1), found = find(near_bits_, kNear / 64, from);
        return found == SIZE_MAX ? kNoSlot : now_ + ((found - from) & (kNear - 1));
    }
    // Start of the first turn after the present one for which anything waits.
    Slot next_far_turn() const noexcept {
        Slot best = kNoSlot;
        const Slot present = now_ / kNear;
        const size_t from = (present + 1) & (kFar - 1), found = find(far_bits_, kFar / 64, from);
        if (found != SIZE_MAX) best = (present + 1 + ((found - from) & (kFar - 1))) * kNear;
        if (!later_.empty()) best = std::min(best, later_.front().slot / kNear * kNear);
        return best;
    }

    std::unique_ptr<Bucket[]> near_, far_;
    uint64_t near_bits_[kNear / 64] = {}, far_bits_[kFar / 64] = {};
    std::vector<Later> later_;
    std::vector<std::unique_ptr<Chunk>> chunks_;
    Chunk* free_ = nullptr;
    Slot now_ = 0;
    uint64_t size_ = 0, sequence_ = 0;
};

using Calendar = CalendarOf<511>;
/// For slots that are many and have few entries each, as timers are.
using SparseCalendar = CalendarOf<31>;

}  // namespace farstep::sim
