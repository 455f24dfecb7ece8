// One connection: a sender, a receiver, the entropy values between them, and the probes that watch those.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <memory>
#include <utility>

#include "farstep/config.hpp"
#include "farstep/control_paths.hpp"
#include "farstep/receiver.hpp"
#include "farstep/sender.hpp"

namespace farstep {

/// Packets that leave together on one path: same socket, same destination, equal sizes but for the last.
struct TxBurst {
    struct Segment {
        uint8_t header[wire::kMaxHeaderBytes];
        uint32_t header_bytes, payload_bytes, trailer_bytes;
        const uint8_t* payload;
        uint8_t trailer[8];  // padding and iCRC
        uint32_t bytes() const noexcept { return header_bytes + payload_bytes + trailer_bytes; }
    };
    uint32_t connection = 0;
    uint8_t local_port = 0, remote_port = 0;
    uint16_t source = 0;
    uint32_t ev_value = 0;
    bool is_control = false;  // control class, never trimmed
    uint32_t count = 0;
    Segment segments[kMaxBurst_packets];
};

struct ProbeCounters {
    uint64_t sent = 0, answered = 0, lost = 0;
};

class Connection {
public:
    /// With an arena every table is laid out there, else on the heap.
    Connection(const ConnectionConfig& c, Nscc& cc, const PlaneLink* links, uint32_t num_planes)
        : Connection(c, cc, links, num_planes, std::make_unique<Arena>()) {}
    /// `shared`: the same but for seeds, for the time after construction; it outlives this. Without it a copy is kept.
    Connection(const ConnectionConfig& c, Nscc& cc, const PlaneLink* links, uint32_t num_planes, Arena* arena,
               const ConnectionConfig* shared = nullptr)
        : num_planes_(num_planes), keepalive_interval_ns_(c.reliability.keepalive_ns),
          refresh_interval_ns_(c.reliability.host_delay_ns), receiver_(c, arena), paths_(c.paths, arena, shared ? &shared->paths : nullptr),
          sender_(c, cc, paths_, arena, shared ? &shared->reliability : nullptr), control_paths_(links, num_planes, arena),
          outstanding_(c.max_probes, arena), config_(arena->keep(c, shared)) {
        assert(num_planes >= 1 && num_planes <= kMaxPlanes);
        for (uint32_t i = 0; i < num_planes; ++i) links_[i] = links[i];
    }
    Connection(const Connection&) = delete;

    PathSet& paths() noexcept { return paths_; }
    Sender& sender() noexcept { return sender_; }
    Receiver& receiver() noexcept { return receiver_; }
    const PathSet& paths() const noexcept { return paths_; }
    const Sender& sender() const noexcept { return sender_; }
    const Receiver& receiver() const noexcept { return receiver_; }
    const ConnectionConfig& config() const noexcept { return *config_; }
    ConnectionError error() const noexcept { return error_; }
    bool is_open() const noexcept { return error_ == ConnectionError::None; }
    /// Messages the peer confirmed; what failure swept out of the queue does not count.
    uint64_t completed_messages() const noexcept {
        return is_open() ? sender_.queue().completed() : completed_at_failure_;
    }
    /// Anything came from the peer; before, it may not have started yet.
    bool has_heard_peer() const noexcept { return heard_; }
    uint64_t planes_inferred_down() const noexcept { return planes_inferred_down_; }
    const ProbeCounters& probes() const noexcept { return probe_counters_; }
    const PlaneLink& link(uint8_t plane) const noexcept { return links_[plane]; }
    uint32_t num_planes() const noexcept { return num_planes_; }

    uint64_t planes_of_ports(uint64_t local_ports, uint64_t remote_ports) const noexcept {
        uint64_t planes = 0;
        for (uint32_t i = 0; i < num_planes_; ++i)
            if ((local_ports >> links_[i].local_port & 1) && (remote_ports >> links_[i].remote_port & 1))
                planes |= 1ull << i;
        return planes;
    }
    void set_usable_planes(uint64_t now, uint64_t planes) noexcept {
        usable_ = planes;
        paths_.set_plane_mask(now, planes);
    }

    // ---- input -------------------------------------------------------------------------------------------------------

    void on_data(uint64_t now, const wire::Packet& p, const Arrival& a, const RegionTable& regions) noexcept {
        if (!is_open()) {
            if (!owes_fatal_) owes_fatal_ = 1;
            return;
        }
        note_heard(now);
        if (num_planes_ > 1) control_paths_.on_arrival(a.local_port);
        if (receiver_.on_data(p, a, regions) == Placement::Duplicate) on_answers_missed(now);
    }
    void on_trimmed(const wire::Packet& p, const Arrival& a) noexcept {
        if (is_open()) receiver_.on_trimmed(p, a);
    }
    void on_probe(uint64_t now, const wire::Packet& p, const Arrival& a) noexcept {
        if (!is_open()) {
            if (!owes_fatal_) owes_fatal_ = 1;
            return;
        }
        // Who asks after a silence waits for answers that did not come.
        if (2 * (now - heard_ns_) > sender_.first_rtt_ns() && !sender_.inflight_bytes()) control_paths_.on_answers_missed();
        note_heard(now);
        control_paths_.on_arrival(a.local_port);
        receiver_.on_probe(p, a, control_paths_.is_suspect(a.local_port));
    }
    void on_sack(uint64_t now, const wire::Packet& p) noexcept {
        if (!is_open()) return;
        note_heard(now);
        sender_.on_sack(now, p);
        if (p.seth.probe_reply) on_probe_reply(now, p);
        else if (sender_.last_trigger_ev() != kNoEv) control_paths_.on_answered(paths_.plane(sender_.last_trigger_ev()));
        check_planes(now);
    }
    void on_nack(uint64_t now, const wire::Packet& p) noexcept {
        if (!is_open()) return;
        if (p.neth.reason == wire::NackReason::UnexpectedEvent) return on_fatal(p);
        if (!sender_.on_nack(now, p)) fail(ConnectionError::RetryExceeded);
    }
    void on_ack(uint64_t now, uint32_t msn24) noexcept {
        if (!is_open()) return;
        note_heard(now);
        sender_.on_ack(now, msn24);
    }
    /// Completed messages leave the queue; their regions are unpinned by the caller's `release(rkey)`. True if any did.
    template <class Release>
    bool complete_messages(Release&& release) noexcept {
        if (!is_open()) return false;
        const uint64_t completed = sender_.take_completions();
        for (uint64_t n = completed; n; --n) {
            if (const uint32_t key = sender_.queue().front().request.local_key) release(key);
            sender_.queue().pop_front();
        }
        return completed > 0;
    }

    /// Ends the connection. Everything posted fails; the peer is told with a fatal NACK.
    void fail(ConnectionError why) noexcept {
        if (!is_open()) return;
        error_ = why;
        completed_at_failure_ = sender_.queue().completed();
        sender_.release_inflight();
        owes_fatal_ = why != ConnectionError::RemoteClosed ? kFatalCopies : 0;
        fatal_repeats_ = kFatalRepeats;
    }
    template <class Release>
    void drop_messages(Release&& release) noexcept {
        while (sender_.queue().outstanding()) {
            if (const uint32_t key = sender_.queue().front().request.local_key) release(key);
            sender_.queue().pop_front();
        }
    }
    void say_fatal(FatalCode code) noexcept {
        owes_fatal_ = kFatalCopies;
        fatal_code_ = code;
    }

    // ---- time --------------------------------------------------------------------------------------------------------

    uint64_t next_timeout_ns() const noexcept {
        if (!is_open()) return fatal_due_ns_;
        uint64_t t = sender_.next_timeout_ns();
        const uint64_t probe = next_path_probe_ns();
        if (probe < t) t = probe;
        if (keepalive_ns_ < t) t = keepalive_ns_;
        return num_outstanding_ && probe_deadline_ns_ < t ? probe_deadline_ns_ : t;
    }
    void on_timeout(uint64_t now) noexcept {
        if (!is_open()) {
            if (now >= fatal_due_ns_) owes_fatal_ = 1;
            return;
        }
        bool wants_probe = false;
        if (!sender_.on_timeout(now, wants_probe)) {
            fail(ConnectionError::RetryExceeded);
            return;
        }
        if (wants_probe) {
            state_probe_due_ = true;
            paths_.on_timeout(now);
        }
        if (num_outstanding_ && now >= probe_deadline_ns_) expire_probes(now);
        if (now >= keepalive_ns_ && !ask_for_life(now)) {
            fail(ConnectionError::RetryExceeded);
            return;
        }
        check_planes(now);
    }

    // ---- output ------------------------------------------------------------------------------------------------------

    bool has_control(uint64_t now) const noexcept {
        if (owes_fatal_) return true;
        return is_open() && (receiver_.has_control() || state_probe_due_ || next_path_probe_ns() <= now);
    }

    /// An answer made a probe due: it leaves with that answer, not when time makes others due.
    bool owes_probe() const noexcept { return state_probe_due_; }

    /// Next control packet and the entropy value it takes; false when there is none.
    bool poll_control(uint64_t now, wire::Packet& p, EvIndex& ev) noexcept {
        if (owes_fatal_) return poll_fatal(now, p, ev);
        if (!is_open()) return false;
        if (receiver_.poll_control(now, p)) {
            const uint8_t port = receiver_.return_port();
            ev = port == kAnyPort ? answer_ev(now) : control_paths_.back_over(port, paths_);
            maybe_refresh(now);
            return ev != kNoEv;
        }
        if (state_probe_due_) {
            state_probe_due_ = false;
            ev = probe_ev(now);
            return ev != kNoEv && put_probe(now, ev, false, p);
        }
        EvIndex bad = kNoEv;
        if (next_path_probe_ns() <= now && paths_.poll_probe(now, bad) && put_probe(now, bad, true, p)) {
            last_path_probe_ns_ = now;
            ev = bad;
            return true;
        }
        return false;
    }

    /// Entropy value for an endpoint operation to this peer.
    EvIndex control_ev(uint64_t now) noexcept { return answer_ev(now); }

    /// Measures the paths before there is traffic, and watches over the peer from now on.
    void start(uint64_t now) noexcept {
        state_probe_due_ = true;
        if (keepalive_interval_ns_) keepalive_ns_ = now + keepalive_interval_ns_;
    }

    // ---- cache -------------------------------------------------------------------------------------------------------

    /// Calls f(address, bytes) for what any call touches of the connection itself; see PathSet.
    template <class F>
    void each_hot(F&& f) const noexcept {
        f(&error_, static_cast<size_t>(reinterpret_cast<const char*>(&receiver_) - reinterpret_cast<const char*>(&error_)));
    }
    template <class F>
    void each_hot_on_answer(F&& f) const noexcept {
        control_paths_.each_hot(f);
        paths_.each_hot(f);
        sender_.each_hot_of_answers(f);
    }

private:
    Connection(const ConnectionConfig& c, Nscc& cc, const PlaneLink* links, uint32_t num_planes, std::unique_ptr<Arena> own)
        : Connection(c, cc, links, num_planes, own.get()) {
        own_ = std::move(own);
    }

    static constexpr uint8_t kFatalCopies = 2, kFatalRepeats = 4;
    static constexpr uint64_t kDeafAfterRtts = 4;
    static constexpr uint64_t kFirstProbeWait = 4;  // first timeouts, before anything is known of the distance

    struct Probe {
        uint16_t id = 0;
        EvIndex ev = kNoEv;
        bool watches_ev = false;
        uint64_t sent_ns = 0, deadline_ns = 0;
    };

    // Data in flight tells which paths work.
    EvIndex answer_ev(uint64_t now) noexcept { return control_paths_.answer(now, paths_, sender_.inflight_bytes() > 0); }
    EvIndex probe_ev(uint64_t now) noexcept { return control_paths_.probe(now, paths_, sender_.inflight_bytes() > 0); }
    void on_fatal(const wire::Packet& p) noexcept {
        const FatalCode code = static_cast<FatalCode>(p.neth.vendor);
        const bool ended = code == FatalCode::Closed || code == FatalCode::Aborted;
        if (ended ? !sender_.is_credible_position(p.neth.nack_psn) : !sender_.is_credible_refusal(p)) return;
        fail(code == FatalCode::Closed    ? ConnectionError::RemoteClosed
             : code == FatalCode::Aborted ? ConnectionError::RemoteAborted
                                          : ConnectionError::RemoteFatal);
        if (ended) owes_fatal_ = fatal_repeats_ = 0;  // it knows; one that refused a packet still counts on us
    }

    void note_heard(uint64_t now) noexcept {
        heard_ = true;
        heard_ns_ = now;
        unanswered_ = 0;
        if (keepalive_interval_ns_) keepalive_ns_ = now + keepalive_interval_ns_;
    }
    // Where nothing answers at all it is the peer that is gone, not its paths: they are asked seldom then.
    uint64_t next_path_probe_ns() const noexcept {
        const uint64_t due = paths_.next_probe_ns();
        if (due == kNever) return due;
        const bool is_deaf = last_path_probe_ns_ > heard_ns_ + kDeafAfterRtts * sender_.first_rtt_ns() + config_->reliability.host_delay_ns;
        return is_deaf ? std::max(due, last_path_probe_ns_ + config_->reliability.host_delay_ns) : due;
    }
    // The peer was silent for a while. False when it has been for the whole budget. One that was never heard of may not
    // have started yet, so only sends to it run out of time.
    bool ask_for_life(uint64_t now) noexcept {
        const ReliabilityConfig& r = config_->reliability;
        if (heard_ && r.exponential_count < 25 && ++unanswered_ > r.linear_count + r.exponential_count) return false;
        state_probe_due_ = true;
        keepalive_ns_ = now + r.keepalive_ns;
        return true;
    }

    bool poll_fatal(uint64_t now, wire::Packet& p, EvIndex& ev) noexcept {
        --owes_fatal_;
        fatal_due_ns_ = kNever;
        if (!is_open() && fatal_repeats_) {
            --fatal_repeats_;
            fatal_due_ns_ = now + 2 * sender_.first_rtt_ns();
        }
        p.bth.opcode = wire::Opcode::Nack;
        p.neth = {};
        p.neth.reason = wire::NackReason::UnexpectedEvent;
        p.neth.vendor = static_cast<uint8_t>(
            fatal_code_ != FatalCode::Refused ? fatal_code_
            : error_ == ConnectionError::None || error_ == ConnectionError::RemoteClosed ? FatalCode::Closed
                                                                                        : FatalCode::Aborted);
        p.neth.nack_psn = static_cast<uint32_t>(receiver_.expected_psn()) & wire::kPsnMask;
        ev = probe_ev(now);  // on every plane in turn: the last one heard of may be dead this way
        return ev != kNoEv;
    }

    bool put_probe(uint64_t now, EvIndex ev, bool watches_ev, wire::Packet& p) noexcept {
        Probe& q = outstanding_[probe_counter_ % config_->max_probes];
        if (q.ev != kNoEv) drop_probe(now, q);  // overwritten before it was answered
        q.id = probe_counter_++;
        q.ev = ev;
        q.watches_ev = watches_ev;
        q.sent_ns = now;
        const uint64_t wait = 4 * sender_.first_rtt_ns();
        const uint64_t least = sender_.round_trip().srtt_ns ? config_->reliability.host_delay_ns : kFirstProbeWait * config_->reliability.first_timeout_ns;
        q.deadline_ns = now + (wait > least ? wait : least);
        if (num_outstanding_++ == 0 || q.deadline_ns < probe_deadline_ns_) probe_deadline_ns_ = q.deadline_ns;
        ++probe_counters_.sent;
        p.bth.opcode = wire::Opcode::Probe;
        p.peth = {0, q.id, timestamp_of(now)};
        return true;
    }

    void drop_probe(uint64_t now, Probe& q) noexcept {
        ++probe_counters_.lost;
        --num_outstanding_;
        if (q.watches_ev) paths_.on_probe_lost(now, q.ev);
        else control_paths_.on_unanswered(paths_.plane(q.ev), q.ev);
        q.ev = kNoEv;
    }
    void expire_probes(uint64_t now) noexcept {
        probe_deadline_ns_ = kNever;
        for (uint32_t i = 0; i < config_->max_probes; ++i) {
            Probe& q = outstanding_[i];
            if (q.ev == kNoEv) continue;
            if (now >= q.deadline_ns) drop_probe(now, q);
            else if (q.deadline_ns < probe_deadline_ns_) probe_deadline_ns_ = q.deadline_ns;
        }
    }

    void on_probe_reply(uint64_t now, const wire::Packet& p) noexcept {
        const uint16_t id = static_cast<uint16_t>(p.seth.ack_psn_offset);
        Probe& q = outstanding_[id % config_->max_probes];
        if (q.ev == kNoEv || q.id != id || p.cc.timestamp != timestamp_of(q.sent_ns)) return;
        const EvIndex ev = q.ev;
        const uint64_t rtt = now - q.sent_ns;
        q.ev = kNoEv;
        --num_outstanding_;
        ++probe_counters_.answered;
        if (q.watches_ev) paths_.on_probe_reply(now, ev, static_cast<uint8_t>(p.seth.mark), rtt);
        else paths_.on_acked(now, ev, 0, true, rtt);
        control_paths_.on_probe_answered(paths_.plane(ev), ev);
        if (!sender_.on_probe_answered(now, q.sent_ns, rtt, paths_.plane(ev), !q.watches_ev, p.seth.cack_psn)) return fail(ConnectionError::LocalProtocol);
        paths_.set_rtt(sender_.first_rtt_ns());
    }

    // Where data comes in and none goes out, nothing else would tell whether the way back still works (MRC §4.6).
    void maybe_refresh(uint64_t now) noexcept {
        const uint64_t since = now - last_refresh_ns_;
        if (since < refresh_interval_ns_ / num_planes_ || since < sender_.first_rtt_ns() / num_planes_) return;
        last_refresh_ns_ = now;
        if (sender_.inflight_bytes() == 0) state_probe_due_ = true;
    }

    // Evidence does not wait for the interval; but a window that comes again is one piece of it.
    void on_answers_missed(uint64_t now) noexcept {
        if (sender_.inflight_bytes()) return;
        control_paths_.on_answers_missed();
        if (now - last_refresh_ns_ < sender_.first_rtt_ns() / num_planes_) return;
        last_refresh_ns_ = now;
        state_probe_due_ = true;
    }

    void check_planes(uint64_t now) noexcept {
        uint8_t plane = 0;
        if (paths_.infer_plane_down(now, sender_.first_rtt_ns(), plane)) ++planes_inferred_down_;
    }

    // What every call touches comes first, and next to it what data does.
    ConnectionError error_ = ConnectionError::None;
    FatalCode fatal_code_ = FatalCode::Refused;
    uint8_t owes_fatal_ = 0, fatal_repeats_ = 0;  // copies to send now; later ones, in case those get lost
    bool state_probe_due_ = false;
    bool heard_ = false;
    uint16_t probe_counter_ = 0;
    uint32_t unanswered_ = 0;  // requests for a sign of life in a row
    uint32_t num_outstanding_ = 0, num_planes_;
    uint64_t heard_ns_ = 0, keepalive_interval_ns_;
    uint64_t keepalive_ns_ = kNever, probe_deadline_ns_ = kNever, fatal_due_ns_ = kNever;
    uint64_t last_refresh_ns_ = 0, refresh_interval_ns_;
    Receiver receiver_;
    PathSet paths_;
    Sender sender_;
    ControlPaths control_paths_;
    PlaneLink links_[kMaxPlanes]{};
    Table<Probe> outstanding_;
    uint64_t last_path_probe_ns_ = 0;
    uint64_t usable_ = ~0ull;
    uint64_t completed_at_failure_ = 0;
    uint64_t planes_inferred_down_ = 0;
    ProbeCounters probe_counters_;
    const ConnectionConfig* config_;
    std::unique_ptr<Arena> own_;
};

}  // namespace farstep
