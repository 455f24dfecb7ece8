// Runs collectives among simulated ranks: a ring all-reduce and a recursive doubling, delivered in random order.
// Usage: collective_run_test [seed [iterations]], 50 iterations to a round of six collectives
//
// Every rank checks the exact sum. Links deliver in order but at any time, as a connection does; a rank that is through
// may start the next collective while others still work on the last.
#include "farstep/collective_run.hpp"

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <vector>

using namespace farstep;

namespace {

uint64_t state = 1;

uint64_t next_random() {
    state += 0x9e3779b97f4a7c15ull;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

void require(bool holds, const char* what, unsigned long long detail) {
    if (holds) return;
    std::printf("FAILED: %s (%llu)\n", what, detail);
    std::exit(1);
}

struct Wire {
    LoopAccess::Write write;
    const uint8_t* data;
};
/// One direction between two ranks.
struct Channel {
    std::deque<Wire> wire;
    std::deque<uint32_t> immediates;
    uint64_t posted = 0, completed = 0;
};

constexpr uint64_t kSlot_bytes = 4096;
constexpr uint32_t kSlots = 16;
constexpr uint64_t kInbox_bytes = uint64_t{kControlEntries} * kControlEntry_bytes + kSlots * kSlot_bytes;

class World;

/// What one rank's event loop would offer. Connection number = rank of the peer.
class RankAccess final : public LoopAccess {
public:
    RankAccess(World& w, uint32_t rank) : world_(w), rank_(rank) {}
    uint64_t post(const Write& w) noexcept override;
    bool pop_immediate(uint32_t peer, uint32_t& value) noexcept override;
    uint64_t completed(uint32_t peer) noexcept override;
    bool is_open(uint32_t) noexcept override { return is_alive; }
    uint64_t waiting(uint32_t peer) noexcept override;
    bool is_alive = true;

private:
    World& world_;
    uint32_t rank_;
};

class World {
public:
    explicit World(uint32_t size) : size_(size), channels_(size * size), memory_(size) {
        for (uint32_t r = 0; r < size; ++r) access_.push_back(std::make_unique<RankAccess>(*this, r));
        for (uint32_t r = 0; r < size; ++r) {
            links_.emplace_back();
            for (uint32_t peer = 0; peer < size; ++peer) {
                inboxes_.emplace_back(kInbox_bytes);
                outboxes_.emplace_back(kInbox_bytes);
            }
        }
        for (uint32_t r = 0; r < size; ++r)
            for (uint32_t peer = 0; peer < size; ++peer) {
                LinkMemory m;
                m.inbox = inboxes_[r * size + peer].data();
                m.outbox = outboxes_[r * size + peer].data();
                m.outbox_key = add(r, m.outbox, kInbox_bytes);
                m.peer_inbox_key = 1000 + r;  // resolved below: key of the inbox peer keeps for r
                m.slot_bytes = kSlot_bytes;
                m.num_slots = kSlots;
                links_[r].push_back(std::make_unique<CollectiveLink>(peer, m));
            }
    }
    uint32_t size() const { return size_; }
    CollectiveLink* link(uint32_t r, uint32_t peer) { return links_[r][peer].get(); }
    RankAccess& access(uint32_t r) { return *access_[r]; }
    Channel& channel(uint32_t from, uint32_t to) { return channels_[from * size_ + to]; }

    uint32_t add(uint32_t rank, uint8_t* base, uint64_t bytes) {
        memory_[rank].push_back({base, bytes});
        return static_cast<uint32_t>(memory_[rank].size() - 1);
    }
    void forget(uint32_t rank, uint32_t key) { memory_[rank][key].bytes = 0; }
    uint8_t* resolve(uint32_t rank, uint32_t key, uint64_t offset, uint64_t bytes, uint32_t writer) {
        if (key >= 1000) {
            require(offset + bytes <= kInbox_bytes, "write inside the inbox", offset);
            require(key == 1000 + writer, "inbox belongs to the writer", key);
            return inboxes_[rank * size_ + writer].data() + offset;
        }
        const Memory& m = memory_[rank].at(key);
        require(offset + bytes <= m.bytes, "access inside registered memory", offset + bytes);
        return m.base + offset;
    }
    /// Delivers the oldest write of a random channel; false when nothing is on the way.
    bool deliver_one() {
        std::vector<uint32_t> busy;
        for (uint32_t i = 0; i < channels_.size(); ++i)
            if (!channels_[i].wire.empty()) busy.push_back(i);
        if (busy.empty()) return false;
        const uint32_t i = busy[next_random() % busy.size()], from = i / size_, to = i % size_;
        const Wire w = channels_[i].wire.front();
        channels_[i].wire.pop_front();
        if (w.write.length_bytes)
            std::memcpy(resolve(to, w.write.remote_key, w.write.remote_offset, w.write.length_bytes, from), w.data,
                        w.write.length_bytes);
        channels_[i].immediates.push_back(w.write.immediate);
        ++channels_[i].completed;
        return true;
    }

private:
    struct Memory {
        uint8_t* base;
        uint64_t bytes;
    };
    uint32_t size_;
    std::vector<Channel> channels_;
    std::vector<std::vector<Memory>> memory_;
    std::vector<std::vector<uint8_t>> inboxes_, outboxes_;
    std::vector<std::vector<std::unique_ptr<CollectiveLink>>> links_;
    std::vector<std::unique_ptr<RankAccess>> access_;
};

uint64_t RankAccess::post(const Write& w) noexcept {
    if (!is_alive) return kRejected;
    Channel& c = world_.channel(rank_, w.connection);
    const uint8_t* data = w.length_bytes ? world_.resolve(rank_, w.local_key, w.local_offset, w.length_bytes, rank_)
                                         : nullptr;
    c.wire.push_back({w, data});  // read when delivered, as a retransmission would
    return c.posted++;
}
bool RankAccess::pop_immediate(uint32_t peer, uint32_t& value) noexcept {
    std::deque<uint32_t>& q = world_.channel(peer, rank_).immediates;
    if (q.empty()) return false;
    value = q.front();
    q.pop_front();
    return true;
}
uint64_t RankAccess::waiting(uint32_t peer) noexcept { return world_.channel(rank_, peer).wire.size(); }
uint64_t RankAccess::completed(uint32_t peer) noexcept { return world_.channel(rank_, peer).completed; }

/// Collects the transfers of one rank and numbers chunks and turns, as compile_plan does in Python.
class PlanBuilder {
public:
    PlanBuilder(bool is_eager, uint64_t chunk_bytes) : chunk_bytes_(chunk_bytes) { plan_.is_eager = is_eager; }

    void send(uint32_t peer, uint64_t offset, uint64_t bytes, uint8_t action) {
        LinkPlan& l = link(peer);
        const bool placed = !plan_.is_eager && action == 0;
        const uint32_t entry = placed ? l.num_placed_sends++ : 0;
        cut(l.sends, index_[peer], offset, bytes, action, placed, entry, false);
    }
    void receive(uint32_t peer, uint64_t offset, uint64_t bytes, uint8_t action, bool completes) {
        LinkPlan& l = link(peer);
        const bool placed = !plan_.is_eager && action == 0;
        if (placed) l.placed_offsets_bytes.push_back(offset);
        cut(l.receives, index_[peer], offset, bytes, action, placed, 0, completes);
    }
    CollectivePlan finish(std::vector<uint32_t>& peers) {
        plan_.first.assign(1, 0);
        for (const std::vector<uint32_t>& c : by_chunk_) {
            plan_.order.insert(plan_.order.end(), c.begin(), c.end());
            plan_.first.push_back(static_cast<uint32_t>(plan_.order.size()));
        }
        peers = peers_;
        return plan_;
    }

private:
    LinkPlan& link(uint32_t peer) {
        if (index_.size() <= peer) index_.resize(peer + 1, UINT32_MAX);
        if (index_[peer] == UINT32_MAX) {
            index_[peer] = static_cast<uint32_t>(peers_.size());
            peers_.push_back(peer);
            plan_.links.emplace_back();
        }
        return plan_.links[index_[peer]];
    }
    void cut(std::vector<ChunkAccess>& out, uint32_t link, uint64_t offset, uint64_t bytes, uint8_t action, bool placed,
             uint32_t entry, bool completes) {
        for (uint64_t at = 0; at < bytes; at += chunk_bytes_) {
            const uint64_t start = offset + at;
            uint32_t chunk = 0;
            while (chunk < starts_.size() && starts_[chunk] != start) ++chunk;
            if (chunk == starts_.size()) {
                starts_.push_back(start);
                by_chunk_.emplace_back();
            }
            const uint32_t turn = static_cast<uint32_t>(by_chunk_[chunk].size());
            by_chunk_[chunk].push_back(link);
            const uint64_t length = std::min(chunk_bytes_, bytes - at);
            out.push_back({chunk, turn, start, length, at, entry, action, false, placed, completes});
        }
    }
    uint64_t chunk_bytes_;
    CollectivePlan plan_;
    std::vector<uint32_t> peers_, index_;
    std::vector<uint64_t> starts_;
    std::vector<std::vector<uint32_t>> by_chunk_;
};

CollectivePlan ring_plan(uint32_t size, uint32_t rank, uint64_t count, bool eager, std::vector<uint32_t>& peers) {
    const uint64_t item = 8, base = count / size, longer = count % size;
    const auto offset = [&](uint32_t b) { return (b * base + std::min<uint64_t>(b, longer)) * item; };
    const auto bytes = [&](uint32_t b) { return (base + (b < longer)) * item; };
    const uint32_t right = (rank + 1) % size, left = (rank + size - 1) % size;
    PlanBuilder p(eager, 512 + 8 * (count % 7));
    for (uint32_t s = 0; s + 1 < size; ++s) {
        const uint32_t out = (rank + 2 * size - 1 - s) % size, in = (rank + 2 * size - 2 - s) % size;
        p.send(right, offset(out), bytes(out), 1);
        p.receive(left, offset(in), bytes(in), 1, s + 2 == size);
    }
    for (uint32_t s = 0; s + 1 < size; ++s) {
        const uint32_t out = (rank + size - s) % size, in = (rank + 2 * size - 1 - s) % size;
        p.send(right, offset(out), bytes(out), 0);
        p.receive(left, offset(in), bytes(in), 0, false);
    }
    return p.finish(peers);
}

CollectivePlan doubling_plan(uint32_t size, uint32_t rank, uint64_t count, std::vector<uint32_t>& peers) {
    PlanBuilder p(true, 2048);
    for (uint32_t distance = 1; distance < size; distance *= 2) {
        const uint32_t partner = rank ^ distance;
        p.send(partner, 0, count * 8, partner < rank ? 2 : 1);
        p.receive(partner, 0, count * 8, partner < rank ? 1 : 2, 2 * distance == size);
    }
    return p.finish(peers);
}

/// One rank working through its list of collectives.
struct Rank {
    uint32_t next = 0;
    std::vector<int64_t> values;
    CollectivePlan plan;
    std::unique_ptr<CollectiveRun> run;
    uint32_t key = 0;
};

struct Job {
    uint64_t count;
    int kind;  // 0 ring direct, 1 ring eager, 2 doubling
};

int64_t value_of(uint32_t rank, uint32_t job, uint64_t i) {
    return static_cast<int64_t>(rank * 1000003 + job * 7919 + i * 31) % 1000;
}

void start(World& w, Rank& r, uint32_t rank, const std::vector<Job>& jobs) {
    const Job& job = jobs[r.next];
    r.values.resize(job.count);
    for (uint64_t i = 0; i < job.count; ++i) r.values[i] = value_of(rank, r.next, i);
    std::vector<uint32_t> peers;
    r.plan = job.kind == 2 ? doubling_plan(w.size(), rank, job.count, peers)
                           : ring_plan(w.size(), rank, job.count, job.kind == 1, peers);
    std::vector<CollectiveLink*> links;
    for (uint32_t peer : peers) links.push_back(w.link(rank, peer));
    auto* base = reinterpret_cast<uint8_t*>(r.values.data());
    r.key = w.add(rank, base, job.count * 8);
    const CollectiveTask task{r.next & 0xFF, r.next * 77 & 0x3FF, ElementType::int64, Reduction::sum, 1};
    MemorySpace space({{0, base, r.key}});
    r.run = std::make_unique<CollectiveRun>(r.plan, links, task, space, space);
}

void check(World& w, Rank& r, uint32_t rank, const std::vector<Job>& jobs) {
    require(r.run->status() == CollectiveRun::Status::Done, "the run ends well", static_cast<int>(r.run->status()));
    for (uint64_t i = 0; i < jobs[r.next].count; ++i) {
        int64_t sum = 0;
        for (uint32_t k = 0; k < w.size(); ++k) sum += value_of(k, r.next, i);
        require(r.values[i] == sum, "exact sum", i);
    }
    w.forget(rank, r.key);
}

/// What has its turn waits in the run, not in the connection, once enough is there; and nothing waits without reason.
void check_held_back(World& w, Rank& r, uint32_t rank, const Job& job) {
    RankAccess& access = w.access(rank);
    require(!r.run->is_hungry(access), "advance posts all it may", rank);
    if (job.kind != 0) return;
    const uint32_t tag = (r.next & 0xFF) << kCheckBits | (r.next * 77 & 0x3FF);
    for (uint32_t peer = 0; peer < w.size(); ++peer) {
        uint64_t data = 0;
        for (const Wire& x : w.channel(rank, peer).wire)
            data += x.write.immediate >> 31 == 0 && (x.write.immediate & kTagMask) == tag;
        require(data <= 2, "chunks waiting in a connection", data);
    }
}

void run_round(uint32_t size) {
    World w(size);
    const bool is_power = (size & (size - 1)) == 0;
    std::vector<Job> jobs;
    for (int i = 0; i < 6; ++i)
        jobs.push_back({size + next_random() % 5000, static_cast<int>(next_random() % (is_power ? 3 : 2))});
    std::vector<Rank> ranks(size);
    for (uint32_t r = 0; r < size; ++r) start(w, ranks[r], r, jobs);
    uint32_t finished = 0;
    uint64_t idle = 0;
    while (finished < size) {
        const bool delivered = next_random() % 3 && w.deliver_one();
        const uint32_t r = static_cast<uint32_t>(next_random() % size);
        Rank& rank = ranks[r];
        const bool is_through = rank.run && rank.run->advance(w.access(r));
        if (rank.run && !is_through) check_held_back(w, rank, r, jobs[rank.next]);
        if (is_through) {
            check(w, rank, r, jobs);
            rank.run.reset();
            if (++rank.next < jobs.size()) start(w, rank, r, jobs);
            else ++finished;
        }
        idle = delivered ? 0 : idle + 1;
        require(idle < 100000, "something always happens", finished);
    }
}

void run_failure() {
    World w(2);
    std::vector<Rank> ranks(2);
    const std::vector<Job> jobs{{1000, 0}};
    start(w, ranks[0], 0, jobs);
    require(!ranks[0].run->advance(w.access(0)), "waits for the peer", 0);
    w.access(0).is_alive = false;
    require(ranks[0].run->advance(w.access(0)), "ends when the connection does", 0);
    require(ranks[0].run->status() == CollectiveRun::Status::LinkFailed, "says why", 0);

    World other(2);
    start(other, ranks[1], 1, jobs);
    require(!ranks[1].run->advance(other.access(1)), "waits for the peer", 1);
    other.channel(0, 1).immediates.push_back(0x00FF1234);  // some other operation's data, no slot returned
    require(ranks[1].run->advance(other.access(1)), "ends on a foreign tag", 1);
    require(ranks[1].run->status() == CollectiveRun::Status::Mismatch, "says so", 1);
    require(ranks[1].run->foreign_tag() == (0xFF1234 & kTagMask), "names the tag", 1);

    // Whatever a peer sends, nothing outside the slots is touched and the run ends or goes on.
    for (int i = 0; i < 2000; ++i) {
        World hostile(2);
        Rank victim;
        start(hostile, victim, 1, jobs);
        for (int k = 0; k < 200; ++k) {
            hostile.channel(0, 1).immediates.push_back(static_cast<uint32_t>(next_random()));
            if (victim.run->advance(hostile.access(1))) break;
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1) state = std::strtoull(argv[1], nullptr, 10);
    const int rounds = argc > 2 ? 1 + std::atoi(argv[2]) / 50 : 40;
    std::printf("seed %llu\n", static_cast<unsigned long long>(state));
    for (int i = 0; i < rounds; ++i) run_round(2 + static_cast<uint32_t>(next_random() % 5));
    run_failure();
    std::printf("collective_run_test: ok\n");
    return 0;
}
