// Tables whose size is settled when a connection is made, from the heap or from memory its owner laid out.
//
// An endpoint holds few connections and takes each table from the heap. A simulation holds a hundred thousand and lays
// the tables of one connection side by side, so that it neither scatters them nor pays for bookkeeping.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

namespace farstep {

/// Memory handed out front to back, of the heap or of a given block. Nothing is taken back before all of it is.
class Arena {
public:
    static constexpr size_t kLine_bytes = 64;  // of a cache

    Arena() = default;
    Arena(void* memory, size_t bytes) noexcept : begin_(static_cast<std::byte*>(memory)), bytes_(bytes) {}
    ~Arena() {
        for (void* p : heap_) ::operator delete(p, std::align_val_t{kLine_bytes});
    }
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    /// What is smaller than a cache line comes from the next `bytes` from now on, so that small tables share lines.
    void gather_small(size_t bytes) noexcept {
        small_ = align(used_, kLine_bytes);
        small_end_ = used_ = small_ + bytes;
    }
    /// Zeroed memory for what is rarely touched: what nobody writes there need not become resident.
    void use_cold(void* zeroed, size_t bytes) noexcept {
        cold_ = static_cast<std::byte*>(zeroed);
        cold_bytes_ = bytes;
    }
    /// Zeroed memory: of the cold block where there is one.
    void* take_zeroed(size_t bytes, size_t alignment) {
        if (!cold_) return std::memset(take(bytes, alignment), 0, bytes);
        cold_used_ = align(cold_used_, alignment);
        assert(cold_used_ + bytes <= cold_bytes_);
        void* const out = cold_ + cold_used_;
        cold_used_ += bytes;
        return out;
    }
    void* take(size_t bytes, size_t alignment) {
        if (!begin_) {
            heap_.push_back(::operator new(bytes ? bytes : 1, std::align_val_t{kLine_bytes}));
            return heap_.back();
        }
        const size_t small = align(small_, alignment);
        if (bytes < kLine_bytes) small_wanted_ = align(small_wanted_, alignment) + bytes;
        if (bytes < kLine_bytes && small + bytes <= small_end_) {
            small_ = small + bytes;
            return begin_ + small;
        }
        used_ = align(used_, bytes < kLine_bytes ? alignment : kLine_bytes);
        assert(used_ + bytes <= bytes_);
        void* const out = begin_ + used_;
        used_ += bytes;
        return out;
    }
    /// A copy of `value` that lives as long as this, or `shared` itself where one is given, which outlives it.
    template <class T>
    const T* keep(const T& value, const T* shared) {
        static_assert(std::is_trivially_destructible_v<T>);
        return shared ? shared : new (take(sizeof(T), alignof(T))) T(value);
    }
    size_t used_bytes() const noexcept { return used_; }
    size_t cold_used_bytes() const noexcept { return cold_used_; }
    /// How much gather_small() should have been given.
    size_t small_bytes() const noexcept { return small_wanted_; }

private:
    static constexpr size_t align(size_t at, size_t alignment) noexcept { return (at + alignment - 1) & ~(alignment - 1); }

    std::byte* begin_ = nullptr;
    size_t bytes_ = 0, used_ = 0, small_ = 0, small_end_ = 0, small_wanted_ = 0;
    std::byte* cold_ = nullptr;
    size_t cold_bytes_ = 0, cold_used_ = 0;
    std::vector<void*> heap_;
};

/// `size` elements, value-initialised. Allocated at construction and never again; the arena owns the memory.
template <class T>
class Table {
public:
    Table(size_t size, Arena* arena) : data_(static_cast<T*>(arena->take(size * sizeof(T), alignof(T)))) {
        static_assert(std::is_trivially_destructible_v<T>);
        for (size_t i = 0; i < size; ++i) new (data_ + i) T();
    }
    Table(const Table&) = delete;
    Table& operator=(const Table&) = delete;

    T& operator[](size_t i) noexcept { return data_[i]; }
    const T& operator[](size_t i) const noexcept { return data_[i]; }
    T* get() noexcept { return data_; }
    const T* get() const noexcept { return data_; }

protected:
    explicit Table(T* data) noexcept : data_(data) {}

private:
    T* data_;
};

/// The same of elements that are zero in every byte at first, and that few connections ever touch.
template <class T>
class ColdTable : public Table<T> {
public:
    ColdTable(size_t size, Arena* arena) : Table<T>(static_cast<T*>(arena->take_zeroed(size * sizeof(T), alignof(T)))) {
        static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);
    }
};

}  // namespace farstep
