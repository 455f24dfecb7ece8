// Large arrays of simulated state: one address range each, backed by huge pages, resident only as far as it was used.
//
// The state of a simulation is walked at random; with small pages every step of it would miss the address translation
// before it misses the cache.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>

#include <sys/mman.h>

namespace farstep::sim {

/// Zeroed memory, reserved at construction and resident when first touched.
class Reservation {
public:
    static constexpr size_t kHugePage_bytes = size_t{2} << 20;

    explicit Reservation(size_t bytes, bool huge = true) : bytes_(bytes ? bytes : 1) {
        const bool align = huge && bytes_ >= kHugePage_bytes;
        mapped_ = bytes_ + (align ? kHugePage_bytes : 0);
        raw_ = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (raw_ == MAP_FAILED) throw std::bad_alloc();
        const auto address = reinterpret_cast<uintptr_t>(raw_);
        data_ = align ? reinterpret_cast<void*>((address + kHugePage_bytes - 1) & ~(kHugePage_bytes - 1)) : raw_;
#ifdef MADV_HUGEPAGE
        // Wishes: without them everything works, only slower, or resident where nobody looked.
        if (align) ::madvise(data_, bytes_, MADV_HUGEPAGE);
        if (!huge) ::madvise(raw_, mapped_, MADV_NOHUGEPAGE);
#endif
    }
    ~Reservation() {
        if (raw_ != MAP_FAILED) ::munmap(raw_, mapped_);
    }
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;

    void* data() const noexcept { return data_; }
    size_t bytes() const noexcept { return bytes_; }

private:
    size_t bytes_, mapped_ = 0;
    void* raw_ = MAP_FAILED;
    void* data_ = nullptr;
};

/// `size` zeroed elements.
template <class T>
class VirtualArray {
public:
    static_assert(std::is_trivially_destructible_v<T>);
    explicit VirtualArray(size_t size) : memory_(size * sizeof(T)), data_(static_cast<T*>(memory_.data())), size_(size) {}
    T& operator[](size_t i) noexcept { return data_[i]; }
    const T& operator[](size_t i) const noexcept { return data_[i]; }
    T* data() noexcept { return data_; }
    const T* data() const noexcept { return data_; }
    T* begin() noexcept { return data_; }
    T* end() noexcept { return data_ + size_; }
    size_t size() const noexcept { return size_; }
    void prefetch(size_t i) const noexcept { __builtin_prefetch(data_ + i, 1); }

private:
    Reservation memory_;
    T* data_;
    size_t size_;
};

/// Elements by number, the most recently freed taken first, so that the part in use stays small and warm.
template <class T>
class Pool {
public:
    explicit Pool(size_t capacity) : items_(capacity), free_(capacity) {}
    uint32_t take() {
        if (num_free_) return free_[--num_free_];
        if (used_ == items_.size()) throw std::bad_alloc();
        return static_cast<uint32_t>(used_++);
    }
    void give(uint32_t i) noexcept { free_[num_free_++] = i; }
    T& operator[](uint32_t i) noexcept { return items_[i]; }
    const T& operator[](uint32_t i) const noexcept { return items_[i]; }
    void prefetch(uint32_t i) const noexcept { items_.prefetch(i); }
    /// Calls f(i) for the element that is taken after `ahead` others, if that one was in use before.
    template <class F>
    void peek(size_t ahead, F&& f) const noexcept {
        if (num_free_ > ahead) f(free_[num_free_ - 1 - ahead]);
    }
    size_t live() const noexcept { return used_ - num_free_; }

private:
    VirtualArray<T> items_;
    VirtualArray<uint32_t> free_;
    size_t used_ = 0, num_free_ = 0;
};

}  // namespace farstep::sim
