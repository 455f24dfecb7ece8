// The endpoint on real sockets: one thread, one lock, one epoll set. This file, sleeper.hpp, processor_choice.hpp and
// udp_socket.hpp make all system calls.
//
// The loop thread holds the lock while it works and gives it up before it sleeps; a caller that posts while the thread
// sleeps sends its first packets itself, so that a small message costs no thread switch. Nothing here knows of Python.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <deque>
#include <memory>
#include <mutex>
#include <poll.h>
#include <pthread.h>
#include <thread>
#include <vector>

#include "farstep/endpoint.hpp"
#include "farstep/loop_config.hpp"
#include "farstep/loop_task.hpp"
#include "farstep/processor_choice.hpp"
#include "farstep/protection_table.hpp"
#include "farstep/sleeper.hpp"
#include "farstep/udp_socket.hpp"

namespace farstep {

class EventLoop {
public:
    explicit EventLoop(const LoopConfig& c)
        : config_(c), core_(c.core), protection_(c.core.max_connections), peers_(c.core.max_connections), batch_(c.datagram_bytes),
          owner_pid_(::getpid()) {
        for (uint32_t p = 0; p < c.ports.size(); ++p) open_port(p);
        thread_ = new std::thread([this] { run(); });
    }
    EventLoop(const EventLoop&) = delete;
    ~EventLoop() {
        close();
        delete thread_;
    }
    /// False in a forked child. There the loop has no thread, its lock may be held for ever, and destroying it may wait
    /// for waiters that do not exist: the child may only call close_descriptors().
    bool owns_process() const noexcept { return ::getpid() == owner_pid_; }
    void close_descriptors() noexcept {
        ports_.clear();
        sleeper_.close();
        processor_.close();
    }

    static uint64_t now_ns() noexcept {
        timespec t;
        ::clock_gettime(CLOCK_MONOTONIC, &t);
        return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000ull + static_cast<uint64_t>(t.tv_nsec);
    }

    /// Tells peers, lets the last packets out, ends the thread. Waiters return Closed. Safe to call twice.
    void close() {
        {
            Guard g(*this);
            if (closed_) return;
            const uint64_t now = now_ns();
            transmit(now, kMaxBursts);
            for (uint32_t k = 0; k < core_.num_active(); ++k) say_closed(now, core_.active(k));
            closed_ = true;
        }
        sleeper_.wake();
        if (thread_->joinable()) thread_->join();
        changed_.notify_all();
        task_done_.notify_all();
        std::unique_lock<std::mutex> l(mutex_);
        changed_.wait(l, [this] { return waiters_ == 0; });
        for (Port& p : ports_) p.close();
        sleeper_.stop();
        processor_.close();
    }

    // ---- commands, all thread-safe -------------------------------------------------------------------------------------

    /// Work under the lock: `f(core, now)`. Use for anything that changes connections or reads counters.
    template <class F>
    auto with_core(F&& f) {
        Guard g(*this);
        return f(core_, now_ns());
    }
    void set_peer(uint32_t connection, PeerAddresses addresses) {
        Guard g(*this);
        peers_[connection].addresses = std::move(addresses);
    }
    /// Before connection `i` is opened: from now on nothing of it is sent or taken in the clear.
    void protect_connection(uint32_t i, const ConnectionConfig& c, std::unique_ptr<PacketProtection> keys) {
        Guard g(*this);
        if (!core_.is_reserved(i)) return;
        core_.drop_farewell(i);
        protection_.add(i, core_.reserved_qpn(i), c, std::move(keys));
        take_early(i);
    }
    void start_connection(uint32_t i) {
        {
            Guard g(*this);
            core_.start(now_ns(), i);
        }
        sleeper_.wake();
    }
    /// Returns how many writes the peer had confirmed.
    uint64_t close_connection(uint32_t i) {
        Guard g(*this);
        const uint64_t now = now_ns();
        Connection* c = core_.connection(i);
        const uint64_t completed = c ? c->completed_messages() : 0;
        say_closed(now, i);
        clear_backlog(i);
        core_.close_connection(now, i);
        protection_.remove(i);
        const uint64_t epoch = peers_[i].epoch + 1;
        peers_[i] = Peer{};
        peers_[i].epoch = epoch;
        after_end();
        return completed;
    }
    void abort_connection(uint32_t i) {
        Guard g(*this);
        const uint64_t now = now_ns();
        core_.abort_connection(now, i, ConnectionError::LocalAborted);
        if (core_.poll_control(now, i, burst_)) send(burst_);
        clear_backlog(i);
        after_end();
    }

    /// Posts one write of any length; returns its number, or kRejected when the connection has ended or the local
    /// range is not registered. Longer writes are cut; only the last part carries the immediate.
    static constexpr uint64_t kRejected = UINT64_MAX;
    uint64_t post(uint32_t i, uint64_t local_key, uint64_t local_offset, uint64_t length, uint64_t remote_key,
                  uint64_t remote_offset, bool has_immediate, uint32_t immediate) {
        bool must_wake = false;
        uint64_t number = kRejected;
        {
            Guard g(*this);
            number = post_locked(i, local_key, local_offset, length, remote_key, remote_offset, has_immediate, immediate);
            if (number == kRejected) return kRejected;
            must_wake = after_post();
        }
        if (must_wake) sleeper_.wake();
        return number;
    }

    /// Runs a task inside the loop and waits until it is through. TimedOut leaves it running: call again to wait on, or
    /// drop_task() to take it out. A task must not be destroyed while it runs.
    WaitResult run_task(LoopTask& task, uint64_t timeout_ns) {
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout_ns);
        callers_.fetch_add(1, std::memory_order_relaxed);
        std::unique_lock<std::mutex> l(mutex_);
        callers_.fetch_sub(1, std::memory_order_relaxed);
        if (closed_) return WaitResult::Closed;
        if (!has_task(task)) {
            TaskAccess access(*this);
            if (task.advance(access)) {
                if (after_post()) sleeper_.wake();
                return WaitResult::Ready;
            }
            tasks_.push_back(&task);
            if (after_post()) sleeper_.wake();
        }
        ++waiters_;
        task_done_.wait_until(l, deadline, [&] { return closed_ || !has_task(task); });
        if (--waiters_ == 0 && closed_) changed_.notify_all();
        if (closed_) return WaitResult::Closed;
        return has_task(task) ? WaitResult::TimedOut : WaitResult::Ready;
    }
    void drop_task(LoopTask& task) {
        Guard g(*this);
        std::erase(tasks_, &task);
    }

    /// Waits until write `number` of connection `i` is confirmed.
    WaitResult wait_completion(uint32_t i, uint64_t number, uint64_t timeout_ns) {
        uint64_t epoch = kNever;
        return wait(timeout_ns, [&](WaitResult& r) {
            Connection* c = waited_for(i, epoch);
            if (!c) return r = WaitResult::Closed, true;
            if (c->completed_messages() > number) return r = WaitResult::Ready, true;
            if (!c->is_open()) return r = WaitResult::Failed, true;
            return false;
        });
    }
    WaitResult wait_immediate(uint32_t i, uint32_t& value, uint64_t timeout_ns) {
        uint64_t epoch = kNever;
        return wait(timeout_ns, [&](WaitResult& r) {
            Connection* c = waited_for(i, epoch);
            if (!c) return r = WaitResult::Closed, true;
            bool must_transmit = false;
            if (core_.pop_immediate(now_ns(), i, value, must_transmit)) {
                if (must_transmit && after_post()) sleeper_.wake();
                return r = WaitResult::Ready, true;
            }
            if (!c->is_open()) return r = WaitResult::Failed, true;
            return false;
        });
    }
    /// Waits for anything to change since `seen`; returns the new change number.
    uint64_t wait_change(uint64_t seen, uint64_t timeout_ns) {
        uint64_t now_seen = seen;
        wait(timeout_ns, [&](WaitResult& r) {
            now_seen = change_number_;
            if (change_number_ != seen) return r = WaitResult::Ready, true;
            return false;
        });
        return now_seen;
    }

    /// Makes the thread look at what a command changed.
    void kick() noexcept { sleeper_.wake(); }

    std::vector<PathEvent> take_path_events() {
        Guard g(*this);
        collect_path_events();
        std::vector<PathEvent> out(path_events_.begin(), path_events_.end());
        path_events_.clear();
        return out;
    }

    // ---- facts ---------------------------------------------------------------------------------------------------------

    SocketAddress port_address(uint32_t p) const { return ports_[p].main.local(); }
    uint32_t num_ports() const noexcept { return static_cast<uint32_t>(ports_.size()); }
    uint32_t sources_per_port() const noexcept { return config_.sources_per_port; }
    uint16_t source_port(uint32_t p, uint32_t source) const { return ports_[p].source_ports[source]; }
    int receive_buffer_bytes(uint32_t p) const noexcept { return ports_[p].main.receive_buffer_bytes(); }
    uint64_t thread_cpu_ns() {
        Guard g(*this);  // close() joins the thread only after it has set closed_ under this lock
        clockid_t id;
        timespec t{};
        if (closed_ || pthread_getcpuclockid(thread_->native_handle(), &id) != 0) return 0;
        ::clock_gettime(id, &t);
        return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000ull + static_cast<uint64_t>(t.tv_nsec);
    }
    struct LoopCounters {
        uint64_t iterations = 0, sleeps = 0, send_blocked = 0, send_failed = 0, receive_calls = 0, messages = 0;
    };
    LoopCounters loop_counters() {
        Guard g(*this);
        return counters_;
    }
    ProtectionCounters protection_counters() {
        Guard g(*this);
        return protection_.counters();
    }
    bool is_closed() const noexcept { return closed_; }

private:
    static constexpr uint32_t kMaxBursts = 8;          // per turn, half a megabyte: then incoming packets get their turn
    static constexpr uint32_t kMaxReceives = 2;        // batches per port and turn, for the same reason
    static constexpr uint32_t kLastWords = 2;          // nobody repeats them, and answers go round the planes
    static constexpr int kSendWait_ms = 2;             // a full send queue drains within this on any real line
    static constexpr size_t kMaxPathEvents = 4096;     // kept for the controller; the oldest go first

    struct Port {
        UdpSocket main;
        std::vector<UdpSocket> extra;
        std::vector<uint16_t> source_ports;
        uint32_t dropped = 0;
        UdpSocket& source(uint32_t i) { return i == 0 || extra.empty() ? main : extra[i - 1]; }
        void close() noexcept {
            main.close();
            for (UdpSocket& s : extra) s.close();
        }
    };
    struct Peer {
        PeerAddresses addresses;
        std::deque<WriteRequest> backlog;  // posted beyond the send queue
        uint64_t posted = 0;
        uint64_t epoch = 0;  // connections that had this slot before
    };
    /// Takes the lock and lets the loop know that somebody wants it: a plain mutex would let the loop win every race.
    class Guard {
    public:
        explicit Guard(EventLoop& l) : l_(l) {
            l_.callers_.fetch_add(1, std::memory_order_relaxed);
            l_.mutex_.lock();
            l_.callers_.fetch_sub(1, std::memory_order_relaxed);
        }
        ~Guard() { l_.mutex_.unlock(); }
        Guard(const Guard&) = delete;

    private:
        EventLoop& l_;
    };

    void open_port(uint32_t p) {
        Port port;
        const SocketAddress& a = config_.ports[p];
        port.main = UdpSocket::open(a, config_.receive_buffer_bytes, config_.send_buffer_bytes, true, config_.path_mode);
        port.source_ports.push_back(port.main.local().port());
        for (uint32_t s = 1; s < config_.sources_per_port; ++s) {
            port.extra.push_back(UdpSocket::open(a.with_port(0), 4096, config_.send_buffer_bytes, false));
            port.source_ports.push_back(port.extra.back().local().port());
        }
        sleeper_.watch(port.main.fd());
        ports_.push_back(std::move(port));
    }
    template <class Ready>
    WaitResult wait(uint64_t timeout_ns, Ready&& ready) {
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout_ns);
        callers_.fetch_add(1, std::memory_order_relaxed);
        std::unique_lock<std::mutex> l(mutex_);
        callers_.fetch_sub(1, std::memory_order_relaxed);
        WaitResult r = WaitResult::TimedOut;
        ++waiters_;
        while (!ready(r)) {
            if (closed_) {
                r = WaitResult::Closed;
                break;
            }
            if (changed_.wait_until(l, deadline) == std::cv_status::timeout) {
                if (!ready(r)) r = closed_ ? WaitResult::Closed : WaitResult::TimedOut;
                break;
            }
        }
        if (--waiters_ == 0 && closed_) changed_.notify_all();
        return r;
    }

    // The slot may get another connection while somebody waits for the one before: `epoch` tells them apart.
    Connection* waited_for(uint32_t i, uint64_t& epoch) noexcept {
        if (epoch == kNever) epoch = peers_[i].epoch;
        return peers_[i].epoch == epoch ? core_.connection(i) : nullptr;
    }
    uint64_t post_locked(uint32_t i, uint64_t local_key, uint64_t local_offset, uint64_t length, uint64_t remote_key,
                         uint64_t remote_offset, bool has_immediate, uint32_t immediate) {
        Connection* c = closed_ ? nullptr : core_.connection(i);
        if (!c || !c->is_open()) return kRejected;
        uint64_t done = 0, number = kRejected;
        do {
            WriteRequest r;
            const uint64_t part = length - done < kMaxMessage_bytes ? length - done : kMaxMessage_bytes;
            r.length_bytes = static_cast<uint32_t>(part);
            r.remote_key = static_cast<uint32_t>(remote_key);
            r.remote_offset = RegionTable::first_address(remote_key) + remote_offset + done;
            if (part) {
                r.local_key = static_cast<uint32_t>(local_key);
                r.data = core_.regions().pin(r.local_key, local_offset + done, part);
                if (!r.data) return kRejected;
            }
            done += part;
            if (done == length && has_immediate) {
                r.has_immediate = true;
                r.immediate = immediate;
            }
            number = peers_[i].posted++;
            enqueue(i, r);
        } while (done < length);
        return number;
    }

    class TaskAccess final : public LoopAccess {
    public:
        explicit TaskAccess(EventLoop& l) : l_(l) {}
        uint64_t post(const Write& w) noexcept override {
            return l_.post_locked(w.connection, w.local_key, w.local_offset, w.length_bytes, w.remote_key,
                                  w.remote_offset, true, w.immediate);
        }
        bool pop_immediate(uint32_t connection, uint32_t& value) noexcept override {
            bool must_transmit = false;  // whoever advances a task transmits afterwards
            return l_.core_.pop_immediate(now_ns(), connection, value, must_transmit);
        }
        uint64_t completed(uint32_t connection) noexcept override {
            Connection* c = l_.core_.connection(connection);
            return c ? c->completed_messages() : 0;
        }
        bool is_open(uint32_t connection) noexcept override {
            Connection* c = l_.core_.connection(connection);
            return c && c->is_open();
        }
        uint64_t waiting(uint32_t connection) noexcept override {
            Connection* c = l_.core_.connection(connection);
            if (!c) return 0;
            const SendQueue& q = c->sender().queue();
            return q.posted() - q.next_message() + l_.peers_[connection].backlog.size();
        }

    private:
        EventLoop& l_;
    };
    // The peer is told out of turn, after what it waits for: other connections may be busy, and a peer that does not hear
    // of the end waits until it has run out of retries.
    void say_closed(uint64_t now, uint32_t i) {
        for (uint32_t n = 0; n < kMaxBursts && core_.poll_control(now, i, burst_); ++n) send(burst_);
        for (uint32_t n = 0; n < kLastWords; ++n) {
            core_.say_closed(now, i);
            if (core_.poll_control(now, i, burst_)) send(burst_);
        }
    }
    // A connection has ended: tasks and waiters learn of it, and others may use the window it has left.
    void after_end() {
        ++change_number_;
        advance_tasks();
        changed_.notify_all();
        if (after_post()) sleeper_.wake();
    }
    bool has_task(const LoopTask& task) const noexcept {
        return std::find(tasks_.begin(), tasks_.end(), &task) != tasks_.end();
    }
    void advance_tasks() {
        if (tasks_.empty()) return;
        TaskAccess access(*this);
        if (std::erase_if(tasks_, [&](LoopTask* t) { return t->advance(access); })) task_done_.notify_all();
    }

    bool has_hungry_task() {
        if (tasks_.empty()) return false;
        TaskAccess access(*this);
        return std::any_of(tasks_.begin(), tasks_.end(), [&](LoopTask* t) { return t->is_hungry(access); });
    }

    void enqueue(uint32_t i, const WriteRequest& r) {
        Peer& peer = peers_[i];
        if (!peer.backlog.empty() || !core_.post(now_ns(), i, r)) peer.backlog.push_back(r);
    }
    void refill(uint64_t now) {
        if (!backlogged_hint()) return;
        for (uint32_t k = 0; k < core_.num_active(); ++k) {
            const uint32_t i = core_.active(k);
            std::deque<WriteRequest>& b = peers_[i].backlog;
            if (!b.empty() && !core_.connection(i)->is_open()) clear_backlog(i);
            while (!b.empty() && core_.post(now, i, b.front())) b.pop_front();
        }
    }
    bool backlogged_hint() const noexcept {
        for (uint32_t k = 0; k < core_.num_active(); ++k)
            if (!peers_[core_.active(k)].backlog.empty()) return true;
        return false;
    }
    void clear_backlog(uint32_t i) {
        for (const WriteRequest& r : peers_[i].backlog)
            if (r.local_key) core_.regions().unpin(r.local_key);
        peers_[i].backlog.clear();
    }
    // The thread sleeps: send here and now. Returns whether it must be woken for the rest.
    bool after_post() {
        if (!sleeping_) return false;
        const uint64_t now = now_ns();
        if (transmit(now, kMaxBursts) || has_hungry_task()) return true;
        sleeper_.arm(now, core_.poll_timeout(now));
        return false;
    }
    // ---- the thread ------------------------------------------------------------------------------------------------------

    void run() {
        pthread_setname_np(pthread_self(), "farstep-loop");
        mutex_.lock();
        while (!closed_) {
            const bool more = turn();
            sleeping_ = !more;
            mutex_.unlock();
            if (more) {
                yield_to_callers();
            } else {
                sleeper_.sleep();
                processor_.after_sleep(now_ns(), moved_bytes_);
            }
            mutex_.lock();
            sleeping_ = false;
        }
        mutex_.unlock();
    }
    void yield_to_callers() noexcept {
        for (uint32_t n = 0; n < 64 && callers_.load(std::memory_order_relaxed); ++n) std::this_thread::yield();
    }

    // One round: take in, let time act, send. True when there is more to do at once.
    bool turn() {
        ++counters_.iterations;
        uint64_t now = now_ns();
        bool more = receive_all(now);
        now = now_ns();
        if (core_.poll_timeout(now) <= now) core_.on_timeout(now);
        const bool has_progress = core_.take_progress();
        if (has_progress) advance_tasks();
        refill(now);
        more |= transmit(now, kMaxBursts);
        const bool has_late_progress = core_.take_progress();
        if ((has_late_progress && !tasks_.empty()) || has_hungry_task()) {
            advance_tasks();
            more = true;
        }
        if (has_progress || has_late_progress) {
            ++change_number_;
            if (waiters_) changed_.notify_all();
        }
        moved_bytes_ = core_.counters().tx_bytes + core_.counters().rx_bytes;
        const uint64_t next = core_.poll_timeout(now);
        if (next <= now) more = true;
        if (!more) {
            ++counters_.sleeps;
            sleeper_.arm(now, next);
        }
        return more;
    }

    bool receive_all(uint64_t now) {
        bool more = false;
        for (uint32_t p = 0; p < ports_.size(); ++p) more |= receive(now, p);
        return more;
    }
    bool receive(uint64_t now, uint32_t p) {
        Port& port = ports_[p];
        for (uint32_t k = 0; k < kMaxReceives; ++k) {
            const uint32_t n = batch_.receive(port.main.fd());
            ++counters_.receive_calls;
            counters_.messages += n;
            for (uint32_t i = 0; i < n; ++i) {
                uint32_t dropped = port.dropped;
                batch_.split(i, static_cast<uint8_t>(p), dropped,
                             [&](Arrival a, uint8_t* data, size_t datagram_bytes) {
                                 if (protection_.admit(a, data, datagram_bytes)) core_.on_datagram(now, a, data, datagram_bytes);
                             });
                if (dropped != port.dropped) core_.on_receive_overflow(now, dropped - port.dropped);
                port.dropped = dropped;
            }
            if (n < batch_.num_messages()) return false;
        }
        return true;
    }

    bool transmit(uint64_t now, uint32_t max_bursts) {
        for (uint32_t k = 0; k < max_bursts; ++k) {
            if (!core_.poll_transmit(now, burst_)) return false;
            send(burst_);
        }
        return true;
    }
    void send(TxBurst& b) noexcept {
        const Target to = peers_[b.connection].addresses.of(b);
        if (!to.address) return;
        if (!protection_.seal(b)) {
            ++counters_.send_failed;
            return;
        }
        UdpSocket& s = ports_[b.local_port].source(b.source);
        uint32_t sent = 0;
        SendResult r = s.send(b, to, sent);
        if (r == SendResult::WouldBlock) {
            ++counters_.send_blocked;
            pollfd f{s.fd(), POLLOUT, 0};
            ::poll(&f, 1, kSendWait_ms);
            r = s.send(b, to, sent);
        }
        if (r != SendResult::Sent) ++counters_.send_failed;  // the packets count as lost, and loss has its rules
    }

    void take_early(uint32_t i) noexcept {
        uint8_t* data = nullptr;
        size_t bytes = 0;
        Arrival a;
        if (protection_.take_early(i, data, bytes) && protection_.admit(a, data, bytes)) core_.on_datagram(now_ns(), a, data, bytes);
    }
    void collect_path_events() {
        EvEvent e;
        for (uint32_t k = 0; k < core_.num_active(); ++k) {
            const uint32_t i = core_.active(k);
            while (core_.connection(i)->paths().poll_event(e)) {
                if (path_events_.size() >= kMaxPathEvents) path_events_.pop_front();
                path_events_.push_back({i, e});
            }
        }
    }

    LoopConfig config_;
    EndpointCore core_;
    ProtectionTable protection_;
    std::vector<Peer> peers_;
    std::vector<Port> ports_;
    ReceiveBatch batch_;
    TxBurst burst_;
    std::deque<PathEvent> path_events_;
    Sleeper sleeper_;
    ProcessorChoice processor_;
    uint64_t moved_bytes_ = 0;  // of the thread alone: what processor_ goes by
    pid_t owner_pid_;
    std::mutex mutex_;
    std::condition_variable changed_, task_done_;
    std::vector<LoopTask*> tasks_;
    std::atomic<int> callers_{0};
    uint32_t waiters_ = 0;
    uint64_t change_number_ = 0;
    bool sleeping_ = false;
    std::atomic<bool> closed_{false};
    LoopCounters counters_;
    std::thread* thread_ = nullptr;
};

}  // namespace farstep
