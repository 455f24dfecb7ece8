// One direction of one simulated connection, seen from outside: what was posted, which packet was placed when, and what
// must therefore hold. Nothing here looks into the core; it judges packets, memory and public counters.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "network.hpp"

namespace farstep::sim {

/// The memory of one endpoint and what it must hold. Gaps between slices are registered nowhere.
class Arena {
public:
    static constexpr size_t kGap_bytes = 96;

    Arena(size_t bytes, uint64_t seed) : memory_(bytes), shadow_(bytes) {
        CounterRng rng(seed);
        for (size_t i = 0; i + 8 <= bytes; i += 8) {
            const uint64_t v = rng.next();
            std::memcpy(&memory_[i], &v, 8);
        }
        shadow_ = memory_;
    }
    uint8_t* slice(size_t bytes) {
        used_ += kGap_bytes;
        uint8_t* at = memory_.data() + used_;
        used_ += bytes;
        SIM_CHECK(used_ + kGap_bytes <= memory_.size(), "the simulation's own arena is too small");
        return at;
    }
    size_t offset(const uint8_t* p) const { return static_cast<size_t>(p - memory_.data()); }
    bool intact(size_t from, size_t to) const {
        to = std::min(to, memory_.size());
        return from >= to || std::memcmp(&memory_[from], &shadow_[from], to - from) == 0;
    }
    bool intact() const { return memory_ == shadow_; }
    /// The application changes its own memory.
    template <class Fill>
    void fill(uint8_t* at, size_t bytes, Fill&& value) {
        uint8_t* copy = &shadow_[offset(at)];
        for (size_t i = 0; i < bytes; ++i) copy[i] = at[i] = static_cast<uint8_t>(value(i));
    }
    void restore(uint8_t* at, size_t bytes) { std::memcpy(at, &shadow_[offset(at)], bytes); }
    void invert(uint8_t* at, size_t bytes) {
        uint8_t* copy = &shadow_[offset(at)];
        for (size_t i = 0; i < bytes; ++i) copy[i] = at[i] = static_cast<uint8_t>(~at[i]);
    }

private:
    std::vector<uint8_t> memory_, shadow_;
    size_t used_ = 0;
};

struct PlannedMessage {
    uint32_t bytes = 0;
    bool has_immediate = false;
};

struct PostedMessage {
    uint32_t at = 0, bytes = 0;  // place in both slices
    bool has_immediate = false;
    uint32_t immediate = 0;
    uint64_t first_psn = 0;
    uint32_t packets = 0, placed = 0;
};

struct Flow {
    uint32_t id = 0, reverse = 0;
    uint32_t from = 0, to = 0;            // endpoints
    uint32_t from_slot = 0, to_slot = 0;  // connection indices there
    uint8_t *source = nullptr, *target = nullptr;
    uint32_t slice_bytes = 0, source_key = 0, target_key = 0;
    ConnectionConfig config;
    uint64_t start_psn = 0, next_psn = 0;  // next_psn: of the next message to be posted

    std::deque<PlannedMessage> plan;
    bool feeds = true;                // posts whatever fits at once; else by scheduled actions
    uint64_t consume_every_ns = 0;    // 0: immediates are taken at once
    bool consume_scheduled = false;
    std::vector<PostedMessage> messages;
    std::vector<uint32_t> immediate_messages;
    std::vector<bool> placed;
    std::vector<uint16_t> last_ev;
    std::vector<uint32_t> transmissions;
    uint64_t sent_psns = 0, completed = 0, popped = 0, done_checked = 0;
    uint64_t placed_bytes = 0, last_placed_ns = 0;
    uint32_t tail = 0;                // of the slices
    bool may_fail = false;            // an error of this connection is part of the plan
    bool failed = false, closed = false;  // at its sending end
    ConnectionError error = ConnectionError::None;
    uint64_t failed_ns = 0;
    bool has_port_pace = false;

    bool is_done() const { return plan.empty() && completed == messages.size() && popped == immediate_messages.size(); }
    uint32_t payload_of(const PostedMessage& m, uint64_t i) const {
        const uint64_t at = i * config.mtu_bytes;
        return static_cast<uint32_t>(std::min<uint64_t>(config.mtu_bytes, m.bytes - at));
    }
    const PostedMessage& message_of(uint64_t psn) const {
        size_t low = 0, high = messages.size();
        while (high - low > 1) {
            const size_t mid = (low + high) / 2;
            (messages[mid].first_psn <= psn ? low : high) = mid;
        }
        return messages[low];
    }
    PostedMessage& message_of(uint64_t psn) {
        return const_cast<PostedMessage&>(static_cast<const Flow*>(this)->message_of(psn));
    }
    /// Room for the next message in both slices; false while earlier ones still hold it.
    bool reserve(uint32_t bytes, uint32_t& at) const {
        if (completed == messages.size()) {
            at = 0;
            return bytes <= slice_bytes;
        }
        const uint32_t head = messages[completed].at;
        if (tail >= head) {
            at = tail;
            if (tail + uint64_t{bytes} <= slice_bytes) return true;
            at = 0;
            return bytes < head;
        }
        at = tail;
        return tail + uint64_t{bytes} < head;
    }
};

/// Packets as they leave: order, flags, window, source bytes, entropy value.
inline void check_burst(Flow& f, const TxBurst& b, const Connection& c, const Connection* peer) {
    const auto ev = static_cast<EvIndex>(b.ev_value);
    SIM_CHECK(ev < c.paths().size(), "flow %u: a burst on entropy value %u that was never added", f.id, b.ev_value);
    SIM_CHECK(c.paths().state(ev) == EvState::Good, "flow %u: data on an entropy value in state %u", f.id,
              static_cast<unsigned>(c.paths().state(ev)));
    SIM_CHECK(c.paths().plane_mask() >> c.paths().plane(ev) & 1, "flow %u: data on a plane that is out of use", f.id);
    SIM_CHECK(b.count >= 1 && b.count <= f.config.burst_packets, "flow %u: a burst of %u packets", f.id, b.count);
    for (uint32_t k = 0; k < b.count; ++k) {
        const TxBurst::Segment& s = b.segments[k];
        SIM_CHECK(k == 0 || s.bytes() == b.segments[0].bytes() || (k + 1 == b.count && s.bytes() < b.segments[0].bytes()),
                  "flow %u: segment sizes within a burst", f.id);
        const uint64_t psn = expand24(wire::load_be24(s.header + 9), c.sender().next_psn());
        SIM_CHECK(psn >= f.start_psn && psn < f.next_psn, "flow %u: PSN %llu outside what was posted", f.id,
                  static_cast<unsigned long long>(psn));
        const uint64_t i = psn - f.start_psn;
        SIM_CHECK(i <= f.sent_psns, "flow %u: first transmissions out of order", f.id);
        const bool again = i < f.sent_psns;
        SIM_CHECK(again == ((s.header[8] & 0x20) != 0), "flow %u: rtx bit of packet %llu", f.id,
                  static_cast<unsigned long long>(i));
        if (!again) {
            ++f.sent_psns;
            f.last_ev.push_back(kNoEv);
            f.transmissions.push_back(0);
        }
        // The retry budget bounds how often; what the receiver refused for lack of room is tried again without end.
        SIM_CHECK(++f.transmissions[i] < 250 + c.sender().counters().nacks, "flow %u: packet %llu sent 250 times", f.id,
                  static_cast<unsigned long long>(i));
        if (again && f.last_ev[i] == ev) {
            const uint8_t plane = c.paths().plane(ev);
            uint32_t others = c.paths().good_count(plane);
            if (!f.has_port_pace) others = c.paths().good_count();
            SIM_CHECK(others <= 1, "flow %u: packet %llu sent again on the entropy value that lost it, %u others are good",
                      f.id, static_cast<unsigned long long>(i), others);
        }
        f.last_ev[i] = ev;
        const PostedMessage& m = f.message_of(psn);
        const uint64_t n = psn - m.first_psn;
        SIM_CHECK(s.payload_bytes == f.payload_of(m, n), "flow %u: payload length", f.id);
        SIM_CHECK(s.payload_bytes == 0 || s.payload == f.source + m.at + n * f.config.mtu_bytes, "flow %u: payload pointer", f.id);
        if (peer && peer->is_open())
            SIM_CHECK(psn < peer->receiver().expected_psn() + f.config.peer_mpr * kMprUnit_packets,
                      "flow %u: PSN beyond the receive window", f.id);
    }
}

/// Memory of the receiving endpoint right after it was handed `d`: a write happened exactly where, when and as it may.
/// `accepted`: the receiver counts one more new packet. Returns the bytes placed.
inline uint32_t check_placement(Flow* f, Arena& arena, const Datagram& d, const wire::Packet& p, uint8_t* target,
                                bool accepted) {
    const size_t at = arena.offset(target);
    const bool changed = !arena.intact(at, at + p.payload_bytes);
    SIM_CHECK(arena.intact(at < 64 ? 0 : at - 64, at) && arena.intact(at + p.payload_bytes, at + p.payload_bytes + 64),
              "bytes beside the payload changed");
    SIM_CHECK(f || !(changed || accepted), "a forged packet was accepted or changed memory");
    if (!f) return 0;
    const uint64_t i = d.psn - f->start_psn;
    if (d.damaged) {
        SIM_CHECK(!accepted, "flow %u: a damaged packet was accepted", f->id);
        if (!changed) return 0;
        // A payload may land while its checksum is being computed, but only where nothing was placed yet.
        const PostedMessage& m = f->message_of(d.psn);
        SIM_CHECK(!f->placed[i] && target == f->target + m.at + (d.psn - m.first_psn) * f->config.mtu_bytes &&
                      p.payload_bytes <= f->payload_of(m, d.psn - m.first_psn),
                  "flow %u: damaged packet %llu changed memory that is not its own", f->id, static_cast<unsigned long long>(i));
        arena.restore(target, p.payload_bytes);
        return 0;
    }
    SIM_CHECK(!accepted || !f->placed[i], "flow %u: packet %llu accepted twice", f->id, static_cast<unsigned long long>(i));
    SIM_CHECK(changed == (accepted && p.payload_bytes > 0), "flow %u: packet %llu accepted %d, memory changed %d", f->id,
              static_cast<unsigned long long>(i), accepted, changed);
    if (!accepted) return 0;
    PostedMessage& m = f->message_of(d.psn);
    SIM_CHECK(target == f->target + m.at + (d.psn - m.first_psn) * f->config.mtu_bytes || p.payload_bytes == 0,
              "flow %u: packet placed at the wrong address", f->id);
    SIM_CHECK(std::memcmp(target, p.payload, p.payload_bytes) == 0, "flow %u: wrong content placed", f->id);
    f->placed[i] = true;
    ++m.placed;
    // The application scribbles over it at once, so any second write of the same bytes is seen.
    arena.invert(target, p.payload_bytes);
    return p.payload_bytes;
}

/// Completions at the sender and counts at the receiver speak only of messages that are there in full, in order.
inline void check_completions(Flow& f, const Connection& sender) {
    const uint64_t completed = sender.sender().queue().completed();
    SIM_CHECK(completed <= f.messages.size(), "flow %u: more completions than messages", f.id);
    for (; f.completed < completed; ++f.completed) {
        const PostedMessage& m = f.messages[f.completed];
        SIM_CHECK(m.placed == m.packets, "flow %u: message %llu completed with %u of %u packets placed", f.id,
                  static_cast<unsigned long long>(f.completed), m.placed, m.packets);
    }
}
inline void check_received(Flow& f, const Connection& receiver) {
    const uint64_t done = receiver.receiver().messages_done();
    SIM_CHECK(done <= f.messages.size(), "flow %u: more messages received than posted", f.id);
    for (; f.done_checked < done; ++f.done_checked)
        SIM_CHECK(f.messages[f.done_checked].placed == f.messages[f.done_checked].packets,
                  "flow %u: message %llu counted before it was complete", f.id,
                  static_cast<unsigned long long>(f.done_checked));
}
inline void check_immediate(Flow& f, uint32_t value) {
    SIM_CHECK(f.popped < f.immediate_messages.size(), "flow %u: an immediate nobody posted", f.id);
    const uint32_t k = f.immediate_messages[f.popped++];
    SIM_CHECK(f.messages[k].immediate == value, "flow %u: immediate %llu out of order", f.id,
              static_cast<unsigned long long>(f.popped - 1));
    SIM_CHECK(f.done_checked > k, "flow %u: immediate of message %u raised before the message was complete", f.id, k);
}

}  // namespace farstep::sim
