// Tables whose size is settled when a connection is made, from the heap or from memory its owner laid out.
//
// An endpoint holds few connections and takes each table from the heap. A simulation holds a hundred thousand and lays
// the tables of one connection side by side, so that it neither scatters them nor pays for bookkeeping.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>

namespace farstep {

/// Memory handed out front to back. It does not own it and takes nothing back.
class Arena {
public:
    static constexpr size_t kLine_bytes = 64;  // of a cache: records of that size never straddle two

    Arena(void* memory, size_t bytes) noexcept : begin_(static_cast<std::byte*>(memory)), bytes_(bytes) {}
    void* take(size_t bytes, size_t alignment) noexcept {
        used_ = (used_ + alignment - 1) & ~(alignment - 1);
        assert(used_ + bytes <= bytes_);
        void* out = begin_ + used_;
        used_ += bytes;
        return out;
    }
    size_t used_bytes() const noexcept { return used_; }

private:
    std::byte* begin_;
    size_t bytes_, used_ = 0;
};

/// `size` elements, value-initialised. Allocated at construction and never again.
template <class T>
class Table {
public:
    Table(size_t size, Arena* arena) : owned_(arena == nullptr) {
        static_assert(std::is_trivially_destructible_v<T>);
        const size_t bytes = size * sizeof(T);
        const size_t alignment = bytes >= Arena::kLine_bytes ? Arena::kLine_bytes : alignof(T);
        void* memory = owned_ ? ::operator new(bytes ? bytes : 1, std::align_val_t{Arena::kLine_bytes})
                              : arena->take(bytes, alignment);
        data_ = static_cast<T*>(memory);
        for (size_t i = 0; i < size; ++i) new (data_ + i) T();
    }
    ~Table() {
        if (owned_) ::operator delete(data_, std::align_val_t{Arena::kLine_bytes});
    }
    Table(const Table&) = delete;
    Table& operator=(const Table&) = delete;

    T& operator[](size_t i) noexcept { return data_[i]; }
    const T& operator[](size_t i) const noexcept { return data_[i]; }
    T* get() noexcept { return data_; }
    const T* get() const noexcept { return data_; }

private:
    T* data_;
    bool owned_;
};

}  // namespace farstep
