// Runs the part of a collective schedule that one rank has: sends chunks when it is their turn, copies or reduces what
// arrives, until nothing is left. The rules are those of farstep.collectives.plan and .link, which say why:
//
//  * What goes over one link goes in the order of the plan, and both ends derive the same order.
//  * The accesses to one chunk of memory happen in the order of their turns. Nothing else is ordered.
//  * A chunk that travels through a slot needs the slot's credit; the receiver gives it back when it has consumed it.
//
// Knows of no socket, clock or thread: LoopAccess carries the bytes. Allocates only while it is set up.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "farstep/loop_task.hpp"
#include "farstep/reduce.hpp"

namespace farstep {

inline constexpr uint32_t kMaxSlots = 63;  // a slot number has six bits in an immediate, one value of which is kNoSlot
inline constexpr uint32_t kNoSlot = 63;
inline constexpr uint32_t kCheckBits = 10;
inline constexpr uint32_t kTagMask = (1u << 18) - 1;  // operation and check word
inline constexpr uint32_t kCreditsPerImmediate = 4;
inline constexpr uint32_t kControlEntries = 2;
inline constexpr uint32_t kControlEntry_bytes = 16384;

/// One remote place named by a control entry.
struct Place {
    uint64_t rkey, length_bytes, offset;
};
inline constexpr uint32_t kMaxPlaces = kControlEntry_bytes / sizeof(Place);

enum class ImmediateKind : uint32_t { Data = 0, Placed = 1, Ready = 2, Credit = 3 };

struct LinkMemory {
    uint8_t* inbox = nullptr;   // the peer writes here
    uint8_t* outbox = nullptr;  // copies of what is sent eagerly
    uint64_t outbox_key = 0, peer_inbox_key = 0;
    uint64_t slot_bytes = 0;
    uint32_t num_slots = 0;
};

/// What lasts from one collective to the next on one link.
class CollectiveLink {
public:
    CollectiveLink(uint32_t connection, const LinkMemory& m) : connection_(connection), memory_(m), ring_(kMaxSlots) {
        assert(m.num_slots <= kMaxSlots);
        for (uint32_t s = 0; s < m.num_slots; ++s) free_[num_free_++] = static_cast<uint8_t>(m.num_slots - 1 - s);
    }

    struct Arrival {
        int32_t slot;  // -1: placed in this rank's memory
        uint32_t tag;
    };

    uint32_t connection() const noexcept { return connection_; }
    uint64_t last_posted() const noexcept { return last_posted_; }
    bool has_posted() const noexcept { return has_posted_; }
    uint32_t num_free() const noexcept { return num_free_; }

    /// Room for what one collective may receive before it is consumed, beside what may come early for the next.
    void reserve_arrivals(size_t count) {
        if (ring_.size() >= count + kMaxSlots) return;
        std::vector<Arrival> larger(count + kMaxSlots);
        for (size_t i = 0; i < num_arrivals_; ++i) larger[i] = ring_[(first_ + i) % ring_.size()];
        ring_.swap(larger);
        first_ = 0;
    }
    size_t num_arrivals() const noexcept { return num_arrivals_; }
    const Arrival& front() const noexcept { return ring_[first_]; }
    void pop_front() noexcept {
        first_ = (first_ + 1) % ring_.size();
        --num_arrivals_;
    }

    /// Takes in one immediate; false if no correct peer sends it.
    bool on_immediate(uint32_t word) noexcept {
        switch (static_cast<ImmediateKind>(word >> 30)) {
            case ImmediateKind::Data: {
                const uint32_t slot = (word >> 24) & 63;
                return slot < memory_.num_slots && returned(word) &&
                       arrived({static_cast<int32_t>(slot), word & kTagMask});
            }
            case ImmediateKind::Placed: return returned(word) && arrived({-1, word & kTagMask});
            case ImmediateKind::Ready: {
                const uint32_t operation = (word >> 16) & 0xFF, count = word & 0xFFFF;
                if (count > kMaxPlaces) return false;
                ready_[operation % kControlEntries] = {operation, count, true};
                return true;
            }
            case ImmediateKind::Credit: return credited(word);
        }
        return false;
    }

    /// The places the peer has named for an operation; null until it has.
    const uint8_t* places(uint32_t operation, uint32_t& count) const noexcept {
        const Ready& r = ready_[operation % kControlEntries];
        if (!r.valid || r.operation != operation) return nullptr;
        count = r.count;
        return memory_.inbox + (operation % kControlEntries) * kControlEntry_bytes;
    }
    /// What the peer has named for a later operation stays: it may be ahead.
    void forget_places(uint32_t operation) noexcept {
        Ready& r = ready_[operation % kControlEntries];
        if (r.operation == operation) r.valid = false;
    }

    uint8_t* slot_address(uint32_t slot) const noexcept { return memory_.inbox + slot_offset(slot); }

    bool send_copy(LoopAccess& loop, const uint8_t* data, uint64_t bytes, uint32_t tag) noexcept {
        const uint32_t slot = free_[--num_free_];
        const uint64_t offset = slot_offset(slot);
        std::memcpy(memory_.outbox + offset, data, bytes);
        return post(loop, memory_.outbox_key, offset, bytes, memory_.peer_inbox_key, offset, slot << 24 | give_back() | tag);
    }
    bool send_to_slot(LoopAccess& loop, uint64_t key, uint64_t offset, uint64_t bytes, uint32_t tag) noexcept {
        const uint32_t slot = free_[--num_free_];
        return post(loop, key, offset, bytes, memory_.peer_inbox_key, slot_offset(slot),
                    slot << 24 | give_back() | tag);
    }
    bool send_to_place(LoopAccess& loop, uint64_t key, uint64_t offset, uint64_t bytes, const Place& place, uint64_t at,
                       uint32_t tag) noexcept {
        const uint32_t kind = static_cast<uint32_t>(ImmediateKind::Placed) << 30;
        return post(loop, key, offset, bytes, place.rkey, place.offset + at,
                    kind | give_back() | tag);
    }
    bool send_ready(LoopAccess& loop, const Place* places, uint32_t count, uint32_t operation) noexcept {
        const uint64_t offset = (operation % kControlEntries) * kControlEntry_bytes;
        const uint64_t bytes = count * sizeof(Place);
        std::memcpy(memory_.outbox + offset, places, bytes);
        const uint32_t word = static_cast<uint32_t>(ImmediateKind::Ready) << 30 | operation << 16 | count;
        return post(loop, memory_.outbox_key, offset, bytes, memory_.peer_inbox_key, offset, word);
    }
    /// Gives a consumed slot back, together with others once `batch` of them have come together.
    bool release(LoopAccess& loop, uint32_t slot, uint32_t batch) noexcept {
        if (num_owed_ == kMaxSlots) return false;  // more than there are: the peer used slots without their credit
        owed_[num_owed_++] = static_cast<uint8_t>(slot);
        return num_owed_ < batch || flush_credits(loop);
    }

private:
    struct Ready {
        uint32_t operation = 0, count = 0;
        bool valid = false;
    };

    uint64_t slot_offset(uint32_t slot) const noexcept {
        return uint64_t{kControlEntries} * kControlEntry_bytes + slot * memory_.slot_bytes;
    }
    bool arrived(const Arrival& a) noexcept {
        if (num_arrivals_ == ring_.size()) return false;
        ring_[(first_ + num_arrivals_++) % ring_.size()] = a;
        return true;
    }
    /// A slot to return with the data about to be sent, in its place in the immediate.
    uint32_t give_back() noexcept { return (num_owed_ ? owed_[--num_owed_] : kNoSlot) << 18; }
    bool returned(uint32_t word) noexcept {
        const uint32_t slot = (word >> 18) & 63;
        if (slot == kNoSlot) return true;
        if (slot >= memory_.num_slots || num_free_ == memory_.num_slots) return false;
        free_[num_free_++] = static_cast<uint8_t>(slot);
        return true;
    }
    bool credited(uint32_t word) noexcept {
        const uint32_t count = (word >> 27) & 7;
        if (count > kCreditsPerImmediate || num_free_ + count > memory_.num_slots) return false;
        for (uint32_t k = 0; k < count; ++k) {
            const uint32_t slot = (word >> (6 * k)) & 63;
            if (slot >= memory_.num_slots) return false;
            free_[num_free_++] = static_cast<uint8_t>(slot);
        }
        return true;
    }
    bool flush_credits(LoopAccess& loop) noexcept {
        while (num_owed_) {
            const uint32_t count = std::min(num_owed_, kCreditsPerImmediate);
            uint32_t word = static_cast<uint32_t>(ImmediateKind::Credit) << 30 | count << 27;
            for (uint32_t k = 0; k < count; ++k) word |= static_cast<uint32_t>(owed_[--num_owed_]) << (6 * k);
            if (!post(loop, 0, 0, 0, memory_.peer_inbox_key, 0, word)) return false;
        }
        return true;
    }
    bool post(LoopAccess& loop, uint64_t key, uint64_t offset, uint64_t bytes, uint64_t remote_key,
              uint64_t remote_offset, uint32_t immediate) noexcept {
        last_posted_ = loop.post({connection_, key, offset, bytes, remote_key, remote_offset, immediate});
        has_posted_ = has_posted_ || last_posted_ != LoopAccess::kRejected;
        return last_posted_ != LoopAccess::kRejected;
    }

    uint32_t connection_;
    LinkMemory memory_;
    uint8_t free_[kMaxSlots], owed_[kMaxSlots];
    uint32_t num_free_ = 0, num_owed_ = 0;
    std::vector<Arrival> ring_;
    size_t first_ = 0, num_arrivals_ = 0;
    Ready ready_[kControlEntries];
    uint64_t last_posted_ = 0;
    bool has_posted_ = false;
};

/// One chunk sent or received; see farstep.collectives.plan.Access.
struct ChunkAccess {
    uint32_t chunk, turn;
    uint64_t offset_bytes, length_bytes, entry_offset_bytes;
    uint32_t entry;
    uint8_t action;  // 0 copy, 1 received value is the left operand, 2 it is the right one
    bool is_fresh, is_placed, completes;
};

struct LinkPlan {
    std::vector<ChunkAccess> sends, receives;
    std::vector<uint64_t> placed_offsets_bytes;
    uint32_t num_placed_sends = 0;
};

struct CollectivePlan {
    bool is_eager = true;
    std::vector<LinkPlan> links;
    // Links in the order of the turns of each chunk: those of chunk c are order[first[c]] .. order[first[c + 1] - 1].
    std::vector<uint32_t> first, order;
};

/// Memory laid end to end in one range of bytes.
class MemorySpace {
public:
    struct Part {
        uint64_t start_bytes;
        uint8_t* address;
        uint64_t key;
    };
    explicit MemorySpace(std::vector<Part> parts) : parts_(std::move(parts)) { assert(!parts_.empty()); }

    uint8_t* address(uint64_t offset) const noexcept {
        const Part& p = part(offset);
        return p.address + (offset - p.start_bytes);
    }
    const Part& part(uint64_t offset) const noexcept {
        size_t low = 0, high = parts_.size();
        while (high - low > 1) {
            const size_t middle = (low + high) / 2;
            (parts_[middle].start_bytes <= offset ? low : high) = middle;
        }
        return parts_[low];
    }

private:
    std::vector<Part> parts_;
};

struct CollectiveTask {
    uint32_t operation = 0;  // eight bits
    uint32_t check = 0;      // kCheckBits
    ElementType element_type = ElementType::uint8;
    Reduction reduction = Reduction::sum;
    uint32_t divisor = 1;
};

class CollectiveRun final : public LoopTask {
public:
    enum class Status : uint8_t { Running, Done, LinkFailed, Mismatch, BadPeer };

    CollectiveRun(const CollectivePlan& plan, std::vector<CollectiveLink*> links, const CollectiveTask& task,
                  MemorySpace source, MemorySpace work)
        : plan_(plan), task_(task), tag_(task.operation << kCheckBits | task.check), source_(std::move(source)),
          work_(std::move(work)), kernel_(combine_kernel(task.element_type, task.reduction)),
          item_bytes_(element_bytes(task.element_type)), turns_(plan.first.empty() ? 0 : plan.first.size() - 1, 0) {
        assert(links.size() == plan.links.size());
        for (size_t i = 0; i < links.size(); ++i) {
            states_.push_back(State{links[i], &plan.links[i]});
            remaining_ += plan.links[i].sends.size() + plan.links[i].receives.size();
            links[i]->reserve_arrivals(plan.links[i].receives.size());
        }
        todo_.reserve(links.size());
    }

    bool advance(LoopAccess& loop) noexcept override {
        if (status_ != Status::Running) return true;
        if (!is_started_) start(loop);
        for (uint32_t i = 0; i < states_.size(); ++i) {
            take_in(loop, i);
            if (states_[i].is_held) queue(i);
        }
        progress(loop);
        if (status_ == Status::Running && remaining_ == 0 && is_acknowledged(loop)) finish();
        if (status_ == Status::Running) look_for_failures(loop);
        return status_ != Status::Running;
    }

    bool is_hungry(LoopAccess& loop) noexcept override {
        return status_ == Status::Running && std::any_of(states_.begin(), states_.end(), [&](const State& s) {
                   return s.is_held && loop.waiting(s.link->connection()) < kWaitingMax;
               });
    }

    Status status() const noexcept { return status_; }
    uint32_t failed_link() const noexcept { return failed_link_; }
    uint32_t foreign_tag() const noexcept { return foreign_tag_; }
    size_t sent(uint32_t link) const noexcept { return states_[link].sent; }
    size_t received(uint32_t link) const noexcept { return states_[link].received; }
    bool is_awaited(uint32_t i) const noexcept {
        const State& s = states_[i];
        if (s.received + s.link->num_arrivals() < s.plan->receives.size()) return true;
        if (s.sent == s.plan->sends.size()) return false;
        const ChunkAccess& a = s.plan->sends[s.sent];
        return turns_[a.chunk] == a.turn;
    }

private:
    static constexpr uint32_t kEagerCreditBatch = 8, kDirectCreditBatch = 2;
    // Chunks wait here rather than in the connection's queue: one that is posted has its slot, and slots that are used
    // again soon stay in the receiver's cache. Two keep the connection busy while the loop comes round.
    static constexpr uint64_t kWaitingMax = 2;

    struct State {
        CollectiveLink* link;
        const LinkPlan* plan;
        size_t sent = 0, received = 0;
        bool is_queued = false;
        bool is_held = false;  // something could be posted, but enough waits to leave
    };

    void start(LoopAccess& loop) noexcept {
        is_started_ = true;
        for (uint32_t i = 0; i < states_.size(); ++i) {
            if (!plan_.is_eager) say_ready(loop, i);
            queue(i);
        }
    }
    void say_ready(LoopAccess& loop, uint32_t i) noexcept {
        const std::vector<uint64_t>& offsets = states_[i].plan->placed_offsets_bytes;
        if (offsets.empty()) return;
        assert(offsets.size() <= kMaxPlaces);
        Place places[kMaxPlaces];
        for (size_t k = 0; k < offsets.size(); ++k) {
            const MemorySpace::Part& p = work_.part(offsets[k]);
            places[k] = {p.key, 0, offsets[k] - p.start_bytes};
        }
        if (!states_[i].link->send_ready(loop, places, static_cast<uint32_t>(offsets.size()), task_.operation))
            fail(Status::LinkFailed, i);
    }
    void take_in(LoopAccess& loop, uint32_t i) noexcept {
        uint32_t word;
        while (loop.pop_immediate(states_[i].link->connection(), word)) {
            if (!states_[i].link->on_immediate(word)) return fail(Status::BadPeer, i);
            queue(i);
        }
    }
    void queue(uint32_t i) noexcept {
        if (states_[i].is_queued) return;
        states_[i].is_queued = true;
        todo_.push_back(i);
    }
    void progress(LoopAccess& loop) noexcept {
        while (!todo_.empty() && status_ == Status::Running) {
            const uint32_t i = todo_.back();
            todo_.pop_back();
            states_[i].is_queued = false;
            consume(loop, i);
            send(loop, i);
        }
    }
    /// An access is done: the next one to its chunk may be possible now.
    void done(const ChunkAccess& a) noexcept {
        --remaining_;
        const uint32_t turn = ++turns_[a.chunk];
        const uint32_t at = plan_.first[a.chunk] + turn;
        if (at < plan_.first[a.chunk + 1]) queue(plan_.order[at]);
    }

    void consume(LoopAccess& loop, uint32_t i) noexcept {
        State& s = states_[i];
        while (s.link->num_arrivals() && s.received < s.plan->receives.size()) {
            const ChunkAccess& a = s.plan->receives[s.received];
            if (turns_[a.chunk] != a.turn) return;
            const CollectiveLink::Arrival arrival = s.link->front();
            if (arrival.tag != tag_ || (arrival.slot < 0) != a.is_placed) {
                foreign_tag_ = arrival.tag;
                return fail(Status::Mismatch, i);
            }
            s.link->pop_front();
            ++s.received;
            if (arrival.slot >= 0) {
                take(a, s.link->slot_address(static_cast<uint32_t>(arrival.slot)));
                const uint32_t batch = plan_.is_eager ? kEagerCreditBatch : kDirectCreditBatch;
                if (!s.link->release(loop, static_cast<uint32_t>(arrival.slot), batch)) {
                    // A peer that is through may have left; it needs no credit.
                    if (is_awaited(i)) return fail(Status::LinkFailed, i);
                }
            }
            done(a);
        }
    }
    void take(const ChunkAccess& a, const uint8_t* arrived) noexcept {
        uint8_t* out = work_.address(a.offset_bytes);
        if (a.action == 0) {
            std::memcpy(out, arrived, a.length_bytes);
            return;
        }
        const uint8_t* own = a.is_fresh ? source_.address(a.offset_bytes) : out;
        const uint64_t count = a.length_bytes / item_bytes_;
        if (a.action == 1) kernel_(out, arrived, own, count);
        else kernel_(out, own, arrived, count);
        if (a.completes && task_.divisor != 1) divide_in_place(task_.element_type, out, count, task_.divisor);
    }

    void send(LoopAccess& loop, uint32_t i) noexcept {
        State& s = states_[i];
        s.is_held = false;
        while (s.sent < s.plan->sends.size()) {
            const ChunkAccess& a = s.plan->sends[s.sent];
            if (turns_[a.chunk] != a.turn) return;
            s.is_held = !plan_.is_eager && loop.waiting(s.link->connection()) >= kWaitingMax;
            if (s.is_held) return;
            const MemorySpace& space = a.is_fresh ? source_ : work_;
            bool is_posted;
            if (a.is_placed) {
                uint32_t count = 0;
                const uint8_t* places = s.link->places(task_.operation, count);
                if (!places) return;
                if (count != s.plan->num_placed_sends) return fail(Status::Mismatch, i);
                Place place;
                std::memcpy(&place, places + a.entry * sizeof(Place), sizeof place);
                const MemorySpace::Part& p = space.part(a.offset_bytes);
                is_posted = s.link->send_to_place(loop, p.key, a.offset_bytes - p.start_bytes, a.length_bytes, place,
                                                  a.entry_offset_bytes, tag_);
            } else if (!s.link->num_free()) {
                return;
            } else if (plan_.is_eager) {
                is_posted = s.link->send_copy(loop, space.address(a.offset_bytes), a.length_bytes, tag_);
            } else {
                const MemorySpace::Part& p = space.part(a.offset_bytes);
                is_posted = s.link->send_to_slot(loop, p.key, a.offset_bytes - p.start_bytes, a.length_bytes, tag_);
            }
            if (!is_posted) return fail(Status::LinkFailed, i);
            ++s.sent;
            done(a);
        }
    }

    /// The caller's memory is its own again once everything sent from it is acknowledged; copies need no wait.
    bool is_acknowledged(LoopAccess& loop, const State& s) const noexcept {
        return plan_.is_eager || s.plan->sends.empty() ||
               loop.completed(s.link->connection()) > s.link->last_posted();
    }
    bool is_acknowledged(LoopAccess& loop) const noexcept {
        return std::all_of(states_.begin(), states_.end(), [&](const State& s) { return is_acknowledged(loop, s); });
    }
    void finish() noexcept {
        for (State& s : states_) s.link->forget_places(task_.operation);
        status_ = Status::Done;
    }
    void look_for_failures(LoopAccess& loop) noexcept {
        for (uint32_t i = 0; i < states_.size(); ++i) {
            const State& s = states_[i];
            if (loop.is_open(s.link->connection())) continue;
            const bool is_needed = is_awaited(i) || (s.sent == s.plan->sends.size() && !is_acknowledged(loop, s));
            if (is_needed) return fail(Status::LinkFailed, i);
        }
    }
    void fail(Status why, uint32_t link) noexcept {
        if (status_ != Status::Running) return;
        status_ = why;
        failed_link_ = link;
    }

    const CollectivePlan& plan_;
    CollectiveTask task_;
    uint32_t tag_;
    MemorySpace source_, work_;
    reduction::Combine kernel_;
    uint64_t item_bytes_;
    std::vector<State> states_;
    std::vector<uint32_t> turns_, todo_;
    size_t remaining_ = 0;
    Status status_ = Status::Running;
    uint32_t failed_link_ = 0, foreign_tag_ = 0;
    bool is_started_ = false;
};

}  // namespace farstep
