// RoCEv2 reliable connections: packets in order or not at all, one path per queue pair, DCQCN. A NIC with several ports is
// a bond: a hash takes each queue pair to one of them, and to another when that one is down.
//
// One object is a bundle of queue pairs between two NICs; a message is cut into as many consecutive parts. Whether the
// fabric pauses (PFC) or drops is the fabric's affair: this goes back to the packet that was missed in either case.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>

#include "farstep/sim/rivals/dcqcn.hpp"
#include "farstep/sim/rivals/rival_packets.hpp"
#include "farstep/storage.hpp"

namespace farstep::sim {

inline constexpr uint32_t kMaxQueuePairs = 16;

struct RoceConfig {
    RivalWire wire;
    RivalPaths paths;               // per_plane: queue pairs of a plane; paths are hashed, once for each queue pair
    DcqcnConfig dcqcn;
    uint32_t queue_pairs = 1;       // 1 to 16
    uint32_t ack_packets = 4;       // received in order before an acknowledgement is due; the end of a message always asks
    uint32_t window_packets = 0;    // of one queue pair in flight; 0: no bound but the rate
    uint64_t rto_ns = 67'108'864;   // 4.096 us x 2^14, what the verbs tests set
    uint64_t recovery_ns = 0;       // from a sequence error until the NIC sends that queue pair's packets again
    bool halves_on_nack = false;    // lossy mode of some NICs: a sequence error counts as a notification
};

class RoceRival {
public:
    using Config = RoceConfig;
    RoceRival(const RoceConfig& c, Arena* arena)
        : config_(c), pairs_(c.queue_pairs, arena), ends_(c.queue_pairs * c.wire.max_messages, arena),
          mask_(c.wire.max_messages - 1), planes_(c.paths.num_planes) {
        assert(c.queue_pairs >= 1 && c.queue_pairs <= kMaxQueuePairs && c.paths.per_plane == c.queue_pairs && (c.wire.max_messages & mask_) == 0);
        const double line = c.wire.rate_bytes_per_s / c.paths.num_planes;
        for (uint32_t q = 0; q < c.queue_pairs; ++q) pairs_[q].rate = Dcqcn(c.dcqcn, line);
    }
    RoceRival(const RoceRival&) = delete;
    static uint32_t span_packets(const RoceConfig&) noexcept { return 0; }  // it remembers no single packet

    bool can_post() const noexcept { return posted_ - acked_ <= mask_; }
    void post(uint64_t bytes) noexcept {
        assert(can_post());
        const uint32_t mtu = config_.wire.mtu_bytes, n = config_.queue_pairs;
        const uint64_t packets = std::max<uint64_t>((bytes + mtu - 1) / mtu, 1);
        const auto last_bytes = static_cast<uint32_t>(bytes - (packets - 1) * mtu);
        for (uint32_t i = 0; i < n; ++i) {
            // The first parts are the longer ones; which queue pair has the first goes around with the messages.
            Pair& q = pairs_[(i + posted_) % n];
            const uint64_t part = packets / n + (i < packets % n);
            assert(q.end + part <= UINT32_MAX / 2);
            q.end += static_cast<uint32_t>(part);
            const bool has_last = part > 0 && (packets <= n ? i + 1 == packets : i + 1 == n);
            end_of(q, posted_) = {q.end, has_last ? last_bytes : mtu};
        }
        ++posted_;
    }
    uint32_t messages_delivered() const noexcept { return delivered_; }
    uint32_t messages_acked() const noexcept { return acked_; }
    void set_usable_planes(uint64_t planes) noexcept { planes_.set_usable(planes); }
    FlowCounters counters() const noexcept { return counters_; }
    /// Of the queue pair that is furthest behind.
    RivalSpan span() const noexcept {
        uint32_t behind = 0;
        for (uint32_t n = 1; n < config_.queue_pairs; ++n)
            if (pairs_[n].end - pairs_[n].una > pairs_[behind].end - pairs_[behind].una) behind = n;
        return {pairs_[behind].una, pairs_[behind].next, pairs_[behind].end};
    }
    uint64_t number(uint16_t path) const noexcept { return config_.paths.number(path); }
    double rate_bytes_per_s(uint32_t queue_pair) const noexcept { return pairs_[queue_pair].rate.rate_bytes_per_s(); }

    // ---- sender ------------------------------------------------------------------------------------------------------

    bool poll_data(uint64_t now, uint64_t free_planes, RivalData& out) noexcept {
        for (uint32_t i = 0; i < config_.queue_pairs; ++i) {
            const uint32_t n = (cursor_ + i) % config_.queue_pairs;
            Pair& q = pairs_[n];
            if (!has_work(q) || static_cast<uint64_t>(q.free_ns) > now) continue;
            const uint32_t plane = planes_.bound(config_.paths.bond(n));
            if (plane == PlaneTurn::kNone || !(free_planes >> plane & 1)) continue;
            cursor_ = (n + 1) % config_.queue_pairs;
            send(now, q, out);
            out.path = config_.paths.path(plane, n);
            return true;
        }
        return false;
    }

    uint64_t next_timeout_ns() const noexcept {
        uint64_t t = UINT64_MAX;
        for (uint32_t n = 0; n < config_.queue_pairs; ++n) {
            const Pair& q = pairs_[n];
            if (q.una != q.next) t = std::min(t, q.deadline_ns);
            if (has_work(q) && q.free_ns > 0) t = std::min(t, static_cast<uint64_t>(q.free_ns));
        }
        return t;
    }
    void on_timeout(uint64_t now) noexcept {
        for (uint32_t n = 0; n < config_.queue_pairs; ++n) {
            Pair& q = pairs_[n];
            if (q.una == q.next || now < q.deadline_ns) continue;
            ++counters_.declared_lost;
            go_back(q, q.una);
            q.deadline_ns = now + config_.rto_ns;
        }
    }

    void on_answer(uint64_t now, const RivalAnswer& a) noexcept {
        Pair& q = pairs_[a.queue_pair];
        if (a.kind == RivalAnswer::kCongestion) return q.rate.on_notification(now);
        if (a.cumulative > q.una) {
            q.una = std::min(a.cumulative, q.sent);
            q.next = std::max(q.next, q.una);
            q.deadline_ns = now + config_.rto_ns;
            count_acked();
        }
        if (a.kind == RivalAnswer::kNack && a.cumulative >= q.una && a.cumulative < q.next) {
            go_back(q, a.cumulative);
            ++counters_.declared_lost;
            if (config_.recovery_ns) q.free_ns = std::max(q.free_ns, static_cast<double>(now + config_.recovery_ns));
            if (config_.halves_on_nack) q.rate.on_notification(now);
        }
    }

    // ---- receiver ----------------------------------------------------------------------------------------------------

    bool on_data(uint64_t now, const RivalData& d, Arrived how) noexcept {
        const uint32_t n = d.path % config_.queue_pairs;
        Pair& q = pairs_[n];
        if (how.marked && config_.dcqcn.enabled && now >= q.notify_ns) {
            q.notify_ns = now + config_.dcqcn.notify_interval_ns;
            owe(d.path, RivalAnswer::kCongestion);
        }
        if (d.sequence == q.expected && !how.trimmed) {
            ++q.expected;
            q.has_refused = false;
            count_delivered();
            if (++q.unanswered >= config_.ack_packets || (d.flags & RivalData::kAsksAnswer)) owe(d.path, RivalAnswer::kAck);
            return true;
        }
        if (d.sequence < q.expected) {
            ++counters_.duplicates;
            owe(d.path, RivalAnswer::kAck);
        } else if (!q.has_refused) {  // once for each gap
            q.has_refused = true;
            owe(d.path, RivalAnswer::kNack);
        }
        return false;
    }
    bool poll_answer(RivalAnswer& out) noexcept {
        if (!owed_.pop(out)) return false;
        out.cumulative = pairs_[out.queue_pair].expected;
        return true;
    }

private:
    struct Pair {
        uint32_t end = 0;       // the first number no message has yet
        uint32_t una = 0, next = 0;
        uint32_t sent = 0;      // the first number never sent
        double free_ns = 0;     // when its rate lets it send again
        uint64_t deadline_ns = UINT64_MAX;
        Dcqcn rate;
        // Receiver.
        uint32_t expected = 0, unanswered = 0;
        uint64_t notify_ns = 0;  // from then on it may notify again
        bool has_refused = false;
    };
    struct End {
        uint32_t end = 0, last_bytes = 0;
    };

    End& end_of(const Pair& q, uint32_t message) noexcept {
        return ends_[static_cast<size_t>(&q - pairs_.get()) * (mask_ + 1) + (message & mask_)];
    }
    bool has_work(const Pair& q) const noexcept {
        return q.next != q.end && (config_.window_packets == 0 || q.next - q.una < config_.window_packets);
    }

    void send(uint64_t now, Pair& q, RivalData& out) noexcept {
        const uint32_t sequence = q.next++;
        const bool again = sequence < q.sent;
        q.sent = std::max(q.sent, q.next);
        ++counters_.packets;
        counters_.retransmitted += again;
        uint32_t payload = config_.wire.mtu_bytes;
        bool ends = false;
        for (uint32_t m = acked_; m != posted_; ++m) {
            const End& e = end_of(q, m);
            if (sequence >= e.end) continue;
            ends = sequence + 1 == e.end;
            if (ends) payload = e.last_bytes;
            break;
        }
        out.sequence = sequence;
        out.bytes = static_cast<uint16_t>(payload + config_.wire.overhead_bytes);
        out.stamp = 0;
        const bool closing = config_.window_packets && q.next - q.una >= config_.window_packets;
        out.flags = static_cast<uint8_t>((ends || closing ? RivalData::kAsksAnswer : 0) | (again ? RivalData::kAgain : 0));
        // Looked at late is not slower: see ReceiverPacer.
        const double cost_ns = out.bytes / q.rate.on_send(now, out.bytes) * 1e9;
        q.free_ns = std::max(q.free_ns + cost_ns, static_cast<double>(now));
        if (q.next - q.una == 1) q.deadline_ns = now + config_.rto_ns;
    }
    void go_back(Pair& q, uint32_t sequence) noexcept { q.next = sequence; }

    void count_acked() noexcept {
        for (; acked_ != delivered_; ++acked_)
            for (uint32_t n = 0; n < config_.queue_pairs; ++n)
                if (pairs_[n].una < end_of(pairs_[n], acked_).end) return;
    }
    void count_delivered() noexcept {
        for (; delivered_ != posted_; ++delivered_)
            for (uint32_t n = 0; n < config_.queue_pairs; ++n)
                if (pairs_[n].expected < end_of(pairs_[n], delivered_).end) return;
    }

    void owe(uint16_t path, RivalAnswer::Kind kind) noexcept {
        RivalAnswer a;
        a.kind = kind;
        a.path = path;
        a.queue_pair = static_cast<uint8_t>(path % config_.queue_pairs);
        if (kind != RivalAnswer::kCongestion) pairs_[a.queue_pair].unanswered = 0;
        owed_.push(a);
    }

    RoceConfig config_;
    Table<Pair> pairs_;
    Table<End> ends_;
    uint32_t mask_;
    uint32_t posted_ = 0, delivered_ = 0, acked_ = 0, cursor_ = 0;
    PlaneTurn planes_;
    FlowCounters counters_;
    AnswerQueue owed_;
};

}  // namespace farstep::sim
