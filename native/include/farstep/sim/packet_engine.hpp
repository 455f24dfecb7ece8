// The packet engine: simulated time, slot by slot, over the parts that do the work.
//
// Order within a slot (a slot is what a full packet takes on the fastest link):
//   1. actions of the fault schedule that are due, and samples of the time series;
//   2. packets that arrive: at a switch they join the queue of their next port, in the order in which they left the ports
//      they came from;
//   3. packets that arrive at NICs, in that same order: each is handed to its transport, which may answer;
//   4. control packets, timers, pauses and starting tasks, in the order in which they were scheduled;
//   5. NICs: each free port of each NIC that has something to send gets one packet, connections of a NIC in turn;
//   6. ports of switches: each that is free and has packets puts one on its wire.
// Steps 5 and 6 walk over NICs and ports from a random place in a random direction, drawn anew for every slot from the
// seed. So no result depends on which number a host, a switch or a link has, while equal seeds give equal runs.
// Slots in which nothing can happen are skipped. Where no NIC can act on another one, or on the network, within some slots,
// those are taken together: steps 2 and 6 for all of them, then 3 to 5 for all of them, a group of 64 NICs at a time.
#pragma once

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "farstep/sim/connections_ahead.hpp"
#include "farstep/sim/fault_actions.hpp"
#include "farstep/sim/fetch_ahead.hpp"
#include "farstep/sim/flow_row.hpp"
#include "farstep/sim/network.hpp"
#include "farstep/sim/nic.hpp"
#include "farstep/sim/nic_inbox.hpp"
#include "farstep/sim/nic_service.hpp"
#include "farstep/sim/outcome.hpp"
#include "farstep/sim/reroutes.hpp"
#include "farstep/sim/series.hpp"
#include "farstep/sim/settings.hpp"
#include "farstep/sim/task_graph.hpp"
#include "farstep/sim/transport.hpp"

namespace farstep::sim {

template <class T>
class PacketEngine {
public:
    using Transport = T;
    using Net = Network<typename T::Policy>;

    PacketEngine(const FabricColumns& c, const EngineSettings& s, const typename T::Settings& t)
        : settings_(s), transport_settings_(t), net_(c, s.fabric), series_(s.series, net_.fabric()),
          nic_order_(s.fabric.seed + 0x3C6EF372FE94F82Bull) {}

    // ---- before the run ------------------------------------------------------------------------------------------------

    void add_tasks(const TaskColumns& c) {
        tasks_.add(c, net_.fabric().num_nics());
        outcomes_.assign(tasks_.size(), {});
        const auto connections = tasks_.take_connections();
        const auto n = static_cast<uint32_t>(connections.size());
        rows_.assign(n, {});
        for (uint32_t i = 0; i < n; ++i) {
            rows_[i].source = connections[i].source;
            rows_[i].target = connections[i].target;
            rows_[i].flows_left = connections[i].flows;
        }
        num_timers_ = 2 * size_t{n} + net_.fabric().num_nics();
        timers_ = std::make_unique<VirtualArray<Slot>>(num_timers_);
        rings_ = std::make_unique<NicRings>(net_.fabric().num_nics(), n);
        for (uint32_t i = 0; i < n; ++i) rings_->set_nic(i, rows_[i].source);
        const uint64_t mtu_bytes = net_.fabric().settings().mtu_bytes;
        transport_ = std::make_unique<T>(transport_settings_, net_, connections_ahead(tasks_, n, T::kMaxMessage_bytes, mtu_bytes));
        net_.set_num_connections(n);
        for (uint32_t i = 0; i < tasks_.size(); ++i)
            if (tasks_.at(i).waits_for == 0) plan_start(i, 0);
        tasks_left_ = tasks_.size();
        find_lookahead();
    }
    void add_fault(const FaultAction& a) { faults_.add(a, net_.fabric().num_ports()); }
    /// From then on routing knows these routes; who depends on routing takes them at its next packet.
    void add_reroute(uint64_t time_ns, const FabricColumns& routes) { reroutes_.add(time_ns, routes); }

    // ---- the run -------------------------------------------------------------------------------------------------------

    /// Goes on until everything is done or a limit is met. `keep_going` is asked now and then; false cancels the run.
    RunStatus run(const RunLimits& limits, const std::function<bool()>& keep_going) {
        const auto began = std::chrono::steady_clock::now();
        size_t work = 0;
        while (tasks_left_ > 0) {
            const Slot next = next_slot();
            if (next == kNoSlot || is_stuck(next, limits)) return RunStatus::Stalled;
            if (net_.fabric().clock().ns(start_of(next)) >= limits.until_ns) return RunStatus::Until;
            if (const uint32_t length = stretch_from(next, limits); length > 1) step_stretch(next, length);
            else step(next);
            work += kSlotWork + recent_;
            if (work < kWorkBetweenChecks) continue;
            work = 0;
            if (keep_going && !keep_going()) return RunStatus::Cancelled;
            if (limits.max_wall_s > 0 &&
                std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() > limits.max_wall_s)
                return RunStatus::WallLimit;
        }
        net_.check_conservation();
        return RunStatus::Finished;
    }

    // ---- services for the transport --------------------------------------------------------------------------------------

    Net& network() noexcept { return net_; }
    const Net& network() const noexcept { return net_; }
    Tick now() const noexcept { return now_; }
    uint64_t now_ns() const noexcept { return net_.fabric().clock().ns(now_); }
    void wake(uint32_t c) noexcept { rings_->add(c, now_); }
    void set_timer(uint32_t timer, uint64_t at_ns) {
        if (at_ns == UINT64_MAX) return;
        Slot& set = (*timers_)[timer];
        // Most calls only move a deadline further out; those are noticed when the earlier one fires.
        const Tick at = net_.fabric().clock().ticks(static_cast<double>(at_ns));
        Slot slot = slot_of(at + kTicksPerSlot - 1);
        if (slot < horizon_) slot = horizon_;
        if (set != 0 && set <= slot) return;
        set = slot;
        net_.events().append(slot, event(Happening::Timer, timer));
    }
    bool is_timer_set(uint32_t timer) const noexcept { return (*timers_)[timer] != 0; }
    void on_received(uint32_t c) {
        FlowRow& r = rows_[c];
        const uint32_t task = r.receiving;
        assert(task != TaskGraph::kNoTask);
        if (++r.pieces_received < r.pieces_of_receiving) return;
        r.pieces_received = 0;
        set_receiving(r, tasks_.at(task).next_of_connection);
        if (settings_.completes_at_source) return;
        outcomes_[task].finish_ns = static_cast<int64_t>(now_ns());
        finish(task);
    }
    void on_completed(uint32_t c) {
        FlowRow& r = rows_[c];
        const uint32_t task = r.completing;
        assert(task != TaskGraph::kNoTask);
        if (--tasks_.at(task).pieces > 0) return post_more(c);
        r.completing = tasks_.at(task).next_of_connection;
        note_counters(c, task);
        --r.flows_left;
        if (settings_.completes_at_source) {
            outcomes_[task].finish_ns = static_cast<int64_t>(now_ns());
            finish(task);
        }
        if (r.flows_left == 0) {
            closing_.push_back(c);
            return;
        }
        post_more(c);
    }
    void on_failed(uint32_t c, const char* why) {
        FlowRow& r = rows_[c];
        if (r.failed) return;
        r.failed = true;
        failures_.push_back({now_ns(), c, why});
    }
    void note_placed(uint64_t payload_bytes) noexcept {
        progress_slot_ = slot_;
        goodput_bytes_ += payload_bytes;
    }
    void note_duplicate(uint32_t c) noexcept { ++net_.fate(c).duplicates; }
    void note_retransmitted() noexcept { ++retransmitted_; }

    // ---- results -------------------------------------------------------------------------------------------------------

    const std::vector<TaskOutcome>& outcomes() const noexcept { return outcomes_; }
    const std::vector<PathEvent>& path_events() noexcept {
        collect_path_events();
        return path_events_;
    }
    const std::vector<ConnectionFailure>& failures() const noexcept { return failures_; }
    Series& series() noexcept { return series_; }
    T& transport() noexcept { return *transport_; }
    uint32_t connection_source(uint32_t c) const noexcept { return rows_[c].source; }
    uint32_t connection_target(uint32_t c) const noexcept { return rows_[c].target; }
    uint64_t tasks_left() const noexcept { return tasks_left_; }
    uint64_t slots_stepped() const noexcept { return slots_stepped_; }
    /// Takes the counters of flows that are not done.
    void settle() {
        net_.settle();
        if (series_.next_ns() != UINT64_MAX && now_ns() > 0) sample(now_ns());
        for (uint32_t c = 0; c < rows_.size(); ++c) {
            const FlowRow& r = rows_[c];
            if (r.open && r.completing != TaskGraph::kNoTask) note_counters(c, r.completing);
            else if (r.last != TaskGraph::kNoTask) outcomes_[r.last].take(net_.fate(c));  // copies nobody needed
        }
    }
    uint32_t connection_of(uint32_t task) const noexcept { return tasks_.at(task).connection; }
    void check_conservation() const { net_.check_conservation(); }
    /// Which flows are not done and what each waits for, at most `most` lines.
    std::vector<std::string> unfinished(size_t most) const {
        std::vector<std::string> lines;
        for (uint32_t i = 0; i < tasks_.size() && lines.size() < most; ++i) {
            if (outcomes_[i].finish_ns < 0) lines.push_back(describe(i));
        }
        return lines;
    }

private:
    // A slot of a large network takes milliseconds, one of an idle network nothing: both count for looking at the clock.
    static constexpr size_t kWorkBetweenChecks = 1 << 15, kSlotWork = 8;
    static constexpr uint32_t kMaxStretch = 8;    // slots taken together at most
    static constexpr uint32_t kBusyShare = 16;    // with fewer arrivals a slot than one for so many NICs, it does not pay
    static constexpr uint32_t kAhead = 12;  // entries between asking the cache for something and using it

    // ---- time ----------------------------------------------------------------------------------------------------------

    Slot next_slot() {
        const Slot soonest = started_ ? slot_ + 1 : 0;
        if (net_.has_waiting() || rings_->num_ready() > 0) return soonest;
        Slot next = std::min(net_.next_arrival(), net_.events().next());
        next = std::min(next, slot_at(std::min(faults_.next_ns(), reroutes_.next_ns())));
        // Samples alone keep nothing going.
        if (next != kNoSlot) next = std::min(next, slot_at(series_.next_ns()));
        return next == kNoSlot ? kNoSlot : std::max(next, soonest);
    }
    Slot slot_at(uint64_t ns) const noexcept {
        return ns == UINT64_MAX ? kNoSlot : slot_of(net_.fabric().clock().ticks(static_cast<double>(ns)) + kTicksPerSlot - 1);
    }
    bool is_stuck(Slot next, const RunLimits& limits) const noexcept {
        if (delays_running_ > 0 || flows_running_ == 0) return false;
        if (faults_.left() > 0 || reroutes_.next_ns() != UINT64_MAX) return false;  // a repair may be what it waits for
        const Slot since = std::max(progress_slot_, last_start_slot_);
        return next > since && net_.fabric().clock().ns(start_of(next - since)) > limits.stall_ns;
    }

    void step(Slot slot) {
        started_ = true;
        slot_ = slot;
        horizon_ = slot + 1;
        now_ = start_of(slot);
        ++slots_stepped_;
        const uint64_t ns = now_ns();
        if (faults_.next_ns() <= ns || reroutes_.next_ns() <= ns || series_.next_ns() <= ns) [[unlikely]] on_schedule(ns);
        begin_stretch();
        net_.begin(slot);
        size_t count = 0;
        const typename Net::Arrival* const a = net_.receive(slot, count);
        inbox_.clear();
        for (size_t i = 0; i < count; ++i) inbox_.add({a[i].packet, a[i].nic, 0, false});
        take_all(slot);
        inbox_.clear();
        net_.events().drain(slot, [&](uint64_t e) { inbox_.add({e, 0, 0, true}); });
        take_all(slot);
        recent_ = count + inbox_.size();
        close_finished();
        serve_nics(slot);
        net_.serve(slot);
    }

    // ---- several slots at once -----------------------------------------------------------------------------------------
    // What a NIC does reaches the network, and what it says reaches another NIC, only slots later. So the network can be
    // stepped some slots ahead, and then each NIC through all of them: its connections are fetched from memory once and
    // not once a slot. Within a NIC, and within the network, everything keeps the order of the single step.

    /// How many slots from `first` on may be taken together.
    uint32_t stretch_from(Slot first, const RunLimits& limits) {
        if (lookahead_ < 2 || recent_ * kBusyShare < net_.fabric().num_nics()) return 1;
        Slot end = first + lookahead_;
        end = std::min(end, slot_at(std::min({faults_.next_ns(), reroutes_.next_ns(), series_.next_ns(), limits.until_ns})));
        return end > first ? static_cast<uint32_t>(end - first) : 1;
    }
    void find_lookahead() {
        lookahead_ = 1;
        // A task may start another one on any NIC, a pause act on any port, at once.
        if (tasks_.has_dependencies() || T::Policy::kLossless) return;
        lookahead_ = net_.fabric().slots_between_nics(kMaxStretch);
    }
    void step_stretch(Slot first, uint32_t length) {
        started_ = true;
        slots_stepped_ += length;
        horizon_ = first + length;
        begin_stretch();
        const auto groups = static_cast<uint32_t>(rings_->num_words());
        const uint64_t draw = nic_order_.at(first);
        auto group = static_cast<uint32_t>((static_cast<unsigned __int128>(draw) * groups) >> 64);
        collect(first, length);
        inbox_.sort(groups, group, draw & 1);
        const NicInbox::Item* at = inbox_.items();
        FetchAhead<Net, T> ahead(net_, *transport_, *rings_);
        ahead.begin(at, inbox_.size());
        for (uint32_t n = 1; n <= groups; ++n) {
            at = step_group(group, first, length, draw & 1, at, inbox_.end(n), ahead);
            if (draw & 1) group = group + 1 == groups ? 0 : group + 1;
            else group = group == 0 ? groups - 1 : group - 1;
        }
        slot_ = first + length - 1;
        now_ = start_of(slot_);
        close_finished();
    }
    void begin_stretch() noexcept {
        if constexpr (requires { transport_->begin_stretch(); }) transport_->begin_stretch();
    }
    // The NICs of one word of the ready bits: few enough to stay in the cache, enough to do one kind of thing at a time.
    const NicInbox::Item* step_group(uint32_t group, Slot first, uint32_t length, bool forward, const NicInbox::Item* at,
                                     const NicInbox::Item* end, FetchAhead<Net, T>& ahead) {
        for (uint32_t o = 0; o < length; ++o) {
            slot_ = first + o;
            for (; at < end && at->offset == o; ++at) {
                ahead.step();
                take(*at, start_of(slot_));
            }
            now_ = start_of(slot_);
            turn_.clear();
            rings_->list_ready(group, forward, turn_);
            serve_turn(slot_);
        }
        return at;
    }
    // The network goes first; then what reaches NICs is in order of slots, arrivals before events.
    void collect(Slot first, uint32_t length) {
        arrived_.clear();
        inbox_.clear();
        size_t ends[kMaxStretch];
        for (uint32_t o = 0; o < length; ++o) {
            net_.begin(first + o);
            size_t count = 0;
            const typename Net::Arrival* const a = net_.receive(first + o, count);
            arrived_.insert(arrived_.end(), a, a + count);
            ends[o] = arrived_.size();
            net_.serve(first + o);
        }
        for (uint32_t o = 0; o < length; ++o) {
            for (size_t i = o ? ends[o - 1] : 0; i < ends[o]; ++i)
                inbox_.add({arrived_[i].packet, arrived_[i].nic, static_cast<uint16_t>(o), false});
            net_.events().drain(first + o, [&](uint64_t e) { inbox_.add({e, nic_of(e), static_cast<uint16_t>(o), true}); });
        }
        recent_ = inbox_.size() / length;
    }
    uint32_t nic_of(uint64_t e) {
        const auto number = static_cast<uint32_t>(number_of(e));
        switch (what_of(e)) {
            case Happening::Control: return net_.control(number).nic;
            case Happening::Timer:
                if (number >= 2 * rows_.size()) return number - 2 * static_cast<uint32_t>(rows_.size());
                return number % 2 ? rows_[number / 2].target : rows_[number / 2].source;
            case Happening::Task: return tasks_.is_flow(number) ? rows_[tasks_.at(number).connection].source : 0;
            case Happening::Wake: return number;
            default: return net_.fabric().source_node(number);
        }
    }
    // ---- arrivals --------------------------------------------------------------------------------------------------------

    void take_all(Slot slot) {
        FetchAhead<Net, T> ahead(net_, *transport_, *rings_);
        ahead.begin(inbox_.added(), inbox_.size());
        for (size_t i = 0; i < inbox_.size(); ++i) {
            ahead.step();
            take(inbox_.added()[i], start_of(slot));
        }
        now_ = start_of(slot);
    }
    void take(const NicInbox::Item& i, Tick begin) {
        if (i.is_event) return handle(i.what, begin);
        const auto number = static_cast<uint32_t>(i.what);
        now_ = begin + net_.packet(number).phase;
        if (net_.is_traced()) [[unlikely]] net_.trace_arrival(number, now_);
        transport_->on_data(*this, number);
        net_.free_packet(number);
    }
    void handle(uint64_t e, Tick begin) {
        const auto number = static_cast<uint32_t>(number_of(e));
        now_ = begin;
        switch (what_of(e)) {
            case Happening::Control: {
                const Control c = net_.control(number);
                net_.free_control(number);
                now_ = begin + c.phase;
                transport_->on_control(*this, c);
                break;
            }
            case Happening::Timer:
                if ((*timers_)[number] != slot_) break;  // an earlier one was set meanwhile
                (*timers_)[number] = 0;
                transport_->on_timer(*this, number);
                break;
            case Happening::Task: start_or_finish(number); break;
            case Happening::Pause: net_.pause(number, true); break;
            case Happening::Resume:
                if (net_.pause(number, false)) rings_->awake(net_.fabric().source_node(number));
                break;
            case Happening::Wake: rings_->awake(number); break;
        }
    }

    // ---- NICs ------------------------------------------------------------------------------------------------------------

    void serve_nics(Slot slot) {
        if (rings_->num_ready() == 0) return;
        const uint64_t draw = nic_order_.at(slot);
        const size_t words = rings_->num_words();
        const bool forward = draw & 1;
        size_t w = static_cast<size_t>((static_cast<unsigned __int128>(draw) * words) >> 64);
        turn_.clear();
        for (size_t n = 0; n < words; ++n) {
            rings_->list_ready(w, forward, turn_);
            if (forward) w = w + 1 == words ? 0 : w + 1;
            else w = w == 0 ? words - 1 : w - 1;
        }
        serve_turn(slot);
    }
    void serve_turn(Slot slot) {
        for (size_t i = 0; i < std::min<size_t>(kAhead, turn_.size()); ++i) transport_->prefetch_state(rings_->first(turn_[i]));
        for (size_t i = 0; i < turn_.size(); ++i) {
            if (i + 2 * kAhead < turn_.size()) transport_->prefetch_poll(rings_->first(turn_[i + 2 * kAhead]));
            if (i + kAhead < turn_.size()) transport_->prefetch_state(rings_->first(turn_[i + kAhead]));
            if constexpr (requires { transport_->prefetch_last(0u); })
                if (i + kAhead / 2 < turn_.size()) transport_->prefetch_last(rings_->first(turn_[i + kAhead / 2]));
            serve_nic(*this, *transport_, *rings_, turn_[i], slot, horizon_);
        }
    }
    // ---- tasks -----------------------------------------------------------------------------------------------------------

    // Its predecessors are done at `now_ns`.
    void plan_start(uint32_t task, uint64_t now_ns) {
        const Task& t = tasks_.at(task);
        const uint64_t at = std::max(now_ns + t.delay_ns, t.start_ns);
        if (!tasks_.is_flow(task)) {
            outcomes_[task].start_ns = static_cast<int64_t>(at - t.delay_ns);
            ++delays_running_;
        }
        Slot slot = slot_at(at);
        if (slot < horizon_) slot = horizon_;
        ++planned_;
        net_.events().append(slot, event(Happening::Task, task));
        due_ns_.resize(std::max<size_t>(due_ns_.size(), task + 1), 0);
        due_ns_[task] = at;
    }
    void start_or_finish(uint32_t task) {
        --planned_;
        // Within the slot, at its own tick.
        const Tick at = net_.fabric().clock().ticks(static_cast<double>(due_ns_[task]));
        now_ = std::clamp(at, start_of(slot_), start_of(slot_ + 1) - 1);
        if (!tasks_.is_flow(task)) {
            --delays_running_;
            outcomes_[task].finish_ns = static_cast<int64_t>(due_ns_[task]);
            progress_slot_ = slot_;
            return finish(task);
        }
        outcomes_[task].start_ns = static_cast<int64_t>(due_ns_[task]);
        ++flows_running_;
        last_start_slot_ = slot_;
        Task& t = tasks_.at(task);
        t.pieces = messages_of(t.size_bytes, T::kMaxMessage_bytes);
        const uint32_t c = t.connection;
        FlowRow& r = rows_[c];
        if (r.last != TaskGraph::kNoTask) tasks_.at(r.last).next_of_connection = task;
        r.last = task;
        if (r.posting == TaskGraph::kNoTask) r.posting = task;
        if (r.receiving == TaskGraph::kNoTask) set_receiving(r, task);
        if (r.completing == TaskGraph::kNoTask) r.completing = task;
        if (!r.open) {
            r.open = true;
            if (!transport_->open(*this, c, r.source, r.target)) on_failed(c, "no path between its NICs");
        }
        if (!r.failed) post_more(c);
    }
    void set_receiving(FlowRow& r, uint32_t task) noexcept {
        r.receiving = task;
        if (task != TaskGraph::kNoTask) r.pieces_of_receiving = tasks_.at(task).pieces;
    }
    void post_more(uint32_t c) {
        FlowRow& r = rows_[c];
        while (r.posting != TaskGraph::kNoTask && transport_->can_post(c)) {
            const Task& t = tasks_.at(r.posting);
            const uint64_t bytes = std::min(t.size_bytes - r.posted_bytes, T::kMaxMessage_bytes);
            transport_->post(*this, c, bytes);
            r.posted_bytes += bytes;
            if (r.posted_bytes < t.size_bytes) continue;
            r.posted_bytes = 0;
            r.posting = t.next_of_connection;
        }
    }
    void finish(uint32_t task) {
        --tasks_left_;
        if (tasks_.is_flow(task)) --flows_running_;
        const uint64_t ns = tasks_.is_flow(task) ? now_ns() : due_ns_[task];
        tasks_.finish(task, [&](uint32_t next) { plan_start(next, ns); });
    }
    void note_counters(uint32_t c, uint32_t task) {
        FlowRow& r = rows_[c];
        const FlowMark k(transport_->counters(c));
        outcomes_[task].add(k, r.counted);
        outcomes_[task].take(net_.fate(c));
        r.counted = k;
    }
    void close_finished() {
        for (const uint32_t c : closing_) {
            if (rows_[c].receiving != TaskGraph::kNoTask) continue;
            transport_->close(c);
            rows_[c].open = false;
        }
        closing_.clear();
    }

    // ---- schedule --------------------------------------------------------------------------------------------------------

    void on_schedule(uint64_t ns) {
        FaultAction a;
        while (faults_.poll(ns, a)) apply(a);
        if (const auto routes = reroutes_.poll(ns)) reroute(*routes);
        if (series_.next_ns() <= ns) sample(ns);
    }
    void reroute(const OwnedRoutes& routes) {
        if constexpr (requires { transport_->before_reroute(); }) transport_->before_reroute();
        net_.router().set_tables(routes.columns());
        progress_slot_ = slot_;
        for (uint32_t c = 0; c < rows_.size(); ++c)
            if (rows_[c].open && !rows_[c].failed) wake(c);
    }
    void sample(uint64_t ns) {
        net_.settle();
        const TrafficCounters& k = net_.counters();
        series_.sample(ns, net_.fabric(), {goodput_bytes_, k.dropped(), k.trimmed, retransmitted_, k.marked});
        collect_path_events();
    }
    void apply(const FaultAction& a) {
        const uint32_t p = net_.fabric().port_of_link(a.link);
        switch (a.kind) {
            case FaultKind::PortKnownDown:
            case FaultKind::PortKnownUp:
                // The NIC first, and its peers when its word has reached them.
                add_notice(a, FaultKind::NoticeOwn, 1);
                add_notice(a, FaultKind::NoticePeers, 2);
                break;
            case FaultKind::NoticeOwn: notice(p, a.value > 0, true); break;
            case FaultKind::NoticePeers: notice(p, a.value > 0, false); break;
            default: net_.apply(a.kind, p, a.value);
        }
    }
    void add_notice(const FaultAction& a, FaultKind kind, uint64_t delays) {
        const double up = a.kind == FaultKind::PortKnownUp ? 1 : 0;
        faults_.add({a.time_ns + delays * settings_.remap_delay_ns, kind, a.link, up}, net_.fabric().num_ports());
    }
    void notice(uint32_t p, bool up, bool own) {
        FabricState& f = net_.fabric();
        if (!f.is_nic(f.source_node(p))) p = f.reverse(p);
        const uint32_t nic = f.source_node(p);
        if (f.is_nic(nic)) transport_->on_nic_port(*this, nic, p - f.first_port(nic), up, own);
    }
    void collect_path_events() {
        if (transport_) transport_->take_events([&](const PathEvent& e) { path_events_.push_back(e); });
    }

    // ---- words -------------------------------------------------------------------------------------------------------------

    std::string describe(uint32_t task) const {
        const Task& t = tasks_.at(task);
        std::string what = "task " + std::to_string(task);
        if (!tasks_.is_flow(task)) return what + ": a delay that waits for " + std::to_string(t.waits_for) + " tasks";
        const FlowRow& r = rows_[t.connection];
        what += ": flow of " + std::to_string(t.size_bytes) + " bytes from NIC " + std::to_string(r.source);
        what += " to NIC " + std::to_string(r.target);
        if (t.waits_for > 0) return what + " waits for " + std::to_string(t.waits_for) + " tasks before it";
        if (outcomes_[task].start_ns < 0) return what + " waits for its time";
        for (const ConnectionFailure& f : failures_)
            if (f.connection == t.connection) return what + " failed at " + std::to_string(f.time_ns) + " ns: " + f.why;
        if (r.completing != task) return what + " waits for flows before it on its connection";
        return what + " waits for " + transport_->waits_for(t.connection, net_.fabric().clock().ns(now_));
    }

    EngineSettings settings_;
    typename T::Settings transport_settings_;
    Net net_;
    Series series_;
    TaskGraph tasks_;
    FaultSchedule faults_;
    RerouteSchedule reroutes_;
    std::unique_ptr<T> transport_;
    std::unique_ptr<NicRings> rings_;
    std::unique_ptr<VirtualArray<Slot>> timers_;
    size_t num_timers_ = 0;
    std::vector<FlowRow> rows_;
    std::vector<TaskOutcome> outcomes_;
    std::vector<uint64_t> due_ns_;
    std::vector<uint32_t> turn_, closing_;
    NicInbox inbox_;
    std::vector<typename Net::Arrival> arrived_;
    Slot horizon_ = 0;         // what is scheduled now happens from this slot on
    uint32_t lookahead_ = 1;
    size_t recent_ = 0;        // arrivals and events of one slot, lately
    std::vector<PathEvent> path_events_;
    std::vector<ConnectionFailure> failures_;
    CounterRng nic_order_;
    Slot slot_ = 0, progress_slot_ = 0, last_start_slot_ = 0;
    Tick now_ = 0;
    bool started_ = false;
    uint64_t tasks_left_ = 0, planned_ = 0, delays_running_ = 0, flows_running_ = 0;
    uint64_t goodput_bytes_ = 0, retransmitted_ = 0, slots_stepped_ = 0;
};

}  // namespace farstep::sim
