// What the sender of a selectively repeating transport remembers of every packet that is under way.
#pragma once

#include <cassert>
#include <cstdint>

#include "farstep/storage.hpp"

namespace farstep::sim {

class Scoreboard {
public:
    enum State : uint8_t { kFree, kInFlight, kLost, kAcked };
    struct Record {
        uint64_t sent_ns = 0;
        uint16_t path = 0;
        uint8_t transmissions = 0;
        State state = kFree;
    };

    /// `span`, a power of two: packets between the oldest without an answer and the newest, at most.
    Scoreboard(uint32_t span, Arena* arena) : records_(span, arena), mask_(span - 1) { assert((span & mask_) == 0); }

    uint32_t una() const noexcept { return una_; }    // the oldest that is not acknowledged
    uint32_t next() const noexcept { return next_; }  // the first that was never sent
    uint32_t num_lost() const noexcept { return num_lost_; }
    uint32_t num_in_flight() const noexcept { return num_in_flight_; }
    bool has_room() const noexcept { return next_ - una_ <= mask_; }
    bool is_known(uint32_t sequence) const noexcept { return sequence >= una_ && sequence < next_; }
    const Record& record(uint32_t sequence) const noexcept { return records_[sequence & mask_]; }

    /// The oldest lost packet; there must be one.
    uint32_t oldest_lost() noexcept {
        assert(num_lost_);
        if (lost_cursor_ < una_) lost_cursor_ = una_;
        while (records_[lost_cursor_ & mask_].state != kLost) ++lost_cursor_;
        assert(lost_cursor_ < next_);
        return lost_cursor_;
    }

    void send(uint64_t now, uint32_t sequence, uint16_t path) noexcept {
        Record& r = records_[sequence & mask_];
        if (sequence == next_) {
            assert(has_room());
            ++next_;
            r.transmissions = 0;
        } else {
            assert(is_known(sequence) && r.state == kLost);
            --num_lost_;
        }
        r.sent_ns = now;
        r.path = path;
        r.state = kInFlight;
        if (r.transmissions < 255) ++r.transmissions;
        ++num_in_flight_;
    }

    /// Calls f(sequence, record, was_lost) for a packet whose arrival is news.
    template <class F>
    void acknowledge(uint32_t sequence, F&& f) noexcept {
        if (!is_known(sequence)) return;
        Record& r = records_[sequence & mask_];
        if (r.state == kAcked) return;
        const bool was_lost = r.state == kLost;
        if (was_lost) --num_lost_;
        else --num_in_flight_;
        r.state = kAcked;
        f(sequence, static_cast<const Record&>(r), was_lost);
    }
    template <class F>
    void acknowledge_below(uint32_t cumulative, F&& f) noexcept {
        if (cumulative > next_) cumulative = next_;
        for (uint32_t s = una_; s < cumulative; ++s) acknowledge(s, f);
        advance();
    }
    template <class F>
    void acknowledge_bitmap(uint32_t base, uint64_t bitmap, F&& f) noexcept {
        for (; bitmap; bitmap &= bitmap - 1) acknowledge(base + static_cast<uint32_t>(__builtin_ctzll(bitmap)), f);
        advance();
    }

    /// False when it was not in flight.
    bool lose(uint32_t sequence) noexcept {
        if (!is_known(sequence)) return false;
        Record& r = records_[sequence & mask_];
        if (r.state != kInFlight) return false;
        r.state = kLost;
        --num_in_flight_;
        ++num_lost_;
        if (sequence < lost_cursor_) lost_cursor_ = sequence;
        return true;
    }

    /// Calls f(sequence, record) for every packet in flight, oldest number first.
    template <class F>
    void for_each_in_flight(F&& f) noexcept {
        for (uint32_t s = una_; s < next_; ++s)
            if (records_[s & mask_].state == kInFlight) f(s, static_cast<const Record&>(records_[s & mask_]));
    }
    /// When the packet sent longest ago left; UINT64_MAX with nothing in flight.
    uint64_t oldest_sent_ns() const noexcept {
        uint64_t oldest = UINT64_MAX;
        for (uint32_t s = una_; s < next_; ++s) {
            const Record& r = records_[s & mask_];
            if (r.state == kInFlight && r.sent_ns < oldest) oldest = r.sent_ns;
        }
        return oldest;
    }

private:
    void advance() noexcept {
        while (una_ < next_ && records_[una_ & mask_].state == kAcked) ++una_;
    }

    Table<Record> records_;
    uint32_t mask_;
    uint32_t una_ = 0, next_ = 0, lost_cursor_ = 0, num_lost_ = 0, num_in_flight_ = 0;
};

/// The timer of a scoreboard. It is set for the packet that was oldest when it was set, and looks again when it fires.
class LazyTimer {
public:
    uint64_t at_ns() const noexcept { return at_ns_; }
    void on_send(uint64_t now, uint64_t wait_ns) noexcept {
        if (at_ns_ == UINT64_MAX) at_ns_ = now + wait_ns;
    }
    void stop() noexcept { at_ns_ = UINT64_MAX; }
    void set(uint64_t at_ns) noexcept { at_ns_ = at_ns; }

private:
    uint64_t at_ns_ = UINT64_MAX;
};

}  // namespace farstep::sim
